//! A store that somebody names by hand, in `FIRN_STORE_URL`, for tests that ask any server.
//!
//! A test never passes because nothing was asked: where no store is named it says that it is
//! skipped.

/// What is known of the named store in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedStore {
    /// The probe passes, and volumes can be kept there.
    Good,
    /// `FIRN_STORE_REFUSED` is set: the probe refuses it, and so does the server.
    Refused,
}

impl NamedStore {
    /// A URL below the named store that no other test uses; `None`, and says so, where none is named or
    /// one of the other kind is.
    pub fn url_for(self, test: &str) -> Option<String> {
        let Ok(url) = std::env::var("FIRN_STORE_URL") else {
            println!("skipped: FIRN_STORE_URL names no server (cargo xtask stores names some)");
            return None;
        };
        let named = match std::env::var_os("FIRN_STORE_REFUSED") {
            Some(_) => NamedStore::Refused,
            None => NamedStore::Good,
        };
        if named != self {
            println!(
                "skipped: this is asked of stores that are {self:?}, and this one is {named:?}"
            );
            return None;
        }
        Some(below(&url, &format!("{test}-{:016x}", fastrand::u64(..))))
    }
}

/// The URL with one more part of the path.
fn below(url: &str, name: &str) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    let place = place.trim_end_matches('/');
    format!("{place}/{name}?{options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_a_place_of_its_own_in_the_named_store() {
        let url = below("s3://b/demo/?endpoint=http://h:1", "races");
        assert_eq!(url, "s3://b/demo/races?endpoint=http://h:1");
        assert_eq!(below("s3://b", "races"), "s3://b/races?");
    }
}
