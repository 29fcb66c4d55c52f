//! One join: its definition, its output rows, and the state that keeps them fresh.
//!
//! - `joins`: all joins of an engine.
//! - `fills`: the filled ranges of the output, and the indexes that find them.
//! - `nodes`: the source rows that the fills were computed from (`node`), and the updaters that lead from source rows to
//!   them (`updater`).
//! - `target`: the part of a fill's state that writes need.
//! - `page`: the split of a join's rows.
//! - `run`: the state of one evaluation; `combine` applies the rows that it finds.
//! - `tracked`: the keys that clients cache.
//!
//! `fills` and `nodes` state their invariants; [`Join::check`] checks all of them.

pub(crate) mod combine;
pub(crate) mod fills;
pub(crate) mod joins;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod run;
pub(crate) mod target;
pub(crate) mod tracked;
pub(crate) mod updater;

use std::cell::Cell;

use crate::base::key_range::KeyRange;
use crate::base::rows::Rows;
use crate::join::fills::{Fills, Unsettled};
use crate::join::nodes::Nodes;
use crate::join::page::Page;
use crate::join::tracked::Tracked;
use crate::language::definition::{Definition, Source};
use crate::operators::output::Output;

pub type JoinId = u32;
pub type TableId = u32;

pub struct Join {
    // The definition. It is constant, except that joins are added to and removed from `upstream`.
    pub id: JoinId,
    pub name: String,
    pub definition: Definition,
    /// The plan: the source that is read at each level.
    pub order: Vec<usize>,
    /// The table of each level's source.
    pub tables: Vec<TableId>,
    pub table: TableId,
    /// The joins that this one depends on, directly or through others, in dependency order.
    pub upstream: Vec<JoinId>,
    // The state.
    pub output: Output,
    /// This join's part of the pages of the output's table, if it is read in pages.
    pub page: Option<Page>,
    pub fills: Fills,
    pub nodes: Nodes,
    /// True if the tables that it reads report their changes to it.
    pub is_subscribed: bool,
    /// Keys of the output that clients cache.
    pub tracked: Tracked,
    pub statistics: Statistics,
}

/// Numbers of events since the join was created.
#[derive(Default)]
pub struct Statistics {
    /// Ranges that were filled, and evicted.
    pub filled: u64,
    pub evicted: u64,
    /// Conversions of a source range between push and pull mode (see `auto`).
    pub converted: u64,
    /// Invalid aggregates that reads omitted.
    pub left_out: Cell<u64>,
}

impl Statistics {
    pub fn count_left_out(&self) {
        self.left_out.set(self.left_out.get() + 1);
    }
}

impl Join {
    pub fn new(
        id: JoinId,
        name: &str,
        definition: Definition,
        order: Vec<usize>,
        table: TableId,
        tables: Vec<TableId>,
    ) -> Self {
        let is_subscribed = definition.is_maintained();
        let nodes = Nodes::new(order.len());
        let rows = Rows::new(definition.shape.output.split(&definition.slots));
        Join {
            id,
            name: name.to_string(),
            definition,
            order,
            tables,
            table,
            upstream: Vec::new(),
            output: Output::new(rows),
            page: None,
            fills: Fills::default(),
            nodes,
            is_subscribed,
            tracked: Tracked::default(),
            statistics: Statistics::default(),
        }
    }

    pub fn source(&self, level: usize) -> &Source {
        &self.definition.sources[self.order[level]]
    }

    pub fn last_level(&self) -> usize {
        self.order.len() - 1
    }

    /// Returns the fill that covers the complete range, if there is one.
    pub fn covering(&self, range: &KeyRange) -> Option<u32> {
        self.fills.covering(range, &self.output.rows)
    }

    /// Looks up the group of a fill's prefix, for fan-out and reads.
    pub fn update_target(&mut self, number: u32) {
        self.fills.update_target(number, &self.output.rows);
    }

    /// Marks a fill as unsettled. Returns its outstanding work, for additions.
    pub fn mark_unsettled(&mut self, fill: u32) -> &mut Unsettled {
        self.fills.mark_unsettled(fill, &mut self.tracked)
    }

    pub fn memory_bytes(&self) -> usize {
        self.output.memory_bytes() + self.fills.memory_bytes() + self.nodes.memory_bytes()
    }

    /// Checks the invariants of the join's state, which hold between operations.
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn check(&self) {
        let is_node = |fill, level, node| self.nodes.is_node_of(fill, level, node);
        self.fills
            .check(&self.output.rows, is_node, self.last_level());
        self.nodes.check(&self.fills);
    }
}
