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
//! in steps), `transient_fill` (what is large and not kept), and `reading`, which hands out a long answer some rows at a time.
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
pub(crate) mod transient_fill;
pub(crate) mod tree;
pub(crate) mod unread;
pub(crate) mod view;
