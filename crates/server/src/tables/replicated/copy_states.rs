//! The state of this core's copies of slots, for a recovery of the cluster map.

use larder_cluster::rebuild::StoredCopy;

use super::ReplicationState;
use crate::tables::Tables;

impl Tables {
    /// Returns this core's copies, by slot. While the node serves, they change with each write.
    pub fn copy_states(&self) -> Vec<StoredCopy> {
        let Some(replicated) = &self.replicated else {
            return Vec::new();
        };
        let state = replicated.state.borrow();
        let mut slots = state.slots();
        slots.sort_unstable();
        let copies = slots.into_iter().filter_map(|slot| state.copy_state(slot));
        copies.collect()
    }
}

impl ReplicationState {
    fn copy_state(&self, slot: u16) -> Option<StoredCopy> {
        let replication = self.replication.as_ref();
        if let Some(owned) = replication.and_then(|it| it.owner.uncommitted(slot)) {
            let last = owned.changes.last().map(|(entry, _)| entry.at);
            return Some(StoredCopy {
                slot,
                term: owned.term,
                last: last.unwrap_or(owned.committed),
                is_complete: true,
            });
        }
        let copy = match replication {
            Some(replication) => replication.replica.copy(slot)?,
            None => self.recovered.get(&slot)?,
        };
        Some(StoredCopy {
            slot,
            term: copy.term,
            last: copy.last(),
            is_complete: copy.is_complete,
        })
    }
}
