//! Changes of a pause, from their execution until replicas have acknowledged them.
//!
//! A transaction over several cores reads its own writes, also in outputs that other cores of the node compute. So the node's own cores receive
//! changes during the pause, while they have no numbers. Other nodes receive nothing that shows such changes before replicas have them.
//!
//! ```text
//!                                           own cores                   other nodes
//!  row changes in the pause ─ note_unnumbered
//!  send_exchange ─ keep_back                receive Changes             held as UNNUMBERED
//!  end of the pause ─ end_unnumbered        receive a Settlement        held until the changes are settled
//!  turn ─ settle_changes                    receive the next one        receive Changes
//! ```
//!
//! 1. From the end of the pause until its changes are settled, a reply that may show outputs waits for these changes ([`super::Awaits`]).
//! 2. If one of the changes ends unknown, the own cores are sent `OwnerLost` before the settlement that says so. So they drop what they computed
//!    from the change before any reply that waited for it fails.
//! 3. The reply to a command in the pause waits for own cores only, that to the transaction for other nodes too.
//! 4. A `Supply` for another node is not held if none of its rows has an unnumbered change. Otherwise two nodes whose transactions need rows
//!    of each other would both wait until their pauses time out.

use std::cell::Cell;

use larder_join::{Engine, EngineMessage};

use super::Replicated;
use crate::tables::{CoreMessage, Gate, Tables};

/// How many changes a core has executed, and what has become of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settlement {
    /// For another core: those that it may show.
    pub executed: u64,
    /// The number of changes that are committed or ended unknown.
    pub settled: u64,
    /// The number of changes that ended unknown.
    pub unknown: u64,
}

impl Settlement {
    /// The changes that a reply waits for, and how many had ended unknown; `None` if all are settled.
    pub fn upto(self) -> Option<(u64, u64)> {
        (self.settled < self.executed).then_some((self.executed, self.unknown))
    }
}

/// This core's changes of a pause that other engines may know of.
#[derive(Default)]
pub(super) struct InPause {
    /// While there are changes without numbers: the last export that came before them.
    exported_before: Cell<Option<u64>>,
    /// Own cores were sent rows while there were changes without numbers.
    is_shared: Cell<bool>,
    /// Own cores have rows that show changes up to this one, which are not settled.
    pub shared_upto: Cell<Option<u64>>,
}

impl InPause {
    /// Decides what of `messages` to another engine waits for numbers. Notes that an own core is sent rows.
    pub fn is_held(&self, engine: &Engine, to_own_core: bool, message: &EngineMessage) -> bool {
        if self.exported_before.get().is_none() {
            return false;
        }
        if to_own_core {
            self.is_shared
                .set(self.is_shared.get() || message.is_of_owner());
            return false;
        }
        match message {
            EngineMessage::Supply { range, .. } => engine.has_befores_in(range),
            EngineMessage::Later(_) => false,
            message => message.is_of_owner(),
        }
    }
}

impl Tables {
    /// Notes that rows are changed in a pause. It is called before the changes are exported.
    pub(in crate::tables) fn note_unnumbered(&self) {
        let (Some(replicated), Some(sharing)) = (&self.replicated, &self.sharing) else {
            return;
        };
        let exported_before = &replicated.in_pause.exported_before;
        let last = exported_before.get().unwrap_or(sharing.last_exported());
        exported_before.set(Some(last));
    }

    /// Lets the messages that waited for numbers wait for replicas, and `gate` for the engines of other nodes.
    pub(in crate::tables) fn end_unnumbered(&self, replicated: &Replicated, gate: &mut Gate) {
        let in_pause = &replicated.in_pause;
        let (Some(sharing), Some(_)) = (&self.sharing, in_pause.exported_before.take()) else {
            return;
        };
        let settlement = replicated.state.borrow().changes.settlement();
        replicated
            .kept_back
            .borrow_mut()
            .number(settlement.executed);
        gate.exports = gate.exports.max(Some(sharing.last_exported()));
        if in_pause.is_shared.take() && settlement.upto().is_some() {
            in_pause.shared_upto.set(Some(settlement.executed));
            self.send_settlement(settlement);
        }
        self.wake_maintenance();
    }

    /// Whether the engines that have been sent changes up to this export reflect them.
    pub(in crate::tables) fn is_export_reflected(&self, export: u64) -> bool {
        let Some(sharing) = &self.sharing else {
            return true;
        };
        let replicated = self.replicated.as_ref();
        let numbered = replicated.and_then(|it| it.in_pause.exported_before.get());
        match numbered.filter(|numbered| *numbered < export) {
            Some(numbered) => {
                sharing.is_acknowledged(numbered)
                    && sharing.is_acknowledged_by_first(self.handle.cores(), export)
            }
            None => sharing.is_acknowledged(export),
        }
    }

    /// Sends own cores what has become of changes that they have rows of.
    pub(super) fn send_settlement(&self, settlement: Settlement) {
        let from = self.index;
        for core in (0..self.handle.cores()).filter(|core| *core != from) {
            (self.handle).send(core, CoreMessage::Settlement { from, settlement });
        }
    }

    /// Receives what has become of another core's changes.
    pub fn receive_settlement(&self, from: usize, settlement: Settlement) {
        if let Some(replicated) = &self.replicated {
            replicated.state.borrow_mut().other_cores[from] = settlement;
            self.wake_maintenance();
        }
    }
}
