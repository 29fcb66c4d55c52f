//! The tables and joins of an engine: what there is, what may be beside what, which rows go at a time, and what a log must keep.
//!
//! Read `table`, `catalog` for joins, `info` for people, `expiry` and `log`; `merge` reads the rows of several joins in one order.

pub(crate) mod catalog;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod log;
pub(crate) mod merge;
pub(crate) mod table;
