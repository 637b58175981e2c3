//! The tag bitmap: one thread takes tags, many return them.

use std::sync::Arc;

use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use super::check_model;
use crate::tags::TagSet;

/// Depth 2: the owner empties the word and clears its top bit while two threads return tags. A
/// returned tag can be taken again, and never twice.
#[test]
fn a_tag_that_comes_back_can_be_taken_once() {
    check_model(None, || {
        let tags = Arc::new(TagSet::new(2));
        let (a, b) = (tags.take().unwrap(), tags.take().unwrap());
        assert_ne!(a, b);
        let put = |tag| {
            let tags = Arc::clone(&tags);
            thread::spawn(move || tags.put(tag))
        };
        let (one, two) = (put(a), put(b));
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

/// What the owner reads of a tag's slot happens after what the last user wrote there.
#[test]
fn a_tag_carries_its_last_users_memory() {
    check_model(None, || {
        let tags = Arc::new(TagSet::new(1));
        let slot = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let tag = tags.take().unwrap();
        let last_user = {
            let (tags, slot) = (Arc::clone(&tags), Arc::clone(&slot));
            thread::spawn(move || {
                slot.store(1, Relaxed);
                tags.put(tag);
            })
        };
        if tags.take().is_some() {
            assert_eq!(slot.load(Relaxed), 1);
        }
        last_user.join().unwrap();
    });
}
