//! Writes: what follows from the change of a row, at once or later.
//!
//! Read `maintain` for a change that reaches few, `backlog` for one that reaches many, `auto` for whether a range is copied when it is
//! written or when it is read, and `subscription` for who is told of rows that change.

pub(crate) mod auto;
pub(crate) mod backlog;
pub(crate) mod maintain;
pub(crate) mod subscription;
