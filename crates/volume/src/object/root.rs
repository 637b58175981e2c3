//! Roots: the one mutable object of a volume, replaced only by conditional update (S7).
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic `FIRNROOT` |
//! | 2 | version, 1 |
//! | 2 | zero |
//! | 4 | bytes of the body |
//! | 8 | CRC-64/NVME of the 16 bytes before and the body |
//! | | body, see docs/format.md "Root" |
//!
//! The body ends with a list of extensions (tag, flags, length, bytes). A reader skips those it
//! does not know, unless bit 0 of the flags says that it must not: snapshots, lineage and the
//! like will be such extensions, so that this version refuses what it would damage.

use blkmq::io::SECTOR_BYTES;

use super::extensions::{Extensions, Labels};
pub use super::extensions::{RenameMark, RenameStep, TrashMark};
use super::pack::{Ancestor, Lineage};
use super::page::{BlockRef, NODE_PAGES, PAGE_SECTORS};
use super::sessions::{SessionNames, decode_session, decode_sessions, encode_session, object_of};
use super::{FormatError, ObjectId};
use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::hostlog::names::{Position, SessionName};
use crate::units::{Epoch, HostId, Lsn, RootMark, Span, VolumeId, VolumeSize};

const MAGIC: [u8; 8] = *b"FIRNROOT";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;
const OWNED: u8 = 1;
const DELETED: u8 = 2;
const CLAIMED: u8 = 4;
const HAS_PREDECESSOR: u8 = 8;
/// The largest size that is accepted, an exbibyte; what can be created is far smaller.
const BYTES_MAX: u64 = 1 << 60;
/// The nodes of that many bytes.
const NODES_MAX: u64 = BYTES_MAX / SECTOR_BYTES / PAGE_SECTORS / NODE_PAGES;

/// A footer whose extents lie over the base pages; later ones over earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRef {
    /// The pack.
    pub pack: ObjectId,
    /// Where its footer begins.
    pub footer_offset: u64,
    /// Bytes of the footer, without the trailer.
    pub footer_bytes: u32,
    /// The history goes on behind this LSN: nothing in it is newer, and it does all up to there, or
    /// other packs of the same LSN do the rest. So a root's deltas tell the state at each of these LSNs.
    pub last: Lsn,
    /// All of the volume's extents in it lie within: what is lost if the pack is.
    pub span: Span,
}

/// The host that may write to the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The host.
    pub host: HostId,
    /// What to call it in messages.
    pub label: String,
}

impl Owner {
    fn encode(&self, body: &mut Writer) {
        body.raw(&self.host.0).text(&self.label);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Owner, TruncatedInput> {
        Ok(Owner {
            host: HostId(r.array()?),
            label: r.text()?,
        })
    }
}

/// The owner before an unfinished take-over: its log holds records that the root does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The host.
    pub host: HostId,
    /// The epoch in which it was owner.
    pub epoch: Epoch,
    /// The position in its log up to which the root has everything.
    pub mark: Position,
}

/// A host that keeps copies of the owner's newest commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The host.
    pub host: HostId,
    /// A peer that lost its memory has another one.
    pub incarnation: u64,
}

/// The state of a volume in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its logical block size in bytes, 512 or 4096.
    pub block: u32,
    /// Counts openings: only the newest opening may commit.
    pub epoch: Epoch,
    /// The epoch in which the owner's unbroken hold began.
    pub since: Epoch,
    /// The first LSN that this epoch may give out: what an older epoch wrote at or above it is void.
    pub first: Lsn,
    /// Counts commits of this object.
    pub sequence: u64,
    /// Drawn for each commit: its writer recognises it after an unknown outcome.
    pub nonce: u64,
    /// Those of the commits before, the newest first.
    pub earlier: Vec<u64>,
    /// The owner that wrote it last and its log session, also after it was closed: a copy of a cache
    /// directory has the host's id, but not its later sessions. Zero: nobody has opened it yet.
    pub writer: SessionName,
    /// The host that holds the volume; none after it was closed.
    pub owner: Option<Owner>,
    /// The host that is about to take it.
    pub claimant: Option<Owner>,
    /// Of a claimant; none if the root has everything.
    pub predecessor: Option<Predecessor>,
    /// The position in the owner's log up to which it has everything.
    pub mark: Position,
    /// Hosts that a FLUSH at rung *peer* waits for.
    pub peers: Vec<Peer>,
    /// It is being deleted.
    pub deleted: bool,
    /// Everything up to here is in it.
    pub lsn: Lsn,
    /// When this was written, milliseconds since 1970, for display.
    pub unix_ms: u64,
    /// Oldest first.
    pub deltas: Vec<DeltaRef>,
    /// Directory nodes by number, ascending.
    pub nodes: Vec<(u64, BlockRef)>,
    /// The sessions of the packs and index objects that it names. Whoever adds an object adds its session;
    /// what none is of any more is not written.
    pub sessions: SessionNames,
    /// What only some volumes have.
    pub extensions: Extensions,
}

impl Root {
    /// How large the volume is.
    pub(crate) fn size(&self) -> VolumeSize {
        VolumeSize {
            bytes: self.bytes,
            block: self.block,
        }
    }

    /// Which commit it is.
    pub(crate) fn mark(&self) -> RootMark {
        RootMark {
            sequence: self.sequence,
            nonce: self.nonce,
        }
    }

    /// Whether it is that commit or was written over it, as far as it still knows.
    pub(crate) fn follows(&self, mark: RootMark) -> bool {
        if mark == RootMark::default() {
            return true;
        }
        match self.sequence.checked_sub(mark.sequence) {
            None => false,
            Some(0) => self.nonce == mark.nonce,
            Some(later) => {
                let nonce = usize::try_from(later - 1).ok();
                let nonce = nonce.and_then(|at| self.earlier.get(at));
                nonce.is_none_or(|nonce| *nonce == mark.nonce)
            }
        }
    }

    /// Pages may hold content up to here: what a fold has taken out of the deltas. Zero: nothing was folded.
    /// None: there are pages, and the root does not say up to where.
    pub(crate) fn folded_lsn(&self) -> Option<Lsn> {
        match self.extensions.folded_lsn() {
            Some(folded) => Some(folded),
            None => self.nodes.is_empty().then_some(Lsn::ZERO),
        }
    }

    /// Notes that a fold took all deltas up to here.
    pub(crate) fn set_folded(&mut self, lsn: Lsn) {
        let lsn = lsn.max(self.folded_lsn().unwrap_or_default());
        self.extensions.set_folded(lsn);
    }

    /// The volumes whose history this one's begins with, the nearest first; none unless it was forked.
    pub(crate) fn lineage(&self) -> Lineage {
        self.extensions.lineage()
    }

    /// Makes its history begin with that of others.
    pub(crate) fn set_lineage(&mut self, lineage: &[Ancestor]) {
        self.extensions.set_lineage(lineage);
    }

    /// Whether content of a pack that says it is of this volume belongs to its history.
    pub(crate) fn is_origin(&self, origin: VolumeId) -> bool {
        let forked_from = |ancestor: &Ancestor| ancestor.volume == origin;
        origin == self.volume || self.lineage().iter().any(forked_from)
    }

    /// What it was marked with, if it is a snapshot: nobody writes to one.
    pub fn labels(&self) -> Option<Labels> {
        self.extensions.labels()
    }

    /// Makes it a snapshot.
    pub(crate) fn set_labels(&mut self, labels: &[(String, String)]) {
        self.extensions.set_labels(labels);
    }

    /// That it is in the trash, if it is: then it is deleted, and what it names is held all the same.
    pub fn trash_mark(&self) -> Option<TrashMark> {
        self.extensions.trash_mark().filter(|_| self.deleted)
    }

    pub(crate) fn is_in_trash(&self) -> bool {
        self.trash_mark().is_some()
    }

    /// Moves it to the trash, once it is deleted.
    pub(crate) fn set_trash_mark(&mut self, mark: TrashMark) {
        self.extensions.set_trash_mark(mark);
    }

    pub(crate) fn clear_trash_mark(&mut self) {
        self.extensions.clear_trash_mark();
    }

    /// Which step of a renaming it is, if it is one: then it is deleted.
    pub fn rename_mark(&self) -> Option<RenameMark> {
        self.extensions.rename_mark().filter(|_| self.deleted)
    }

    /// Whether its volume is on its way to another name: what it names is held all the same.
    pub(crate) fn is_leaving(&self) -> bool {
        let mark = self.rename_mark();
        mark.is_some_and(|mark| mark.step == RenameStep::Leaving)
    }

    /// Makes it a step of a renaming, once it is deleted.
    pub(crate) fn set_rename_mark(&mut self, mark: &RenameMark) {
        self.extensions.set_rename_mark(mark);
    }

    pub(crate) fn clear_rename_mark(&mut self) {
        self.extensions.clear_rename_mark();
    }

    /// Whether its holder only maintains it: nobody uses the volume, and whoever wants to may take it. The hold's epoch is
    /// named, so a later one, also of a host that does not know of this, is never taken for it.
    pub fn is_maintained(&self) -> bool {
        let is_held = self.owner.is_some() || self.claimant.is_some();
        is_held && !self.deleted && self.extensions.maintained() == Some(self.epoch)
    }

    /// Makes the hold of the present epoch one for maintenance, or one for clients.
    pub(crate) fn set_maintained(&mut self, is_maintained: bool) {
        let epoch = is_maintained.then_some(self.epoch);
        self.extensions.set_maintained(epoch);
    }

    /// The packs and index objects that it names.
    pub fn objects(&self) -> impl Iterator<Item = ObjectId> {
        let packs = self.deltas.iter().map(|delta| delta.pack);
        packs.chain(self.nodes.iter().map(|(_, block)| block.object))
    }

    /// The object's bytes.
    ///
    /// # Panics
    /// If it names an object of a session that is not among its sessions.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::new();
        body.raw(&self.volume.0)
            .text(&self.name)
            .u64(self.bytes)
            .u32(self.block);
        body.u64(self.epoch.0)
            .u64(self.since.0)
            .u64(self.first.0)
            .u64(self.sequence)
            .u64(self.nonce)
            .u8(self.earlier.len() as u8);
        for nonce in &self.earlier {
            body.u64(*nonce);
        }
        self.encode_hold(&mut body);
        body.u64(self.lsn.0).u64(self.unix_ms);
        self.encode_objects(&mut body);
        self.extensions.encode(&mut body);
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u16(0).u32(body.len() as u32);
        let crc = crc64(&[w.bytes(), body.bytes()]);
        w.u64(crc).raw(body.bytes());
        w.finish()
    }

    /// Sessions, deltas and nodes.
    fn encode_objects(&self, body: &mut Writer) {
        let sessions = self.sessions.list(self.objects());
        let sessions = sessions.expect("who adds an object to a root adds its session");
        body.u32(sessions.names().len() as u32);
        sessions.encode(body);
        body.u32(self.deltas.len() as u32);
        for delta in &self.deltas {
            body.u32(sessions.number(delta.pack)).u64(delta.pack.number);
            body.u64(delta.footer_offset).u32(delta.footer_bytes);
            body.u64(delta.last.0);
            body.u64(delta.span.start).u64(delta.span.end);
        }
        body.u32(self.nodes.len() as u32);
        for (node, block) in &self.nodes {
            let BlockRef {
                object,
                offset,
                bytes,
            } = *block;
            body.u64(*node).u32(sessions.number(object));
            body.u64(object.number).u32(offset).u32(bytes);
        }
    }

    /// Who wrote it, who holds the volume, and how far their logs were read.
    fn encode_hold(&self, body: &mut Writer) {
        encode_session(body, self.writer);
        body.u8((u8::from(self.owner.is_some()) * OWNED)
            | (u8::from(self.deleted) * DELETED)
            | (u8::from(self.claimant.is_some()) * CLAIMED)
            | (u8::from(self.predecessor.is_some()) * HAS_PREDECESSOR));
        for host in self.owner.iter().chain(&self.claimant) {
            host.encode(body);
        }
        if let Some(Predecessor { host, epoch, mark }) = self.predecessor {
            body.raw(&host.0).u64(epoch.0).u64(mark.0);
        }
        body.u64(self.mark.0).u16(self.peers.len() as u16);
        for peer in &self.peers {
            body.raw(&peer.host.0).u64(peer.incarnation);
        }
    }

    /// Reads a root.
    ///
    /// # Errors
    /// If it is damaged, of a newer format, or no root.
    pub fn decode(bytes: &[u8]) -> Result<Root, FormatError> {
        let mut r = Reader::new(bytes);
        if r.array().map_err(|TruncatedInput| FormatError::Foreign)? != MAGIC {
            return Err(FormatError::Foreign);
        }
        let version = r.u16()?;
        if version != VERSION {
            return Err(FormatError::Newer(version));
        }
        r.u16()?;
        let (len, crc) = (r.u32()? as usize, r.u64()?);
        if r.remaining() != len || crc != crc64(&[&bytes[..16], &bytes[HEADER_BYTES..]]) {
            return Err(FormatError::Corrupt("the root fails its checksum"));
        }
        Root::decode_body(&mut r)
    }

    fn decode_body(r: &mut Reader<'_>) -> Result<Root, FormatError> {
        let (volume, name) = (VolumeId(r.array()?), r.text()?);
        let (bytes, block) = (r.u64()?, r.u32()?);
        if !matches!(block, 512 | 4096) || !bytes.is_multiple_of(4096) || bytes > BYTES_MAX {
            return Err(FormatError::Corrupt("an impossible size"));
        }
        let (epoch, since, first) = (Epoch(r.u64()?), Epoch(r.u64()?), Lsn(r.u64()?));
        let (sequence, nonce) = (r.u64()?, r.u64()?);
        let earlier = (0..r.u8()?)
            .map(|_| r.u64())
            .collect::<Result<_, TruncatedInput>>()?;
        let hold = Hold::decode(r)?;
        let (lsn, unix_ms) = (Lsn(r.u64()?), r.u64()?);
        let sessions = r.u32()? as usize;
        let sessions = decode_sessions(r, sessions)?;
        let deltas: Vec<DeltaRef> = (0..r.u32()?)
            .map(|_| decode_delta(r, &sessions))
            .collect::<Result<_, _>>()?;
        let nodes: Vec<(u64, BlockRef)> = (0..r.u32()?)
            .map(|_| match r.u64()? {
                node if node < NODES_MAX => Ok((node, decode_block(r, &sessions)?)),
                _ => Err(FormatError::Corrupt("an impossible index node")),
            })
            .collect::<Result<_, FormatError>>()?;
        let extensions = Extensions::decode(r, VERSION)?;
        let mut root = Root {
            volume,
            name,
            bytes,
            block,
            epoch,
            since,
            first,
            sequence,
            nonce,
            earlier,
            writer: hold.writer,
            owner: hold.owner,
            claimant: hold.claimant,
            predecessor: hold.predecessor,
            mark: hold.mark,
            peers: hold.peers,
            deleted: hold.deleted,
            lsn,
            unix_ms,
            deltas,
            nodes,
            sessions: SessionNames::default(),
            extensions,
        };
        let mut named: Vec<u64> = root.objects().map(|object| object.session).collect();
        named.sort_unstable();
        let named = |session: &SessionName| named.binary_search(&session.session.random).is_ok();
        root.sessions.extend(sessions.into_iter().filter(named))?;
        Ok(root)
    }
}

/// Who wrote a root, who holds the volume, and how far their logs were read.
struct Hold {
    writer: SessionName,
    owner: Option<Owner>,
    claimant: Option<Owner>,
    predecessor: Option<Predecessor>,
    mark: Position,
    peers: Vec<Peer>,
    deleted: bool,
}

impl Hold {
    fn decode(r: &mut Reader<'_>) -> Result<Hold, FormatError> {
        let writer = decode_session(r)?;
        let flags = r.u8()?;
        if flags & !(OWNED | DELETED | CLAIMED | HAS_PREDECESSOR) != 0 {
            return Err(FormatError::Newer(VERSION));
        }
        let holder = |r: &mut Reader<'_>, flag| match flags & flag {
            0 => Ok(None),
            _ => Owner::decode(r).map(Some),
        };
        let (owner, claimant) = (holder(r, OWNED)?, holder(r, CLAIMED)?);
        let predecessor = match flags & HAS_PREDECESSOR {
            0 => None,
            _ => Some(Predecessor {
                host: HostId(r.array()?),
                epoch: Epoch(r.u64()?),
                mark: Position(r.u64()?),
            }),
        };
        let mark = Position(r.u64()?);
        let peers = (0..r.u16()?)
            .map(|_| {
                Ok(Peer {
                    host: HostId(r.array()?),
                    incarnation: r.u64()?,
                })
            })
            .collect::<Result<_, TruncatedInput>>()?;
        Ok(Hold {
            writer,
            owner,
            claimant,
            predecessor,
            mark,
            peers,
            deleted: flags & DELETED != 0,
        })
    }
}

fn decode_object(r: &mut Reader<'_>, sessions: &[SessionName]) -> Result<ObjectId, FormatError> {
    let session = r.u32()? as usize;
    object_of(sessions, session, r.u64()?)
}

fn decode_block(r: &mut Reader<'_>, sessions: &[SessionName]) -> Result<BlockRef, FormatError> {
    Ok(BlockRef {
        object: decode_object(r, sessions)?,
        offset: r.u32()?,
        bytes: r.u32()?,
    })
}

fn decode_delta(r: &mut Reader<'_>, sessions: &[SessionName]) -> Result<DeltaRef, FormatError> {
    Ok(DeltaRef {
        pack: decode_object(r, sessions)?,
        footer_offset: r.u64()?,
        footer_bytes: r.u32()?,
        last: Lsn(r.u64()?),
        span: {
            let (start, end) = (r.u64()?, r.u64()?);
            if start > end {
                return Err(FormatError::Corrupt("a delta of less than nothing"));
            }
            Span { start, end }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::extensions::Extension;
    use crate::units::LogSession;

    fn session(number: u64) -> SessionName {
        SessionName {
            host: HostId([1; 16]),
            session: LogSession {
                number,
                random: number + 1,
            },
        }
    }

    fn root() -> Root {
        let object = ObjectId::new(session(4), 6);
        let mut sessions = SessionNames::default();
        sessions.insert(session(4)).expect("the first");
        Root {
            volume: VolumeId([9; 16]),
            name: "demo".into(),
            bytes: 10 << 30,
            block: 512,
            epoch: Epoch(3),
            since: Epoch(2),
            first: Lsn(60),
            sequence: 7,
            nonce: 11,
            earlier: vec![10, 9],
            writer: session(4),
            owner: Some(Owner {
                host: HostId([1; 16]),
                label: "here".into(),
            }),
            claimant: None,
            predecessor: None,
            mark: Position(7),
            peers: vec![Peer {
                host: HostId([2; 16]),
                incarnation: 3,
            }],
            deleted: false,
            lsn: Lsn(99),
            unix_ms: 123,
            deltas: vec![DeltaRef {
                pack: object,
                footer_offset: 8,
                footer_bytes: 80,
                last: Lsn(99),
                span: Span::new(16, 8),
            }],
            nodes: vec![(
                4,
                BlockRef {
                    object,
                    offset: 0,
                    bytes: 9,
                },
            )],
            sessions,
            extensions: Extensions(vec![Extension {
                tag: 77,
                bytes: vec![1, 2, 3],
            }]),
        }
    }

    #[test]
    fn a_hold_for_maintenance_is_of_one_epoch_and_of_a_root_that_is_held() {
        let mut root = root();
        root.owner = Some(Owner {
            host: HostId([3; 16]),
            label: "one".into(),
        });
        root.set_maintained(true);
        let read = Root::decode(&root.encode()).expect("a root");
        assert!(read.is_maintained());
        // A host that does not know of it keeps the extension.
        let taken = Root {
            epoch: Epoch(root.epoch.0 + 1),
            ..read.clone()
        };
        assert!(!taken.is_maintained());
        let closed = Root {
            owner: None,
            claimant: None,
            ..read.clone()
        };
        assert!(!closed.is_maintained());
        let mut opened = read;
        opened.set_maintained(false);
        assert!(!opened.is_maintained() && opened.extensions.0.iter().all(|found| found.tag != 6));
    }

    #[test]
    fn a_root_lists_the_sessions_of_what_it_names_and_no_others() {
        let mut root = root();
        root.sessions.insert(session(9)).expect("a new one");
        let found = Root::decode(&root.encode()).expect("a root");
        assert!(found.sessions.iter().eq([session(4)]));
        assert_eq!(found.encode(), root.encode());
    }

    #[test]
    fn a_forks_root_lists_its_ancestors_and_what_was_folded_never_goes_back() {
        let mut root = root();
        assert!(root.lineage().is_empty());
        let ancestor = |n: u8| Ancestor {
            volume: VolumeId([n; 16]),
            last: Lsn(n.into()),
        };
        root.set_lineage(&[ancestor(8), ancestor(9)]);
        root.set_folded(Lsn(7));
        root.set_folded(Lsn(5));
        let found = Root::decode(&root.encode()).expect("a root");
        assert_eq!(found.lineage()[..], [ancestor(8), ancestor(9)]);
        assert_eq!(found.folded_lsn(), Some(Lsn(7)));
        assert!(found.is_origin(root.volume) && found.is_origin(VolumeId([9; 16])));
        assert!(!found.is_origin(VolumeId([10; 16])));
        let lineage = &mut root.extensions.0[1];
        lineage.bytes.push(0);
        assert!(matches!(
            Root::decode(&root.encode()),
            Err(FormatError::Corrupt(_))
        ));
    }

    #[test]
    fn a_snapshots_root_says_so_and_keeps_its_labels() {
        let mut root = root();
        assert_eq!(root.labels(), None);
        root.set_labels(&[]);
        assert_eq!(root.labels(), Some(Vec::new()));
        let labels = vec![("why".to_owned(), "before the upgrade".to_owned())];
        root.set_labels(&labels);
        let found = Root::decode(&root.encode()).expect("a root");
        assert_eq!(found.labels(), Some(labels));
        root.extensions.0[1].bytes.push(0);
        assert!(Root::decode(&root.encode()).is_err());
    }

    #[test]
    fn a_deleted_root_says_that_it_is_in_the_trash_and_one_that_is_not_deleted_never_does() {
        let mut root = root();
        let mark = TrashMark {
            deleted_unix_ms: 5,
            until_unix_ms: 9,
            is_going: true,
        };
        root.set_trash_mark(mark);
        assert_eq!(root.trash_mark(), None);
        root.deleted = true;
        let found = Root::decode(&root.encode()).expect("a root");
        assert_eq!(found.trash_mark(), Some(mark));
        root.clear_trash_mark();
        assert!(!root.is_in_trash());
        root.set_trash_mark(mark);
        root.extensions.0[1].bytes.push(0);
        assert!(Root::decode(&root.encode()).is_err());
    }

    #[test]
    fn a_deleted_root_says_which_step_of_a_renaming_it_is_and_one_that_is_not_deleted_never_does() {
        for step in [RenameStep::Kept, RenameStep::Leaving, RenameStep::Gone] {
            let mut root = root();
            let mark = RenameMark {
                step,
                other: "another".into(),
                volume: VolumeId([7; 16]),
                epoch: Epoch(9),
            };
            root.set_rename_mark(&mark);
            assert_eq!(root.rename_mark(), None);
            root.deleted = true;
            let found = Root::decode(&root.encode()).expect("a root");
            assert_eq!(found.rename_mark(), Some(mark));
            assert_eq!(found.is_leaving(), step == RenameStep::Leaving);
            // An older firn takes one that is gone for deleted, and refuses the others.
            let mut encoded = root.encode();
            let length = root.extensions.0[1].bytes.len();
            let flags = encoded.len() - length - 6;
            assert_eq!(encoded[flags] == 1, step != RenameStep::Gone);
            encoded[flags - 2] = 99;
            let crc = crc64(&[&encoded[..16], &encoded[24..]]);
            encoded[16..24].copy_from_slice(&crc.to_le_bytes());
            let read = Root::decode(&encoded);
            assert_eq!(read.is_ok(), step == RenameStep::Gone, "{read:?}");
            let bytes = root.extensions.0[1].bytes.len();
            root.extensions.0[1].bytes[0] = 4;
            assert!(Root::decode(&root.encode()).is_err(), "no such step");
            root.extensions.0[1].bytes[0] = 1;
            root.extensions.0[1].bytes.truncate(bytes - 1);
            assert!(Root::decode(&root.encode()).is_err(), "it is not whole");
            root.clear_rename_mark();
            assert_eq!(root.rename_mark(), None);
        }
    }

    #[test]
    fn pages_of_a_root_that_does_not_say_what_was_folded_may_hold_anything() {
        let mut root = root();
        assert!(!root.nodes.is_empty());
        assert_eq!(root.folded_lsn(), None);
        root.nodes.clear();
        assert_eq!(root.folded_lsn(), Some(Lsn::ZERO), "nothing was folded");
    }

    #[test]
    fn a_root_is_read_back_as_it_was_written() {
        let root = root();
        assert_eq!(Root::decode(&root.encode()), Ok(root.clone()));
        let released = Root {
            owner: None,
            deleted: true,
            ..root.clone()
        };
        assert_eq!(Root::decode(&released.encode()), Ok(released));
        let claimed = Root {
            owner: None,
            claimant: Some(Owner {
                host: HostId([3; 16]),
                label: "there".into(),
            }),
            predecessor: Some(Predecessor {
                host: HostId([1; 16]),
                epoch: Epoch(3),
                mark: Position(7),
            }),
            ..root
        };
        assert_eq!(Root::decode(&claimed.encode()), Ok(claimed));
    }

    #[test]
    fn a_root_follows_what_was_written_before_it_and_nothing_written_later() {
        let root = root();
        let mark = |sequence, nonce| RootMark { sequence, nonce };
        assert!(root.follows(root.mark()) && root.follows(RootMark::default()));
        assert!(
            root.follows(mark(root.sequence - 5, 1)),
            "too long ago to tell"
        );
        assert!(
            !root.follows(mark(root.sequence + 1, root.nonce)),
            "it was written later"
        );
    }

    #[test]
    fn a_root_that_cannot_be_true_is_refused_whatever_its_checksum() {
        let object = root().deltas[0].pack;
        let block = BlockRef {
            object,
            offset: 0,
            bytes: 9,
        };
        for wrong in [
            Root { block: 0, ..root() },
            Root {
                bytes: u64::MAX - 4095,
                ..root()
            },
            Root {
                nodes: vec![(u64::MAX, block)],
                ..root()
            },
        ] {
            let refused = Root::decode(&wrong.encode());
            assert!(matches!(refused, Err(FormatError::Corrupt(_))));
        }
    }

    #[test]
    fn a_root_that_is_damaged_foreign_or_newer_is_refused() {
        let bytes = root().encode();
        assert_eq!(Root::decode(b"hello"), Err(FormatError::Foreign));
        assert!(Root::decode(&bytes[..bytes.len() - 1]).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Root::decode(&damaged).is_err(), "{bit}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(Root::decode(&newer), Err(FormatError::Newer(2)));
    }
}
