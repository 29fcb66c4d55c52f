//! The tables and joins of an engine: the catalog, dependencies between joins, expiry, and the log of changes.
//!
//! Read `table`, `catalog` (joins), `lineage` (dependencies), `info` (statistics), `expiry` and `log`. `ranking` finds
//! the groups that `top` ranks. `scan` outputs the rows of a range, `merge` combines the rows of several joins, and
//! `pages` knows which joins can be read one after the other. `supplied` and `replicas` hold the local copies of rows
//! that a database or another engine owns.

pub(crate) mod catalog;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod lineage;
pub(crate) mod log;
pub(crate) mod merge;
pub(crate) mod pages;
pub(crate) mod ranking;
pub(crate) mod replicas;
pub(crate) mod scan;
pub(crate) mod supplied_ranges;
pub(crate) mod table;
