//! How many bytes each holder has of those that are lent to be held.
//!
//! Holders are sources, whose numbers are a slot that is reused and a generation: an account is found
//! without a search, and a few words are kept for each slot that ever held something. The next user of
//! a slot begins with nothing, whatever its predecessor still holds.

/// The holder of buffers that are taken without naming one.
pub(super) const UNNAMED: u64 = u64::MAX;

/// Slots that have an account of their own; higher ones share the account of [`UNNAMED`].
const SLOTS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Default)]
struct Account {
    generation: u32,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Accounts {
    by_slot: Vec<Account>,
    unnamed: usize,
}

/// The slot and the generation in a holder's number; none where it has no account of its own.
fn split(holder: u64) -> Option<(usize, u32)> {
    let slot = holder as u32 as usize;
    (slot < SLOTS_MAX).then_some((slot, (holder >> 32) as u32))
}

impl Accounts {
    /// Bytes that a holder has.
    pub(super) fn of(&self, holder: u64) -> usize {
        let Some((slot, generation)) = split(holder) else {
            return self.unnamed;
        };
        match self.by_slot.get(slot) {
            Some(account) if account.generation == generation => account.bytes,
            _ => 0,
        }
    }

    /// Adds bytes that a holder got.
    pub(super) fn add(&mut self, holder: u64, bytes: usize) {
        let Some((slot, generation)) = split(holder) else {
            self.unnamed += bytes;
            return;
        };
        if slot >= self.by_slot.len() {
            self.by_slot.resize(slot + 1, Account::default());
        }
        let account = &mut self.by_slot[slot];
        if account.generation != generation {
            *account = Account {
                generation,
                bytes: 0,
            };
        }
        account.bytes += bytes;
    }

    /// Subtracts bytes that a holder gave back. A holder whose slot was taken by another has no account
    /// any more.
    pub(super) fn take(&mut self, holder: u64, bytes: usize) {
        let Some((slot, generation)) = split(holder) else {
            self.unnamed -= bytes;
            return;
        };
        if let Some(account) = self.by_slot.get_mut(slot)
            && account.generation == generation
        {
            // The account has less where another generation had the slot in between.
            account.bytes = account.bytes.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_a_place_begins_with_nothing_and_owes_nothing_of_who_had_it() {
        let mut accounts = Accounts::default();
        let (first, next) = (7, 1 << 32 | 7);
        accounts.add(first, 100);
        assert_eq!((accounts.of(first), accounts.of(next)), (100, 0));
        accounts.add(next, 10);
        assert_eq!((accounts.of(first), accounts.of(next)), (0, 10));
        accounts.take(first, 100);
        assert_eq!(accounts.of(next), 10);
        accounts.take(next, 10);
        assert_eq!(accounts.of(next), 0);
    }

    #[test]
    fn who_comes_back_to_a_place_owes_no_more_than_it_has() {
        let mut accounts = Accounts::default();
        let (first, next) = (7, 1 << 32 | 7);
        for (holder, bytes) in [(first, 100), (next, 10), (first, 1)] {
            accounts.add(holder, bytes);
        }
        accounts.take(first, 100);
        assert_eq!(accounts.of(first), 0);
    }

    #[test]
    fn whoever_does_not_say_who_it_is_has_one_account_together() {
        let mut accounts = Accounts::default();
        accounts.add(UNNAMED, 5);
        accounts.add(0, 7);
        assert_eq!((accounts.of(UNNAMED), accounts.of(0)), (5, 7));
        accounts.take(UNNAMED, 5);
        assert_eq!((accounts.of(UNNAMED), accounts.of(0)), (0, 7));
    }
}
