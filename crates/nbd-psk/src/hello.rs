//! Which names of keys a client's first message says.
//!
//! Reads it beside the library, which has no safe call for that. Never panics, and takes nothing for true: a name
//! only chooses the key that the client then has to prove.

/// TLS 1.3, as `supported_versions` says it.
const TLS13: [u8; 2] = [3, 4];

const SUPPORTED_VERSIONS: usize = 43;
const PRE_SHARED_KEY: usize = 41;

/// A name's characters in a log, at most.
const NAME_CHARS_MAX: usize = 64;

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    /// A number of so many bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.bytes(bytes)?;
        Some(
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    }

    /// What a length of so many bytes stands before.
    fn vector(&mut self, length_bytes: usize) -> Option<Reader<'a>> {
        let length = self.number(length_bytes)?;
        self.bytes(length).map(Reader)
    }
}

/// The names of the keys that a client offers, in its order; `None` if it does not offer TLS 1.3, or is not whole.
pub(super) fn offered_names(hello: &[u8]) -> Option<Vec<&[u8]>> {
    let mut hello = Reader(hello);
    // Its version and its random bytes, the session, the ciphers, and the compressions.
    hello.bytes(2 + 32)?;
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    let mut extensions = hello.vector(2)?;
    let (mut is_new, mut names) = (false, Vec::new());
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut body = extensions.vector(2)?;
        match kind {
            SUPPORTED_VERSIONS => {
                is_new |= body.vector(1)?.0.chunks_exact(2).any(|one| one == TLS13);
            }
            PRE_SHARED_KEY => {
                let mut identities = body.vector(2)?;
                while !identities.0.is_empty() {
                    names.push(identities.vector(2)?.0);
                    // The age of a ticket.
                    identities.bytes(4)?;
                }
            }
            _ => {}
        }
    }
    is_new.then_some(names)
}

/// A stranger's name as a log takes it.
pub(super) fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let front: String = text.chars().take(NAME_CHARS_MAX).collect();
    format!("{front:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(length_bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        [&length[length.len() - length_bytes..], content].concat()
    }

    fn hello(extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let extensions: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, body)| [vec![0, *kind], vector(2, body)].concat())
            .collect();
        [
            vec![3; 34],
            vector(1, &[7; 32]),
            vector(2, &[0x13, 1]),
            vector(1, &[0]),
            vector(2, &extensions),
        ]
        .concat()
    }

    fn psk(names: &[&[u8]]) -> (u8, Vec<u8>) {
        let identity = |name: &&[u8]| [vector(2, name), vec![0; 4]].concat();
        let identities: Vec<u8> = names.iter().flat_map(identity).collect();
        let binders = vector(2, &vector(1, &[9; 32]));
        (41, [vector(2, &identities), binders].concat())
    }

    fn versions() -> (u8, Vec<u8>) {
        (43, vector(1, &[3, 4, 3, 3]))
    }

    #[test]
    fn the_names_are_those_of_the_message_in_its_order() {
        let both = hello(&[versions(), psk(&[b"alice", b"bob"])]);
        assert_eq!(offered_names(&both).unwrap(), [&b"alice"[..], &b"bob"[..]]);
        assert!(offered_names(&hello(&[versions()])).unwrap().is_empty());
        assert_eq!(offered_names(&hello(&[psk(&[b"alice"])])), None);
    }

    #[test]
    fn a_message_that_is_cut_or_bent_anywhere_says_nothing_and_is_no_panic() {
        let whole = hello(&[versions(), psk(&[b"alice"])]);
        for cut in 0..whole.len() {
            assert_eq!(offered_names(&whole[..cut]), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 127, 255] {
                let mut bent = whole.clone();
                bent[at] = value;
                let _ = offered_names(&bent);
            }
        }
    }

    #[test]
    fn a_strangers_name_is_short_and_harmless_in_a_log() {
        assert_eq!(printable(b"a\n\x1b\xff"), "\"a\\n\\u{1b}\u{fffd}\"");
        assert_eq!(printable(&[b'a'; 1000]).len(), NAME_CHARS_MAX + 2);
    }
}
