//! The merge of loads and the replication stream, without sockets and clocks: events are inputs, and actions are
//! outputs.
//!
//! ```text
//!  begin_load ─► retains changes of its ranges ─► loaded(rows, snapshot, lsn) ─► the stream passes lsn ─► Supply
//!                                                       │                                 (rows, and the changes
//!                                                       └─ Again: a new snapshot           that the snapshot does
//!                                                                                          not include)
//! ```
//!
//! 1. **The rows in memory are the state of PostgreSQL at one position of its log.** A range is supplied once the
//!    stream has passed `lsn`, a position after every commit that its snapshot includes. All ranges, whenever they were
//!    loaded, therefore contain exactly what was committed up to the position, and each later commit is applied once to
//!    all of them.
//! 2. A commit that the snapshot does not include is in the stream after the start of the load, and its changes are
//!    retained. It can also be in the stream *before* the start: the stream contains a commit as soon as it is in the
//!    log, but other transactions see it slightly later, or much later with synchronous standbys. Such a load is
//!    repeated.
//! 3. A commit that the snapshot includes is in the loaded rows, so its retained changes are dropped.

use std::collections::{BTreeMap, VecDeque};

use larder_types::KeyRange;

use crate::changes::Change;
use crate::snapshot::{Lsn, Snapshot};

/// A row's key and value.
pub type Row = (Vec<u8>, Vec<u8>);

pub type LoadId = u64;

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub snapshot: Snapshot,
    /// A position that was read after the snapshot was taken.
    pub lsn: Lsn,
    /// All rows of its ranges.
    pub rows: Vec<Row>,
}

/// An action that the caller must perform, in the order of the list.
#[derive(Debug, PartialEq, Eq)]
pub enum MergeOutput {
    Supply {
        load: LoadId,
        core: usize,
        ranges: Vec<KeyRange>,
        rows: Vec<Row>,
    },
    /// Load again: a change in the ranges could not be applied, or the snapshot was too old.
    Retry { load: LoadId },
    /// The changes of a write have arrived.
    WriteVisible { wait: u64 },
}

struct Load {
    /// The core that requested the load and is supplied.
    core: usize,
    ranges: Vec<KeyRange>,
    /// Number of transactions that had started in the stream when the load started.
    began: u64,
    /// The changes received since, with their transactions.
    changes: Vec<(u32, Change)>,
    loaded: Option<Loaded>,
    is_invalidated: bool,
}

struct Wait {
    xid: Option<u32>,
    lsn: Lsn,
}

/// The loads in progress, and the position of the stream.
#[derive(Default)]
pub struct Merge {
    position: Lsn,
    /// The transaction whose changes are being received.
    current: u32,
    transactions_begun: u64,
    /// Transactions that were in the stream and that some snapshots may not include yet, with their sequence numbers in
    /// the stream.
    recent_transactions: VecDeque<(u64, u32)>,
    loads: BTreeMap<LoadId, Load>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
    retries: Vec<LoadId>,
}

impl Merge {
    /// Creates a merge at the position where the stream starts.
    pub fn new(position: Lsn) -> Merge {
        Merge {
            position,
            ..Merge::default()
        }
    }

    /// Returns the position whose state the rows in memory represent.
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// Starts a load. Its snapshot must be taken afterwards.
    pub fn begin_load(&mut self, core: usize, ranges: Vec<KeyRange>) -> LoadId {
        self.next += 1;
        let load = Load {
            core,
            ranges,
            began: self.transactions_begun,
            changes: Vec::new(),
            loaded: None,
            is_invalidated: false,
        };
        self.loads.insert(self.next, load);
        self.next
    }

    /// Returns a load in progress that covers all these ranges.
    pub fn find_covering_load(&self, core: usize, ranges: &[KeyRange]) -> Option<LoadId> {
        let covers = |load: &Load| {
            let is_in = |range| load.ranges.iter().any(|other| other.covers(range));
            load.core == core && ranges.iter().all(is_in)
        };
        let found = self.loads.iter().find(|(_, load)| covers(load));
        found.map(|(id, _)| *id)
    }

    pub fn ranges_of(&self, load: LoadId) -> &[KeyRange] {
        self.loads.get(&load).map_or(&[], |load| &load.ranges)
    }

    /// Returns the loads in progress that overlap a range.
    pub fn loads_of(&self, range: &KeyRange) -> Vec<LoadId> {
        let loads = self.loads.iter();
        let overlapping =
            loads.filter(|(_, load)| load.ranges.iter().any(|other| other.overlaps(range)));
        overlapping.map(|(id, _)| *id).collect()
    }

    /// Drops a load that has failed or is no longer needed.
    pub fn forget_load(&mut self, load: LoadId) {
        self.loads.remove(&load);
    }

    /// Restarts a load, which needs a new snapshot.
    pub fn restart_load(&mut self, load: LoadId) {
        if let Some(load) = self.loads.get_mut(&load) {
            load.began = self.transactions_begun;
            load.changes.clear();
            load.loaded = None;
            load.is_invalidated = false;
        }
    }

    /// Receives the rows of a load.
    pub fn loaded(&mut self, id: LoadId, loaded: Loaded) {
        let Some(load) = self.loads.get_mut(&id) else {
            return;
        };
        let began = load.began;
        let mut before = self
            .recent_transactions
            .iter()
            .filter(|(at, _)| *at <= began);
        let snapshot = loaded.snapshot.clone();
        if before.any(|(_, xid)| !snapshot.sees(*xid)) {
            self.retries.push(id);
        } else {
            load.loaded = Some(loaded);
        }
        self.prune(&snapshot);
    }

    /// Drops transactions that every later snapshot includes. Loads in progress may have an earlier snapshot, so the
    /// transactions before their start are retained for them.
    pub fn prune(&mut self, snapshot: &Snapshot) {
        let running = self.loads.values().filter(|load| load.loaded.is_none());
        let needed = running.map(|load| load.began).max().unwrap_or(0);
        self.recent_transactions
            .retain(|(at, xid)| *at <= needed || !snapshot.is_past(*xid));
    }

    /// Receives the start of a transaction.
    pub fn begin(&mut self, xid: u32) {
        self.transactions_begun += 1;
        self.current = xid;
        self.recent_transactions
            .push_back((self.transactions_begun, xid));
    }

    /// Receives a change of the current transaction.
    pub fn change(&mut self, change: &Change) {
        if self.loads.is_empty() {
            return;
        }
        let range = change.range();
        for load in self.loads.values_mut() {
            if load.ranges.iter().any(|other| other.overlaps(&range)) {
                load.changes.push((self.current, change.clone()));
            }
        }
    }

    /// Receives the commit of the current transaction. The next one starts at `end` or later.
    pub fn commit(&mut self, end: Lsn) {
        self.position = self.position.max(end);
        let xid = self.current;
        for wait in self.waits.values_mut() {
            if wait.xid == Some(xid) {
                wait.lsn = 0;
            }
        }
    }

    /// Records that all commits before `position` have been received.
    pub fn advance(&mut self, position: Lsn) {
        self.position = self.position.max(position);
    }

    /// Repeats the loads that overlap a range, because its rows changed in a way that the stream does not express.
    pub fn invalidate(&mut self, range: &KeyRange) {
        let is_invalidated = |load: &Load| load.ranges.iter().any(|other| other.overlaps(range));
        // A load in progress is repeated after its rows have arrived.
        for load in self.loads.values_mut() {
            load.is_invalidated |= is_invalidated(load);
        }
    }

    /// Registers a wait for a transaction, or otherwise for a position.
    pub fn wait_for(&mut self, xid: Option<u32>, lsn: Lsn) -> u64 {
        self.next += 1;
        let is_visible = xid.is_some_and(|xid| {
            let mut recent_transactions = self.recent_transactions.iter();
            // The current transaction has not been received completely.
            recent_transactions.any(|(at, other)| {
                *other == xid && (*at < self.transactions_begun || self.current != xid)
            })
        });
        let lsn = if is_visible { 0 } else { lsn };
        self.waits.insert(self.next, Wait { xid, lsn });
        self.next
    }

    /// Returns whether a load or a write is in progress.
    pub fn has_pending(&self) -> bool {
        !self.loads.is_empty() || !self.waits.is_empty() || !self.retries.is_empty()
    }

    /// Returns the highest position that is waited for, if the stream has not reached it.
    pub fn awaited_position(&self) -> Option<Lsn> {
        let loads = self.loads.values().filter_map(|load| load.loaded.as_ref());
        let loads = loads.map(|loaded| loaded.lsn);
        let awaited_position = loads.chain(self.waits.values().map(|wait| wait.lsn)).max();
        awaited_position.filter(|lsn| *lsn > self.position)
    }

    /// Returns the actions that are possible now. All changes so far must have been passed on before.
    pub fn take_outputs(&mut self) -> Vec<MergeOutput> {
        let mut ready: Vec<MergeOutput> = Vec::new();
        for load in std::mem::take(&mut self.retries) {
            ready.push(MergeOutput::Retry { load });
        }
        let position = self.position;
        let is_ready = |load: &Load| load.loaded.as_ref().is_some_and(|l| l.lsn <= position);
        let done = self.loads.iter().filter(|(_, load)| is_ready(load));
        for id in done.map(|(id, _)| *id).collect::<Vec<_>>() {
            let mut load = self.loads.remove(&id).expect("just seen");
            let loaded = load.loaded.take().expect("just seen");
            match merge_rows(&load, loaded) {
                Some(rows) => ready.push(MergeOutput::Supply {
                    load: id,
                    core: load.core,
                    ranges: load.ranges,
                    rows,
                }),
                None => {
                    self.loads.insert(id, load);
                    ready.push(MergeOutput::Retry { load: id });
                }
            }
        }
        let is_visible = self.waits.iter().filter(|(_, wait)| wait.lsn <= position);
        for wait in is_visible.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.waits.remove(&wait);
            ready.push(MergeOutput::WriteVisible { wait });
        }
        ready
    }
}

/// Returns the rows at the current position. `None` if they cannot be determined.
fn merge_rows(load: &Load, loaded: Loaded) -> Option<Vec<Row>> {
    if load.is_invalidated {
        return None;
    }
    let unseen = |xid: u32| !loaded.snapshot.sees(xid);
    if !load.changes.iter().any(|(xid, _)| unseen(*xid)) {
        return Some(loaded.rows);
    }
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = loaded.rows.into_iter().collect();
    let is_loaded = |key: &[u8]| load.ranges.iter().any(|range| range.contains(key));
    for (_, change) in load.changes.iter().filter(|(xid, _)| unseen(*xid)) {
        match change {
            Change::Put { key, value } if is_loaded(key) => {
                rows.insert(key.clone(), value.clone());
            }
            Change::Patch { key, patch } if is_loaded(key) => {
                let row = rows.get_mut(key)?;
                *row = patch.apply(row)?;
            }
            Change::Remove { key } => {
                rows.remove(key);
            }
            Change::Clear { prefix } => rows.retain(|key, _| !key.starts_with(prefix)),
            Change::Forget { .. } => return None,
            _ => {}
        }
    }
    Some(rows.into_iter().collect())
}
