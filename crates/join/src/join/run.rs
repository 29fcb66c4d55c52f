//! The state of one evaluation of a join over a range of its output, and the destination of its rows.

use crate::base::key_range::KeyRange;
use crate::base::pattern::{Binding, SlotBounds};
use crate::base::row_buffer::RowBuffer;
use crate::base::rows::Value;
use crate::join::Join;
use crate::operators::output::{Effects, Output};

/// One evaluation of a join over a range of its output.
pub struct Run {
    pub range: KeyRange,
    pub bounds: Option<SlotBounds>,
    /// Elements of the output that the range fixes.
    pub elements: usize,
    /// True if the range contains all rows that the fixed slots allow.
    pub is_prefix: bool,
    /// The fill that stores the rows; without one, they go to `taken`.
    pub fill: Option<u32>,
    pub leaves_nodes: bool,
    pub sink: RowSink,
    pub effects: Effects,
    pub now: u64,
    /// The reason why the result is incomplete, if it is.
    pub shortfall: Option<Shortfall>,
    /// The value's row, if its source is not at the last level.
    pub value: Option<(Box<[u8]>, Value)>,
    pub key: Vec<u8>,
}

/// The reason why an evaluation is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortfall {
    /// A source range is missing or being filled. The read has recorded what it needs, and is retried.
    RangeMissing,
    /// A computation that is not maintained exceeds the budget of one step, and needs another method.
    TooMuch,
}

/// The destination of rows that are not stored.
pub enum RowSink {
    /// Copies of source rows.
    Copies(RowBuffer),
    Output(Output),
}

impl RowSink {
    pub fn new(join: &Join) -> Self {
        if join.definition.shape.copies_rows() {
            RowSink::Copies(RowBuffer::default())
        } else {
            RowSink::Output(Output::default())
        }
    }
}

impl Run {
    pub fn for_fill(join: &Join, fill: u32, records_effects: bool, now: u64) -> Self {
        let from = join.fills.get(fill);
        Run {
            range: from.range.clone(),
            bounds: from.bounds.clone(),
            elements: usize::from(from.elements),
            is_prefix: from.is_prefix,
            fill: Some(fill),
            leaves_nodes: from.is_maintained,
            sink: RowSink::Copies(RowBuffer::default()),
            effects: Effects {
                is_recorded: records_effects,
                ..Effects::default()
            },
            now,
            shortfall: None,
            value: None,
            key: Vec::new(),
        }
    }

    /// Starts an evaluation without storing rows. Binds the slots that the range fixes. Returns `None` if the join
    /// cannot have rows in the range.
    pub fn without_storing(
        join: &Join,
        range: &KeyRange,
        binding: &mut Binding,
        now: u64,
    ) -> Option<Self> {
        let definition = &join.definition;
        let constraint = definition
            .shape
            .output
            .constrain(range, &definition.slots, binding)?;
        unbind_rank(join, binding);
        let mut prefix = Vec::new();
        let elements = definition.shape.output.write_prefix(binding, &mut prefix);
        Some(Run {
            is_prefix: *range == KeyRange::prefix(&prefix),
            range: range.clone(),
            bounds: constraint.bounds,
            elements,
            fill: None,
            leaves_nodes: false,
            sink: RowSink::new(join),
            effects: Effects::default(),
            now,
            shortfall: None,
            value: None,
            key: Vec::new(),
        })
    }

    /// Records that the result is incomplete. `TooMuch` takes precedence.
    pub fn fall_short(&mut self, why: Shortfall) {
        self.shortfall = self.shortfall.max(Some(why));
    }

    /// Writes the output key of a combination; for `top`, the group's key. Returns `false` if it is not in the range.
    pub fn write_key(&mut self, join: &Join, binding: &Binding) -> bool {
        let definition = &join.definition;
        self.key.clear();
        match definition.shape.rank {
            None => definition.shape.output.write(binding, &mut self.key),
            Some(_) => {
                definition.shape.output.write_prefix(binding, &mut self.key);
            }
        }
        if self.is_prefix {
            self.key.starts_with(&self.range.lo)
        } else {
            self.range.contains(&self.key)
        }
    }

    /// Records a complete combination of a one-to-one copy.
    pub fn take_copy(&mut self, join: &Join, binding: &Binding, value: &[u8]) {
        if self.write_key(join, binding)
            && let RowSink::Copies(rows) = &mut self.sink
        {
            rows.push(&self.key, value);
        }
    }
}

/// A rank is computed, never read from a source.
pub(crate) fn unbind_rank(join: &Join, binding: &mut Binding) {
    if let Some(rank) = join.definition.shape.rank {
        binding.bound &= !(1 << rank.slot);
    }
}
