//! The sessions of a log: one for each start of a server on it, and which of them were its own.
//!
//! A session is drawn when a server starts and is durable, in the first checkpoint, before anything is
//! served. It tells apart what two servers left that cannot be told apart otherwise: the rings of an
//! earlier start in another directory, and what a copy of the cache directory did since it was copied.
//! Later checkpoints carry the sessions on unchanged; nothing else may change them.
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
    /// The boot in which the newest began, and in whose memory its rings are.
    boot: BootId,
    /// The newest one found every ring of the one before that it looked for: those hold nothing that
    /// the log does not.
    has_read_rings: bool,
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

    /// The next session, which is to be made durable in the log before it serves.
    pub(crate) fn begin(&self, drawn: u64, boot: BootId, has_read_rings: bool) -> Sessions {
        let mut next = self.clone();
        if next.drawn.len() == HISTORY_MAX {
            next.drawn.remove(0);
        }
        next.drawn.push(drawn);
        Sessions {
            newest: self.newest + 1,
            drawn: next.drawn,
            boot,
            has_read_rings,
            poisoned: false,
        }
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
        let Some(back) = self.newest.checked_sub(session.number) else {
            return false;
        };
        let back = usize::try_from(back).unwrap_or(usize::MAX);
        let found = self.drawn.iter().rev().nth(back);
        session.number > 0 && found == Some(&session.random)
    }

    /// Whether the newest session's rings are in this boot's memory, if they are anywhere.
    pub(crate) fn is_of_boot(&self, boot: BootId) -> bool {
        self.newest > 0 && self.boot == boot
    }

    /// Whether the log holds all that the rings of this older session held.
    pub(crate) fn has_read_rings_of(&self, session: LogSession) -> bool {
        self.has_read_rings && session.number + 1 == self.newest && self.is_own(session)
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        let count = u32::try_from(self.drawn.len()).expect("bounded by HISTORY_MAX");
        w.u64(self.newest)
            .u64(self.boot.0)
            .u8(u8::from(self.has_read_rings))
            .u32(count);
        for drawn in &self.drawn {
            w.u64(*drawn);
        }
    }

    /// None if there are more sessions than numbers, or none at all.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<Sessions>, TruncatedInput> {
        let (newest, boot) = (r.u64()?, BootId(r.u64()?));
        let has_read_rings = r.u8()? != 0;
        let count = r.u32()? as usize;
        let mut body = Reader::new(r.raw(count.saturating_mul(8))?);
        let drawn: Vec<u64> = (0..count).map(|_| body.u64()).collect::<Result<_, _>>()?;
        let ok = count > 0 && newest >= count as u64;
        Ok(ok.then_some(Sessions {
            newest,
            drawn,
            boot,
            has_read_rings,
            poisoned: false,
        }))
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
}
