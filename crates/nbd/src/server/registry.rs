//! Who is connected: for reports, for the bound on connections, and for ending them by export.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::handed::HandedConnection;
use super::parked::{Parked, ParkedConnections};

#[derive(Debug)]
struct Member {
    /// The export, once it is chosen.
    export: Option<String>,
    /// Its handshake gave way to a newer one.
    is_displaced: bool,
    /// It can go on at another server: it has an export, and no TLS.
    is_movable: bool,
    wakers: Wakers,
}

/// Wakers that make a connection leave, or stay.
#[derive(Debug)]
pub(super) struct Wakers {
    /// Once it is quiet, to another server.
    pub(super) give: Waker,
    /// Not at all: it stays here.
    pub(super) keep: Waker,
    /// Once what is outstanding is answered.
    pub(super) drain: Waker,
    /// At once.
    pub(super) cut: Waker,
    /// Not at all: what comes of the export that it waits for was decided.
    pub(super) decided: Waker,
}

#[derive(Debug, Default)]
struct State {
    /// All connections are being given away, and no further one is taken.
    is_handing_over: bool,
    /// Those that have left so, with nobody to serve them.
    handed_over: Vec<HandedConnection>,
    next: u64,
    members: BTreeMap<u64, Member>,
    parked: ParkedConnections,
}

/// All connections of a server. Its lock is held for a look or a change only.
#[derive(Debug, Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    departure: Condvar,
}

/// Which connections are meant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope<'a> {
    All,
    /// Those that can go on at another server.
    Movable,
    Export(&'a str),
}

impl Scope<'_> {
    fn includes(self, member: &Member) -> bool {
        match self {
            Scope::All => true,
            Scope::Movable => member.is_movable,
            Scope::Export(name) => member.export.as_deref() == Some(name),
        }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(self: &Arc<Self>, wakers: Wakers) -> Membership {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.members.insert(
            id,
            Member {
                export: None,
                is_displaced: false,
                is_movable: false,
                wakers,
            },
        );
        Membership {
            is_late: state.is_handing_over,
            registry: Arc::clone(self),
            id,
        }
    }

    pub(super) fn count(&self, scope: Scope<'_>) -> usize {
        self.lock()
            .members
            .values()
            .filter(|member| scope.includes(member))
            .count()
    }

    /// Makes room for one more handshake: ends the oldest if `most` are under way. So those who only connect
    /// keep nobody out, and a client that knows what it wants is through before its turn comes. One that waits
    /// for its export is not meant.
    pub(super) fn make_room_for_handshake(&self, most: usize) {
        let mut state = self.lock();
        let State {
            members, parked, ..
        } = &mut *state;
        let is_under_way = |id: u64, member: &Member| {
            member.export.is_none() && !member.is_displaced && !parked.has(id)
        };
        let under_way = members.iter().filter(|(id, it)| is_under_way(**id, it));
        if under_way.count() < most {
            return;
        }
        let mut all = members.iter_mut();
        let Some((_, oldest)) = all.find(|(id, it)| is_under_way(**id, it)) else {
            return;
        };
        oldest.is_displaced = true;
        let cut = oldest.wakers.cut.clone();
        drop(state);
        cut.wake();
    }

    /// Tells those that wait for this export to look it up again. They wait no more until they say so.
    pub(super) fn wake_parked(&self, export: &str) {
        if canary::active!("parked_clients_are_never_woken") {
            return;
        }
        let mut state = self.lock();
        let waited = state.parked.take(export);
        let wakers = waited.iter().filter_map(|id| state.members.get(id));
        let wakers: Vec<Waker> = wakers.map(|member| member.wakers.decided.clone()).collect();
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// How many wait for an export.
    pub(super) fn parked(&self) -> usize {
        self.lock().parked.count()
    }

    /// Asks connections to finish what is outstanding, or to end at once.
    fn wake(&self, scope: Scope<'_>, pick: impl Fn(&Member) -> &Waker) {
        let state = self.lock();
        let wakers: Vec<Waker> = state
            .members
            .values()
            .filter(|member| scope.includes(member))
            .map(|member| pick(member).clone())
            .collect();
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    pub(super) fn drain(&self, scope: Scope<'_>) {
        self.wake(scope, |member| &member.wakers.drain);
    }

    pub(super) fn cut(&self, scope: Scope<'_>) {
        self.wake(scope, |member| &member.wakers.cut);
    }

    /// Asks these connections to leave for another server, and refuses further ones; how many there were in all.
    pub(super) fn begin_handover(&self, scope: Scope<'_>) -> usize {
        let mut state = self.lock();
        state.is_handing_over = true;
        let before = state.members.len();
        drop(state);
        self.wake(scope, |member| &member.wakers.give);
        before
    }

    /// Asks those that have not left to stay; the exports of movable ones, and those that have left.
    pub(super) fn cancel_handover(&self) -> (Vec<String>, Vec<HandedConnection>) {
        let mut state = self.lock();
        // From here on none leaves: see `hand_over`.
        state.is_handing_over = false;
        let given = std::mem::take(&mut state.handed_over);
        let members = state.members.values();
        let busy = members.filter(|member| member.is_movable);
        let busy = busy.filter_map(|member| member.export.clone()).collect();
        drop(state);
        self.wake(Scope::All, |member| &member.wakers.keep);
        (busy, given)
    }

    /// Connections are taken again.
    pub(super) fn end_handover(&self) {
        self.lock().is_handing_over = false;
    }

    /// A connection leaves, and waits to be taken along. If giving was called off meanwhile, it gets
    /// itself back.
    pub(super) fn hand_over(&self, connection: HandedConnection) -> Result<(), HandedConnection> {
        let mut state = self.lock();
        if !state.is_handing_over {
            return Err(connection);
        }
        state.handed_over.push(connection);
        Ok(())
    }

    /// Those that have left so.
    pub(super) fn take_handed_over(&self) -> Vec<HandedConnection> {
        std::mem::take(&mut self.lock().handed_over)
    }

    /// Waits until none is left; how many are when the time is over.
    pub(super) fn wait_until_gone(&self, scope: Scope<'_>, within: Duration) -> usize {
        blkmq::may_block("waiting for NBD connections to end");
        let until = Instant::now() + within;
        let mut state = self.lock();
        loop {
            let left = state
                .members
                .values()
                .filter(|member| scope.includes(member))
                .count();
            let now = Instant::now();
            if left == 0 || now >= until {
                return left;
            }
            let waited = self.departure.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connection's place in the registry; left when dropped.
pub(super) struct Membership {
    registry: Arc<Registry>,
    id: u64,
    is_late: bool,
}

impl Membership {
    /// All others are being given away.
    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Waits for this export, unless `most` others wait for theirs.
    pub(super) fn park(&self, export: &str, most: usize) -> Parked {
        self.registry.lock().parked.park(self.id, export, most)
    }

    /// Waits for no export any more.
    pub(super) fn unpark(&self) {
        self.registry.lock().parked.unpark(self.id);
    }

    /// The export was chosen. While others are given away this one is too late for that.
    pub(super) fn set_export(&self, export: &str, has_tls: bool) {
        let mut state = self.registry.lock();
        let is_movable = !has_tls && !state.is_handing_over;
        if let Some(member) = state.members.get_mut(&self.id) {
            member.export = Some(export.to_owned());
            member.is_movable = is_movable;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        state.members.remove(&self.id);
        state.parked.unpark(self.id);
        drop(state);
        self.registry.departure.notify_all();
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({})", self.id)
    }
}
