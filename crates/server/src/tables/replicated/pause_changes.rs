//! Changes of a pause, from their execution until replicas have acknowledged them.
//!
//! A transaction over several cores reads its own writes, also in outputs that other cores of the node compute. The
//! node's own cores therefore receive changes during the pause, before these have numbers. Other nodes receive nothing
//! that shows such changes before replicas have them.
//!
//! ```text
//!                                           own cores                   other nodes
//!  row changes in the pause ─ record_unnumbered
//!  send_exchange ─ hold_uncommitted         receive Changes             held as UNNUMBERED
//!  end of the pause ─ finish_unnumbered     receive a Settlement        held until the changes are settled
//!  turn ─ settle_changes                    receive the next one        receive Changes
//! ```
//! 1. From the end of the pause until its changes are settled, a reply that may show outputs waits for these changes
//!    ([`super::ReplyConditions`]).
//! 2. If the outcome of one of the changes is unknown, the own cores receive `OwnerLost` before the settlement that
//!    reports this. They drop the outputs computed from the change before any reply that waited for it fails.
//! 3. The reply to a command in the pause waits only for own cores, that to the transaction also for other nodes.
//! 4. A `Supply` for another node is not withheld if none of its rows has an unnumbered change. Otherwise two nodes
//!    whose transactions need rows of each other would both wait until their pauses time out.

use std::cell::Cell;

use larder_join::{Engine, EngineMessage};

use super::Replicated;
use crate::tables::{CoreMessage, Gate, Tables};

/// The number of changes that a core has executed, and their outcome.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settlement {
    /// In a message to another core: the changes that this core may show.
    pub executed: u64,
    /// Number of changes that are committed or have an unknown outcome.
    pub settled: u64,
    /// Number of changes with an unknown outcome.
    pub unknown: u64,
}

impl Settlement {
    /// Returns the changes that a reply must wait for, and the number of unknown outcomes; `None` if all are settled.
    pub fn upto(self) -> Option<(u64, u64)> {
        (self.settled < self.executed).then_some((self.executed, self.unknown))
    }
}

/// Changes of this core's pause that other engines may know.
#[derive(Default)]
pub(super) struct PauseChanges {
    /// While there are changes without numbers: the last export before them.
    exported_before: Cell<Option<u64>>,
    /// True if own cores received rows while there were changes without numbers.
    is_shared: Cell<bool>,
    /// Set if own cores have rows that show unsettled changes, the last of which is this one.
    pub shared_upto: Cell<Option<u64>>,
}

impl PauseChanges {
    /// Returns whether a message to another engine must wait for numbers. Records that an own core receives rows.
    pub fn must_hold(&self, engine: &Engine, to_own_core: bool, message: &EngineMessage) -> bool {
        if self.exported_before.get().is_none() {
            return false;
        }
        if to_own_core {
            self.is_shared
                .set(self.is_shared.get() || message.is_from_owner());
            return false;
        }
        match message {
            EngineMessage::Supply { range, .. } => engine.has_before_images_in(range),
            EngineMessage::EpochTooOld(_) => false,
            message => message.is_from_owner(),
        }
    }
}

impl Tables {
    /// Records that rows are changed in a pause. Must be called before the changes are exported.
    pub(in crate::tables) fn record_unnumbered(&self) {
        let (Some(replicated), Some(sharing)) = (&self.replicated, &self.sharing) else {
            return;
        };
        let exported_before = &replicated.pause_changes.exported_before;
        let last = exported_before.get().unwrap_or(sharing.last_exported());
        exported_before.set(Some(last));
    }

    /// Makes the messages that waited for numbers wait for replicas, and `gate` for the engines of other nodes.
    pub(in crate::tables) fn finish_unnumbered(&self, replicated: &Replicated, gate: &mut Gate) {
        let pause_changes = &replicated.pause_changes;
        let (Some(sharing), Some(_)) = (&self.sharing, pause_changes.exported_before.take()) else {
            return;
        };
        let settlement = replicated.state.borrow().changes.settlement();
        replicated
            .commit_hold
            .borrow_mut()
            .assign_numbers(settlement.executed);
        gate.exports = gate.exports.max(Some(sharing.last_exported()));
        if pause_changes.is_shared.take() && settlement.upto().is_some() {
            pause_changes.shared_upto.set(Some(settlement.executed));
            self.send_settlement(settlement);
        }
        self.wake_maintenance();
    }

    /// Returns whether the engines that received changes up to this export reflect them. For an export of a pause, only own
    /// cores count: other nodes may wait for replicas, and for messages that were withheld before the pause.
    pub(in crate::tables) fn is_export_reflected(&self, export: u64) -> bool {
        let Some(sharing) = &self.sharing else {
            return true;
        };
        let replicated = self.replicated.as_ref();
        let numbered = replicated.and_then(|it| it.pause_changes.exported_before.get());
        match numbered {
            Some(numbered) if numbered < export => {
                sharing.is_acknowledged_by_first(self.handle.cores(), export)
            }
            _ => sharing.is_acknowledged(export),
        }
    }

    /// Sends the outcome of changes to own cores that have rows of them.
    pub(super) fn send_settlement(&self, settlement: Settlement) {
        let from = self.index;
        for core in (0..self.handle.cores()).filter(|core| *core != from) {
            (self.handle).send(core, CoreMessage::Settlement { from, settlement });
        }
    }

    /// Receives the outcome of another core's changes.
    pub fn receive_settlement(&self, from: usize, settlement: Settlement) {
        if let Some(replicated) = &self.replicated {
            replicated.state.borrow_mut().other_cores[from] = settlement;
            self.wake_maintenance();
        }
    }
}
