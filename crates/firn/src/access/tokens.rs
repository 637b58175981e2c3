//! Tokens: one file for each role, made when a server first listens on TCP.
//!
//! A file is readable for its owner alone, else it is refused: a token that others could read is
//! no secret any more. The server keeps hashes only, and compares those, in constant time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::GetRandomFlags;
use zeroize::Zeroizing;

use super::Role;
use crate::failure::{Failure, FailureCode, Result};

/// Bits of a new token: out of reach of any guessing.
const TOKEN_BYTES: usize = 32;

/// A shorter token is taken for a mistake, or for a word that could be guessed.
const TOKEN_CHARS_MIN: usize = 32;
const TOKEN_CHARS_MAX: usize = 4096;

/// The tokens of a server.
#[derive(Debug)]
pub(crate) struct Tokens {
    hashes: Vec<(Role, blake3::Hash)>,
}

impl Tokens {
    /// Reads the files of `dir`, and makes those that are missing.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| Failure::io("make the directory of tokens", dir, &source))?;
        let mut hashes = Vec::new();
        for role in Role::ALL {
            let path = token_path(dir, role);
            if !path.exists() {
                make(&path).map_err(|source| Failure::io("make the token", &path, &source))?;
            }
            hashes.push((role, blake3::hash(read(&path)?.as_bytes())));
        }
        Ok(Tokens { hashes })
    }

    /// The role that a token carries. Every hash is compared, each in constant time, so that the time
    /// it takes says nothing about a token.
    pub(crate) fn role_of(&self, token: &[u8]) -> Option<Role> {
        let presented = blake3::hash(token);
        let mut found = None;
        for (role, hash) in &self.hashes {
            if *hash == presented {
                found = Some(*role);
            }
        }
        found
    }
}

/// The file of a role's token.
pub(crate) fn token_path(dir: &Path, role: Role) -> PathBuf {
    dir.join(role.as_str())
}

/// A token that was drawn at random, as text.
pub(crate) fn random_token() -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0_u8; TOKEN_BYTES]);
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    let mut text = Zeroizing::new(String::with_capacity(2 * TOKEN_BYTES));
    for byte in bytes.iter() {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    Ok(text)
}

/// Makes a token's file, complete or not at all. If another server makes it meanwhile, its token
/// stays.
fn make(path: &Path) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = random_token().and_then(|token| {
        file.write_all(token.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Reads a token, from a file that nobody but its owner may read.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<String>> {
    let failed = |source: io::Error| Failure::io("read the token", path, &source);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 && !canary::active!("token_for_everybody") {
        return Err(Failure::new(
            FailureCode::NoPermission,
            format!(
                "the token {} may be read by others (mode {mode:04o}): delete it and start the \
                 server again for a new one, or `chmod 600` it if nobody can have seen it",
                path.display()
            ),
        ));
    }
    let mut text = Zeroizing::new(String::new());
    let mut bounded = file.take(TOKEN_CHARS_MAX as u64 + 1);
    bounded.read_to_string(&mut text).map_err(failed)?;
    let token = Zeroizing::new(text.trim().to_owned());
    let is_usable = (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_usable {
        return Err(Failure::invalid(format!(
            "{} holds no token: one has at least {TOKEN_CHARS_MIN} letters, digits or signs; delete \
             the file and start the server again for a new one",
            path.display()
        )));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_role_has_a_token_of_its_own_that_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("data/tokens");
        Tokens::open(&dir).unwrap();
        let again = Tokens::open(&dir).unwrap();
        for role in Role::ALL {
            let path = token_path(&dir, role);
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
            let token = read(&path).unwrap();
            assert_eq!(again.role_of(token.as_bytes()), Some(role));
            assert_eq!(again.role_of(&token.as_bytes()[1..]), None);
        }
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(again.role_of(b""), None);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), Role::ALL.len());
    }

    #[test]
    fn a_token_that_others_may_read_or_that_is_short_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        Tokens::open(dir.path()).unwrap();
        let path = token_path(dir.path(), Role::Read);
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let failure = Tokens::open(dir.path()).unwrap_err();
            assert_eq!(failure.code, FailureCode::NoPermission);
            assert!(failure.detail.contains("chmod 600"), "{failure}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        for text in ["", "secret\n", &"x ".repeat(40), &"x".repeat(5000)] {
            std::fs::write(&path, text).unwrap();
            assert!(Tokens::open(dir.path()).is_err(), "{text:?}");
        }
    }
}
