//! The tables and joins of an engine: what there is, what may be beside what, which rows go at a time, and what a log must keep.
//!
//! Read `table`, `catalog` for joins, `lineage` for what is computed from what, `info` for people, `expiry` and `log`. `ranking` finds what `top` ranks. `scan` hands out
//! the rows of a range, with `merge` those of several joins in one order, and `pages` knows which can be handed out one behind the
//! other. `supplied` and `replicas` hold what is here of rows that are kept elsewhere.

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
pub(crate) mod supplied;
pub(crate) mod table;
