//! What the operators make of source rows: how a combination of them is applied to the output, and how its rows are shown.
//!
//! Read `output`, then `totals` (count, sum, avg) and `ranked` (min, max, top, a copy of several rows to one).

pub(crate) mod output;
pub(crate) mod ranked;
pub(crate) mod totals;
