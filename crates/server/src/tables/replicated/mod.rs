//! Rows of a cluster: what this core has of slots, as their owner and as a replica of others.
//!
//! ```text
//!   command ─ admit ─► engine ─ what rows were before ─► number ─► journal, with the turn's other records
//!                                                          │
//!   end_turn: flush ─► one message for each replica ───────┴────► Acknowledged ─► gates open, exchange is let go
//!
//!   view ─ assign ─► Opened: copies become rows of the engine       Closed: rows of the engine become copies
//! ```
//!
//! The rules are those of `larder_cluster::replication`; here is its host. `admission` says what may be executed and what its reply waits for,
//! `numbering` gives changes their numbers, `turn` is the end of a core's turn, `view` acts on a new map, `arrivals` takes messages of other
//! places and `carrier` sends them, `links` are these connections, `kept_back` holds what other engines may not know yet, `in_pause` says what they know of a
//! transaction over several cores. Rows are in `rows` (the engine's) and `copies` (all
//! others), each with a `value`; the journal's entries are in `entries`, its snapshots in `snapshot`.
//!
//! Only with `cluster.mode = "etcd"` is there a [`Replicated`].
//!
//! 1. A slot's rows are in the engine if and only if this place owns the slot, and its owner's log numbers each of their changes.
//! 2. What happens to a slot is in the journal before a message that relies on it leaves.
//! 3. Neither a client nor the engine of another node learns of a change before it is committed. Engines of the node's own cores do in a
//!    pause: see `in_pause`.

mod admission;
mod arrivals;
mod carrier;
mod copies;
mod entries;
mod in_pause;
mod kept;
mod kept_back;
mod links;
mod numbering;
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

use larder_cluster::coordination::Held;
use larder_cluster::map::NodeId;
use larder_cluster::replication::{
    Assignment, Copy, Limits, Outputs, Place, Record, Replication, Ticket,
};
use larder_types::BySlot;
use tokio::sync::Notify;

pub use admission::{Admitted, Awaits};
pub use entries::Recovered;
pub use in_pause::Settlement;
pub use links::FromOwner;

use super::Tables;
use crate::cluster::View;
use carrier::Carrier;
use copies::Copies;
use in_pause::InPause;
use kept_back::KeptBack;
use links::Links;
use rows::Groups;

/// One core's part.
pub struct Replicated {
    state: RefCell<State>,
    carrier: RefCell<Option<Rc<dyn Carrier>>>,
    links: RefCell<Option<Rc<Links>>>,
    kept_back: RefCell<KeptBack>,
    in_pause: InPause,
    /// Changes whenever something that waits may go on.
    progress: Cell<u64>,
    /// Told when fillings are to go on in some milliseconds.
    fills: Notify,
}

struct State {
    core: u16,
    cores: u16,
    /// `None` before the map knows this node.
    replication: Option<Replication>,
    /// What the journal had, until then.
    found: BTreeMap<u16, Copy>,
    groups: Groups,
    copies: Copies,
    /// Of the turn.
    out: Outputs,
    log: LoggedRecords,
    changes: Changes,
    /// By number, what has become of the changes of each core of this node that this core may show (see `in_pause`).
    other_cores: Vec<Settlement>,
    /// What a change's value and a record are encoded in, one after another.
    value: Vec<u8>,
    encoded: Vec<u8>,
    /// Of this life, once a map has this node in it.
    lease: Option<Held>,
    /// Replies wait for the replicas in sync.
    waits_for_replicas: bool,
    /// What replication was told of each slot.
    assigned: BySlot<Rc<Assignment>>,
    /// The view that was acted on last.
    taken: Option<Arc<View>>,
    /// Slots that an owner has begun to fill or to follow up since: it may go by another map.
    begun: BTreeSet<u16>,
    /// Which connection the stream of an owner comes over.
    sources: BTreeMap<Place, u64>,
    /// Nodes whose connection is there: which it is, and how many of their cores replication was told of.
    reached: BTreeMap<NodeId, (u64, u16)>,
    /// The cores of each node, by the last view.
    cores_of: BTreeMap<NodeId, u16>,
    /// Nodes that own slots are to be sent to.
    wanted: BTreeSet<NodeId>,
    /// Copies that do not count, for the journal; before anything else of replication.
    dropped: Vec<Record>,
    /// Changes of own rows so far.
    numbered: u64,
    /// The journal lacks something that was put out: nothing is taken any more.
    is_broken: bool,
    ticked_ms: u64,
    limits: Limits,
    /// Own slots that are to be others', and what readers of their rows are to acknowledge first.
    withdrawn: BTreeMap<u16, u64>,
    /// Slots without whole copy, or whose owner has an old disk: they were told of.
    troubled: BTreeMap<u16, &'static str>,
}

/// How far the journal has what was put out.
#[derive(Default)]
struct LoggedRecords {
    /// How many records each append brought it to.
    appended: VecDeque<(u64, larder_journal::Ticket)>,
    records: u64,
}

/// Changes of this core in the order of their execution.
#[derive(Default)]
struct Changes {
    /// Those from `settled` on.
    waiting: VecDeque<Ticket>,
    executed: u64,
    /// So many are committed or unknown.
    settled: u64,
    /// How many of all ended unknown.
    unknown: u64,
}

impl Replicated {
    pub fn new(core: u16, cores: u16, found: BTreeMap<u16, Copy>, copies: Copies) -> Replicated {
        Replicated {
            state: RefCell::new(State {
                core,
                cores,
                replication: None,
                found,
                groups: Groups::default(),
                copies,
                out: Outputs::default(),
                log: LoggedRecords::default(),
                changes: Changes::default(),
                other_cores: vec![Settlement::default(); cores.into()],
                value: Vec::new(),
                encoded: Vec::new(),
                lease: None,
                waits_for_replicas: true,
                assigned: BySlot::default(),
                taken: None,
                begun: BTreeSet::new(),
                sources: BTreeMap::new(),
                reached: BTreeMap::new(),
                cores_of: BTreeMap::new(),
                wanted: BTreeSet::new(),
                dropped: Vec::new(),
                numbered: 0,
                is_broken: false,
                ticked_ms: 0,
                limits: Limits::default(),
                withdrawn: BTreeMap::new(),
                troubled: BTreeMap::new(),
            }),
            carrier: RefCell::default(),
            links: RefCell::default(),
            kept_back: RefCell::default(),
            in_pause: InPause::default(),
            progress: Cell::new(0),
            fills: Notify::new(),
        }
    }

    fn note_progress(&self) {
        self.progress.set(self.progress.get() + 1);
    }
}

impl State {
    fn place(&self, node: NodeId) -> Place {
        let core = self.core;
        Place { node, core }
    }

    /// Has the owner of slots go by the lease as it is now: it may have been given up within a turn.
    fn note_lease(&mut self) {
        let until_ms = self.lease_until_ms();
        if let Some(replication) = &mut self.replication {
            replication.owner.set_lease(until_ms);
        }
    }

    fn lease_until_ms(&self) -> u64 {
        self.lease.as_ref().map_or(0, Held::until_ms)
    }
}

impl Tables {
    /// How it stands with the replicas of this core's own slots.
    pub(super) fn replication_figures(&self) -> larder_cluster::replication::Figures {
        let figures = |replicated: &Replicated| {
            let state = replicated.state.borrow();
            state.replication.as_ref().map(|it| it.owner.figures())
        };
        let replicated = self.replicated.as_ref();
        replicated.and_then(figures).unwrap_or_default()
    }

    /// Rows of objects that came into the engine, or left it, with their slots, since it was last asked.
    pub(super) fn take_moved_objects(&self) -> Vec<Box<[u8]>> {
        let replicated = self.replicated.as_ref();
        replicated.map_or_else(Vec::new, |replicated| {
            replicated.state.borrow_mut().groups.take_moved()
        })
    }

    /// What copies of other places' rows take.
    pub(super) fn copies_bytes(&self) -> usize {
        let replicated = self.replicated.as_ref();
        replicated.map_or(0, |replicated| {
            replicated.state.borrow().copies.memory_bytes()
        })
    }
}

/// Splits the state for a call of replication that touches rows.
macro_rules! with_rows {
    ($state:expr, $engine:expr, |$replication:ident, $rows:ident, $out:ident| $call:expr) => {{
        let State {
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
