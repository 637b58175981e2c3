//! The object store of the model: roots, host logs, low marks, packs and pins.
//!
//! Every method is one atomic request. The store is strongly consistent, as the product requires of
//! a real one; what may go wrong on the way (answers lost, requests that land late) is the caller's.

use std::hash::{Hash, Hasher};

use super::fingerprint;

pub(crate) const VOLUMES: usize = 3;
pub(crate) const HOSTS: usize = 4;
/// Positions of a log are 1 to 8; 0 is none.
pub(crate) const POSITIONS: usize = 9;
pub(crate) const PACKS: usize = 14;
/// LSNs are 1 to 5; 0 is none.
pub(crate) const LSNS: usize = 5;
/// No host.
pub(crate) const NOBODY: u8 = u8::MAX;
/// What stands at an LSN whose data a restore in place made void.
pub(crate) const VOID: u8 = 250;

/// A volume's data: which write has which LSN. A write is a number that no other write has.
pub(crate) type Content = [u8; LSNS];

/// How far a content reaches without a gap.
pub(crate) fn length(content: &Content) -> u8 {
    content.iter().take_while(|value| **value != 0).count() as u8
}

/// What a record says of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Slice {
    /// 0: the record says nothing of the volume.
    pub(crate) epoch: u8,
    pub(crate) from: u8,
    pub(crate) to: u8,
    pub(crate) pack: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum RecordKind {
    #[default]
    Absent,
    Commit,
    Fence,
}

/// A record of a host's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) session: u8,
    pub(crate) bits: u8,
    /// Objects of the session below it that nothing names are abandoned.
    pub(crate) floor: u8,
    pub(crate) slices: [Slice; VOLUMES],
    /// The object that a root update of each volume is about to name, plus 1; 0: none.
    pub(crate) objects: [u8; VOLUMES],
    /// A fence: epochs of each volume below this are blocked.
    pub(crate) below: [u8; VOLUMES],
    pub(crate) previous: u32,
}

impl Record {
    pub(crate) fn is_absent(&self) -> bool {
        self.kind == RecordKind::Absent
    }

    pub(crate) fn digest(&self) -> u32 {
        fingerprint::digest(self)
    }

    /// Whether it says anything of the volume.
    pub(crate) fn names(&self, volume: usize) -> bool {
        self.slices[volume].epoch != 0 || self.below[volume] != 0 || self.objects[volume] != 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum RootState {
    #[default]
    Absent,
    Open,
    Closed,
}

/// Whose log still holds records of the volume that the root does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Predecessor {
    pub(crate) host: u8,
    pub(crate) epoch: u8,
    pub(crate) mark: u8,
}

/// The one mutable object of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Root {
    pub(crate) state: RootState,
    pub(crate) epoch: u8,
    /// Raised by every update, so that no two versions have the same bytes.
    pub(crate) sequence: u8,
    /// Random bits of the session that wrote it.
    pub(crate) writer: u8,
    pub(crate) owner: u8,
    pub(crate) claimant: u8,
    /// The position in the owner's log up to which the root has everything.
    pub(crate) mark: u8,
    /// The LSN at the mark.
    pub(crate) lsn: u8,
    /// LSNs that a restore in place made void, as a mask.
    pub(crate) void: u8,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) packs: u16,
    /// Under which volume records and packs have the data: a fork's parent.
    pub(crate) origin: u8,
    /// The parent's LSN at which a fork began.
    pub(crate) fork_lsn: u8,
}

impl Root {
    pub(crate) const ABSENT: Root = Root {
        state: RootState::Absent,
        epoch: 0,
        sequence: 0,
        writer: 0,
        owner: NOBODY,
        claimant: NOBODY,
        mark: 0,
        lsn: 0,
        void: 0,
        predecessor: None,
        packs: 0,
        origin: 0,
        fork_lsn: 0,
    };

    /// What a conditional update compares: a hash of the bytes, as S3 has it.
    pub(crate) fn etag(&self) -> u32 {
        fingerprint::digest(self)
    }
}

/// An immutable object of data, named by host, session, the session's random bits and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Pack {
    pub(crate) made: bool,
    pub(crate) deleted: bool,
    pub(crate) host: u8,
    pub(crate) session: u8,
    pub(crate) bits: u8,
    pub(crate) number: u8,
    pub(crate) contents: [Content; VOLUMES],
}

impl Pack {
    fn has_name_of(&self, other: &Pack) -> bool {
        (self.host, self.session, self.bits, self.number)
            == (other.host, other.session, other.bits, other.number)
    }
}

/// What the store answered to a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CreateResult {
    Won,
    Exists,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Store {
    pub(crate) roots: [Root; VOLUMES],
    pub(crate) logs: [[Record; POSITIONS]; HOSTS],
    /// Records below it may be gone. 0: the object is missing, the host is retired.
    pub(crate) low: [u8; HOSTS],
    pub(crate) packs: [Pack; PACKS],
    /// What a child needs of its parent.
    pub(crate) pins: [u16; VOLUMES],
}

impl Hash for Store {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.roots.hash(hasher);
        self.low.hash(hasher);
        self.pins.hash(hasher);
        for (host, log) in self.logs.iter().enumerate() {
            for (position, record) in log.iter().enumerate() {
                if !record.is_absent() {
                    hasher.write_u16((host << 8 | position) as u16);
                    record.hash(hasher);
                }
            }
        }
        for pack in self.packs.iter().take_while(|pack| pack.made) {
            pack.hash(hasher);
        }
    }
}

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            roots: [Root::ABSENT; VOLUMES],
            logs: [[Record::default(); POSITIONS]; HOSTS],
            low: [1; HOSTS],
            packs: [Pack::default(); PACKS],
            pins: [0; VOLUMES],
        }
    }

    /// Creates a record, unless one is there.
    pub(crate) fn create_record(&mut self, host: u8, position: u8, record: Record) -> CreateResult {
        let place = &mut self.logs[host as usize][position as usize];
        if place.is_absent() {
            *place = record;
            CreateResult::Won
        } else {
            CreateResult::Exists
        }
    }

    pub(crate) fn record(&self, host: u8, position: u8) -> &Record {
        &self.logs[host as usize][position as usize]
    }

    /// Replaces a root if it has the expected bytes.
    pub(crate) fn update_root(&mut self, volume: u8, expected: u32, root: Root) -> bool {
        let place = &mut self.roots[volume as usize];
        let same = place.etag() == expected;
        if same {
            *place = root;
        }
        same
    }

    /// Creates a pack, and says under which index the model knows its name.
    pub(crate) fn create_pack(&mut self, pack: Pack) -> (u8, CreateResult) {
        let known = self
            .packs
            .iter()
            .position(|other| other.made && other.has_name_of(&pack));
        let free = || self.packs.iter().position(|other| !other.made);
        let index = known.or_else(free).unwrap_or(PACKS - 1);
        let place = &mut self.packs[index];
        if place.made && !place.deleted {
            return (index as u8, CreateResult::Exists);
        }
        *place = Pack {
            made: true,
            deleted: false,
            ..pack
        };
        (index as u8, CreateResult::Won)
    }

    pub(crate) fn pack(&self, index: u8) -> Option<&Pack> {
        let pack = &self.packs[index as usize];
        (pack.made && !pack.deleted).then_some(pack)
    }

    /// Whether there is room for another pack: worlds are bounded.
    pub(crate) fn has_room(&self) -> bool {
        !self.packs[PACKS - 2].made
    }

    /// What a root's packs hold of a volume; `None` if one of them is gone.
    fn content_of(&self, volume: usize, root: &Root) -> Option<Content> {
        let mut content = Content::default();
        for index in indexes(root.packs) {
            let contents = self.pack(index)?.contents;
            // What a fork took from its parent is under the parent's name.
            let (parent, own) = (contents[root.origin as usize], contents[volume]);
            for (lsn, value) in content.iter_mut().enumerate() {
                let inherited = lsn < root.fork_lsn as usize && parent[lsn] != 0;
                let held = if inherited { parent[lsn] } else { own[lsn] };
                if held != 0 {
                    *value = held;
                }
            }
        }
        Some(content)
    }

    /// What a root says a volume's data is; `None` if an object that it names is gone.
    pub(crate) fn root_content(&self, volume: usize, root: &Root) -> Option<Content> {
        let mut content = self.content_of(volume, root)?;
        for (index, value) in content.iter_mut().enumerate() {
            if index >= root.lsn as usize {
                *value = 0;
            } else if root.void & 1 << index != 0 {
                *value = VOID;
            }
        }
        Some(content)
    }
}

/// The members of a set of packs.
pub(crate) fn indexes(packs: u16) -> impl Iterator<Item = u8> {
    (0..PACKS as u8).filter(move |index| packs & 1 << index != 0)
}
