//! Owns the judgement of pins (S9): when the root of a snapshot or fork appears, a pin has what it names, and whoever made it
//! has read a root again since that pin was there.
//!
//! The rules are those of docs/store-protocol.md. What a collector would have to do at the wrong moment for a broken one to cost
//! anything takes more chances than a world has; so the order itself is judged, as the store saw it.

use std::collections::BTreeMap;

use volume::object::root::Root;

use crate::store::RootStep;
use crate::trace::Violation;

/// What the store saw of pins and roots.
#[derive(Clone, Debug, Default)]
pub struct PinJudge {
    /// Steps so far.
    clock: u64,
    /// By child, when the first pin of it was written.
    pinned: BTreeMap<String, u64>,
    /// By author, the last two roots that were read, with the moment: of another key than any one there is one.
    read: BTreeMap<u64, Vec<(String, u64)>>,
}

impl PinJudge {
    /// Something took effect. `root`: what stands there, if it is a root that was created.
    ///
    /// # Errors
    /// If it is a child's, and nothing held what it names.
    pub fn on_step(&mut self, step: RootStep, root: Option<&Root>) -> Result<(), Violation> {
        self.clock += 1;
        match step {
            RootStep::Pinned(key) => {
                let child = key
                    .rsplit('/')
                    .next()
                    .and_then(|name| name.split('-').next());
                let first = self.pinned.entry(child.unwrap_or_default().to_owned());
                first.or_insert(self.clock);
            }
            RootStep::Read(author, key) => {
                let read = self.read.entry(author).or_default();
                read.retain(|(other, _)| *other != key);
                if read.len() > 1 {
                    read.remove(0);
                }
                read.push((key, self.clock));
            }
            RootStep::Named(_) => {}
            RootStep::Created(author, key) => {
                if let Some(root) = root.filter(|root| is_child(root)) {
                    return self.on_child(author, &key, root);
                }
            }
        }
        Ok(())
    }

    fn on_child(&self, author: u64, key: &str, root: &Root) -> Result<(), Violation> {
        let wrong = |what: &str| {
            let detail = format!("{key}, the root of a snapshot or fork, was created {what}");
            Err(Violation::new("S9 pin before child", detail))
        };
        let Some(pinned) = self.pinned.get(&root.volume.to_string()) else {
            return wrong("without a pin");
        };
        let read = self.read.get(&author).map_or(&[][..], Vec::as_slice);
        let is_looked = |(other, at): &(String, u64)| other != key && at > pinned;
        match read.iter().any(is_looked) {
            true => Ok(()),
            false => wrong("by somebody who read no root since its pin was there"),
        }
    }
}

/// A new volume names nothing.
fn is_child(root: &Root) -> bool {
    root.labels().is_some() || !(root.deltas.is_empty() && root.nodes.is_empty())
}
