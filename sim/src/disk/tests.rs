//! The simulated disk keeps what it says: pending, durable, torn, lost.

use super::*;

fn disk() -> SimDisk {
    SimDisk::new(
        Rng::stream(1, "disk"),
        DiskFaults::default(),
        Corruptible::default(),
    )
}

fn write(disk: &mut SimDisk, sector: u64, bytes: &[u8]) -> IoResult {
    let data: Rc<[u8]> = bytes.into();
    let io = Io::Write {
        file: 0,
        offset: sector * SECTOR as u64,
        data,
    };
    let id = disk.submit(Origin::Engine, io);
    disk.finish(id).expect("under way")
}

fn read(disk: &mut SimDisk, sector: u64, sectors: u64) -> Vec<u8> {
    let unit = SECTOR as u64;
    let io = Io::Read {
        file: 0,
        offset: sector * unit,
        len: sectors * unit,
    };
    let id = disk.submit(Origin::Engine, io);
    disk.finish(id).expect("under way").expect("no faults")
}

fn sync(disk: &mut SimDisk) -> IoResult {
    let id = disk.submit(Origin::Engine, Io::Sync { file: 0 });
    disk.finish(id).expect("under way")
}

#[test]
fn what_was_never_written_reads_as_poison() {
    assert_eq!(read(&mut disk(), 3, 1), vec![POISON; SECTOR]);
}

#[test]
fn a_sync_covers_only_writes_that_completed_before_it_was_issued() {
    let mut disk = disk();
    write(&mut disk, 0, &[1; SECTOR]).expect("no faults");
    let id = disk.submit(Origin::Engine, Io::Sync { file: 0 });
    write(&mut disk, 1, &[2; SECTOR]).expect("no faults");
    disk.finish(id).expect("under way").expect("no faults");
    disk.host_crash(PowerCut::LoseAll);
    assert_eq!(read(&mut disk, 0, 1), vec![1; SECTOR]);
    assert_eq!(read(&mut disk, 1, 1), vec![POISON; SECTOR]);
}

#[test]
fn a_process_crash_keeps_everything_that_completed() {
    let mut disk = disk();
    write(&mut disk, 0, &[1; SECTOR]).expect("no faults");
    disk.process_crash();
    assert_eq!(read(&mut disk, 0, 1), vec![1; SECTOR]);
}

#[test]
fn a_dead_process_never_writes_after_its_successor_has_the_log() {
    let mut disk = disk();
    let io = Io::Write {
        file: 0,
        offset: 0,
        data: vec![9; SECTOR].into(),
    };
    let id = disk.submit(Origin::Client, io);
    disk.process_crash();
    assert_eq!(disk.finish(id), None);
    let landed = disk.counts.of(Fault::OrphanLanded) + disk.counts.of(Fault::OrphanDropped);
    assert_eq!(landed, 1);
}

#[test]
fn a_power_cut_tears_a_write_between_sectors_but_never_within_one() {
    let mut torn = false;
    for seed in 0..64 {
        let mut disk = disk();
        disk.rng = Rng::stream(seed, "cut");
        write(&mut disk, 0, &[7; SECTOR * 4]).expect("no faults");
        disk.host_crash(PowerCut::Each(5000));
        let kinds: Vec<u8> = read(&mut disk, 0, 4)
            .chunks(SECTOR)
            .map(|s| {
                assert!(s.iter().all(|b| *b == s[0]));
                s[0]
            })
            .collect();
        torn |= kinds.contains(&7) && kinds.contains(&POISON);
    }
    assert!(torn);
}

#[test]
fn a_failed_sync_marks_pages_clean_so_that_the_next_sync_does_not_save_them() {
    let mut lost = false;
    for seed in 0..32 {
        let mut disk = disk();
        disk.rng = Rng::stream(seed, "sync");
        write(&mut disk, 0, &[5; SECTOR]).expect("no faults");
        disk.faults.sync_fail = 10_000;
        if sync(&mut disk).is_ok() {
            continue;
        }
        disk.faults.sync_fail = 0;
        sync(&mut disk).expect("no faults");
        assert_eq!(
            read(&mut disk, 0, 1),
            vec![5; SECTOR],
            "the page cache still shows it"
        );
        disk.host_crash(PowerCut::KeepAll);
        lost |= read(&mut disk, 0, 1) == vec![POISON; SECTOR];
    }
    assert!(lost);
}

#[test]
fn a_short_write_says_how_much_is_in_place() {
    let mut disk = disk();
    disk.faults.write_short = 10_000;
    let Err(IoError::Short(done)) = write(&mut disk, 0, &[3; SECTOR * 8]) else {
        panic!("not short");
    };
    let bytes = read(&mut disk, 0, 8);
    let done = done as usize;
    assert!(bytes[..done].iter().all(|b| *b == 3));
    assert!(bytes[done..].iter().all(|b| *b == POISON));
}

#[test]
fn silent_faults_touch_only_what_the_engine_wrote_in_listed_files() {
    let mut disk = disk();
    disk.corruptible = Corruptible {
        file: 0,
        below: u64::MAX,
    };
    let io = Io::Write {
        file: 0,
        offset: 0,
        data: vec![1; SECTOR].into(),
    };
    let id = disk.submit(Origin::Client, io);
    disk.finish(id).expect("under way").expect("no faults");
    write(&mut disk, 1, &[2; SECTOR]).expect("no faults");
    disk.faults.rot = 10_000;
    for _ in 0..50 {
        assert_eq!(read(&mut disk, 0, 1), vec![1; SECTOR]);
    }
    read(&mut disk, 1, 1);
    assert!(disk.counts.of(Fault::BitRot) > 0);
}

#[test]
fn an_enumerated_power_cut_does_what_the_mask_says() {
    for mask in 0..8 {
        let mut disk = disk();
        write(&mut disk, 0, &[1; SECTOR * 3]).expect("no faults");
        assert_eq!(disk.undecided_sectors(), 3);
        disk.host_crash(PowerCut::Mask(mask));
        for sector in 0..3 {
            let want = if mask >> sector & 1 == 1 { 1 } else { POISON };
            assert_eq!(read(&mut disk, sector, 1), vec![want; SECTOR]);
        }
    }
}
