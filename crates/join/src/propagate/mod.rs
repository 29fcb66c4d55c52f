//! Writes: propagates the change of a row to the outputs, immediately or later.
//!
//! Read `maintain` for changes with few outputs, `backlog` for those with many, `auto` for the choice between copying
//! on writes and on reads, and `subscription` for notifications of changed rows.

pub(crate) mod auto;
pub(crate) mod backlog;
pub(crate) mod maintain;
pub(crate) mod subscription;

use backlog::Backlog;
use maintain::Scratch;

use crate::join::JoinId;

/// Work that writes leave for later, and reused buffers.
#[derive(Default)]
pub struct Writes {
    pub backlog: Backlog,
    /// Lists of `auto` joins that were written or read, by join and number. Their mode is reviewed before the next
    /// operation.
    pub to_review: Vec<(JoinId, u32)>,
    scratch: Scratch,
    /// Tracked keys whose rows may have changed (see `evaluate::tracked`), and whether any keys are tracked.
    pub stale: Vec<Box<[u8]>>,
    pub is_tracking: bool,
}
