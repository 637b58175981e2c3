//! What the seed breaks.

use std::time::Duration;

use super::world::{CLIENT, SERVER, SimEvent, World, ms};
use crate::node::Node;

impl World {
    pub(super) fn inject_fault(&mut self) -> Result<(), String> {
        let live: Vec<usize> = (0..self.wires.len())
            .filter(|w| self.wires[*w].open.iter().any(|o| *o) && !self.wires[*w].silent)
            .collect();
        if self.restarts_allowed && self.chance(2) {
            let host = usize::try_from(self.below(2)).expect("0 or 1");
            return self.restart(host);
        }
        let Some(wire) = live.last().copied() else {
            return Ok(());
        };
        match self.below(4) {
            0 if self.config.keepalive_interval.is_some() => {
                self.coverage.half_open += 1;
                self.wires[wire].silent = true;
                // One side may notice at once, the other not until it asks.
                if self.chance(2) {
                    let at = usize::try_from(self.below(2)).expect("0 or 1");
                    self.after(ms(1), SimEvent::Lost { wire, at });
                }
            }
            1 => {
                self.coverage.stalls += 1;
                self.wires[wire].latency_us = 200_000;
            }
            _ => {
                self.coverage.cuts += 1;
                self.wires[wire].silent = true;
                for at in [CLIENT, SERVER] {
                    let delay = Duration::from_micros(self.below(30_000));
                    self.after(delay, SimEvent::Lost { wire, at });
                }
            }
        }
        Ok(())
    }

    /// The host comes back with nothing of what it knew.
    fn restart(&mut self, host: usize) -> Result<(), String> {
        self.coverage.restarts[host] += 1;
        self.restarts += 1;
        for wire in 0..self.wires.len() {
            if std::mem::replace(&mut self.wires[wire].open[host], false) {
                let delay = Duration::from_micros(self.below(20_000));
                self.after(delay, SimEvent::Lost { wire, at: 1 - host });
            }
            self.wires[wire].silent = true;
        }
        let h = &mut self.hosts[host];
        h.node = Node::new(self.config.clone(), self.credentials.clone());
        h.incarnation += 1;
        h.endpoints.clear();
        h.by_link.clear();
        if host == CLIENT {
            self.open_session()?;
        }
        Ok(())
    }
}
