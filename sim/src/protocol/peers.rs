//! Peers: one volume, its owner, two peers that hold its tail in memory, a taker.
//!
//! A model of its own, for what of peers touches the store: who is a member is in the root, the log
//! says what is stored, a fence in it and one at a member end the owner. Data is an LSN here: the
//! owner is the only one who gives them out.

use super::ghost::violation;
use super::rules::{Rule, Rules};
use super::search::{Checked, Model, Violation};

const PEERS: usize = 2;
const NEWEST: u8 = 3;

const LOST: Violation = violation(
    "S3",
    "the taker serves without what was acknowledged at rung peer",
);
const LATE: Violation = violation(
    "S7",
    "rung peer is acknowledged after the taker served without it",
);
const GAP: Violation = violation("S4", "the taker asks a peer for what the peer has trimmed");

/// Which incarnation of each peer is a member; 0: none.
type Members = [u8; PEERS];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Peer {
    incarnation: u8,
    /// It holds LSNs `trimmed + 1 ..= newest`.
    trimmed: u8,
    newest: u8,
    fenced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum TakeOverStep {
    #[default]
    Idle,
    RootUpdated,
    LogFenced,
    LogRead,
    PeerFenced(u8),
    /// It has the tail up to here, and has yet to serve.
    TailRead,
    Serves,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct PeerState {
    // The store.
    members: Members,
    epoch: u8,
    log_fenced: bool,
    stored: u8,
    away: bool,
    // The owner.
    newest: u8,
    confirmed: [u8; PEERS],
    /// The members as the owner knows them.
    known: Members,
    uploaded: u8,
    peers: [Peer; PEERS],
    // The taker.
    taking: TakeOverStep,
    frozen: Members,
    read: u8,
    // What was promised.
    acknowledged: u8,
    served: u8,
    restarts: u8,
    outages: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerAction {
    Write,
    Send(u8),
    Acknowledge,
    Upload,
    Commit,
    Trim(u8),
    Remove(u8),
    Admit(u8),
    Restart(u8),
    LoseStore,
    Take(u8),
}

#[derive(Clone)]
pub(crate) struct PeerWorld {
    pub(crate) rules: Rules,
    pub(crate) restarts: u8,
    pub(crate) outages: u8,
    /// Whether the owner may remove a member.
    pub(crate) degrades: bool,
}

impl PeerWorld {
    /// The next step of the take-over; `with` is the member that the taker turns to.
    fn take(&self, state: &mut PeerState, with: u8) -> Checked<()> {
        let log_first = self.rules.has(Rule::FenceBeforePeer);
        let knows_incarnation = self.rules.has(Rule::PeerIncarnation);
        match state.taking {
            TakeOverStep::Idle => {
                state.epoch += 1;
                state.frozen = state.members;
                state.taking = TakeOverStep::RootUpdated;
            }
            TakeOverStep::RootUpdated if log_first => {
                state.log_fenced = true;
                state.taking = TakeOverStep::LogFenced;
            }
            TakeOverStep::RootUpdated | TakeOverStep::LogFenced => {
                state.read = state.stored;
                state.taking = TakeOverStep::LogRead;
            }
            TakeOverStep::LogRead => {
                state.peers[with as usize].fenced = true;
                state.taking = TakeOverStep::PeerFenced(with);
            }
            TakeOverStep::PeerFenced(with) => {
                let peer = state.peers[with as usize];
                if knows_incarnation && peer.incarnation != state.frozen[with as usize] {
                    // It lost its memory: no member. The taker turns to another, or waits.
                    state.frozen[with as usize] = 0;
                    state.taking = TakeOverStep::LogRead;
                } else if peer.newest > state.read {
                    if peer.trimmed > state.read {
                        return Err(GAP);
                    }
                    state.read = peer.newest;
                    state.taking = TakeOverStep::TailRead;
                } else {
                    state.taking = TakeOverStep::TailRead;
                }
            }
            TakeOverStep::TailRead => {
                state.log_fenced = true;
                state.taking = TakeOverStep::Serves;
                state.served = state.read;
                if state.acknowledged > state.read || state.stored > state.read {
                    return Err(LOST);
                }
            }
            TakeOverStep::Serves => {}
        }
        Ok(())
    }

    fn acknowledge(&self, state: &mut PeerState) -> Checked<()> {
        state.acknowledged = state.newest;
        if state.taking == TakeOverStep::Serves && state.acknowledged > state.served {
            return Err(LATE);
        }
        Ok(())
    }

    /// Whether every member has confirmed the newest write (or any, if the rule is off).
    fn is_confirmed(&self, state: &PeerState) -> bool {
        let mut members = (0..PEERS).filter(|peer| state.known[*peer] != 0).peekable();
        let has = |peer: usize| state.confirmed[peer] >= state.newest;
        if members.peek().is_none() {
            return false;
        }
        if self.rules.has(Rule::AllMembers) {
            members.all(has)
        } else {
            members.any(has)
        }
    }

    fn remove(&self, state: &mut PeerState, peer: usize) {
        state.known[peer] = 0;
        if !state.away && self.rules.has(Rule::RootBeforeSmallerSet) {
            state.members[peer] = 0;
        }
    }

    fn can_remove(&self, state: &PeerState, peer: usize) -> bool {
        let others = state.known.iter().filter(|member| **member != 0).count() > 1;
        let waits = self.rules.has(Rule::FlushWaitsWithoutStore);
        let first = self.rules.has(Rule::RootBeforeSmallerSet);
        let by_root = if state.away {
            !waits
        } else {
            state.epoch == 1 || !first
        };
        self.degrades && state.known[peer] != 0 && others && by_root
    }

    /// Up to where the owner tells a peer to trim.
    fn trim_target(&self, state: &PeerState) -> u8 {
        if self.rules.has(Rule::PeersTrimStored) {
            state.stored
        } else {
            state.uploaded
        }
    }

    fn taker_actions(&self, state: &PeerState, actions: &mut Vec<PeerAction>) {
        let needs_store = matches!(
            state.taking,
            TakeOverStep::Idle
                | TakeOverStep::RootUpdated
                | TakeOverStep::LogFenced
                | TakeOverStep::TailRead
        );
        if state.taking == TakeOverStep::Serves || needs_store && state.away {
            return;
        }
        if state.taking == TakeOverStep::LogRead {
            let members = (0..PEERS as u8).filter(|peer| state.frozen[*peer as usize] != 0);
            actions.extend(members.map(PeerAction::Take));
        } else {
            actions.push(PeerAction::Take(0));
        }
    }
}

impl Model for PeerWorld {
    type State = PeerState;
    type Action = PeerAction;

    fn initial(&self) -> PeerState {
        let peer = Peer {
            incarnation: 1,
            ..Peer::default()
        };
        PeerState {
            members: [1; PEERS],
            known: [1; PEERS],
            epoch: 1,
            peers: [peer; PEERS],
            restarts: self.restarts,
            outages: self.outages,
            ..PeerState::default()
        }
    }

    fn actions(&self, state: &PeerState, actions: &mut Vec<PeerAction>) {
        if state.newest < NEWEST {
            actions.push(PeerAction::Write);
        }
        if state.acknowledged < state.newest && self.is_confirmed(state) {
            actions.push(PeerAction::Acknowledge);
        }
        if state.uploaded < state.newest {
            actions.push(PeerAction::Upload);
        }
        if !state.away && !state.log_fenced && state.stored < state.uploaded {
            actions.push(PeerAction::Commit);
        }
        for index in 0..PEERS {
            let (peer, name) = (&state.peers[index], index as u8);
            let member = state.known[index] != 0;
            let same =
                !self.rules.has(Rule::PeerIncarnation) || peer.incarnation == state.known[index];
            if member && same && !peer.fenced && peer.newest < state.newest {
                actions.push(PeerAction::Send(name));
            }
            if peer.trimmed < self.trim_target(state).min(peer.newest) {
                actions.push(PeerAction::Trim(name));
            }
            if self.can_remove(state, index) {
                actions.push(PeerAction::Remove(name));
            }
            let returns = peer.incarnation != state.known[index] && !peer.fenced;
            if returns && !state.away && state.epoch == 1 && state.restarts < self.restarts {
                actions.push(PeerAction::Admit(name));
            }
            if state.restarts > 0 {
                actions.push(PeerAction::Restart(name));
            }
        }
        if state.outages > 0 {
            actions.push(PeerAction::LoseStore);
        }
        self.taker_actions(state, actions);
    }

    fn apply(&self, state: &mut PeerState, action: PeerAction) -> Checked<()> {
        match action {
            PeerAction::Write => state.newest += 1,
            PeerAction::Send(peer) => {
                let place = &mut state.peers[peer as usize];
                if place.newest == 0 {
                    place.trimmed = state.confirmed[peer as usize].max(place.trimmed);
                }
                place.newest = state.newest;
                state.confirmed[peer as usize] = state.newest;
            }
            PeerAction::Acknowledge => return self.acknowledge(state),
            PeerAction::Upload => state.uploaded = state.newest,
            PeerAction::Commit => state.stored = state.uploaded,
            PeerAction::Trim(peer) => {
                let target = self.trim_target(state);
                let place = &mut state.peers[peer as usize];
                place.trimmed = target.min(place.newest);
            }
            PeerAction::Remove(peer) => self.remove(state, peer as usize),
            PeerAction::Admit(peer) => {
                // It caught up with everything that is not stored, then the root admits it.
                let place = &mut state.peers[peer as usize];
                place.trimmed = state.stored;
                place.newest = state.newest.max(state.stored);
                state.confirmed[peer as usize] = state.newest;
                state.known[peer as usize] = place.incarnation;
                state.members[peer as usize] = place.incarnation;
            }
            PeerAction::Restart(peer) => {
                state.restarts -= 1;
                let place = &mut state.peers[peer as usize];
                *place = Peer {
                    incarnation: place.incarnation + 1,
                    ..Peer::default()
                };
            }
            PeerAction::LoseStore => {
                state.outages -= 1;
                state.away = true;
            }
            PeerAction::Take(with) => return self.take(state, with),
        }
        Ok(())
    }

    fn judge_at_rest(&self, state: &PeerState) -> Checked<()> {
        let mut state = *state;
        state.away = false;
        for with in 0..PEERS as u8 {
            for _ in 0..8 {
                if state.taking == TakeOverStep::LogRead && state.frozen[with as usize] == 0 {
                    break;
                }
                self.take(&mut state, with)?;
            }
        }
        Ok(())
    }

    fn sentence(&self, action: PeerAction) -> String {
        let name = |peer: u8| ["P", "Q"][peer as usize];
        match action {
            PeerAction::Write => "the owner completes a write".to_owned(),
            PeerAction::Send(peer) => format!("peer {} confirms the owner's tail", name(peer)),
            PeerAction::Acknowledge => "the owner acknowledges rung peer".to_owned(),
            PeerAction::Upload => "the owner uploads packs".to_owned(),
            PeerAction::Commit => "the owner's record wins".to_owned(),
            PeerAction::Trim(peer) => format!("peer {} trims", name(peer)),
            PeerAction::Remove(peer) => format!("the owner goes on without peer {}", name(peer)),
            PeerAction::Admit(peer) => format!("peer {} has caught up and is admitted", name(peer)),
            PeerAction::Restart(peer) => format!("peer {} restarts, empty", name(peer)),
            PeerAction::LoseStore => "the store goes away".to_owned(),
            PeerAction::Take(peer) => {
                format!("the taker takes its next step (turning to {})", name(peer))
            }
        }
    }
}
