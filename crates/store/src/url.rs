//! From what the user wrote after `--store` to a store.
//!
//! A URL of a service that this build lacks is refused by name, with what it does have; a typo
//! must never silently become a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::memory::InMemory;

use crate::cloud;
use crate::{DirStore, Error, Kind, ObjectStoreAdapter, Op, Result, SharedStore};

const SUPPORTED: &str = "firn supports a directory (a path or file:///absolute/path), \
                         s3://bucket/prefix, gs://bucket/prefix, az://container/prefix and \
                         memory:// (for tests)";

/// Opens the store at `url`: a path, `file:///path`, a bucket or `memory://`.
///
/// A directory that does not exist is created; of a bucket nothing is asked yet. Blocks on
/// file-system calls: call it at start, or from a thread that may block.
pub fn open_url(url: &str) -> Result<SharedStore> {
    let Some((scheme, rest)) = url.split_once("://") else {
        if url.is_empty() {
            return Err(url_error(url, Kind::Invalid, "the URL is empty".to_owned()));
        }
        if let Some((scheme, _)) = url.split_once(':')
            && cloud::is_scheme(scheme)
        {
            let why = format!("a URL has two slashes after its colon: {scheme}://…; {SUPPORTED}");
            return Err(url_error(url, Kind::Invalid, why));
        }
        return Ok(Arc::new(DirStore::open(Path::new(url))?));
    };
    match scheme {
        "file" if rest.starts_with('/') => Ok(Arc::new(DirStore::open(Path::new(rest))?)),
        "file" => Err(url_error(
            url,
            Kind::Invalid,
            "a file URL needs an absolute path, as in file:///srv/firn/store; \
             write a relative path without file://"
                .to_owned(),
        )),
        "memory" if rest.is_empty() => Ok(Arc::new(ObjectStoreAdapter::new(
            Arc::new(InMemory::new()),
            "memory://",
        ))),
        _ if cloud::is_scheme(scheme) => cloud::open(scheme, rest),
        "s3a" | "azure" | "abfs" | "abfss" | "http" | "https" => Err(url_error(
            &format!("{scheme}://…"),
            Kind::Unsupported,
            format!(
                "{scheme}:// is not a kind of store; {SUPPORTED}; name a server of your own with \
                 ?endpoint=https://HOST:PORT"
            ),
        )),
        _ => Err(url_error(
            url,
            Kind::Invalid,
            format!("{scheme:?} is not a known kind of store; {SUPPORTED}"),
        )),
    }
}

/// The files that opening this URL reads, apart from those that the environment names.
pub fn files_of_url(url: &str) -> Vec<PathBuf> {
    let cloud = url.split_once("://");
    let cloud = cloud.filter(|(scheme, _)| cloud::is_scheme(scheme));
    cloud.map_or_else(Vec::new, |(scheme, rest)| cloud::files(scheme, rest))
}

fn url_error(url: &str, kind: Kind, detail: String) -> Error {
    Error::new(kind, Op::Open, format!("store {url:?}"), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_file_url_and_a_path_open_the_same_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let by_path = open_url(path.to_str().unwrap()).unwrap();
        let by_url = open_url(&format!("file://{}", path.display())).unwrap();
        assert_eq!(by_path.name(), by_url.name());
    }

    #[test]
    fn a_service_that_is_not_known_is_refused_with_what_is() {
        for url in [
            "s3a://bucket/x",
            "abfs://c",
            "https://key:hunter2@host/bucket",
        ] {
            let error = open_url(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported, "{url}");
            let text = error.to_string();
            assert!(text.contains("s3://bucket/prefix"), "{text}");
            assert!(text.contains("endpoint="), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_mistyped_url_never_becomes_a_directory() {
        for url in [
            "",
            "file://relative/x",
            "fiel:///srv/x",
            "memory://x",
            "s3:/bucket/x",
            "gs:bucket",
            "az:/container",
        ] {
            let error = open_url(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{url}");
        }
        for made in ["fiel:", "s3:", "gs:bucket", "az:"] {
            assert!(!Path::new(made).exists(), "{made}");
        }
    }
}
