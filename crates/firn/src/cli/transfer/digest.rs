//! A digest of parts of a volume or an image that does not depend on the order in which they are moved: the sum of the
//! hashes of all parts, each with its place. It finds what went wrong, and proves nothing against somebody who means harm.

/// The digest of some parts; of none at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartsDigest([u64; 4]);

impl PartsDigest {
    pub(super) fn add(&mut self, offset: u64, data: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&offset.to_le_bytes()).update(data);
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(hasher.finalize().as_bytes().chunks(8)) {
            *word = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        self.merge(PartsDigest(words));
    }

    /// Adds the parts of another one.
    pub(super) fn merge(&mut self, other: PartsDigest) {
        for (sum, word) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(word);
        }
    }

    pub(super) fn to_text(self) -> String {
        self.0.map(|word| format!("{word:016x}")).concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_equal_for_equal_parts_in_any_order_and_for_no_others() {
        let of = |parts: &[(u64, u8)]| {
            let mut digest = PartsDigest::default();
            for (offset, byte) in parts {
                digest.add(*offset, &[*byte; 8]);
            }
            digest
        };
        assert_eq!(of(&[(0, 1), (512, 2)]), of(&[(512, 2), (0, 1)]));
        // The same bytes in each other's place, one less, one twice.
        for other in [
            &[(512, 1), (0, 2)][..],
            &[(0, 1)],
            &[(0, 1), (512, 2), (512, 2)],
        ] {
            assert_ne!(of(&[(0, 1), (512, 2)]), of(other));
        }
        let mut merged = of(&[(512, 2)]);
        merged.merge(of(&[(0, 1)]));
        assert_eq!(merged, of(&[(0, 1), (512, 2)]));
        assert_eq!(merged.to_text().len(), 64);
    }
}
