//! Reading and writing of the little-endian fields that frames are made of.
//!
//! Owns bounds checks: a [`Reader`] never panics and never allocates more than the bytes it was
//! given, whatever a peer sent. It must never know what a field means; that is `control` and
//! `message`.

use thiserror::Error;

/// A field that could not be read from what a peer sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the field does.
    #[error("{field} needs {need} bytes and {have} are left")]
    Short {
        /// The field that was read.
        field: &'static str,
        /// How many bytes the field takes.
        need: usize,
        /// How many bytes were left.
        have: usize,
    },
    /// A value that the protocol does not allow at this place.
    #[error("{field} has the value {value}, which the protocol does not allow here")]
    Value {
        /// The field that was read.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// A text field that is not UTF-8.
    #[error("{field} is not UTF-8 text")]
    Text {
        /// The field that was read.
        field: &'static str,
    },
}

/// A cursor over received bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `n` bytes, named `field` in errors.
    pub fn take(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(WireError::Short {
                field,
                need: n,
                have: self.rest.len(),
            }),
        }
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let head = self.take(N, field)?;
        let mut out = [0; N];
        out.copy_from_slice(head);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    /// Two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// Four bytes, signed.
    pub fn i32(&mut self, field: &'static str) -> Result<i32, WireError> {
        Ok(i32::from_le_bytes(self.array(field)?))
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, WireError> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    /// A count of elements of at least `each` bytes. A count that the rest cannot hold is an error
    /// here, so that no caller reserves memory for elements that were never sent.
    pub fn count(&mut self, each: usize, field: &'static str) -> Result<usize, WireError> {
        let n = self.u32(field)? as usize;
        let need = n.saturating_mul(each.max(1));
        if need > self.rest.len() {
            return Err(WireError::Short {
                field,
                need,
                have: self.rest.len(),
            });
        }
        Ok(n)
    }

    /// Bytes behind a four-byte length.
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        let n = self.count(1, field)?;
        self.take(n, field)
    }

    /// UTF-8 text behind a four-byte length.
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| WireError::Text { field })
    }

    /// Enters a versioned structure (version, oldest compatible version, length): the version and
    /// a cursor over the body alone. What a newer sender appended to the body is skipped.
    pub fn enter_versioned(
        &mut self,
        understood: u8,
        field: &'static str,
    ) -> Result<(u8, Reader<'a>), WireError> {
        let version = self.u8(field)?;
        let compat = self.u8(field)?;
        if compat > understood {
            return Err(WireError::Value {
                field,
                value: u64::from(compat),
            });
        }
        let body = self.bytes(field)?;
        Ok((version, Reader::new(body)))
    }
}

/// Appends little-endian fields to a byte vector.
pub trait Put {
    /// Appends raw bytes.
    fn put(&mut self, bytes: &[u8]);

    /// One byte.
    fn put_u8(&mut self, v: u8) {
        self.put(&[v]);
    }
    /// Two bytes.
    fn put_u16(&mut self, v: u16) {
        self.put(&v.to_le_bytes());
    }
    /// Four bytes.
    fn put_u32(&mut self, v: u32) {
        self.put(&v.to_le_bytes());
    }
    /// Four bytes, signed.
    fn put_i32(&mut self, v: i32) {
        self.put(&v.to_le_bytes());
    }
    /// Eight bytes.
    fn put_u64(&mut self, v: u64) {
        self.put(&v.to_le_bytes());
    }
    /// Eight bytes, signed.
    fn put_i64(&mut self, v: i64) {
        self.put(&v.to_le_bytes());
    }
    /// Bytes behind a four-byte length.
    fn put_bytes(&mut self, v: &[u8]) {
        let n = u32::try_from(v.len()).expect("no field of ours comes near four GiB");
        self.put_u32(n);
        self.put(v);
    }
    /// A versioned structure around `body`.
    fn put_versioned(&mut self, version: u8, compat: u8, body: &[u8]) {
        self.put_u8(version);
        self.put_u8(compat);
        self.put_bytes(body);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_the_rest_cannot_hold_is_refused_before_anything_is_reserved() {
        let mut bytes = Vec::new();
        bytes.put_u32(u32::MAX);
        bytes.put(&[0; 16]);
        let err = Reader::new(&bytes).count(8, "addresses").unwrap_err();
        assert!(matches!(
            err,
            WireError::Short {
                field: "addresses",
                have: 16,
                ..
            }
        ));
    }

    #[test]
    fn a_newer_structure_is_read_and_its_unknown_tail_is_skipped() {
        let mut bytes = Vec::new();
        bytes.put_versioned(9, 1, &[7, 0, 0, 0, 99, 99]);
        bytes.put_u8(42);
        let mut r = Reader::new(&bytes);
        let (version, mut body) = r.enter_versioned(1, "thing").unwrap();
        assert_eq!((version, body.u32("field").unwrap()), (9, 7));
        assert_eq!(r.u8("next").unwrap(), 42);
    }

    #[test]
    fn a_structure_that_declares_itself_incompatible_is_refused() {
        let mut bytes = Vec::new();
        bytes.put_versioned(9, 8, &[]);
        assert!(Reader::new(&bytes).enter_versioned(7, "thing").is_err());
    }
}
