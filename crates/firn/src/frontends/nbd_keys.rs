//! The file of pre-shared keys of NBD clients, in the form of `psktool` and nbdkit: `NAME:HEXKEY` on each line.
//!
//! A file that others may read is refused, and so is a line that is none. No key may get into an error, a log or
//! memory that is not wiped.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nbd_psk::{KEY_BYTES_MIN, PskConfig};
use zeroize::Zeroizing;

use crate::failure::{Failure, FailureCode, Result};

/// Some ten thousand keys.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A name and its key.
type Key = (String, Zeroizing<Vec<u8>>);

/// The keys of this file.
pub(crate) fn load(path: &Path) -> Result<PskConfig> {
    let text = read(path)?;
    let bad = |why: String| Failure::invalid(format!("keys of {}: {why}", path.display()));
    let keys = parse(&text).map_err(bad)?;
    let each = keys.iter().map(|(name, key)| (&**name, &***key));
    PskConfig::new(each).map_err(|error| bad(error.to_string()))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let failed = |source| Failure::io("read the keys of NBD clients", path, &source);
    // Of a pipe, opening would wait for a writer.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = File::options();
    let file = options.read(true).custom_flags(nonblocking).open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(std::io::Error::other("it is no file")));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Failure::new(
            FailureCode::NoPermission,
            format!(
                "the keys of NBD clients in {path} may be read by others (mode {mode:04o}): make new ones, or \
                 `chmod 600 {path}` if nobody can have seen them",
                path = path.display()
            ),
        ));
    }
    // Of its size at once: what grows leaves copies behind that nobody wipes.
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    bounded.read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let path = path.display();
        return Err(Failure::invalid(format!(
            "{path} is larger than {FILE_BYTES_MAX} bytes: it is no file of keys"
        )));
    }
    Ok(text)
}

/// The keys, or which line is wrong and why, without a byte of it that may be a key.
fn parse(text: &[u8]) -> std::result::Result<Vec<Key>, String> {
    let (mut keys, mut names) = (Vec::new(), BTreeSet::new());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, key) = parse_line(line).map_err(|why| format!("line {}: {why}", at + 1))?;
        if !names.insert(name.clone()) {
            let line = at + 1;
            return Err(format!("line {line}: there is a key of {name} before it"));
        }
        keys.push((name, key));
    }
    match keys.is_empty() {
        true => Err("there is none; write NAME:HEXKEY on a line for each client".to_owned()),
        false => Ok(keys),
    }
}

fn parse_line(line: &[u8]) -> std::result::Result<Key, String> {
    // What has no colon may be a key all of it.
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, hex) = line.split_at(colon.ok_or("it is not NAME:HEXKEY")?);
    let name = std::str::from_utf8(name).map_err(|_| "the name is not text")?;
    if name.is_empty()
        || name
            .chars()
            .any(|one| one.is_whitespace() || one.is_control())
    {
        return Err("a name has at least one character, and no white space".to_owned());
    }
    let key = hex.get(1..).and_then(key_from_hex);
    let key = key.ok_or_else(|| format!("the key of {name} is not pairs of hexadecimal digits"))?;
    if key.len() < KEY_BYTES_MIN {
        return Err(format!(
            "the key of {name} is shorter than {KEY_BYTES_MIN} bytes ({} digits)",
            KEY_BYTES_MIN * 2
        ));
    }
    Ok((name.to_owned(), key))
}

fn key_from_hex(hex: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut key = Zeroizing::new(Vec::with_capacity(hex.len() / 2));
    for pair in hex.chunks(2) {
        let [high, low] = pair else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = digit(*high)? << 4 | digit(*low)?;
        key.push(u8::try_from(byte).ok()?);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const HEX: &str = "000102030405060708090a0B0C0D0e0f";

    #[test]
    fn each_line_is_a_name_and_its_key() {
        let text = format!("# whose\nalice:{HEX}\r\n\nbob.example:{HEX}{HEX}\n");
        let keys = parse(text.as_bytes()).unwrap();
        let key: Vec<u8> = (0..16).collect();
        assert_eq!(keys[0], ("alice".to_owned(), Zeroizing::new(key)));
        assert_eq!((keys[1].0.as_str(), keys[1].1.len()), ("bob.example", 32));
        assert_eq!(keys.len(), 2);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_no_key_is_in_the_error() {
        for (bad, why) in [
            (HEX.to_owned(), "NAME:HEXKEY"),
            (format!(":{HEX}"), "at least one character"),
            (format!("a b:{HEX}"), "no white space"),
            (format!("alice:{HEX}0"), "alice is not pairs"),
            (format!("alice:x{HEX}0"), "alice is not pairs"),
            (format!("alice:{HEX}:1"), "alice is not pairs"),
            ("alice:".to_owned(), "shorter than 16 bytes"),
            (format!("alice:{}", &HEX[2..]), "32 digits"),
            (format!("ok:{HEX}"), "a key of ok before it"),
        ] {
            let text = format!("ok:{HEX}\n\n{bad}\n");
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(
                error.starts_with("line 3: ") && error.contains(why),
                "{error}"
            );
            assert!(!error.contains("0405"), "{error}");
        }
        assert!(
            parse(b"\xff:00\n")
                .unwrap_err()
                .contains("line 1: the name")
        );
        assert!(parse(b"# nobody\n").unwrap_err().contains("NAME:HEXKEY"));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.psk");
        std::fs::write(&path, format!("alice:{HEX}\n")).unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            set(mode);
            let failure = load(&path).unwrap_err();
            assert_eq!(failure.code, FailureCode::NoPermission);
            assert!(failure.detail.contains("chmod 600"), "{failure}");
            assert!(!failure.detail.contains("0405"), "{failure}");
        }
        set(0o600);
        load(&path).unwrap();
        std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(load(&path).unwrap_err().detail.contains("larger than"));
        let missing = load(&dir.path().join("missing")).unwrap_err();
        assert!(missing.detail.contains("missing"), "{missing}");
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("keys");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        for path in [&*pipe, dir.path()] {
            let refused = load(path).unwrap_err();
            assert!(refused.to_string().contains("it is no file"), "{refused}");
        }
    }
}
