//! The sessions of a log: one for each start of a server on it, and which of them were its own.
//!
//! A session is drawn when a server starts and is durable, in the first checkpoint, before anything is
//! served; that of a server which goes on with what another left is durable, in its first frame, before anything of it is in the
//! store. It tells apart what two servers left that cannot be told apart otherwise: the rings of an
//! earlier start in another directory, and what a copy of the cache directory did since it was copied.
//! Later checkpoints carry the sessions on unchanged; nothing else may change them.
//!
//! A session has rings of its own, but for one that continues a server which was stopped in its favour: it goes on
//! with the rings of the one before, so they bear the name of the session that made them.
//!
//! Record format: docs/format.md "Frame records".

use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::units::LogSession;

/// One run of the machine: its memory, and the rings in it, last as long. A hash of the boot id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BootId(pub(crate) u64);

impl BootId {
    pub(crate) fn new(boot_id: &[u8; 16]) -> BootId {
        BootId(crc64(&[boot_id]))
    }
}

/// Sessions that a log remembers.
const HISTORY_MAX: usize = 1024;

/// The sessions of one log, up to the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    /// Number of the newest; zero: no server ever served from this log.
    newest: u64,
    /// What was drawn for each, the newest last. Numbers have no gaps.
    drawn: Vec<u64>,
    /// The boot in which the newest began, and in whose memory the rings in use are.
    boot: BootId,
    /// Number of the session that made the rings in use: the newest, or one that it continues.
    rings: u64,
    /// Number of the session of which the rings were read, all that were looked for: they hold nothing that the
    /// log does not. Zero: of none.
    rings_read: u64,
    /// The log is poisoned: nothing is recorded in it any more, and what can be read of its newest
    /// session may not be durable.
    poisoned: bool,
}

impl Sessions {
    /// The same of a poisoned log: all servers on it share the session with number zero, since none
    /// can record one of its own.
    pub(crate) fn of_poisoned_log(self) -> Sessions {
        Sessions {
            poisoned: true,
            ..self
        }
    }

    /// The next session, which is to be made durable in the log before it serves. It makes rings of its own.
    pub(crate) fn begin(&self, drawn: u64, boot: BootId, has_read_rings: bool) -> Sessions {
        let next = self.followed_by(drawn);
        let rings_read = if has_read_rings { self.rings } else { 0 };
        Sessions {
            boot,
            rings: next.newest,
            rings_read,
            ..next
        }
    }

    /// The next session, which goes on with the rings of the newest. None if the log would forget who made them.
    pub(crate) fn go_on(&self, drawn: u64) -> Option<Sessions> {
        let is_known = self.newest - self.rings < HISTORY_MAX as u64 - 1;
        (self.rings > 0 && is_known).then(|| self.followed_by(drawn))
    }

    fn followed_by(&self, drawn: u64) -> Sessions {
        let mut next = self.clone();
        if next.drawn.len() == HISTORY_MAX {
            next.drawn.remove(0);
        }
        next.drawn.push(drawn);
        Sessions {
            newest: self.newest + 1,
            poisoned: false,
            ..next
        }
    }

    /// Under whose name the rings in use are.
    pub(crate) fn ring_session(&self) -> LogSession {
        if self.poisoned {
            return LogSession::default();
        }
        LogSession {
            number: self.rings,
            random: self.drawn_of(self.rings).unwrap_or(0),
        }
    }

    /// What was drawn for a session that is remembered.
    fn drawn_of(&self, number: u64) -> Option<u64> {
        let back = usize::try_from(self.newest.checked_sub(number)?).ok()?;
        self.drawn.iter().rev().nth(back).copied()
    }

    /// The newest session: that of this server, once it serves. Number zero before the first, and on a
    /// poisoned log.
    pub(crate) fn current(&self) -> LogSession {
        if self.poisoned {
            return LogSession::default();
        }
        LogSession {
            number: self.newest,
            random: self.drawn.last().copied().unwrap_or(0),
        }
    }

    /// Whether this log had that session; of those more than [`HISTORY_MAX`] starts ago it does not
    /// know. A copy of the log has all sessions up to the copy in common with it, and none after.
    pub(crate) fn is_own(&self, session: LogSession) -> bool {
        if session == LogSession::default() {
            return self.poisoned;
        }
        session.number > 0 && self.drawn_of(session.number) == Some(session.random)
    }

    /// Whether the rings in use are in this boot's memory, if they are anywhere.
    pub(crate) fn is_of_boot(&self, boot: BootId) -> bool {
        self.newest > 0 && self.boot == boot
    }

    /// Whether the log holds all that the rings of this older session held.
    pub(crate) fn has_read_rings_of(&self, session: LogSession) -> bool {
        session.number > 0 && session.number == self.rings_read && self.is_own(session)
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        let count = u32::try_from(self.drawn.len()).expect("bounded by HISTORY_MAX");
        w.u64(self.newest)
            .u64(self.boot.0)
            .u64(self.rings)
            .u64(self.rings_read)
            .u32(count);
        for drawn in &self.drawn {
            w.u64(*drawn);
        }
    }

    /// None if there are more sessions than numbers, or none at all, or if the one that made the rings is not among
    /// them.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<Sessions>, TruncatedInput> {
        let (newest, boot) = (r.u64()?, BootId(r.u64()?));
        let (rings, rings_read) = (r.u64()?, r.u64()?);
        let count = r.u32()? as usize;
        let mut body = Reader::new(r.raw(count.saturating_mul(8))?);
        let drawn: Vec<u64> = (0..count).map(|_| body.u64()).collect::<Result<_, _>>()?;
        let is_counted = count > 0 && newest >= count as u64;
        let found = Sessions {
            newest,
            drawn,
            boot,
            rings,
            rings_read,
            poisoned: false,
        };
        let has_maker = rings > 0 && found.drawn_of(rings).is_some();
        Ok((is_counted && has_maker && rings_read < rings).then_some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId(9);

    #[test]
    fn a_log_knows_its_sessions_and_not_those_of_a_copy_since_it_was_copied() {
        let log = Sessions::default().begin(11, BOOT, false);
        let (one, two) = (log.begin(21, BOOT, true), log.begin(22, BOOT, true));
        assert_ne!(one.current(), two.current());
        for sessions in [&one, &two] {
            assert!(sessions.is_own(sessions.current()) && sessions.is_own(log.current()));
        }
        assert!(!one.is_own(two.current()) && !two.is_own(one.current()));
        assert!(!one.is_own(two.begin(23, BOOT, true).current()));
        assert!(!one.is_own(LogSession::default()));
        assert!(!Sessions::default().is_own(Sessions::default().current()));
    }

    #[test]
    fn servers_on_a_poisoned_log_share_a_session_that_no_other_log_has() {
        let log = Sessions::default().begin(11, BOOT, false);
        let poisoned = log.clone().of_poisoned_log();
        assert!(poisoned.is_own(poisoned.current()) && poisoned.is_own(log.current()));
        assert!(!log.is_own(poisoned.current()));
        assert!(!poisoned.is_own(log.begin(12, BOOT, true).current()));
    }

    #[test]
    fn of_very_many_sessions_a_bounded_number_is_remembered() {
        let mut sessions = Sessions::default();
        let mut all = Vec::new();
        for drawn in 0..1500 {
            sessions = sessions.begin(drawn * 7, BOOT, true);
            all.push(sessions.current());
        }
        let own = all.iter().filter(|session| sessions.is_own(**session));
        assert!(own.eq(&all[1500 - HISTORY_MAX..]));
        let mut w = Writer::new();
        sessions.encode(&mut w);
        assert!(w.len() < 9000);
        assert_eq!(
            Sessions::decode(&mut Reader::new(w.bytes())),
            Ok(Some(sessions))
        );
    }

    #[test]
    fn rings_of_the_session_before_are_done_with_only_if_all_of_them_were_read() {
        let first = Sessions::default().begin(1, BOOT, false);
        for read in [false, true] {
            let second = first.begin(2, BOOT, read);
            assert_eq!(second.has_read_rings_of(first.current()), read);
            assert!(!second.has_read_rings_of(second.current()));
            assert!(
                !second
                    .begin(3, BOOT, true)
                    .has_read_rings_of(first.current())
            );
        }
        assert!(first.is_of_boot(BOOT) && !first.is_of_boot(BootId(8)));
        assert!(!Sessions::default().is_of_boot(BootId::default()));
    }

    #[test]
    fn a_session_that_goes_on_with_the_rings_of_another_is_one_of_its_own() {
        let first = Sessions::default().begin(1, BOOT, false);
        assert!(Sessions::default().go_on(1).is_none(), "nobody made rings");
        let second = first.go_on(2).unwrap();
        let third = second.go_on(3).unwrap();
        assert_eq!(third.current().number, 3);
        assert_eq!(third.ring_session(), first.current());
        assert!(third.is_of_boot(BOOT) && !third.has_read_rings_of(first.current()));
        // The next plain start has read them, whoever used them last.
        let fourth = third.begin(4, BOOT, true);
        assert_eq!(fourth.ring_session(), fourth.current());
        assert!(fourth.has_read_rings_of(first.current()));
        for sessions in [third, fourth] {
            let mut w = Writer::new();
            sessions.encode(&mut w);
            let read = Sessions::decode(&mut Reader::new(w.bytes()));
            assert_eq!(read, Ok(Some(sessions)));
        }
    }

    #[test]
    fn rings_are_made_anew_before_the_log_forgets_who_made_them() {
        let mut sessions = Sessions::default().begin(1, BOOT, false);
        let mut count = 0;
        while let Some(next) = sessions.go_on(7) {
            sessions = next;
            count += 1;
            assert!(sessions.is_own(sessions.ring_session()));
        }
        assert_eq!(count, HISTORY_MAX - 1);
    }
}
