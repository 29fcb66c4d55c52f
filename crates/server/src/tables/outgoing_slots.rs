//! Slots of all cores of this node that the map assigns to other nodes. Their rows are not written, and soon not read,
//! until a map names the new owner. Maps are not applied while the cores are paused, so a pause must check these slots
//! first.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_join::{range_slot, row_slot};
use larder_protocol::commands::{Command, Id};

#[derive(Default)]
pub struct OutgoingSlots {
    count: AtomicUsize,
    slots: Mutex<BTreeSet<u16>>,
}

impl OutgoingSlots {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, slot: u16) {
        let mut all = self.lock();
        all.insert(slot);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Removes a slot that another node owns now, or that stays.
    pub fn remove(&self, slot: u16) {
        let mut all = self.lock();
        all.remove(&slot);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Returns whether there are any such slots. Reads one atomic number.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a command on rows may access one of these slots. Computed rows may depend on any of them.
    pub fn affects(&self, command: Command<'_>, is_computed: impl Fn(&[u8]) -> bool) -> bool {
        if !self.has_any() || matches!(command.id(), Id::JoinCreate | Id::JoinDrop) {
            return false;
        }
        let slots = self.lock();
        if let Some((lo, hi)) = command.range() {
            let slot = range_slot(lo, hi).filter(|_| !is_computed(lo));
            return !slots.is_empty() && slot.is_none_or(|slot| slots.contains(&slot));
        }
        let mut keys = command.keys();
        match keys.len() {
            0 => !slots.is_empty(),
            _ => keys.any(|key| is_computed(key) || slots.contains(&row_slot(key))),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::commands::OwnedCommand;

    use super::*;

    #[test]
    fn only_commands_on_outgoing_slots_are_affected() {
        let outgoing = OutgoingSlots::default();
        let concerns = |id, args: &[&str]| {
            let command = OwnedCommand::of(id, args.iter().map(|arg| arg.as_bytes()));
            outgoing.affects(command.command(), |key| key.starts_with(b"by|"))
        };
        assert!(!concerns(Id::FlushAll, &[]));
        outgoing.insert(row_slot(b"vote|a|1"));
        outgoing.insert(row_slot(b"vote|b|1"));
        assert!(concerns(Id::MGet, &["vote|c|1", "vote|a|2"]));
        assert!(!concerns(Id::MGet, &["vote|c|1", "vote|d|2"]));
        assert!(concerns(Id::Get, &["by|c|1"]), "of whatever rows");
        assert!(concerns(Id::Range, &["vote|a|", "vote|a}"]));
        assert!(!concerns(Id::Range, &["vote|c|", "vote|c}"]));
        assert!(concerns(Id::Range, &["vote|", "vote}"]));
        assert!(concerns(Id::FlushAll, &[]));
        outgoing.remove(row_slot(b"vote|a|1"));
        assert!(!concerns(Id::Set, &["vote|a|1", "x"]) && outgoing.has_any());
        outgoing.remove(row_slot(b"vote|b|1"));
        assert!(!outgoing.has_any());
    }
}
