//! The merge of loads and the replication stream. No sockets, no clocks: what happened comes in, what is to be done
//! goes out.
//!
//! ```text
//!  begin_load ─► changes of its ranges are kept ─► loaded(rows, snapshot, lsn) ─► the stream passes lsn ─► Supply
//!                                                        │                                 (rows, and of the changes
//!                                                        └─ Again: a new snapshot           those that the snapshot
//!                                                                                           does not see)
//! ```
//!
//! 1. **What is here is PostgreSQL at one position of its log.** A range is supplied once the stream has passed `lsn`, a
//!    position behind every commit that its snapshot sees. So all ranges, whenever they were loaded, hold exactly what
//!    was committed up to the position, and each later commit is applied to all of them once.
//! 2. A commit that the snapshot does not see is in the stream, behind the begin of the load: its changes are kept. It
//!    can be in the stream *before*, too: the stream tells of a commit when it is in the log, and other transactions see
//!    it a moment later, or much later where a synchronous standby is waited for. Such a load is done again.
//! 3. A commit that the snapshot sees is in the rows; of what was kept, its changes are dropped.

use std::collections::{BTreeMap, VecDeque};

use crate::changes::Change;
use crate::range::Range;
use crate::snapshot::{Lsn, Snapshot};

/// A row's key and value.
pub type Row = (Vec<u8>, Vec<u8>);

pub type LoadId = u64;

/// What a load brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub snapshot: Snapshot,
    /// A position that was read after the snapshot was taken.
    pub lsn: Lsn,
    /// All rows of its ranges.
    pub rows: Vec<Row>,
}

/// What is to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    Supply {
        load: LoadId,
        core: usize,
        ranges: Vec<Range>,
        rows: Vec<Row>,
    },
    /// Something that cannot be told changed in its ranges, or its snapshot was too old: load again.
    Again { load: LoadId },
    /// What a write did has come.
    Seen { wait: u64 },
}

struct Load {
    /// Who asked, and is supplied.
    core: usize,
    ranges: Vec<Range>,
    /// How many transactions had begun in the stream when the load began.
    began: u64,
    /// What came since, with the transaction that did it.
    changes: Vec<(u32, Change)>,
    loaded: Option<Loaded>,
    is_disturbed: bool,
}

struct Wait {
    xid: Option<u32>,
    lsn: Lsn,
}

/// Loads under way, and where the stream is.
#[derive(Default)]
pub struct Merge {
    position: Lsn,
    /// The transaction whose changes come.
    current: u32,
    begun: u64,
    /// Transactions that were in the stream and that some snapshot may not see yet, with their numbers in it.
    passed: VecDeque<(u64, u32)>,
    loads: BTreeMap<LoadId, Load>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
    again: Vec<LoadId>,
}

impl Merge {
    /// At the position where the stream begins.
    pub fn new(position: Lsn) -> Merge {
        Merge {
            position,
            ..Merge::default()
        }
    }

    /// What is here is PostgreSQL at this position.
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// Begins a load. Its snapshot must be taken after this.
    pub fn begin_load(&mut self, core: usize, ranges: Vec<Range>) -> LoadId {
        self.next += 1;
        let load = Load {
            core,
            ranges,
            began: self.begun,
            changes: Vec::new(),
            loaded: None,
            is_disturbed: false,
        };
        self.loads.insert(self.next, load);
        self.next
    }

    /// A load under way that brings all these ranges.
    pub fn covering(&self, core: usize, ranges: &[Range]) -> Option<LoadId> {
        let covers = |load: &Load| {
            let is_in = |range| load.ranges.iter().any(|other| other.covers(range));
            load.core == core && ranges.iter().all(is_in)
        };
        let found = self.loads.iter().find(|(_, load)| covers(load));
        found.map(|(id, _)| *id)
    }

    pub fn ranges_of(&self, load: LoadId) -> &[Range] {
        self.loads.get(&load).map_or(&[], |load| &load.ranges)
    }

    /// The loads under way that bring rows of a range.
    pub fn loads_of(&self, range: &Range) -> Vec<LoadId> {
        let loads = self.loads.iter();
        let of_it = loads.filter(|(_, load)| load.ranges.iter().any(|other| other.overlaps(range)));
        of_it.map(|(id, _)| *id).collect()
    }

    /// A load has failed, or is not wanted any more.
    pub fn forget_load(&mut self, load: LoadId) {
        self.loads.remove(&load);
    }

    /// Begins a load once more, with a new snapshot.
    pub fn begin_again(&mut self, load: LoadId) {
        if let Some(load) = self.loads.get_mut(&load) {
            load.began = self.begun;
            load.changes.clear();
            load.loaded = None;
            load.is_disturbed = false;
        }
    }

    /// A load has brought its rows.
    pub fn loaded(&mut self, id: LoadId, loaded: Loaded) {
        let Some(load) = self.loads.get_mut(&id) else {
            return;
        };
        let began = load.began;
        let mut before = self.passed.iter().filter(|(at, _)| *at <= began);
        let snapshot = loaded.snapshot.clone();
        if before.any(|(_, xid)| !snapshot.sees(*xid)) {
            self.again.push(id);
        } else {
            load.loaded = Some(loaded);
        }
        self.prune(&snapshot);
    }

    /// Forgets transactions that every later snapshot sees. Loads that are on their way may have an earlier one: what
    /// was told before they began is remembered for them.
    pub fn prune(&mut self, snapshot: &Snapshot) {
        let on_their_way = self.loads.values().filter(|load| load.loaded.is_none());
        let needed = on_their_way.map(|load| load.began).max().unwrap_or(0);
        self.passed
            .retain(|(at, xid)| *at <= needed || !snapshot.is_past(*xid));
    }

    /// A transaction begins in the stream.
    pub fn begin(&mut self, xid: u32) {
        self.begun += 1;
        self.current = xid;
        self.passed.push_back((self.begun, xid));
    }

    /// A change of the transaction that has begun.
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

    /// The transaction ends: the next one begins at `end` or later.
    pub fn commit(&mut self, end: Lsn) {
        self.position = self.position.max(end);
        let xid = self.current;
        for wait in self.waits.values_mut() {
            if wait.xid == Some(xid) {
                wait.lsn = 0;
            }
        }
    }

    /// Nothing that is not here was committed before `position`.
    pub fn advance(&mut self, position: Lsn) {
        self.position = self.position.max(position);
    }

    /// Rows of a range changed in a way that the stream does not tell: its loads are done again.
    pub fn disturb(&mut self, range: &Range) {
        let is_disturbed = |load: &Load| load.ranges.iter().any(|other| other.overlaps(range));
        // A load that is on its way is done again when it has come.
        for load in self.loads.values_mut() {
            load.is_disturbed |= is_disturbed(load);
        }
    }

    /// Waits until a transaction, or else this position, has come.
    pub fn wait_for(&mut self, xid: Option<u32>, lsn: Lsn) -> u64 {
        self.next += 1;
        let seen = xid.is_some_and(|xid| {
            let mut passed = self.passed.iter();
            // The one that is coming is not here yet.
            passed.any(|(at, other)| *other == xid && (*at < self.begun || self.current != xid))
        });
        let lsn = if seen { 0 } else { lsn };
        self.waits.insert(self.next, Wait { xid, lsn });
        self.next
    }

    /// Whether a load or a write is under way.
    pub fn is_awaited(&self) -> bool {
        !self.loads.is_empty() || !self.waits.is_empty() || !self.again.is_empty()
    }

    /// A position that is waited for, if the stream is not there yet.
    pub fn awaited(&self) -> Option<Lsn> {
        let loads = self.loads.values().filter_map(|load| load.loaded.as_ref());
        let loads = loads.map(|loaded| loaded.lsn);
        let awaited = loads.chain(self.waits.values().map(|wait| wait.lsn)).max();
        awaited.filter(|lsn| *lsn > self.position)
    }

    /// What can be done now. Call it when all changes so far were handed on.
    pub fn take_ready(&mut self) -> Vec<Ready> {
        let mut ready: Vec<Ready> = Vec::new();
        for load in std::mem::take(&mut self.again) {
            ready.push(Ready::Again { load });
        }
        let position = self.position;
        let is_ready = |load: &Load| load.loaded.as_ref().is_some_and(|l| l.lsn <= position);
        let done = self.loads.iter().filter(|(_, load)| is_ready(load));
        for id in done.map(|(id, _)| *id).collect::<Vec<_>>() {
            let mut load = self.loads.remove(&id).expect("just seen");
            let loaded = load.loaded.take().expect("just seen");
            match merged(&load, loaded) {
                Some(rows) => ready.push(Ready::Supply {
                    load: id,
                    core: load.core,
                    ranges: load.ranges,
                    rows,
                }),
                None => {
                    self.loads.insert(id, load);
                    ready.push(Ready::Again { load: id });
                }
            }
        }
        let seen = self.waits.iter().filter(|(_, wait)| wait.lsn <= position);
        for wait in seen.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.waits.remove(&wait);
            ready.push(Ready::Seen { wait });
        }
        ready
    }
}

/// The rows as of now. `None` if that cannot be told.
fn merged(load: &Load, loaded: Loaded) -> Option<Vec<Row>> {
    if load.is_disturbed {
        return None;
    }
    let unseen = |xid: u32| !loaded.snapshot.sees(xid);
    if !load.changes.iter().any(|(xid, _)| unseen(*xid)) {
        return Some(loaded.rows);
    }
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = loaded.rows.into_iter().collect();
    let is_here = |key: &[u8]| load.ranges.iter().any(|range| range.contains(key));
    for (_, change) in load.changes.iter().filter(|(xid, _)| unseen(*xid)) {
        match change {
            Change::Put { key, value } if is_here(key) => {
                rows.insert(key.clone(), value.clone());
            }
            Change::Patch { key, patch } if is_here(key) => {
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
