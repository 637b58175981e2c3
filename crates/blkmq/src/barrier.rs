//! The paired memory barriers of the fast path, in their symmetric and asymmetric form.
//!
//! Every pair in this crate has a *hot* side (admission, "must this queue run?") and a *rare* side
//! (quiesce, unquiesce, cancel, re-arm). Each side writes its own word, passes the barrier,
//! and reads the other's word; then at least one of the two sees the other's write. With fences
//! both sides run a full fence. With `membarrier(2)` the rare side makes every running thread of
//! this process pass a full barrier, so the hot side needs only to keep the compiler from moving
//! its read above its write. Same code path; the choice is made once, when a device is made.
//!
//! Why the asymmetric form is right. Let H be the hot side's (write h; read r) and R the rare
//! side's (write r; membarrier; read h). The kernel runs a full barrier on every processor that
//! runs a thread of this process at some moment between R's call and its return; a thread that is
//! not running passed one when it was switched out, and passes another before it runs again. So
//! H's thread has a full barrier at a point P during R's call, in its program order before, between
//! or after its two steps. If P comes after `write h`, that write is visible to R's read, which
//! follows the call. If P comes before `write h`, it comes before `read r` too, and `write r`,
//! which precedes the call, is visible to it. There is no third case. The model checkers cannot
//! express this; the test below stresses the pair alone, `tests/barriers.rs` the whole path.

use std::sync::OnceLock;
use std::sync::atomic::compiler_fence;

use crate::sync::{Ordering, fence};

/// Which form of the paired barriers a device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fences,
    Membarrier,
}

impl Barrier {
    /// A full fence on both sides. Works everywhere.
    pub fn fences() -> Barrier {
        Barrier(Kind::Fences)
    }

    /// No fence on the hot side, `membarrier(2)` on the rare side. `None` where the kernel, or a
    /// sandbox, refuses the call. Only this constructor makes one, so the process is registered.
    pub fn membarrier() -> Option<Barrier> {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        if cfg!(any(feature = "loom", feature = "shuttle")) {
            return None;
        }
        REGISTERED
            .get_or_init(|| {
                let offered = membarrier(libc::MEMBARRIER_CMD_QUERY);
                let wanted = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED
                    | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
                // One trial call: a seccomp filter may allow the query and refuse the command.
                offered >= 0
                    && offered & i64::from(wanted) == i64::from(wanted)
                    && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
                    && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0
            })
            .then_some(Barrier(Kind::Membarrier))
    }

    /// The asymmetric form where the kernel grants it, else fences.
    pub fn detect() -> Barrier {
        Barrier::membarrier().unwrap_or_else(Barrier::fences)
    }

    /// The hot side's half: orders this thread's earlier writes before its later reads.
    #[inline]
    pub(crate) fn light(self) {
        match self.0 {
            Kind::Fences => fence(Ordering::SeqCst),
            Kind::Membarrier => compiler_fence(Ordering::SeqCst),
        }
    }

    /// The rare side's half.
    pub(crate) fn heavy(self) {
        match self.0 {
            Kind::Fences => fence(Ordering::SeqCst),
            Kind::Membarrier => {
                let rc = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
                // Without the barrier, requests would be lost silently. The kernel refuses a
                // registered process only if a seccomp filter was installed since, which is a
                // mistake of the program that installed it.
                assert_eq!(
                    rc, 0,
                    "membarrier(2) was granted when the server started and is refused now: \
                     allow it in the seccomp filter"
                );
            }
        }
    }
}

impl Default for Barrier {
    fn default() -> Barrier {
        Barrier::detect()
    }
}

/// The bare system call; the result is negative on failure.
#[allow(unsafe_code)]
fn membarrier(command: libc::c_int) -> i64 {
    // SAFETY: membarrier takes three integers and no pointer; it touches no memory of the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0u32, 0i32) }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
#[allow(
    clippy::disallowed_methods,
    reason = "tests drive both sides with threads"
)]
mod tests {
    //! The pair by itself: both sides write, pass the barrier and read, at the same moment.
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
    use std::thread;

    use super::*;

    const ROUNDS: u32 = 3_000;

    #[repr(align(128))]
    #[derive(Default)]
    struct Word(AtomicU32);

    /// Both threads wait here until the other has arrived, too.
    fn rendezvous(arrived: &AtomicU32, round: u32) {
        arrived.fetch_add(1, SeqCst);
        let mut spins = 0;
        while arrived.load(Ordering::Acquire) < 2 * round {
            spins += 1;
            if spins % 4096 == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// The number of rounds in which neither side saw the other's write.
    fn count_lost_rounds(hot_barrier: impl Fn() + Sync, rare_barrier: impl Fn() + Sync) -> u32 {
        let (hot, rare) = (Word::default(), Word::default());
        let (arrived, seen) = (Word::default(), Word::default());
        let hot_side = || {
            for round in 1..=ROUNDS {
                rendezvous(&arrived.0, 2 * round - 1);
                hot.0.store(round, Relaxed);
                hot_barrier();
                seen.0.store(rare.0.load(Relaxed), Relaxed);
                rendezvous(&arrived.0, 2 * round);
            }
        };
        thread::scope(|scope| {
            scope.spawn(hot_side);
            let mut lost = 0;
            for round in 1..=ROUNDS {
                rendezvous(&arrived.0, 2 * round - 1);
                rare.0.store(round, Relaxed);
                rare_barrier();
                let saw = hot.0.load(Relaxed);
                rendezvous(&arrived.0, 2 * round);
                lost += u32::from(saw != round && seen.0.load(Relaxed) != round);
            }
            lost
        })
    }

    #[test]
    fn one_of_the_two_sides_always_sees_the_other() {
        let compiler = || compiler_fence(SeqCst);
        println!(
            "without a barrier: {} of {ROUNDS} rounds lost both",
            count_lost_rounds(compiler, compiler)
        );
        for barrier in [Some(Barrier::fences()), Barrier::membarrier()] {
            match barrier {
                Some(barrier) => {
                    assert_eq!(
                        count_lost_rounds(|| barrier.light(), || barrier.heavy()),
                        0,
                        "{barrier:?}"
                    );
                }
                None => println!("skipped: this kernel or sandbox refuses membarrier(2)"),
            }
        }
    }
}
