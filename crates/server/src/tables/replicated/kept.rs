//! The state of this core's copies of slots, for a recovery of the cluster map.

use larder_cluster::rebuild::KeptCopy;

use super::State;
use crate::tables::Tables;

impl Tables {
    /// Returns this core's copies, by slot. While the node serves, they change with each write.
    pub fn kept_copies(&self) -> Vec<KeptCopy> {
        let Some(replicated) = &self.replicated else {
            return Vec::new();
        };
        let state = replicated.state.borrow();
        let mut slots = state.slots();
        slots.sort_unstable();
        let copies = slots.into_iter().filter_map(|slot| state.kept_copy(slot));
        copies.collect()
    }
}

impl State {
    fn kept_copy(&self, slot: u16) -> Option<KeptCopy> {
        let replication = self.replication.as_ref();
        if let Some(owned) = replication.and_then(|it| it.owner.uncommitted(slot)) {
            let last = owned.changes.last().map(|(entry, _)| entry.at);
            return Some(KeptCopy {
                slot,
                term: owned.term,
                last: last.unwrap_or(owned.committed),
                is_whole: true,
            });
        }
        let copy = match replication {
            Some(replication) => replication.replica.copy(slot)?,
            None => self.found.get(&slot)?,
        };
        Some(KeptCopy {
            slot,
            term: copy.term,
            last: copy.last(),
            is_whole: copy.is_whole,
        })
    }
}
