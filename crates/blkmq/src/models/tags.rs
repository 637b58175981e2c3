//! The tag bitmap: one taker, many givers.

use std::sync::Arc;

use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use super::check;
use crate::tags::TagSet;

/// Depth 2: the taker empties the word and closes it while tags come back from two threads. What
/// came back can be taken again, and never twice.
#[test]
fn a_tag_that_comes_back_can_be_taken_once() {
    check(None, || {
        let tags = Arc::new(TagSet::new(2));
        let (a, b) = (tags.take().unwrap(), tags.take().unwrap());
        assert_ne!(a, b);
        let give = |tag| {
            let tags = Arc::clone(&tags);
            thread::spawn(move || tags.put(tag))
        };
        let (one, two) = (give(a), give(b));
        let early = tags.take();
        one.join().unwrap();
        two.join().unwrap();
        let mut all: Vec<_> = early.into_iter().collect();
        while let Some(tag) = tags.take() {
            all.push(tag);
        }
        all.sort();
        assert_eq!(all, [a, b], "a tag was lost or given twice");
    });
}

/// What the taker reads through a tag comes after what the giver did with it.
#[test]
fn a_tag_carries_its_last_users_memory() {
    check(None, || {
        let tags = Arc::new(TagSet::new(1));
        let slot = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let tag = tags.take().unwrap();
        let giver = {
            let (tags, slot) = (Arc::clone(&tags), Arc::clone(&slot));
            thread::spawn(move || {
                slot.store(1, Relaxed);
                tags.put(tag);
            })
        };
        if tags.take().is_some() {
            assert_eq!(slot.load(Relaxed), 1);
        }
        giver.join().unwrap();
    });
}
