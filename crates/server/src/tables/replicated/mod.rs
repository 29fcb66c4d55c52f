//! Rows of a cluster: the slots of this core, as their owner and as a replica of other places.
//!
//! ```text
//!   command ─ admit ─► engine ─ former rows ─► number ─► journal, with the turn's other records
//!                                                │
//!   end_turn: flush ─► one message per replica ──┴────► Acknowledged ─► gates open, exchange messages are released
//!
//!   view ─ assign ─► Opened: copies become rows of the engine       Closed: rows of the engine become copies
//! ```
//!
//! `larder_cluster::replication` contains the protocol; this module is its host:
//!
//! - `admission`: the commands that may be executed, and the conditions of their replies.
//! - `numbering`: the numbers of changes.
//! - `turn`: the end of a core's turn.
//! - `view`: the application of a new map.
//! - `arrivals`: messages from other places; `carrier` sends messages, over `links`.
//! - `commit_hold`: messages that other engines must not receive yet; `pause_changes` has the rules for transactions over
//!   several cores.
//! - `rows` (in the engine), `copies` (all others) and `value` (their encoding).
//! - `entries` and `snapshot`: the journal's entries and snapshots.
//!
//! A [`Replicated`] exists only with `cluster.mode = "etcd"`.
//!
//! 1. A slot's rows are in the engine if and only if this place owns the slot, and its owner's log numbers each of
//!    their changes.
//! 2. A change of a slot's state is in the journal before a message that relies on it is sent.
//! 3. No client and no engine of another node learns of a change before it is committed. Engines of the node's own
//!    cores do during a pause: see `pause_changes`.

mod admission;
mod arrivals;
mod carrier;
mod commit_hold;
mod copies;
mod copy_states;
mod entries;
mod links;
mod numbering;
mod pause_changes;
mod rows;
mod snapshot;
#[cfg(test)]
mod tests;
mod turn;
mod value;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use larder_cluster::coordination::LeaseHandle;
use larder_cluster::map::NodeId;
use larder_cluster::replication::{
    Assignment, Limits, Outputs, Place, Record, Replication, SlotCopy, Ticket,
};
use larder_types::BySlot;
use tokio::sync::Notify;

pub use admission::{AdmitOutcome, ReplyConditions};
pub use entries::SlotRecovery;
pub use links::FromOwner;
pub use pause_changes::Settlement;

use super::Tables;
use crate::cluster::View;
use carrier::Carrier;
use commit_hold::CommitHold;
use copies::Copies;
use links::Links;
use pause_changes::PauseChanges;
use rows::Groups;

/// One core's part of replication.
pub struct Replicated {
    state: RefCell<ReplicationState>,
    carrier: RefCell<Option<Rc<dyn Carrier>>>,
    links: RefCell<Option<Rc<Links>>>,
    commit_hold: RefCell<CommitHold>,
    pause_changes: PauseChanges,
    /// Incremented whenever a waiting task may continue.
    progress: Cell<u64>,
    /// Notified when fillings must continue after some milliseconds.
    fills: Notify,
}

struct ReplicationState {
    core: u16,
    cores: u16,
    /// `None` before the map contains this node.
    replication: Option<Replication>,
    /// The slots that the journal contained, until then.
    recovered: BTreeMap<u16, SlotCopy>,
    groups: Groups,
    copies: Copies,
    /// The output of this turn.
    out: Outputs,
    log: LoggedRecords,
    changes: ExecutedChanges,
    /// The outcome of changes that this core may show, by the number of the node's core that made them (see
    /// `pause_changes`).
    other_cores: Vec<Settlement>,
    /// Buffers for encoding a change's value and a record.
    value: Vec<u8>,
    encoded: Vec<u8>,
    /// The lease of this incarnation, once a map contains this node.
    lease: Option<LeaseHandle>,
    /// True if replies wait for the in-sync replicas.
    waits_for_replicas: bool,
    /// The last assignment of each slot.
    assigned: BySlot<Rc<Assignment>>,
    /// The last applied view.
    applied_view: Option<Arc<View>>,
    /// Slots that an owner has begun to fill or to update since then, possibly because of another map.
    early_fills: BTreeSet<u16>,
    /// The connection of each owner's stream.
    sources: BTreeMap<Place, u64>,
    /// Connected nodes, with the connection and the number of their cores for which streams were started.
    connections: BTreeMap<NodeId, (u64, u16)>,
    /// The number of cores of each node, in the last view.
    cores_of: BTreeMap<NodeId, u16>,
    /// Nodes that must receive changes of own slots.
    replica_nodes: BTreeSet<NodeId>,
    /// Records of discarded copies, to be logged before any other record of replication.
    dropped: Vec<Record>,
    /// Number of changes of own rows.
    numbered: u64,
    /// True if the journal lacks a record. Writes are then rejected.
    is_broken: bool,
    ticked_ms: u64,
    limits: Limits,
    /// Own slots that will be given away, with the mark that readers of their rows must acknowledge first.
    withdrawn: BTreeMap<u16, u64>,
    /// Slots that were reported because they have no complete copy, or because their owner has an old disk.
    reported_slots: BTreeMap<u16, &'static str>,
}

/// The records that the journal has made durable.
#[derive(Default)]
struct LoggedRecords {
    /// The number of records after each append.
    appended: VecDeque<(u64, larder_journal::Ticket)>,
    records: u64,
}

/// Changes of this core in the order of execution.
#[derive(Default)]
struct ExecutedChanges {
    /// The changes from `settled` on.
    waiting: VecDeque<Ticket>,
    executed: u64,
    /// Number of changes that are committed or have an unknown outcome.
    settled: u64,
    /// Number of changes with an unknown outcome.
    unknown: u64,
}

impl Replicated {
    pub fn new(
        core: u16,
        cores: u16,
        recovered: BTreeMap<u16, SlotCopy>,
        copies: Copies,
    ) -> Replicated {
        Replicated {
            state: RefCell::new(ReplicationState {
                core,
                cores,
                replication: None,
                recovered,
                groups: Groups::default(),
                copies,
                out: Outputs::default(),
                log: LoggedRecords::default(),
                changes: ExecutedChanges::default(),
                other_cores: vec![Settlement::default(); cores.into()],
                value: Vec::new(),
                encoded: Vec::new(),
                lease: None,
                waits_for_replicas: true,
                assigned: BySlot::default(),
                applied_view: None,
                early_fills: BTreeSet::new(),
                sources: BTreeMap::new(),
                connections: BTreeMap::new(),
                cores_of: BTreeMap::new(),
                replica_nodes: BTreeSet::new(),
                dropped: Vec::new(),
                numbered: 0,
                is_broken: false,
                ticked_ms: 0,
                limits: Limits::default(),
                withdrawn: BTreeMap::new(),
                reported_slots: BTreeMap::new(),
            }),
            carrier: RefCell::default(),
            links: RefCell::default(),
            commit_hold: RefCell::default(),
            pause_changes: PauseChanges::default(),
            progress: Cell::new(0),
            fills: Notify::new(),
        }
    }

    fn advance_progress(&self) {
        self.progress.set(self.progress.get() + 1);
    }
}

impl ReplicationState {
    fn place(&self, node: NodeId) -> Place {
        let core = self.core;
        Place { node, core }
    }

    /// Passes the current lease to the owner of slots, because it may have been given up within a turn.
    fn refresh_lease(&mut self) {
        let until_ms = self.lease_until_ms();
        if let Some(replication) = &mut self.replication {
            replication.owner.set_lease(until_ms);
        }
    }

    fn lease_until_ms(&self) -> u64 {
        self.lease.as_ref().map_or(0, LeaseHandle::until_ms)
    }
}

impl Tables {
    /// Returns statistics of the replication of this core's own slots.
    pub(super) fn replication_stats(&self) -> larder_cluster::replication::ReplicationStats {
        let figures = |replicated: &Replicated| {
            let state = replicated.state.borrow();
            state.replication.as_ref().map(|it| it.owner.stats())
        };
        let replicated = self.replicated.as_ref();
        replicated.and_then(figures).unwrap_or_default()
    }

    /// Returns the objects' rows that entered or left the engine with their slots since the last call.
    pub(super) fn take_moved_objects(&self) -> Vec<Box<[u8]>> {
        let replicated = self.replicated.as_ref();
        replicated.map_or_else(Vec::new, |replicated| {
            replicated.state.borrow_mut().groups.take_moved()
        })
    }

    /// Memory of copies of other places' rows.
    pub(super) fn copies_bytes(&self) -> usize {
        let replicated = self.replicated.as_ref();
        replicated.map_or(0, |replicated| {
            replicated.state.borrow().copies.memory_bytes()
        })
    }
}

/// Splits the state for a call of replication that accesses rows.
macro_rules! with_rows {
    ($state:expr, $engine:expr, |$replication:ident, $rows:ident, $out:ident| $call:expr) => {{
        let ReplicationState {
            replication,
            groups,
            copies,
            out: $out,
            ..
        } = &mut *$state;
        replication.as_mut().map(|$replication| {
            let $rows = &mut $crate::tables::replicated::rows::AllRows {
                engine: $engine,
                groups,
                copies,
            };
            $call
        })
    }};
}
use with_rows;
