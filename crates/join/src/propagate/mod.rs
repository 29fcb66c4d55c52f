//! Writes: what follows from the change of a row, at once or later.
//!
//! Read `maintain` for a change that reaches few, `backlog` for one that reaches many, `auto` for whether a range is copied when it is
//! written or when it is read, and `subscription` for who is told of rows that change.

pub(crate) mod auto;
pub(crate) mod backlog;
pub(crate) mod maintain;
pub(crate) mod subscription;

use backlog::Backlog;
use maintain::Scratch;

use crate::join::JoinId;

/// What writes leave for later, and keep for the next one.
#[derive(Default)]
pub struct Writes {
    pub backlog: Backlog,
    /// Lists of auto joins that were written or read, by join and number: how they are kept is reviewed before the next operation.
    pub to_review: Vec<(JoinId, u32)>,
    scratch: Scratch,
    /// Keys that are tracked (see `evaluate::tracked`) and may have changed, and whether any are tracked.
    pub stale: Vec<Box<[u8]>>,
    pub is_tracking: bool,
}
