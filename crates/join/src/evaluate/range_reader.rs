//! Range readers: a long reply is output in parts, as a snapshot, while other commands read and write.
//!
//! ```text
//!  begin_range ──► the first rows ──► RangeReader ──► read_more ──► rows ──► read_more ──► … ──► all
//!                                        └ from here on, every part keeps the former values of changed rows (see `read_snapshot`)
//! ```
//!
//! 1. The range is fresh: the same operation prepared it, and the reader is created before that operation evicts
//!    anything.
//! 2. A reader ends where its range or its limit ends. If the stored rows end earlier, the reader is lost: a shorter
//!    reply would be wrong.
//! 3. A part is the table's own rows, the rows of one of its joins, or rows that were computed for this read. If
//!    several parts have a key, the first part's row is visible, as in `view`.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::key_range::{EachRow, KeyRange};
use crate::base::read_snapshot::{ReadSnapshot, SnapshotCursor};
use crate::base::row_buffer::RowBuffer;
use crate::engine::Engine;
use crate::evaluate::reads::PreparedView;
use crate::evaluate::view::plan_fill;
use crate::join::{JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::operators::RowState;
use crate::tables::merge::{Stream, merge};
use crate::tables::scan::Limits;
use crate::tables::scan::{View, output_formatted};

/// The unread rest of a range. Until it is dropped, it keeps the former values of rows that change.
pub struct RangeReader {
    unread: KeyRange,
    limits: Limits,
    parts: Vec<ReaderPart>,
    /// Number of remaining rows, if known (see [`RangeReader::rows`]).
    rows_left: Option<u64>,
    /// True if `unread` ends before the requested range, because only the part that the limit needs was prepared.
    is_truncated: bool,
    /// True if the rows ended before the range and the limit did.
    ended_early: bool,
    /// A counter for the memory that the reader uses, and the constant part of that memory.
    charged: Option<(Arc<AtomicUsize>, usize)>,
}

struct ReaderPart {
    rows: PartSource,
    /// If the rows hold the state of an aggregate: its formatter, and the join.
    state: Option<(&'static dyn RowState, JoinId)>,
}

enum PartSource {
    Table(TableId, Rc<ReadSnapshot>),
    Join(JoinId, Rc<ReadSnapshot>),
    Computed(RowBuffer),
}

impl Engine {
    /// Creates a reader of a range, or of a part of it, that this operation has prepared. `viewed` is the view that
    /// was made for the read; `None` if all rows were filled and settled already.
    pub(crate) fn open_reader(
        &mut self,
        mut unread: KeyRange,
        limits: Limits,
        viewed: Option<PreparedView>,
    ) -> RangeReader {
        let (mut is_cut, mut is_filled) = (false, true);
        let view = viewed.map_or_else(View::default, |viewed| {
            let KeyRange { lo, hi } = viewed.range;
            is_cut = unread.lo < lo || hi < unread.hi;
            unread = KeyRange::new(&lo.max(unread.lo.clone()), &hi.min(unread.hi.clone()));
            is_filled = self.is_filled(&unread, &viewed.view);
            viewed.view
        });
        let transient = view.transient;
        let mut computed = view.computed;
        let mut parts = Vec::new();
        if let Ok(Some(table)) = self.tables.of_range(&unread.lo, &unread.hi) {
            let state = &mut self.tables[table];
            if state.makers.is_empty() {
                let snapshot = state
                    .rows
                    .snapshot(unread.clone(), &self.reads.snapshot_memory);
                parts.push(ReaderPart {
                    rows: PartSource::Table(table, snapshot),
                    state: None,
                });
            }
            for &maker in &self.tables[table].makers {
                let Some(join) = self.joins.get_mut(maker) else {
                    continue;
                };
                let definition = &join.definition;
                let state = definition.shape.row_state().map(|state| (state, maker));
                if definition.mode != JoinMode::Pull || transient.contains(&maker) {
                    let snapshot = join
                        .output
                        .rows
                        .snapshot(unread.clone(), &self.reads.snapshot_memory);
                    parts.push(ReaderPart {
                        rows: PartSource::Join(maker, snapshot),
                        state,
                    });
                }
                let (of_maker, others) = computed.into_iter().partition(|(m, _)| *m == maker);
                computed = others;
                parts.extend(of_maker.into_iter().map(|(_, rows)| ReaderPart {
                    rows: PartSource::Computed(rows),
                    state,
                }));
            }
        }
        let mut reader = RangeReader {
            unread,
            limits,
            parts,
            rows_left: None,
            is_truncated: is_cut,
            ended_early: !is_filled,
            charged: None,
        };
        reader.rows_left = self.stored_rows(&reader);
        reader
    }

    /// Returns whether the stored rows of a prepared range are complete.
    fn is_filled(&self, range: &KeyRange, view: &View) -> bool {
        let Ok(Some(table)) = self.tables.of_range(&range.lo, &range.hi) else {
            return true;
        };
        let makers = self.tables[table].makers.iter();
        let mut stored = makers
            .filter_map(|&maker| self.joins.get(maker))
            .filter(|join| view.shows_stored(join));
        stored.all(|join| {
            let gaps = join.fills.status().gaps(range);
            gaps.iter().all(|gap| plan_fill(join, gap).is_none())
        })
    }

    /// Returns the number of rows of a new reader, if one place stores all of them and none can be omitted.
    fn stored_rows(&self, reader: &RangeReader) -> Option<u64> {
        let [part] = &*reader.parts else {
            return None;
        };
        let rows = match (&part.rows, &part.state) {
            (PartSource::Table(table, _), None) => &self.tables[*table].rows,
            (PartSource::Join(join, _), None) => &self.joins.get(*join)?.output.rows,
            _ => return None,
        };
        let rows = rows.count(&reader.unread.lo, &reader.unread.hi);
        Some(rows.min(reader.limits.limit.unwrap_or(u64::MAX)))
    }

    /// Memory that long reads use for former values of rows, in bytes.
    pub fn snapshot_bytes(&self) -> usize {
        self.reads.snapshot_memory.bytes()
    }

    /// Limits, in bytes, the former values that one long read keeps, and those of all together. A read that exceeds
    /// them is lost. The default is no limit.
    pub fn set_snapshot_limits(&mut self, each_max: usize, all_max: usize) {
        self.reads.snapshot_memory.set_limits(each_max, all_max);
        self.reads.snapshot_memory.make_room();
    }

    /// Outputs the next rows, at most `rows_max`, until `each` breaks; the row at which it breaks counts as output.
    /// Returns whether the reader is at its end. Invalid aggregates are omitted, as by [`Engine::range`]. A lost reader
    /// ([`RangeReader::is_lost`]) outputs no more rows.
    pub fn read_more(
        &self,
        reader: &mut RangeReader,
        rows_max: u64,
        each: &mut EachRow<'_>,
    ) -> bool {
        if reader.is_lost() {
            return true;
        }
        let Limits {
            limit,
            reverse,
            keys_only,
            total_limit: _,
        } = reader.limits;
        let (may, mut rows) = (limit.unwrap_or(u64::MAX).min(rows_max), 0);
        if may == 0 {
            return limit == Some(0);
        }
        let mut last = None;
        let mut output_row = |key: &[u8], value: &[u8]| {
            rows += 1;
            let flow = each(key, if keys_only { &[] } else { value });
            if flow.is_break() || rows == may {
                last = Some(Box::from(key));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let snapshots: Vec<_> = reader
            .parts
            .iter()
            .map(ReaderPart::snapshot_state)
            .collect();
        let mut streams = Vec::new();
        for (number, (part, snapshot)) in reader.parts.iter().zip(&snapshots).enumerate() {
            let (number, unread) = (number as JoinId, &reader.unread);
            let rows = match &part.rows {
                PartSource::Computed(rows) => {
                    let read = rows.count_outside(unread, reverse);
                    streams.push(Stream::buffered(number, rows, read, reverse));
                    continue;
                }
                PartSource::Table(table, _) => Some(&self.tables[*table].rows),
                PartSource::Join(join, _) => self.joins.get(*join).map(|join| &join.output.rows),
            };
            let current_rows = rows.map(|rows| rows.cursor(&unread.lo, &unread.hi, reverse));
            let snapshot = snapshot.as_ref().expect("stored rows have a snapshot");
            streams.push(Stream::snapshot(
                number,
                SnapshotCursor::new(current_rows, snapshot, reverse),
            ));
        }
        let _ = merge(
            &mut streams,
            reverse,
            &mut |key, value, stream| match reader.parts[stream.maker as usize].state {
                Some((state, maker)) => {
                    let formatted = output_formatted(state, key, value, &mut output_row);
                    formatted.unwrap_or_else(|_| {
                        let join = self.joins.get(maker);
                        join.inspect(|join| join.statistics.count_left_out());
                        ControlFlow::Continue(())
                    })
                }
                None => output_row(key, value),
            },
        );
        drop(streams);
        drop(snapshots);
        reader.limits.limit = limit.map(|limit| limit - rows);
        reader.rows_left = reader.rows_left.map(|left| left.saturating_sub(rows));
        let Some(last) = last else {
            let is_limit_left = reader.limits.limit != Some(0);
            reader.ended_early |= reader.rows_left.is_some_and(|left| left > 0)
                || reader.is_truncated && is_limit_left;
            return true;
        };
        reader.mark_read(last);
        reader.limits.limit == Some(0)
    }
}

impl RangeReader {
    /// Adds the memory that the reader uses to a counter, until the reader is dropped.
    pub fn charge(&mut self, to: &Arc<AtomicUsize>) {
        let mut computed = 0;
        for part in &self.parts {
            match &part.rows {
                PartSource::Table(_, snapshot) | PartSource::Join(_, snapshot) => {
                    snapshot.charge(to)
                }
                PartSource::Computed(rows) => computed += rows.memory_bytes(),
            }
        }
        to.fetch_add(computed, Ordering::Relaxed);
        self.charged = Some((to.clone(), computed));
    }

    /// Returns whether the rest of the rows cannot be read: the former values exceeded their memory limit, or stored
    /// rows are missing.
    pub fn is_lost(&self) -> bool {
        self.ended_early
            || self.parts.iter().any(|part| match &part.rows {
                PartSource::Table(_, snapshot) | PartSource::Join(_, snapshot) => {
                    snapshot.is_lost()
                }
                PartSource::Computed(_) => false,
            })
    }

    /// Number of remaining rows, if one place stores all of them and none can be omitted: no row needs formatting.
    pub fn rows(&self) -> Option<u64> {
        self.rows_left
    }

    /// Marks a row, and all rows before it, as read.
    fn mark_read(&mut self, last: Box<[u8]>) {
        if self.limits.reverse {
            self.unread.hi = last;
        } else {
            let mut next = last.into_vec();
            next.push(0);
            self.unread.lo = next.into();
        }
        for part in &self.parts {
            if let PartSource::Table(_, snapshot) | PartSource::Join(_, snapshot) = &part.rows {
                snapshot.shrink_to(&self.unread);
            }
        }
    }
}

impl Drop for RangeReader {
    fn drop(&mut self) {
        if let Some((to, computed)) = &self.charged {
            to.fetch_sub(*computed, Ordering::Relaxed);
        }
    }
}

impl ReaderPart {
    fn snapshot_state(
        &self,
    ) -> Option<std::cell::Ref<'_, crate::base::read_snapshot::SnapshotState>> {
        match &self.rows {
            PartSource::Table(_, snapshot) | PartSource::Join(_, snapshot) => {
                Some(snapshot.state())
            }
            PartSource::Computed(_) => None,
        }
    }
}
