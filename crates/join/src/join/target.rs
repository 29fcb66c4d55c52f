//! Targets: what fan-out must know of a fill to copy a row to it, and a read to find it fresh, in half a cache line.
//!
//! The rest of a fill is large and lies elsewhere; a write with many readers touches one target for each, and the end of
//! its group in the output's table. A read of what is filled and fresh touches the group's record, one target, and rows.

use crate::base::key_range::successor;
use crate::base::rows::{GroupId, Rows};
use crate::join::Fill;

/// The longest lower bound that a target holds.
const LOW_BYTES: usize = 13;

#[derive(Debug, Clone, Copy, Default)]
pub struct Target {
    /// The group of the fill's prefix in the output's table, when last looked.
    pub group: Option<GroupId>,
    /// Elements of the output that the prefix has.
    pub elements: u8,
    /// The fill is the rest of its group from here on; else what it holds must be compared with its range.
    low_len: u8,
    pub is_tail: bool,
    /// The prefix is what all keys of some group of the output's table begin with, and no others.
    pub is_group: bool,
    /// The fill has something to catch up with.
    pub unsettled: bool,
    /// Read since the evictor last came by.
    pub visited: bool,
    /// Read again after it was filled.
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
        let low = match fill.range.lo <= fill.prefix {
            true => Some(&[][..]),
            false => fill.range.lo.strip_prefix(&*fill.prefix),
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

    /// Takes over what was marked while the fill was aimed at before.
    pub fn keep_marks(&mut self, before: &Target) {
        self.unsettled = before.unsettled;
        (self.visited, self.is_reread) = (before.visited, before.is_reread);
    }

    /// Marks that it was read again.
    pub fn visit(&mut self) {
        (self.visited, self.is_reread) = (true, true);
    }

    /// Whether the fill is known to hold the key that is its prefix and this suffix.
    pub fn holds(&self, suffix: &[u8]) -> bool {
        self.is_tail && *suffix >= self.low[..usize::from(self.low_len)]
    }
}
