//! Reads: outputs rows that are present, and computes missing ones first.
//!
//! ```text
//!  reads ─┬─ filled and fresh, found by its group, or by the groups of a page (pages) ──► rows
//!         └─► view ─┬─ filled: settle pending changes ──► rows
//!                   ├─ a gap: fill (tree leaves nodes and updaters; unread records the rest of a large fill)
//!                   └─ pulled: computed for this read (compiled_pair) ──► rows
//! ```
//!
//! Read `reads`, `view`, `fill`, `settle`. Four files limit the work: `partial` (fills only what a limit needs),
//! `deferred` (reads in steps), `transient_fill` (large fills that are not kept) and `range_reader` (large replies in
//! parts). `subscribe` prepares a range so that its changes are reported.
//!
//! 1. A range that is read is settled: it equals the join recomputed from its sources at that moment.
//! 2. These files are mutually recursive, since computing an output reads sources that may be outputs. The recursion
//!    ends because joins form no cycle.

pub(crate) mod compiled_pair;
pub(crate) mod deferred;
pub(crate) mod explain;
pub(crate) mod fill;
pub(crate) mod needs;
pub(crate) mod pages;
pub(crate) mod partial;
pub(crate) mod range_reader;
pub(crate) mod reads;
pub(crate) mod settle;
pub(crate) mod subscribe;
pub(crate) mod tracked;
pub(crate) mod transient_fill;
pub(crate) mod tree;
pub(crate) mod unread;
pub(crate) mod view;

use std::rc::Rc;

use deferred::DeferredReads;
use needs::Needs;
use partial::FillExtent;
use transient_fill::TransientFills;

use crate::base::read_snapshot::SnapshotMemory;

/// State of reads in progress, and statistics.
#[derive(Default)]
pub struct Reads {
    /// The needs of the current read (see [`Needs`]).
    pub needs: Needs,
    /// The extent of the current read's fills.
    pub(crate) extent: FillExtent,
    pub(crate) deferred: DeferredReads,
    pub(crate) transient: TransientFills,
    /// Memory that long reads use for former values.
    pub snapshot_memory: Rc<SnapshotMemory>,
    /// Number of source rows that fills have read.
    pub rows_read: u64,
    pub pages_read: u64,
    pub partial_reads: u64,
}
