//! What becomes of procedures whose computing ends without a result.

use blkmq::error::ErrorKind;
use blkmq::io::Op;

use crate::support::World;

#[test]
fn a_bug_in_a_checkpoint_ends_writes_and_nothing_that_was_acknowledged_is_lost() {
    let mut world = World::new();
    world.create("disk", 1 << 20);
    let volume = world.open("disk");
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.env.broken_checkpoints = true;
    // Until the journal's half is full, and a checkpoint is due.
    let mut flushed = 1;
    let refused = loop {
        assert!(flushed < 200, "no checkpoint was due");
        let fill = flushed + 1;
        world.write(&volume, 8 * u64::from(fill % 16), fill, 4096);
        match world.request(&volume, Op::Flush, &mut []) {
            Ok(()) => flushed = fill,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, ErrorKind::Io);
    assert_eq!(
        world.read_fill(&volume, 8 * u64::from(flushed % 16), 4096),
        flushed
    );
    drop(volume);
    let mut left = world.kill();
    left.broken_checkpoints = false;
    let mut world = World::start(left);
    assert!(!world.report.poisoned, "the disk is good");
    let volume = world.open("disk");
    for fill in flushed - 14..=flushed {
        assert_eq!(
            world.read_fill(&volume, 8 * u64::from(fill % 16), 4096),
            fill
        );
    }
}
