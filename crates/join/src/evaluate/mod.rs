//! Reads: rows that are there are handed out, those that are not are computed first.
//!
//! ```text
//!  reads ─┬─ filled and fresh, found by its group, or by those of a page (pages) ──► rows
//!         └─► view ─┬─ filled: settle what changed since ──► rows
//!                   ├─ a gap: fill (tree leaves nodes and updaters; unread is what a large one has yet to do)
//!                   └─ pulled: computed for this read (pairs) ──► rows
//! ```
//!
//! Read `reads`, `view`, `fill`, `settle`. Then what bounds them: `partial` (no more than a limit needs), `deferred` (a read that goes on
//! in steps), `transient_fill` (what is large and not kept), and `reading`, which hands out a long answer some rows at a time. `subscribe`
//! has a range read so that its changes are told.
//!
//! 1. What is read is settled: it equals the join recomputed from its sources at that moment.
//! 2. These files call one another in a circle, since computing an output reads sources that may be outputs. Joins form no cycle, so
//!    it ends.

pub(crate) mod deferred;
pub(crate) mod explain;
pub(crate) mod fill;
pub(crate) mod needs;
pub(crate) mod pages;
pub(crate) mod pairs;
pub(crate) mod partial;
pub(crate) mod reading;
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
use partial::Extent;
use transient_fill::TransientFills;

use crate::base::moment::Held;

/// What reads leave for later, and what they have come to so far.
#[derive(Default)]
pub struct Reads {
    /// What the read that is under way lacks.
    pub needs: Needs,
    /// How much it has filled.
    pub(crate) extent: Extent,
    pub(crate) deferred: DeferredReads,
    pub(crate) transient: TransientFills,
    /// What long answers keep.
    pub held: Rc<Held>,
    /// How many source rows fills have read so far.
    pub rows_read: u64,
    pub pages_read: u64,
    pub partial_reads: u64,
}
