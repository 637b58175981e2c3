//! Refuses keys and prefixes that are not allowed, as errors of the operation that was asked for one.

use crate::key_rule::find_fault;
use crate::{Error, Kind, Op, Result};

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
