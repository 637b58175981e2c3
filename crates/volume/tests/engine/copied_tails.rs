//! The tail of a volume after its cache directory was copied: two histories are never mixed.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::hostlog::stop::Stop;
use volume::{OpenError, Volume};

use crate::support::hosts::{close, other_host};
use crate::support::{Environment, World, with_volume};

/// A host and a copy of its cache directory. After the copy was made, the host wrote ten blocks and
/// flushed them, and was killed; then the copy wrote five and brought them to the store.
fn host_and_copy() -> (Environment, World, Volume) {
    let (mut a, volume) = with_volume();
    a.write(&volume, 0, 1, 4096);
    a.sync(&volume);
    a.write(&volume, 8, 1, 4096);
    a.flush(&volume);
    let mut copy = a.env.copy();
    for block in 2..12 {
        a.write(&volume, block * 8, 10, 4096);
    }
    a.flush(&volume);
    let mut a = a.kill();
    copy.versions += 5000;
    copy.objects = std::mem::take(&mut a.objects);
    let mut b = World::start(copy);
    let theirs = b.open("demo");
    for block in 0..5 {
        b.write(&theirs, block * 8, 20, 4096);
    }
    b.sync(&theirs);
    (a, b, theirs)
}

/// The host of which there is a copy starts again.
fn restarted(mut a: Environment, b: &World) -> World {
    a.objects = b.env.objects.clone();
    a.versions = b.env.versions + 5000;
    World::start(a)
}

#[test]
fn a_copied_cache_directory_never_mixes_two_histories() {
    let (a, b, _) = host_and_copy();
    let mut a = restarted(a, &b);
    let refused = a.try_open("demo", false).expect_err("its copy holds it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    for _ in 0..2 {
        let refused = a.try_open("demo", true);
        let refused = refused.expect_err("its copy writes under its name");
        assert!(
            matches!(&refused, OpenError::HostStopped(Stop::Cloned(_))),
            "{refused}"
        );
        assert!(
            refused
                .to_string()
                .contains("a copy of this cache directory"),
            "{refused}"
        );
    }
    let kept = a.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].extents > 0, "{kept:?}");
    // A host of its own may take what the copy has stored, and nothing of the other.
    let mut other = other_host(&mut a);
    let volume = other.try_open("demo", true).expect("taken over");
    for block in 0..12 {
        let expected = if block < 5 { 20 } else { 0 };
        assert_eq!(
            other.read_fill(&volume, block * 8, 4096),
            expected,
            "{block}"
        );
    }
}

#[test]
fn a_tail_is_kept_though_the_copy_of_its_directory_closed_the_volume_and_is_ahead() {
    let (a, mut b, theirs) = host_and_copy();
    for round in 0..20 {
        b.write(&theirs, 4000, round, 4096);
    }
    close(&mut b, &theirs);
    let mut a = restarted(a, &b);
    let refused = a.try_open("demo", true).expect_err("a copy has its name");
    assert!(
        matches!(&refused, OpenError::HostStopped(Stop::Cloned(_))),
        "{refused}"
    );
    let kept = a.host.unserved_tails();
    assert!(kept.iter().any(|tail| tail.extents > 0), "{kept:?}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "copy_continues_the_tail",
            a_copied_cache_directory_never_mixes_two_histories,
        ),
        (
            "copy_is_not_looked_for",
            a_tail_is_kept_though_the_copy_of_its_directory_closed_the_volume_and_is_ahead,
        ),
    ]);
}
