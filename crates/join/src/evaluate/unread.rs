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
use crate::evaluate::tree::bind_node;
use crate::join::Join;
use crate::join::fills::Unsettled;
use crate::join::run::Run;
use crate::join::updater::Entry;
use crate::tables::scan::View;

impl Join {
    /// Returns whether the row of `key` is in the unread rest of an entry's node.
    pub fn is_unread(&self, level: usize, entry: Entry, key: &[u8]) -> bool {
        self.fills.target(entry.fill).unsettled
            && (self.fills.get(entry.fill).unsettled())
                .is_some_and(|unsettled| unsettled.is_unread(level, entry.node(), key))
    }

    /// Records that a node's range was read only below the key `from`.
    pub fn record_unread(&mut self, fill: u32, level: usize, node: u32, from: Box<[u8]>) {
        self.mark_unsettled(fill);
        self.fills.add_unread(fill, level, node, from);
    }

    /// Records that a row of a checked source must be evaluated or taken back.
    pub fn record_pending(&mut self, fill: u32, node: u32, packed: &[u8], is_added: bool) {
        self.mark_unsettled(fill);
        self.fills
            .toggle_pending(fill, (node, packed.into()), is_added);
    }
}

impl Engine {
    /// Reads more rows in the range of one node of a fill. Returns `false` if nothing is unread.
    pub(crate) fn read_next_node(&mut self, join: &mut Join, run: &mut Run, fill: u32) -> bool {
        let unsettled = join.fills.get(fill).unsettled();
        let Some((level, node)) = unsettled.and_then(Unsettled::first_unread) else {
            return false;
        };
        let level = usize::from(level);
        let Some(from) = join.fills.take_unread(fill, level, node) else {
            return false;
        };
        let mut binding = Binding::default();
        bind_node(join, level, fill, node, &mut binding);
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
