//! Which keys are allowed.
//!
//! One rule for all stores, so that a store can be copied from one service to another, and so
//! that no key can leave the directory of a directory store. Segments never begin with a dot:
//! that rules out `.` and `..`, and leaves names such as `.firn-store` to the stores themselves.
//!
//! Uses nothing of the crate: the fuzz target compiles this file alone, without the clients of every store.

/// Longest key in bytes (the limit of S3).
const KEY_BYTES_MAX: usize = 1024;

/// Longest segment in bytes (the limit of Linux file systems).
const SEGMENT_BYTES_MAX: usize = 255;

/// Why a key is none: it is not a path of plain segments `[A-Za-z0-9_@=+-][A-Za-z0-9_@=+.-]*`.
pub(crate) fn find_fault(key: &str) -> Option<&'static str> {
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
