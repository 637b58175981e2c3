//! Bytes of untrusted peers: arbitrary ones, and mutations of a correct conversation.

use proptest::prelude::*;

use crate::support::fuzz::{
    Host, accepting, bodies, connecting, frames, good_conversation, open_session,
};

/// Changes, removes and repeats bytes of a good conversation.
fn mutated_conversation() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0u8..5, any::<u8>());
    prop::collection::vec(edit, 0..6).prop_map(|edits| {
        let mut bytes = good_conversation();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len().max(1));
            match kind {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.truncate(at.max(1)),
                3 => bytes.insert(at, byte),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    })
}

#[test]
fn a_good_conversation_opens_a_session() {
    let mut host = Host::new("host", 1);
    let link = host.accept();
    host.feed(link, &good_conversation());
    assert_eq!(host.load(), (1, 0));
}

proptest! {
    #[test]
    fn no_bytes_harm_a_decoder(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        frames(&data);
        bodies(&data);
    }

    #[test]
    fn no_bytes_harm_a_host(data in prop::collection::vec(any::<u8>(), 0..800)) {
        accepting(&data);
        connecting(&data);
        open_session(&data);
    }

    #[test]
    fn no_mutation_of_a_good_conversation_harms_a_host(data in mutated_conversation()) {
        frames(&data);
        accepting(&data);
        connecting(&data);
    }
}
