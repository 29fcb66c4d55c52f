//! Outputs the visible rows of a range: base rows, stored rows of joins, and rows computed for one read.
//!
//! The rows of all joins of a table are merged in key order; if two have the same key, the older join's row is visible.
//! Rows that hold an aggregate's state are formatted, and omitted if the state has no value.
//!
//! Stored rows are output as they are: the caller makes sure first that they are filled and settled (see
//! `evaluate::view`).

use std::ops::ControlFlow;

use crate::base::key_range::{EachRow, Flow, KeyRange};
use crate::base::row_buffer::RowBuffer;
use crate::base::rows::Value;
use crate::engine::Engine;
use crate::error::Error;
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::operators::RowState;
use crate::operators::output::format_state;
use crate::tables::merge::{Stream, merge};

/// The part of a range to return.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Maximum number of rows that this read and its continuations (see [`Engine::begin_range`]) return in total. Only
    /// as much of the range is filled as they need. `None`: the complete range.
    pub total_limit: Option<u64>,
    /// In descending key order.
    pub reverse: bool,
    /// Return empty values.
    pub keys_only: bool,
}

impl Limits {
    /// The first `rows` rows of a range, without continuation.
    pub fn first(rows: u64) -> Limits {
        Limits {
            limit: Some(rows),
            total_limit: Some(rows),
            ..Limits::default()
        }
    }
}

/// Rows that were computed for one read.
#[derive(Default)]
pub struct View {
    pub computed: Vec<(JoinId, RowBuffer)>,
    /// `pull` joins whose rows are stored temporarily (see `transient_fill`).
    pub transient: Vec<JoinId>,
}

impl View {
    /// Returns whether the stored rows of `join` are part of the result.
    pub fn shows_stored(&self, join: &Join) -> bool {
        join.definition.mode != JoinMode::Pull || self.transient.contains(&join.id)
    }
}

impl Engine {
    /// Passes all visible rows of a range that has been prepared to `each`, formatted. Invalid aggregates are omitted.
    pub(crate) fn scan(
        &self,
        table: TableId,
        range: &KeyRange,
        view: &View,
        each: &mut dyn FnMut(&[u8], &Value) -> Flow,
    ) {
        let state = &self.tables[table];
        if state.makers.is_empty() {
            let _ = match (&state.replicas, &self.sharding.own) {
                (Some(replicas), Some(shard)) => replicas.scan(shard, &state.rows, range, each),
                _ => state.rows.scan(&range.lo, &range.hi, false, each),
            };
            return;
        }
        if let Some(join) = self.only_maker(table, view)
            && join.definition.shape.row_state().is_none()
        {
            let _ = join.output.rows.scan(&range.lo, &range.hi, false, each);
            return;
        }
        let mut streams = self.streams(table, range, view, false);
        let _ = merge(&mut streams, false, &mut |key, value, stream| {
            let value = match self.maker(stream.maker).definition.shape.row_state() {
                None => Some(stream.value()),
                Some(state) => format_state(state, value),
            };
            value.map_or(Flow::Continue(()), |value| each(key, &value))
        });
    }

    /// Outputs a client's read. Invalid aggregates are omitted; the error of the first one is returned.
    pub(crate) fn output_rows(
        &self,
        table: TableId,
        range: &KeyRange,
        view: &View,
        limits: Limits,
        each: &mut EachRow<'_>,
    ) -> Option<Error> {
        let (lo, hi, reverse) = (&range.lo, &range.hi, limits.reverse);
        let mut left = limits.limit.unwrap_or(u64::MAX);
        let mut give = |key: &[u8], value: &[u8]| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            each(key, if limits.keys_only { &[] } else { value })
        };
        let state = &self.tables[table];
        if state.makers.is_empty() {
            let _ = state.rows.read(lo, hi, reverse, &mut give);
            return None;
        }
        let mut left_out = None;
        if let Some(join) = self.only_maker(table, view) {
            let rows = &join.output.rows;
            let _ = match join.definition.shape.row_state() {
                None => rows.read(lo, hi, reverse, &mut give),
                Some(state) => rows.read(lo, hi, reverse, &mut |key, value| {
                    let spelled = join.output_formatted(state, key, value, &mut give);
                    spelled.unwrap_or_else(|error| join.omit_row(error, &mut left_out))
                }),
            };
        } else {
            let mut streams = self.streams(table, range, view, reverse);
            let _ = merge(&mut streams, reverse, &mut |key, value, stream| {
                let join = self.maker(stream.maker);
                match join.definition.shape.row_state() {
                    Some(state) => {
                        let spelled = join.output_formatted(state, key, value, &mut give);
                        spelled.unwrap_or_else(|error| join.omit_row(error, &mut left_out))
                    }
                    None => give(key, value),
                }
            });
        }
        left_out
    }

    /// Returns the table's join, if it is the only one and no rows were computed.
    fn only_maker(&self, table: TableId, view: &View) -> Option<&Join> {
        match (&*self.tables[table].makers, view.computed.is_empty()) {
            (&[maker], true) => Some(self.maker(maker)).filter(|join| view.shows_stored(join)),
            _ => None,
        }
    }

    fn maker(&self, maker: JoinId) -> &Join {
        self.joins
            .get(maker)
            .expect("invariant: joins form no cycle")
    }

    /// Returns the stored rows of all joins of a table as streams, oldest join first.
    fn streams<'v>(
        &'v self,
        table: TableId,
        range: &'v KeyRange,
        view: &'v View,
        reverse: bool,
    ) -> Vec<Stream<'v>> {
        let mut streams = Vec::new();
        for &maker in &self.tables[table].makers {
            let join = self.maker(maker);
            if view.shows_stored(join) {
                let rows = &join.output.rows;
                let cursor = rows.cursor_near(&range.lo, &range.hi, reverse);
                streams.extend(cursor.map(|cursor| Stream::stored(maker, cursor)));
            }
            let computed = view.computed.iter().filter(|(m, _)| *m == maker);
            streams.extend(computed.map(|(_, rows)| Stream::buffered(maker, rows, 0, reverse)));
        }
        streams
    }

    /// Returns a stored row of one join, formatted.
    pub(crate) fn visible_in(&self, maker: JoinId, key: &[u8]) -> Option<Value> {
        let join = self.joins.get(maker)?;
        let value = join.output.rows.value(key)?;
        match join.definition.shape.row_state() {
            Some(state) => format_state(state, value.as_bytes()),
            None => Some(value),
        }
    }
}

impl Join {
    /// Outputs a row that holds an aggregate's state, formatted.
    fn output_formatted(
        &self,
        state: &dyn RowState,
        key: &[u8],
        value: &[u8],
        give: &mut EachRow<'_>,
    ) -> Result<Flow, Error> {
        let spelled = output_formatted(state, key, value, give);
        spelled.map_err(|values| Error::NotANumber {
            key: key.to_vec(),
            join: self.name.clone(),
            values,
        })
    }

    fn omit_row(&self, error: Error, first: &mut Option<Error>) -> Flow {
        self.statistics.count_left_out();
        first.get_or_insert(error);
        Flow::Continue(())
    }
}

/// Outputs a row that holds an aggregate's state, formatted.
///
/// # Errors
/// The aggregate is invalid: the number of its values that are not numbers.
pub(crate) fn output_formatted(
    state: &dyn RowState,
    key: &[u8],
    value: &[u8],
    give: &mut EachRow<'_>,
) -> Result<Flow, u64> {
    let mut text = Vec::with_capacity(24);
    state.format(value, &mut text)?;
    Ok(give(key, &text))
}
