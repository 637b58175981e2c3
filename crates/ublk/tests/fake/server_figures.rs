//! The check_mode of the guest tests is able to fail: what it says of figures that are right and wrong.

use crate::figures::Figures;

/// A line of a server's, with these counters.
fn line(device: u32, share: u16, [uncopied, copied, fallbacks]: [u64; 3]) -> String {
    format!(
        "device {device} queue 0 share {share}: QueueStats {{ requests: 9, commits: 9, \
         fallbacks: {fallbacks}, uncopied: {uncopied}, copied: {copied} }}\n"
    )
}

fn is_right(mode: &str, counts: [u64; 3], moves: bool, shared: bool) -> bool {
    let said = line(3, 0, counts);
    Figures::read(&said)
        .check_mode(3, mode, (moves, shared))
        .is_ok()
}

#[test]
fn zero_copy_is_served_without_a_copy_and_nothing_else_is() {
    assert!(is_right("zero-copy", [9, 0, 0], true, false));
    for wrong in [[0, 9, 0], [0, 0, 0], [8, 1, 0], [9, 0, 1]] {
        assert!(!is_right("zero-copy", wrong, true, false), "{wrong:?}");
    }
    for mode in ["user-copy", "get-data", "copy"] {
        assert!(is_right(mode, [0, 9, 0], true, false), "{mode}");
        for wrong in [[9, 0, 0], [1, 8, 0], [0, 0, 0], [0, 9, 1]] {
            assert!(!is_right(mode, wrong, true, false), "{mode} {wrong:?}");
        }
    }
}

#[test]
fn where_slots_are_shared_some_bytes_are_copied_and_not_all() {
    assert!(is_right("zero-copy", [1, 8, 8], true, true));
    assert!(!is_right("zero-copy", [0, 9, 9], true, true));
}

#[test]
fn a_server_that_moves_no_bytes_is_judged_by_its_slots_alone() {
    assert!(is_right("zero-copy", [0, 0, 0], false, false));
    assert!(!is_right("zero-copy", [0, 0, 5], false, false));
}

#[test]
fn every_device_is_judged_alone_and_by_what_was_said_last() {
    let early = line(0, 0, [0, 0, 0]) + "figures said 1\n";
    let good = early + &line(0, 0, [3, 0, 0]) + &line(0, 1, [4, 0, 0]);
    let said = good + &line(1, 0, [0, 7, 7]);
    let figures = Figures::read(&said);
    assert_eq!(figures.by_share("uncopied"), [(0, 3), (1, 4), (0, 0)]);
    assert_eq!(figures.sum("copied"), 7);
    assert!(figures.check_mode(0, "zero-copy", (true, false)).is_ok());
    assert!(figures.check_mode(1, "zero-copy", (true, false)).is_err());
    assert!(figures.check_mode(2, "zero-copy", (true, false)).is_err());
}
