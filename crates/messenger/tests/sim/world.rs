//! Two hosts, the connections between them, and everything that goes wrong.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use super::app::{self, Endpoint, Endpoints, Ledger};
use super::coverage::Coverage;
use crate::auth::{ClusterSecret, Credentials, NoneForm};
use crate::env::{Entropy, Env, SeededEntropy, Time};
use crate::fault::Fault;
use crate::node::Node;
use crate::outqueue::{Bounds, Kick};
use crate::session::{Config, Event, LinkId, Output, SessionId, Target};

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;
/// Faults happen before this; after it the network heals and everything must arrive.
const FAULTS_END: Time = Duration::from_secs(3);
const DEADLINE: Time = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Wire {
    /// The connection's name at each host; the accepting one is known once connected.
    pub(super) ends: [Option<LinkId>; 2],
    /// Each side has not hung up.
    pub(super) open: [bool; 2],
    /// Nothing passes any more, and nobody is told.
    pub(super) silent: bool,
    /// When the last byte sent by each side arrives.
    pub(super) arrives: [Time; 2],
    /// Bytes on the way, by sender.
    pub(super) in_flight: [usize; 2],
    pub(super) capacity: usize,
    pub(super) latency_us: u64,
}

#[derive(Debug)]
pub(super) enum SimEvent {
    Connect {
        wire: usize,
    },
    Refused {
        wire: usize,
    },
    Bytes {
        wire: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    Lost {
        wire: usize,
        at: usize,
    },
    Kick {
        host: usize,
        incarnation: u32,
        session: SessionId,
    },
    App {
        host: usize,
    },
    Fault,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) node: Node,
    pub(super) incarnation: u32,
    pub(super) endpoints: Endpoints,
    pub(super) by_link: BTreeMap<LinkId, usize>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: SeededEntropy,
    pub(super) now: Time,
    pub(super) events: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) event_bodies: BTreeMap<u64, SimEvent>,
    pub(super) next_event: u64,
    pub(super) hosts: [Host; 2],
    pub(super) wires: Vec<Wire>,
    pub(super) ledger: Ledger,
    pub(super) next_stream: u64,
    pub(super) config: Config,
    pub(super) credentials: Credentials,
    pub(super) restarts: u32,
    pub(super) restarts_allowed: bool,
    pub(super) coverage: Coverage,
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = SeededEntropy::new(seed ^ 0x6d73_6772);
        let config = Config {
            bounds: Bounds {
                bytes_max: 1 << (10 + rng.word() % 6),
                count_max: 1 + usize::try_from(rng.word() % 40).expect("small"),
                message_max: 16 << 10,
            },
            staged_bytes_max: 256 << (rng.word() % 8),
            done_acks: rng.word().is_multiple_of(3),
            keepalive_interval: (!rng.word().is_multiple_of(4)).then_some(ms(300)),
            keepalive_timeout: ms(500),
            backoff_min: ms(5),
            backoff_max: ms(200),
            handshake_timeout: ms(800),
            ..Config::default()
        };
        // Without a probe of its own a half-open link is never noticed: that is what it is for.
        let secure = rng.word().is_multiple_of(8);
        let credentials = if secure {
            let secret = ClusterSecret::new(&[9; 32]).expect("long enough");
            Credentials::Secret {
                name: "host".into(),
                secret,
            }
        } else {
            Credentials::None {
                name: "host".into(),
                form: NoneForm::Monitor,
            }
        };
        let host = || Host {
            node: Node::new(config.clone(), credentials.clone()),
            incarnation: 0,
            endpoints: Endpoints::new(),
            by_link: BTreeMap::new(),
        };
        let mut world = Self {
            hosts: [host(), host()],
            rng,
            now: Time::ZERO,
            events: BinaryHeap::new(),
            event_bodies: BTreeMap::new(),
            next_event: 0,
            wires: Vec::new(),
            ledger: Ledger::default(),
            next_stream: 0,
            config,
            credentials,
            restarts: 0,
            restarts_allowed: false,
            coverage: Coverage {
                secure: u64::from(secure),
                ..Coverage::default()
            },
        };
        world.restarts_allowed = world.chance(5);
        for _ in 0..world.below(7) {
            let at = Duration::from_micros(world.below(3_000_000));
            world.at(at, SimEvent::Fault);
        }
        world
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.rng.word() % n.max(1)
    }

    /// One time in `n`.
    pub(super) fn chance(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn at(&mut self, time: Time, ev: SimEvent) {
        self.next_event += 1;
        self.events
            .push(Reverse((time.max(self.now), self.next_event)));
        self.event_bodies.insert(self.next_event, ev);
    }

    pub(super) fn after(&mut self, delay: Duration, ev: SimEvent) {
        self.at(self.now + delay, ev);
    }

    pub(super) fn run(mut self) -> Result<Coverage, String> {
        self.open_session()?;
        self.at(Time::ZERO, SimEvent::App { host: CLIENT });
        self.at(Time::ZERO, SimEvent::App { host: SERVER });
        loop {
            if self.now > FAULTS_END && self.is_complete() {
                break;
            }
            if self.now > DEADLINE {
                return Err(self.describe_stall());
            }
            let timer = (0..2)
                .filter_map(|h| Some((self.hosts[h].node.next_timer()?, h)))
                .min();
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            match (timer, event) {
                (Some((at, host)), e) if e.is_none_or(|e| at < e) => {
                    self.now = self.now.max(at);
                    self.on_node(host, |node, env| node.on_timer(env))?;
                }
                (_, Some(_)) => self.next()?,
                (_, None) => {
                    return Err(format!("nothing left to happen\n{}", self.describe_stall()));
                }
            }
        }
        for host in &self.hosts {
            let stats = host.node.stats();
            self.coverage.reset += stats.refused_reset;
            self.coverage.retry_global += stats.refused_retry_global;
        }
        self.coverage.messages = self.ledger.messages;
        Ok(self.coverage)
    }

    fn is_complete(&self) -> bool {
        let done_acks = self.config.done_acks;
        // The client's session and the server's side of it; sides of earlier lives are gone or
        // end by themselves.
        let Some(client) = self.hosts[CLIENT].endpoints.values().next_back() else {
            return false;
        };
        let Some(server) = self.hosts[SERVER].endpoints.values().next_back() else {
            return false;
        };
        [client, server]
            .into_iter()
            .all(|s| s.is_complete(&self.ledger, done_acks))
    }

    fn describe_stall(&self) -> String {
        let mut text = format!("not everything arrived by {:?}", self.now);
        for (name, host) in ["client", "server"].into_iter().zip(&self.hosts) {
            for endpoint in host.endpoints.values() {
                text.push_str(&format!("\n{name}: {}", endpoint.describe(&self.ledger)));
            }
        }
        text
    }

    fn next(&mut self) -> Result<(), String> {
        let Some(Reverse((at, id))) = self.events.pop() else {
            return Ok(());
        };
        self.now = self.now.max(at);
        let ev = self
            .event_bodies
            .remove(&id)
            .expect("every event has a body");
        tracing::trace!(now = ?self.now, ?ev);
        match ev {
            SimEvent::Connect { wire } => self.connect(wire),
            SimEvent::Refused { wire } => self.disconnect(wire, CLIENT),
            SimEvent::Bytes { wire, to, bytes } => self.deliver(wire, to, &bytes),
            SimEvent::Lost { wire, at } => self.disconnect(wire, at),
            SimEvent::Kick {
                host,
                incarnation,
                session,
            } if self.hosts[host].incarnation == incarnation => {
                self.on_node(host, |node, env| node.on_kick(env, session))
            }
            SimEvent::Kick { .. } => Ok(()),
            SimEvent::App { host } => self.app(host),
            SimEvent::Fault => self.inject_fault(),
        }
    }

    fn on_node<T>(
        &mut self,
        host: usize,
        f: impl FnOnce(&mut Node, Env<'_>) -> T,
    ) -> Result<T, String> {
        let env = Env {
            now: self.now,
            entropy: &mut self.rng,
        };
        let out = f(&mut self.hosts[host].node, env);
        while let Some(output) = self.hosts[host].node.poll_output() {
            self.on_output(host, output)?;
        }
        Ok(out)
    }

    fn on_output(&mut self, host: usize, output: Output) -> Result<(), String> {
        tracing::trace!(now = ?self.now, host, ?output);
        match output {
            Output::Dial { link, .. } => self.dial(link),
            Output::HangUp { link } => self.hang_up(host, link),
            Output::Flush { link } => return self.pump(host, link),
            Output::Accepted { session, queue, .. } => {
                let to_send = self.below(40);
                self.next_stream += 1;
                let endpoint = Endpoint::new(queue, self.next_stream, to_send, &mut self.ledger);
                self.hosts[host].endpoints.insert(session, endpoint);
            }
            Output::Event { session, event } => return self.on_event(host, session, event),
        }
        Ok(())
    }

    fn on_event(&mut self, host: usize, id: SessionId, event: Event) -> Result<(), String> {
        let Some(endpoint) = self.hosts[host].endpoints.get_mut(&id) else {
            return Ok(());
        };
        match event {
            Event::Opened { .. } => self.coverage.reopened += 1,
            Event::Message(m) => endpoint.on_received(&m, &mut self.ledger)?,
            Event::Done { tid, .. } => {
                endpoint.on_done(tid, &mut self.ledger)?;
                self.coverage.done += 1;
            }
            Event::Interrupted { parked, .. } => {
                self.coverage.interrupted += 1;
                self.coverage.parked += u64::from(parked);
            }
            Event::Alive { .. } => {}
            Event::Closed {
                reason,
                unacknowledged,
            } => {
                endpoint.on_closed(&unacknowledged, &mut self.ledger)?;
                self.coverage.unacknowledged += unacknowledged.len() as u64;
                if !app::is_excused(&reason, self.restarts) {
                    return Err(format!("host {host}: a session ended: {reason}"));
                }
                self.hosts[host].endpoints.remove(&id);
                if host == CLIENT {
                    self.open_session()?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn open_session(&mut self) -> Result<(), String> {
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let to_send = 5 + self.below(40);
        let env = Env {
            now: self.now,
            entropy: &mut self.rng,
        };
        let (id, queue) = self.hosts[CLIENT].node.open(env, Target::lossless(addr));
        self.next_stream += 1;
        let endpoint = Endpoint::new(queue, self.next_stream, to_send, &mut self.ledger);
        self.hosts[CLIENT].endpoints.insert(id, endpoint);
        self.on_node(CLIENT, |_, _| ())
    }

    fn dial(&mut self, link: LinkId) {
        let wire = self.wires.len();
        let latency_us = 20
            + self.below(if self.wires.len() % 3 == 1 {
                60_000
            } else {
                3_000
            });
        let capacity = 256 << self.below(9);
        self.wires.push(Wire {
            ends: [Some(link), None],
            open: [true, true],
            silent: false,
            arrives: [Time::ZERO; 2],
            in_flight: [0; 2],
            capacity: usize::try_from(capacity).expect("small"),
            latency_us,
        });
        self.hosts[CLIENT].by_link.insert(link, wire);
        let delay = Duration::from_micros(self.below(2 * latency_us + 1));
        let ev = if self.chance(20) {
            SimEvent::Refused { wire }
        } else {
            SimEvent::Connect { wire }
        };
        self.after(delay, ev);
    }

    fn connect(&mut self, wire: usize) -> Result<(), String> {
        let addr = SocketAddr::from(([127, 0, 0, 1], 2));
        if let Some(link) = self.on_node(SERVER, |node, env| node.on_accepted(env, addr))? {
            self.wires[wire].ends[SERVER] = Some(link);
            self.hosts[SERVER].by_link.insert(link, wire);
            self.pump(SERVER, link)?;
        }
        if self.wires[wire].open[CLIENT]
            && let Some(link) = self.wires[wire].ends[CLIENT]
        {
            self.on_node(CLIENT, |node, env| node.on_connected(env, link))?;
        } else {
            self.at(self.now, SimEvent::Lost { wire, at: SERVER });
        }
        Ok(())
    }

    /// Moves staged bytes onto the wire, in pieces, as far as it has room.
    fn pump(&mut self, host: usize, link: LinkId) -> Result<(), String> {
        let Some(&wire) = self.hosts[host].by_link.get(&link) else {
            return Ok(());
        };
        let room = {
            let w = &self.wires[wire];
            w.capacity.saturating_sub(w.in_flight[host])
        };
        let env = Env {
            now: self.now,
            entropy: &mut self.rng,
        };
        let Some(tx) = self.hosts[host].node.poll_transmit(env, link) else {
            return Ok(());
        };
        let bytes = tx.take(room);
        self.hosts[host].node.on_transmitted(link);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // Whole half of the time, else cut anywhere: a fault in between is in mid-frame.
            let len = rest.len() as u64;
            let most = if self.chance(2) {
                len
            } else {
                1 + self.below(len.min(4000))
            };
            let (piece, tail) = rest.split_at(usize::try_from(most).expect("small"));
            rest = tail;
            let delay = Duration::from_micros(self.below(self.wires[wire].latency_us));
            let w = &mut self.wires[wire];
            w.arrives[host] = w.arrives[host].max(self.now + delay);
            w.in_flight[host] += piece.len();
            let at = w.arrives[host];
            self.at(
                at,
                SimEvent::Bytes {
                    wire,
                    to: 1 - host,
                    bytes: piece.to_vec(),
                },
            );
        }
        // Events that filling and transmitting made.
        while let Some(output) = self.hosts[host].node.poll_output() {
            self.on_output(host, output)?;
        }
        Ok(())
    }

    fn deliver(&mut self, wire: usize, to: usize, bytes: &[u8]) -> Result<(), String> {
        let w = &mut self.wires[wire];
        w.in_flight[1 - to] -= bytes.len();
        if w.silent || !w.open[to] {
            return Ok(());
        }
        let sender = w.ends[1 - to].filter(|_| w.open[1 - to]);
        if sender.is_none() {
            self.coverage.late_bytes += 1;
        }
        if let Some(link) = w.ends[to] {
            self.on_node(to, |node, env| node.on_bytes(env, link, bytes))?;
        }
        match sender {
            Some(link) => self.pump(1 - to, link),
            None => Ok(()),
        }
    }

    fn disconnect(&mut self, wire: usize, at: usize) -> Result<(), String> {
        let w = &mut self.wires[wire];
        if !w.open[at] {
            return Ok(());
        }
        w.open[at] = false;
        let Some(link) = w.ends[at] else {
            return Ok(());
        };
        self.on_node(at, |node, env| node.on_lost(env, link, Fault::Disconnected))
    }

    fn hang_up(&mut self, host: usize, link: LinkId) {
        let Some(wire) = self.hosts[host].by_link.remove(&link) else {
            return;
        };
        let w = &mut self.wires[wire];
        if !std::mem::replace(&mut w.open[host], false) || w.silent {
            return;
        }
        // What was sent before still arrives, and then the end.
        let at = w.arrives[host].max(self.now) + Duration::from_micros(1);
        self.at(at, SimEvent::Lost { wire, at: 1 - host });
    }

    /// The application's turn: sends, revokes, calls things done.
    fn app(&mut self, host: usize) -> Result<(), String> {
        let burst = 1 + self.below(6);
        let roll = self.below(30);
        let mut kicks = Vec::new();
        let mut revoked = 0;
        for (id, endpoint) in &mut self.hosts[host].endpoints {
            for _ in 0..burst {
                kicks.push((*id, endpoint.send_one(&mut self.rng, &mut self.ledger)));
            }
            if roll < 4 {
                revoked += u64::from(endpoint.revoke_last(&mut self.ledger));
            }
            if roll.is_multiple_of(3) || self.now > FAULTS_END {
                kicks.push((*id, endpoint.call_done(&mut self.ledger)));
            }
            if roll == 5 {
                kicks.push((*id, endpoint.queue.keepalive().unwrap_or(Kick::Nobody)));
            }
        }
        self.coverage.revoked += revoked;
        for (session, kick) in kicks {
            if kick == Kick::Worker {
                let incarnation = self.hosts[host].incarnation;
                let delay = Duration::from_micros(self.below(200));
                self.after(
                    delay,
                    SimEvent::Kick {
                        host,
                        incarnation,
                        session,
                    },
                );
            }
        }
        // Sometimes a long pause, so that sessions are idle when a fault comes.
        let pause = if self.chance(6) {
            self.below(700_000)
        } else {
            self.below(40_000)
        };
        self.after(Duration::from_micros(1000 + pause), SimEvent::App { host });
        Ok(())
    }
}
