//! An explicit-state model of how hosts share one object store, and its search.
//!
//! What docs/store-protocol.md says is here as small steps, each of which is one request to the store
//! or one write to a disk, and each rule of that page is a switch ([`Rule`]). Small worlds are searched
//! through every interleaving, larger ones by random walks. With all rules in force no world may break
//! a promise; with one of them off the world beside it must, or the rule is idle.
//!
//! The model shares no code with the engine and must not: it is there to say what the engine has to
//! do. It knows no clock and draws its numbers from a seed. Files from the bottom up: `fingerprint`,
//! `search`, `store`, `rules`, `ghost` (the promises), `state`, `step`, then the protocol (`commit`,
//! `open`, `update`, `fork`, `collect`), `action`, `world`, `peers` (a model of its own), `worlds`
//! (the table), `cost`, `walks`, `report`.

mod action;
mod collect;
mod commit;
mod cost;
mod fingerprint;
mod fork;
mod ghost;
mod open;
mod peers;
mod report;
mod rules;
mod search;
mod state;
mod step;
mod store;
#[cfg(test)]
mod tests;
mod update;
mod walks;
mod world;
mod worlds;

pub use report::{Options, run};
pub use rules::Rule;
