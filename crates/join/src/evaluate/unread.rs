//! Unread rows: a large fill reads its source ranges in steps.
//!
//! ```text
//!  node on p|bob|  ──►  read: rows below p|bob|0400       maintained
//!                       unread: rows from there on        their changes are ignored
//! ```
//!
//! 1. The output reflects the rows of a node's range that were read, and no others.
//! 2. Before more rows are read, all pending changes are applied to the fill's entries (see `backlog`). A row is
//!    therefore read in its current state, and no earlier change of it is applied afterwards.
//! 3. A node and its unread rest are removed together.

use crate::base::pattern::Binding;
use crate::engine::Engine;
use crate::join::run::Run;
use crate::join::updater::Entry;
use crate::join::{Join, Unsettled, pending_bytes};
use crate::propagate::auto::bind_leaf;
use crate::tables::scan::View;

impl Join {
    /// Returns whether the row of `key` is in the unread rest of an entry's node.
    pub fn is_unread(&self, level: usize, entry: Entry, key: &[u8]) -> bool {
        self.targets[entry.fill as usize].unsettled
            && self.unsettled_of(entry.fill).is_some_and(|unsettled| {
                let from = unsettled.unread.get(&(level as u8, entry.node()));
                from.is_some_and(|from| *key >= **from)
            })
    }

    fn unsettled_of(&self, fill: u32) -> Option<&Unsettled> {
        self.fills.get(fill).unsettled.as_deref()
    }

    /// Records that a node's range was read only below the key `from`.
    pub fn record_unread(&mut self, fill: u32, level: usize, node: u32, from: Box<[u8]>) {
        self.heap_bytes += pending_bytes(&from);
        let unread = &mut self.mark_unsettled(fill).unread;
        let before = unread.insert((level as u8, node), from);
        debug_assert!(before.is_none(), "the entry was removed before it was read");
    }

    /// Removes and returns the key at which a node's unread rest begins.
    pub fn take_unread(&mut self, fill: u32, level: usize, node: u32) -> Option<Box<[u8]>> {
        let unsettled = self.fills.get_mut(fill).unsettled.as_mut()?;
        let from = unsettled.unread.remove(&(level as u8, node))?;
        self.heap_bytes -= pending_bytes(&from);
        Some(from)
    }

    /// Records that a row of a checked source must be evaluated or taken back.
    pub fn record_pending(&mut self, fill: u32, node: u32, packed: &[u8], is_added: bool) {
        self.heap_bytes += pending_bytes(packed);
        let slot = (node, packed.into());
        self.mark_unsettled(fill).pending.insert(slot, is_added);
    }
}

impl Engine {
    /// Reads more rows in the range of one node of a fill. Returns `false` if nothing is unread.
    pub(crate) fn read_next_node(&mut self, join: &mut Join, run: &mut Run, fill: u32) -> bool {
        let first = join.fills.get(fill).unsettled.as_ref();
        let Some((&(level, node), _)) = first.and_then(|first| first.unread.first_key_value())
        else {
            return false;
        };
        let level = usize::from(level);
        let Some(from) = join.take_unread(fill, level, node) else {
            return false;
        };
        let mut binding = Binding::default();
        if level == join.last_level() {
            bind_leaf(join, fill, node, &mut binding);
        } else {
            let inner = join.inner.get(node);
            binding.unpack(inner.bound, &join.definition.slots, &inner.packed);
        }
        let source = join.source(level);
        let mut range = source.pattern.range(&binding, run.bounds.as_ref());
        range.lo = from;
        // A maintained fill never reads rows computed for one read; all rows are stored, and pinned.
        self.read_rows(
            join,
            run,
            level,
            &mut binding,
            &range,
            &View::default(),
            node,
        );
        true
    }
}
