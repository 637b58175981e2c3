//! The sessions that wrote objects. In memory an object is known by random bits of its session and a
//! number; its key in the store has the host and the session's number as well.
//!
//! Pages, nodes, footers and roots list the sessions of what they name, each once; whoever decodes one
//! learns them from there. It must never be guessed who wrote an object: a session that nobody has listed
//! is an error.
//!
//! Bytes of a session in a list: host id 16, session number `u64`, session bits `u64`.

use std::collections::BTreeMap;

use super::{FormatError, ObjectId};
use crate::codec::{Reader, TruncatedInput, Writer};
use crate::hostlog::names::SessionName;
use crate::units::{HostId, LogSession};

/// Bytes of a session in a list.
pub(super) const SESSION_BYTES: usize = 32;

/// Sessions by their random bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionNames {
    by_bits: BTreeMap<u64, SessionName>,
}

impl SessionNames {
    /// Adds a session.
    ///
    /// # Errors
    /// If another session has the same bits: one of the objects that name them is not what it was.
    pub fn insert(&mut self, name: SessionName) -> Result<(), FormatError> {
        let found = self.by_bits.entry(name.session.random).or_insert(name);
        if *found == name {
            Ok(())
        } else {
            Err(FormatError::Corrupt(
                "it names a session as no other object does",
            ))
        }
    }

    /// Adds sessions.
    ///
    /// # Errors
    /// As [`SessionNames::insert`].
    pub fn extend(
        &mut self,
        names: impl IntoIterator<Item = SessionName>,
    ) -> Result<(), FormatError> {
        names.into_iter().try_for_each(|name| self.insert(name))
    }

    /// The session with these bits.
    ///
    /// # Errors
    /// If nobody has listed it.
    pub fn find(&self, bits: u64) -> Result<SessionName, FormatError> {
        let found = self.by_bits.get(&bits).copied();
        found.ok_or(FormatError::Corrupt(
            "it is of a session that nothing lists",
        ))
    }

    /// Whether it is known by this name.
    pub fn has(&self, name: SessionName) -> bool {
        self.by_bits.get(&name.session.random) == Some(&name)
    }

    /// All of them, by their bits.
    pub fn iter(&self) -> impl Iterator<Item = SessionName> {
        self.by_bits.values().copied()
    }

    /// Key of a pack.
    ///
    /// # Errors
    /// As [`SessionNames::find`].
    pub fn pack_key(&self, pack: ObjectId) -> Result<String, FormatError> {
        Ok(self.find(pack.session)?.pack_key(pack.number))
    }

    /// Key of an index object.
    ///
    /// # Errors
    /// As [`SessionNames::find`].
    pub fn index_key(&self, object: ObjectId) -> Result<String, FormatError> {
        Ok(self.find(object.session)?.index_key(object.number))
    }

    /// The sessions of these objects, as an object lists them.
    pub(super) fn list(
        &self,
        objects: impl Iterator<Item = ObjectId>,
    ) -> Result<SessionList, FormatError> {
        let mut list = SessionList::default();
        for object in objects {
            let next = list.names.len() as u32;
            if let std::collections::btree_map::Entry::Vacant(free) =
                list.numbers.entry(object.session)
            {
                free.insert(next);
                list.names.push(self.find(object.session)?);
            }
        }
        Ok(list)
    }
}

/// Sessions in the order in which an object lists them.
#[derive(Debug, Default)]
pub(super) struct SessionList {
    names: Vec<SessionName>,
    numbers: BTreeMap<u64, u32>,
}

impl SessionList {
    /// The sessions.
    pub(super) fn names(&self) -> &[SessionName] {
        &self.names
    }

    /// Which of them an object that was asked for is of.
    pub(super) fn number(&self, object: ObjectId) -> u32 {
        self.numbers[&object.session]
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        self.names.iter().for_each(|name| encode_session(w, *name));
    }
}

pub(crate) fn encode_session(w: &mut Writer, name: SessionName) {
    let LogSession { number, random } = name.session;
    w.raw(&name.host.0).u64(number).u64(random);
}

pub(crate) fn decode_session(r: &mut Reader<'_>) -> Result<SessionName, TruncatedInput> {
    Ok(SessionName {
        host: HostId(r.array()?),
        session: LogSession {
            number: r.u64()?,
            random: r.u64()?,
        },
    })
}

/// Reads `count` sessions, none of which is listed twice.
pub(crate) fn decode_sessions(
    r: &mut Reader<'_>,
    count: usize,
) -> Result<Vec<SessionName>, FormatError> {
    let mut rows = Reader::new(r.raw(count.saturating_mul(SESSION_BYTES))?);
    let mut names = Vec::with_capacity(count);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..count {
        let name = decode_session(&mut rows)?;
        if !seen.insert(name.session.random) {
            return Err(FormatError::Corrupt("it lists a session twice"));
        }
        names.push(name);
    }
    Ok(names)
}

/// An object of one of the listed sessions.
pub(super) fn object_of(
    sessions: &[SessionName],
    session: usize,
    number: u64,
) -> Result<ObjectId, FormatError> {
    let listed = sessions.get(session).ok_or(FormatError::Corrupt(
        "it names a session that it does not list",
    ))?;
    Ok(ObjectId {
        session: listed.session.random,
        number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(host: u8, number: u64, random: u64) -> SessionName {
        SessionName {
            host: HostId([host; 16]),
            session: LogSession { number, random },
        }
    }

    #[test]
    fn an_object_of_a_session_that_nothing_lists_has_no_key() {
        let mut names = SessionNames::default();
        let pack = ObjectId {
            session: 7,
            number: 3,
        };
        assert!(matches!(
            names.pack_key(pack),
            Err(FormatError::Corrupt(
                "it is of a session that nothing lists"
            ))
        ));
        names.insert(session(1, 2, 7)).expect("its bits are new");
        assert_eq!(names.pack_key(pack), Ok(session(1, 2, 7).pack_key(3)));
        assert_eq!(names.index_key(pack), Ok(session(1, 2, 7).index_key(3)));
        assert!(names.list([pack].into_iter()).is_ok());
    }

    #[test]
    fn two_sessions_of_the_same_bits_are_damage() {
        let mut names = SessionNames::default();
        names.insert(session(1, 2, 7)).expect("its bits are new");
        names.insert(session(1, 2, 7)).expect("it is the same");
        for other in [session(2, 2, 7), session(1, 3, 7)] {
            assert!(matches!(names.insert(other), Err(FormatError::Corrupt(_))));
        }
        assert!(names.iter().eq([session(1, 2, 7)]));
    }

    #[test]
    fn a_list_has_each_session_once_and_is_read_back() {
        let mut names = SessionNames::default();
        let both = [session(1, 2, 7), session(3, 4, 5)];
        names.extend(both).expect("their bits are new");
        let object = |session| ObjectId { session, number: 1 };
        let list = names.list([7, 5, 7].map(object).into_iter());
        let list = list.expect("they are known");
        assert_eq!((list.number(object(7)), list.number(object(5))), (0, 1));
        let mut w = Writer::new();
        list.encode(&mut w);
        let found = decode_sessions(&mut Reader::new(w.bytes()), 2);
        assert_eq!(found, Ok(both.to_vec()));
        assert!(object_of(&both, 2, 1).is_err());
        let twice = [w.bytes(), w.bytes()].concat();
        assert!(decode_sessions(&mut Reader::new(&twice), 4).is_err());
        assert!(decode_sessions(&mut Reader::new(&twice), usize::MAX).is_err());
    }
}
