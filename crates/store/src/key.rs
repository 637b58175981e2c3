//! Which keys are allowed.
//!
//! One rule for all stores, so that a store can be copied from one service to another, and so
//! that no key can leave the directory of a directory store. Segments never begin with a dot:
//! that rules out `.` and `..`, and leaves names such as `.firn-store` to the stores themselves.

use crate::{Error, Kind, Op, Result};

/// Longest key in bytes (the limit of S3).
const KEY_BYTES_MAX: usize = 1024;

/// Longest segment in bytes (the limit of Linux file systems).
const SEGMENT_BYTES_MAX: usize = 255;

/// Refuses a key that is not a path of plain segments `[A-Za-z0-9_@=+-][A-Za-z0-9_@=+.-]*`.
pub fn check_key(op: Op, key: &str) -> Result<()> {
    match find_fault(key) {
        None => Ok(()),
        Some(detail) => Err(Error::new(Kind::Invalid, op, format!("{key:?}"), detail)),
    }
}

/// Refuses a prefix that is neither empty nor a key followed by `/`.
pub(crate) fn check_prefix(op: Op, prefix: &str) -> Result<()> {
    if prefix.is_empty() {
        return Ok(());
    }
    match prefix.strip_suffix('/') {
        Some(key) => check_key(op, key),
        None => Err(Error::new(
            Kind::Invalid,
            op,
            format!("{prefix:?}"),
            "a prefix is empty or ends with a slash",
        )),
    }
}

fn find_fault(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("a key must not be empty");
    }
    if key.len() > KEY_BYTES_MAX {
        return Some("a key has at most 1024 bytes");
    }
    key.split('/').find_map(find_segment_fault)
}

fn find_segment_fault(segment: &str) -> Option<&'static str> {
    if segment.is_empty() {
        return Some("a key must not begin or end with a slash, nor have two in a row");
    }
    if segment.starts_with('.') {
        return Some("a segment of a key must not begin with a dot");
    }
    if segment.len() > SEGMENT_BYTES_MAX {
        return Some("a segment of a key has at most 255 bytes");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@=+.-".contains(c);
    if !segment.chars().all(plain) {
        return Some("a key is made of letters, digits and the characters _ @ = + . - only");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_are_keys() {
        for key in [
            "a",
            "volumes/demo/root",
            "packs/00ff-12@3=4+5_6.x",
            &"k".repeat(255),
        ] {
            check_key(Op::Get, key).unwrap();
        }
    }

    #[test]
    fn a_key_cannot_leave_the_store_or_reach_its_private_names() {
        let long = "a/".repeat(600);
        for key in [
            "",
            "/",
            "/etc/passwd",
            "a//b",
            "a/",
            "..",
            "../x",
            "a/../../b",
            "a/./b",
            ".firn-store",
            ".firn-store/tmp/x",
            "a\0b",
            "a\\b",
            "a\nb",
            "é",
            "a b",
            &"k".repeat(256),
            &long,
        ] {
            let error = check_key(Op::Put, key).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{key:?}");
        }
    }

    #[test]
    fn a_prefix_is_empty_or_ends_with_a_slash() {
        check_prefix(Op::List, "").unwrap();
        check_prefix(Op::List, "volumes/").unwrap();
        for prefix in ["volumes", "/", "../", "a//"] {
            assert!(check_prefix(Op::List, prefix).is_err(), "{prefix:?}");
        }
    }
}
