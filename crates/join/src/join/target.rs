//! Targets: the part of a fill's state that fan-out needs to copy a row to it, and that a read needs to find it fresh,
//! in half a cache line.
//!
//! The rest of a fill is large and stored elsewhere. A write with many readers accesses one target for each, and the
//! end of its group in the output's table. A read of a filled and fresh range accesses the group's record, one target
//! and the rows.

use crate::base::key_range::successor;
use crate::base::rows::{GroupId, Rows};
use crate::join::fills::Fill;

/// Maximum length of a lower bound that is stored in a target.
const LOW_BYTES: usize = 13;

#[derive(Debug, Clone, Copy, Default)]
pub struct Target {
    /// The group of the fill's prefix in the output's table, as of the last lookup.
    pub group: Option<GroupId>,
    /// Number of output elements in the prefix.
    pub elements: u8,
    /// Length of the lower bound in `low`. If `is_tail` is set, the fill covers its group from there on; otherwise keys
    /// must be compared with the fill's range.
    low_len: u8,
    pub is_tail: bool,
    /// True if the prefix is exactly the common prefix of a group of the output's table.
    pub is_group: bool,
    /// True if the fill has outstanding work.
    pub unsettled: bool,
    /// True if it was read since the evictor's last visit.
    pub visited: bool,
    /// True if it was read again after it was filled.
    pub is_reread: bool,
    low: [u8; LOW_BYTES],
}

const _: () = assert!(size_of::<Target>() == 32);

impl Target {
    pub fn new(fill: &Fill, rows: &Rows) -> Self {
        let is_group = rows.is_head(&fill.prefix);
        let mut target = Target {
            group: rows.group(&fill.prefix),
            is_group,
            elements: fill.elements,
            ..Target::default()
        };
        let reaches_end = *fill.range.hi >= *successor(&fill.prefix);
        let low = if fill.range.lo <= fill.prefix {
            Some(&[][..])
        } else {
            fill.range.lo.strip_prefix(&*fill.prefix)
        };
        if reaches_end
            && let Some(low) = low
            && low.len() <= LOW_BYTES
        {
            target.is_tail = true;
            target.low_len = low.len() as u8;
            target.low[..low.len()].copy_from_slice(low);
        }
        target
    }

    /// Copies the marks of an earlier target of the same fill.
    pub fn keep_marks(&mut self, before: &Target) {
        self.unsettled = before.unsettled;
        (self.visited, self.is_reread) = (before.visited, before.is_reread);
    }

    /// Marks the fill as read again.
    pub fn visit(&mut self) {
        (self.visited, self.is_reread) = (true, true);
    }

    /// Returns whether the fill certainly covers the key that consists of its prefix and `suffix`.
    pub fn holds(&self, suffix: &[u8]) -> bool {
        self.is_tail && *suffix >= self.low[..usize::from(self.low_len)]
    }
}
