//! Credentials from the shared profile files, `~/.aws/credentials` and `~/.aws/config`.
//!
//! Reads them again whenever one of them has changed, so keys can be rotated while the server runs.
//! A file that cannot be read for a moment does not take away the keys in use. It must never print
//! a key: `Debug` shows the profile's name alone.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

/// What a profile says.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    entries: HashMap<String, String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").finish_non_exhaustive()
    }
}

impl Profile {
    pub(crate) fn region(&self) -> Option<&str> {
        self.entries.get("region").map(String::as_str)
    }

    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.entries.get("endpoint_url").map(String::as_str)
    }

    fn credential(&self) -> Option<AwsCredential> {
        Some(AwsCredential {
            key_id: self.entries.get("aws_access_key_id")?.clone(),
            secret_key: self.entries.get("aws_secret_access_key")?.clone(),
            token: self.entries.get("aws_session_token").cloned(),
        })
    }
}

/// Where the profile files are, and which profile is meant.
#[derive(Clone, Debug)]
pub(crate) struct ProfileFiles {
    pub(crate) credentials: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) name: String,
}

impl ProfileFiles {
    /// As the AWS tools find them; `None` without a home directory.
    pub(crate) fn find(name: Option<&str>) -> Option<Self> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let path = |variable: &str, file: &str| {
            std::env::var_os(variable)
                .map(PathBuf::from)
                .or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
        };
        Some(ProfileFiles {
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            config: path("AWS_CONFIG_FILE", "config")?,
            name: name
                .map(str::to_owned)
                .or_else(|| std::env::var("AWS_PROFILE").ok())
                .unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// The profile, its entries of both files together; those for credentials win.
    pub(crate) fn read(&self) -> Option<Profile> {
        let config_section = if self.name == "default" {
            self.name.clone()
        } else {
            format!("profile {}", self.name)
        };
        let read = |path: &PathBuf, section: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            find_section(&text, section)
        };
        let config = read(&self.config, &config_section);
        let credentials = read(&self.credentials, &self.name);
        if config.is_none() && credentials.is_none() {
            return None;
        }
        let mut entries = config.unwrap_or_default();
        entries.extend(credentials.unwrap_or_default());
        Some(Profile { entries })
    }

    /// Changes whenever a file is replaced or written.
    fn stamp(&self) -> Stamp {
        [&self.credentials, &self.config].map(|path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        })
    }
}

type Stamp = [Option<(u64, u64, i64, i64)>; 2];

/// The entries of one section of an INI file, `None` if there is no such section.
fn find_section(text: &str, wanted: &str) -> Option<HashMap<String, String>> {
    let mut found = None;
    let mut inside = false;
    for line in text.lines() {
        // An indented line belongs to a nested setting, none of which firn reads.
        if line.starts_with([' ', '\t']) || line.starts_with(['#', ';']) {
            continue;
        }
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            inside = name.0.split_whitespace().eq(wanted.split_whitespace());
            if inside {
                found.get_or_insert_with(HashMap::new);
            }
        } else if let (true, Some((name, value)), Some(entries)) =
            (inside, line.split_once('='), found.as_mut())
        {
            let value = value.split(" #").next().unwrap_or(value);
            entries.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

/// Gives the `object_store` crate the keys that the files have now.
pub(crate) struct ProfileCredentials {
    files: ProfileFiles,
    last: Mutex<(Stamp, Arc<AwsCredential>)>,
}

impl fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProfileCredentials")
            .field(&self.files.name)
            .finish()
    }
}

impl ProfileCredentials {
    /// `None` if the profile has no keys.
    pub(crate) fn open(files: ProfileFiles) -> Option<Self> {
        let stamp = files.stamp();
        let credential = files.read()?.credential()?;
        Some(ProfileCredentials {
            files,
            last: Mutex::new((stamp, Arc::new(credential))),
        })
    }

    fn current(&self) -> Arc<AwsCredential> {
        let stamp = self.files.stamp();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != stamp
            && let Some(new) = self.files.read().and_then(|profile| profile.credential())
        {
            if *last.1 != new {
                tracing::info!(profile = %self.files.name, "the store's credentials were renewed");
            }
            *last = (stamp, Arc::new(new));
        }
        Arc::clone(&last.1)
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        // Two calls of stat, and rarely two small files: not worth a thread.
        Ok(self.current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &tempfile::TempDir, name: &str) -> ProfileFiles {
        ProfileFiles {
            credentials: dir.path().join("credentials"),
            config: dir.path().join("config"),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_profile_is_read_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir, "cold");
        let credentials = "[default]\naws_access_key_id=D\naws_secret_access_key=DS\n\
            [cold] ; c\naws_access_key_id = K\n# aws_secret_access_key = no\n\
            aws_secret_access_key = S=/+ # note\n";
        std::fs::write(&files.credentials, credentials).unwrap();
        let config = "[profile cold]\nregion = eu-north-1\ns3 =\n  region = no\n";
        std::fs::write(&files.config, config).unwrap();
        let profile = files.read().unwrap();
        assert_eq!(profile.region(), Some("eu-north-1"));
        let credential = profile.credential().unwrap();
        assert_eq!(
            (credential.key_id.as_str(), credential.secret_key.as_str()),
            ("K", "S=/+")
        );
    }

    #[test]
    fn rotated_keys_are_used_at_once_and_a_lost_file_keeps_the_last_ones() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir, "default");
        let write = |key: &str| {
            let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s\n");
            let new = dir.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &files.credentials).unwrap();
        };
        write("one");
        let keys = ProfileCredentials::open(files.clone()).unwrap();
        assert_eq!(keys.current().key_id, "one");
        write("two");
        assert_eq!(keys.current().key_id, "two");
        std::fs::remove_file(&files.credentials).unwrap();
        assert_eq!(keys.current().key_id, "two");
    }

    #[test]
    fn nothing_that_can_be_printed_shows_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir, "default");
        let text = "[default]\naws_access_key_id=K\naws_secret_access_key=hunter2\n";
        std::fs::write(&files.credentials, text).unwrap();
        let profile = files.read().unwrap();
        let keys = ProfileCredentials::open(files).unwrap();
        assert!(!format!("{profile:?} {keys:?}").contains("hunter2"));
    }
}
