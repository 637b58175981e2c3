//! What many volumes that write little ask of the store (P21): requests follow the host and its bytes, not
//! the number of its volumes.

use std::collections::BTreeMap;

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::hostlog::record::{Content, Record, RecordPack};
use volume::{Options, Volume};

use crate::support::{Environment, World, options};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn name(number: usize) -> String {
    format!("volume-{number:04}")
}

fn world_options(volumes: usize) -> Options {
    Options {
        log_bytes: (volumes as u64 * MIB).max(64 * MIB),
        segment_bytes: 256 * KIB,
        pack_bytes: 32 * MIB,
        deltas_max: 256,
        rpo_ns: 30_000_000_000,
        ..options()
    }
}

/// A host with so many volumes and a recovery point of 30 s, on a store that takes 30 ms for each request.
fn host_with(volumes: usize) -> (World, Vec<Volume>) {
    let mut world = World::try_start(Environment::default(), world_options(volumes))
        .unwrap_or_else(|failed| panic!("{}", failed.0));
    let volumes = (0..volumes).map(|number| {
        world.create(&name(number), 8 * MIB);
        world.open(&name(number))
    });
    let volumes: Vec<_> = volumes.collect();
    world.env.store_ms = 30;
    (world, volumes)
}

/// Each volume writes 64 KiB a minute, for so many seconds.
fn write_for(world: &mut World, volumes: &[Volume], seconds: usize) {
    for second in 0..seconds {
        let turn = |number: &usize| number * 7919 % 60 == second % 60;
        for number in (0..volumes.len()).filter(turn) {
            let fill = (second / 60 + number) as u8;
            world.write(&volumes[number], 0, fill, 64 * KIB as usize);
        }
        world.pass(1000);
    }
}

/// PUTs and GETs.
fn requests(world: &mut World) -> (usize, usize) {
    let by_kind: BTreeMap<&str, usize> = std::mem::take(&mut world.env.store_requests);
    let count = |kinds: &[&str]| kinds.iter().filter_map(|kind| by_kind.get(kind)).sum();
    (
        count(&["put", "create", "update"]),
        count(&["get", "look", "range", "list"]),
    )
}

#[test]
fn volumes_that_write_little_share_records_and_packs() {
    let (mut world, volumes) = host_with(120);
    // The first record of each volume looks at its root.
    write_for(&mut world, &volumes, 120);
    requests(&mut world);
    let seconds = 120;
    write_for(&mut world, &volumes, seconds);
    let (puts, gets) = requests(&mut world);
    println!("{puts} PUTs and {gets} GETs in {seconds} s");
    // A pack and a record, and three looks, at most every 20 s.
    assert!(puts <= 2 * (seconds / 20 + 1), "{puts} PUTs");
    assert!(gets <= 3 * (seconds / 20 + 1), "{gets} GETs");
    for volume in &volumes {
        assert_eq!(volume.watermarks().overdue_ms, 0, "{volume:?}");
    }
    // Whoever opens one of them finds its own in the packs that all share.
    let options = world_options(volumes.len());
    drop(volumes);
    world.env.store_ms = 0;
    let mut world =
        World::try_start(world.kill(), options).unwrap_or_else(|failed| panic!("{}", failed.0));
    for number in [0, 7, 64] {
        let volume = world.open(&name(number));
        let fill = (1 + number) as u8;
        assert_eq!(world.read_fill(&volume, 0, 64 * KIB as usize), fill);
    }
}

#[test]
fn a_sync_waits_for_no_slice_of_another_volume() {
    let (mut world, volumes) = host_with(2);
    world.write(&volumes[0], 0, 1, 5 * MIB as usize);
    world.write(&volumes[1], 0, 1, 4096);
    // The other's pack is not answered.
    world.env.hanging_puts = 1;
    let other = world.host.sync(&volumes[0]);
    world.pass(100);
    let begun_ns = world.now_ns;
    world.sync(&volumes[1]);
    assert!(world.now_ns - begun_ns < 1_000_000_000);
    assert!(other.try_take().is_none());
    world.answer_hanging_puts();
    world.wait(|_| other.try_take()).expect("stored");
}

#[test]
fn a_record_waits_for_what_is_on_its_way_of_other_volumes() {
    let (mut world, volumes) = host_with(2);
    // What has a pack of its own is longer on its way than what is small, by far less than the recovery point has left.
    world.env.store_bytes_per_s = 4 * MIB;
    world.write_noise(&volumes[0], 0, 1, 5 * MIB);
    world.write(&volumes[1], 0, 1, 4096);
    let records = |world: &World| {
        let keys = world.env.objects.keys();
        keys.filter(|key| key.contains("/log/")).count()
    };
    let before = records(&world);
    world.pass(30_000);
    assert_eq!(records(&world) - before, 1, "one for both");
    for volume in &volumes {
        assert_eq!(volume.watermarks().stored.lsn, volume.newest());
    }
}

#[test]
fn a_volume_whose_slices_are_stuck_makes_others_no_more_often_due() {
    let (mut world, volumes) = host_with(2);
    world.write(&volumes[0], 0, 1, 5 * MIB as usize);
    // The pack is not answered, and what is written now cannot be cut until it is.
    world.env.hanging_puts = 1;
    let stuck = world.host.sync(&volumes[0]);
    world.pass(100);
    world.write(&volumes[0], 0, 2, 4096);
    world.pass(30_000);
    requests(&mut world);
    let seconds = 60;
    for fill in 0..seconds {
        world.write(&volumes[1], 0, fill as u8, 4096);
        world.pass(1000);
    }
    let (puts, _) = requests(&mut world);
    assert!(puts <= 2 * (seconds / 10 + 1), "{puts} PUTs");
    assert_eq!(volumes[1].watermarks().overdue_ms, 0);
    world.answer_hanging_puts();
    world.wait(|_| stuck.try_take()).expect("stored");
    assert_eq!(world.read_fill(&volumes[0], 0, 4096), 2);
}

/// The packs of the newest record.
fn newest_packs(world: &World) -> Vec<RecordPack> {
    let mut objects = world.env.objects.iter().rev();
    let (_, (record, _)) = objects
        .find(|(key, _)| key.contains("/log/"))
        .expect("a record");
    match Record::decode(record).expect("whole").content {
        Content::Slices(slices) => slices.packs,
        Content::Fence(_) => panic!("nobody fenced"),
    }
}

/// What each volume has at its beginning and at 4 MiB, once it is opened from the store alone.
fn read_on_other_host(
    objects: &BTreeMap<String, (Vec<u8>, u64)>,
    volumes: usize,
) -> Vec<[Result<u8, ErrorKind>; 2]> {
    let env = Environment {
        objects: objects.clone(),
        versions: 5000,
        ..Environment::default()
    };
    let mut world = World::try_start(env, world_options(volumes))
        .unwrap_or_else(|failed| panic!("{}", failed.0));
    let read = |number| {
        let volume = world.try_open(&name(number), true).expect("it opens");
        [0, 4 * MIB / 512].map(|sector| {
            let mut data = [0; 4096];
            let op = Op::Read { sector, sectors: 8 };
            world.request(&volume, op, &mut data).map(|_| data[0])
        })
    };
    (0..volumes).map(read).collect()
}

#[test]
fn a_shared_pack_that_is_gone_or_damaged_costs_what_it_holds_and_nothing_else() {
    let (mut world, volumes) = host_with(3);
    let keys = |world: &World| -> Vec<String> {
        let all = world.env.objects.keys();
        all.filter(|key| key.starts_with("packs/"))
            .cloned()
            .collect()
    };
    let sync_all = |world: &mut World, fill, sector, of: &[Volume]| {
        for volume in of {
            world.write(volume, sector, fill, 4096);
        }
        let answers: Vec<_> = of.iter().map(|volume| world.host.sync(volume)).collect();
        for answer in answers {
            world.wait(|_| answer.try_take()).expect("stored");
        }
    };
    sync_all(&mut world, 1, 4 * MIB / 512, &volumes);
    let before = keys(&world);
    sync_all(&mut world, 2, 0, &volumes[..2]);
    let new: Vec<_> = keys(&world)
        .into_iter()
        .filter(|key| !before.contains(key))
        .collect();
    let [shared] = &new[..] else {
        panic!("they share a pack: {new:?}")
    };
    let parts = newest_packs(&world);
    assert_eq!(parts.len(), 2, "a part for each");
    let whole = world.env.objects;
    let lost = Err(ErrorKind::Io);
    // One footer.
    let mut objects = whole.clone();
    let (pack, _) = objects.get_mut(shared).expect("it is there");
    pack[parts[0].footer_offset as usize + 60] ^= 1;
    let mut reads = read_on_other_host(&objects, 3);
    assert_eq!(reads.pop(), Some([Ok(0), Ok(1)]));
    reads.sort_by_key(|read| read[0].is_err());
    assert_eq!(reads, [[Ok(2), Ok(1)], [lost, Ok(1)]]);
    // All of it.
    let mut objects = whole;
    objects.remove(shared);
    assert_eq!(
        read_on_other_host(&objects, 3),
        [[lost, Ok(1)], [lost, Ok(1)], [Ok(0), Ok(1)]]
    );
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "volumes_are_due_one_by_one",
            volumes_that_write_little_share_records_and_packs,
        ),
        (
            "each_slice_has_a_pack_of_its_own",
            volumes_that_write_little_share_records_and_packs,
        ),
        (
            "records_wait_for_no_slice",
            a_record_waits_for_what_is_on_its_way_of_other_volumes,
        ),
        (
            "stuck_volumes_make_others_due",
            a_volume_whose_slices_are_stuck_makes_others_no_more_often_due,
        ),
        (
            "who_waits_waits_for_other_volumes",
            a_sync_waits_for_no_slice_of_another_volume,
        ),
    ]);
}
