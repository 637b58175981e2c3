//! The oracle of histories accepts what may happen and names what may not.

use super::*;

const VOLUME: u64 = 7;

struct Bench {
    history: History,
    image: Vec<Value>,
    next: u64,
}

impl Bench {
    fn new(sectors: u64) -> Bench {
        let history = History::new(VOLUME, sectors);
        Bench {
            history,
            image: vec![Value::Zero; sectors as usize],
            next: 1,
        }
    }

    /// Issues, commits and completes a write; the image has it too.
    fn write(&mut self, range: Range<u64>) -> u64 {
        let write = self.next;
        self.next += 1;
        self.history.issue(write, range.clone());
        let k = self.history.commit(range.clone(), Value::Write(write));
        self.history.complete(k);
        for sector in range {
            self.image[sector as usize] = Value::Write(write);
        }
        k
    }
}

fn bytes(from: u64, values: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, value) in values.iter().enumerate() {
        match value {
            Value::Zero | Value::Unknown => out.extend_from_slice(&[0; SECTOR]),
            Value::Write(write) => Stamp {
                volume: VOLUME,
                sector: from + index as u64,
                client: 0,
                write: *write,
                generation: 0,
            }
            .write_to(&mut out),
        }
    }
    out
}

fn promise<T: std::fmt::Debug>(result: Result<T, Violation>) -> &'static str {
    result.expect_err("a violation").promise
}

#[test]
fn an_acknowledged_write_lost_by_a_process_crash_is_reported() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    let kept = bench.image.clone();
    bench.write(8..16);
    bench.history.record_loss(Loss::Process);
    assert_eq!(
        promise(
            bench
                .history
                .clone()
                .judge_recovery(&bytes(0, &kept), &BTreeSet::new())
        ),
        "S1 process crash"
    );
    assert_eq!(
        bench
            .history
            .judge_recovery(&bytes(0, &bench.image), &BTreeSet::new())
            .expect("all there"),
        2
    );
}

#[test]
fn an_unflushed_write_may_be_lost_by_a_host_crash_and_a_flushed_one_not() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    let covers = bench.history.acked();
    bench.history.on_flushed(covers);
    let flushed = bench.image.clone();
    bench.write(8..16);
    bench.history.record_loss(Loss::Host);
    assert_eq!(
        bench
            .history
            .clone()
            .judge_recovery(&bytes(0, &flushed), &BTreeSet::new())
            .expect("prefix"),
        1
    );
    let nothing = vec![Value::Zero; 16];
    assert_eq!(
        promise(
            bench
                .history
                .judge_recovery(&bytes(0, &nothing), &BTreeSet::new())
        ),
        "S2 host crash"
    );
}

#[test]
fn a_later_write_without_an_earlier_one_is_no_prefix() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    bench.write(8..16);
    let mut image = bench.image.clone();
    image[..8].fill(Value::Zero);
    bench.history.record_loss(Loss::Cache);
    assert_eq!(
        promise(
            bench
                .history
                .judge_recovery(&bytes(0, &image), &BTreeSet::new())
        ),
        "S4 prefix"
    );
}

#[test]
fn a_write_that_never_committed_must_not_appear() {
    let mut bench = Bench::new(8);
    bench.history.issue(99, 0..8);
    let image = vec![Value::Write(99); 8];
    bench.history.record_loss(Loss::Process);
    assert_eq!(
        promise(
            bench
                .history
                .judge_recovery(&bytes(0, &image), &BTreeSet::new())
        ),
        "S4 prefix"
    );
}

#[test]
fn foreign_bytes_are_reported_wherever_they_come_from() {
    let mut bench = Bench::new(8);
    bench.write(0..8);
    let mut shifted = bytes(1, &bench.image);
    shifted.truncate(8 * SECTOR);
    let window = ReadWindow { from: 1, to: 1 };
    assert_eq!(
        promise(bench.history.check_read(0, &shifted, window)),
        "S8 foreign bytes"
    );
    let poison = vec![crate::disk::POISON; SECTOR];
    assert_eq!(
        promise(bench.history.check_read(0, &poison, window)),
        "S8 foreign bytes"
    );
}

#[test]
fn a_read_may_see_any_state_of_its_window_and_no_other() {
    let mut bench = Bench::new(8);
    bench.write(0..8);
    let old = bytes(0, &bench.image);
    bench.write(0..8);
    let new = bytes(0, &bench.image);
    let at = |from, to| ReadWindow { from, to };
    bench
        .history
        .check_read(0, &old, at(1, 2))
        .expect("concurrent");
    bench
        .history
        .check_read(0, &new, at(1, 2))
        .expect("concurrent");
    assert_eq!(
        promise(bench.history.check_read(0, &old, at(2, 2))),
        "S5 linearizability"
    );
    assert_eq!(
        promise(bench.history.check_read(0, &new, at(1, 1))),
        "S5 linearizability"
    );
}

#[test]
fn a_block_of_two_moments_is_torn_but_two_blocks_may_differ() {
    let mut bench = Bench::new(16);
    bench.write(0..16);
    let old = bench.image.clone();
    bench.write(0..16);
    let window = ReadWindow { from: 1, to: 2 };
    let mut torn = bench.image.clone();
    torn[3] = old[3];
    let verdict = bench.history.check_read(0, &bytes(0, &torn), window);
    assert_eq!(promise(verdict), "S4 atomic block");
    let mut halves = bench.image.clone();
    halves[8..].copy_from_slice(&old[8..]);
    bench
        .history
        .check_read(0, &bytes(0, &halves), window)
        .expect("blocks are separate");
}

#[test]
fn zeroes_written_twice_are_told_from_the_first_state_by_the_other_sectors() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    bench.history.commit(0..8, Value::Zero);
    bench.write(8..16);
    // Zeroes in 0..8 fit positions 0, 2 and 3; the write in 8..16 leaves 3 alone.
    let mut image = bench.image.clone();
    image[..8].fill(Value::Zero);
    bench.history.record_loss(Loss::Cache);
    assert_eq!(
        bench
            .history
            .judge_recovery(&bytes(0, &image), &BTreeSet::new())
            .expect("prefix"),
        3
    );
}

#[test]
fn what_a_crash_took_away_does_not_come_back() {
    let mut bench = Bench::new(8);
    bench.write(0..8);
    let first = bench.image.clone();
    bench.write(0..8);
    let second = bench.image.clone();
    bench.history.record_loss(Loss::Host);
    assert_eq!(
        bench
            .history
            .judge_recovery(&bytes(0, &first), &BTreeSet::new())
            .expect("prefix"),
        1
    );
    bench.history.record_loss(Loss::Host);
    assert_eq!(
        promise(
            bench
                .history
                .judge_recovery(&bytes(0, &second), &BTreeSet::new())
        ),
        "S4 prefix"
    );
}

#[test]
fn pruning_changes_no_verdict_that_can_still_be_asked() {
    let mut bench = Bench::new(8);
    for _ in 0..10 {
        bench.write(0..8);
    }
    bench.history.on_flushed(10);
    bench.history.on_stored(10).expect("nobody else has it");
    let image = bytes(0, &bench.image);
    bench.history.prune();
    bench.history.record_loss(Loss::Cache);
    assert_eq!(
        bench
            .history
            .judge_recovery(&image, &BTreeSet::new())
            .expect("prefix"),
        10
    );
}

#[test]
fn who_was_overtaken_before_it_was_looked_at_stores_nothing_beyond_that() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    bench.write(8..16);
    bench.write(8..16);
    bench.history.note_overtaken(2);
    assert_eq!(promise(bench.history.on_stored(3)), "S7 one writer");
}

#[test]
fn what_could_not_be_read_does_not_turn_an_equal_prefix_into_a_second_writer() {
    let mut bench = Bench::new(16);
    bench.write(0..8);
    bench.write(8..16);
    let image = bytes(0, &bench.image);
    bench.write(8..16);
    // The holder before could not read a block, so what was committed there fits everything.
    bench.history.record_loss(Loss::Cache);
    let found = bench.history.judge_recovery(&image, &(8..16).collect());
    assert_eq!(found.expect("prefix"), 3);
    // Another host went on from position 2, which it could read. This one opened before that, was looked at
    // later, and has the same bytes.
    bench.history.record_loss(Loss::Cache);
    let found = bench.history.judge_recovery(&image, &BTreeSet::new());
    let found = found.expect("prefix");
    bench.history.note_overtaken(2);
    bench.history.on_stored(found).expect("nothing of its own");
}
