//! Reading: a long reply is output in parts, as a snapshot, while other commands read and write.
//!
//! ```text
//!  begin_range ──► the first rows ──► Reading ──► read_more ──► rows ──► read_more ──► … ──► all
//!                                        └ from here on, every part keeps the former values of changed rows (see `moment`)
//! ```
//!
//! 1. The range is fresh: the same operation prepared it, and the reading is created before that operation evicts
//!    anything.
//! 2. A reading ends where its range or its limit ends. If the stored rows end earlier, the reading is lost: a shorter
//!    reply would be wrong.
//! 3. A part is the table's own rows, the rows of one of its joins, or rows that were computed for this read. If
//!    several parts have a key, the first part's row is visible, as in `view`.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::gathered::Gathered;
use crate::base::key_range::{EachRow, KeyRange};
use crate::base::moment::{Moment, Then};
use crate::engine::Engine;
use crate::evaluate::reads::Viewed;
use crate::evaluate::view::fillable;
use crate::join::{JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::operators::RowState;
use crate::tables::merge::{Stream, merge};
use crate::tables::scan::Limits;
use crate::tables::scan::{View, spell_out};

/// The unread rest of a range. Until it is dropped, it keeps the former values of rows that change.
pub struct Reading {
    unread: KeyRange,
    limits: Limits,
    parts: Vec<Part>,
    /// Number of remaining rows, if known (see [`Reading::rows`]).
    rows_left: Option<u64>,
    /// True if `unread` ends before the requested range, because only the part that the limit needs was prepared.
    is_cut: bool,
    /// True if the rows ended before the range and the limit did.
    ended_early: bool,
    /// A counter for the memory that the reading uses, and the constant part of that memory.
    charged: Option<(Arc<AtomicUsize>, usize)>,
}

struct Part {
    rows: PartRows,
    /// If the rows hold the state of an aggregate: its formatter, and the join.
    state: Option<(&'static dyn RowState, JoinId)>,
}

enum PartRows {
    Table(TableId, Rc<Moment>),
    Join(JoinId, Rc<Moment>),
    Computed(Gathered),
}

impl Engine {
    /// Creates a reading of a range, or of a part of it, that this operation has prepared. `viewed` is the view that
    /// was made for the read; `None` if all rows were filled and settled already.
    pub(crate) fn hold(
        &mut self,
        mut unread: KeyRange,
        limits: Limits,
        viewed: Option<Viewed>,
    ) -> Reading {
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
                let moment = state.rows.moment(unread.clone(), &self.reads.held);
                parts.push(Part {
                    rows: PartRows::Table(table, moment),
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
                    let moment = join.output.rows.moment(unread.clone(), &self.reads.held);
                    parts.push(Part {
                        rows: PartRows::Join(maker, moment),
                        state,
                    });
                }
                let (of_maker, others) = computed.into_iter().partition(|(m, _)| *m == maker);
                computed = others;
                parts.extend(of_maker.into_iter().map(|(_, rows)| Part {
                    rows: PartRows::Computed(rows),
                    state,
                }));
            }
        }
        let mut reading = Reading {
            unread,
            limits,
            parts,
            rows_left: None,
            is_cut,
            ended_early: !is_filled,
            charged: None,
        };
        reading.rows_left = self.stored_rows(&reading);
        reading
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
            let gaps = join.status.gaps(range);
            gaps.iter().all(|gap| fillable(join, gap).is_none())
        })
    }

    /// Returns the number of rows of a new reading, if one place stores all of them and none can be omitted.
    fn stored_rows(&self, reading: &Reading) -> Option<u64> {
        let [part] = &*reading.parts else {
            return None;
        };
        let rows = match (&part.rows, &part.state) {
            (PartRows::Table(table, _), None) => &self.tables[*table].rows,
            (PartRows::Join(join, _), None) => &self.joins.get(*join)?.output.rows,
            _ => return None,
        };
        let rows = rows.count(&reading.unread.lo, &reading.unread.hi);
        Some(rows.min(reading.limits.limit.unwrap_or(u64::MAX)))
    }

    /// Memory that long reads use for former values of rows, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.reads.held.bytes()
    }

    /// Limits, in bytes, the former values that one long read keeps, and those of all together. A read that exceeds
    /// them is lost. The default is no limit.
    pub fn set_held_limits(&mut self, each_max: usize, all_max: usize) {
        self.reads.held.set_limits(each_max, all_max);
        self.reads.held.make_room();
    }

    /// Outputs the next rows, at most `rows_max`, until `each` breaks; the row at which it breaks counts as output.
    /// Returns whether the reading is complete. Invalid aggregates are omitted, as by [`Engine::range`]. A lost reading
    /// ([`Reading::is_lost`]) outputs no more rows.
    pub fn read_more(&self, reading: &mut Reading, rows_max: u64, each: &mut EachRow<'_>) -> bool {
        if reading.is_lost() {
            return true;
        }
        let Limits {
            limit,
            reverse,
            keys_only,
            in_all: _,
        } = reading.limits;
        let (may, mut rows) = (limit.unwrap_or(u64::MAX).min(rows_max), 0);
        if may == 0 {
            return limit == Some(0);
        }
        let mut last = None;
        let mut give = |key: &[u8], value: &[u8]| {
            rows += 1;
            let flow = each(key, if keys_only { &[] } else { value });
            if flow.is_break() || rows == may {
                last = Some(Box::from(key));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let kept: Vec<_> = reading.parts.iter().map(Part::kept).collect();
        let mut streams = Vec::new();
        for (number, (part, kept)) in reading.parts.iter().zip(&kept).enumerate() {
            let (number, unread) = (number as JoinId, &reading.unread);
            let rows = match &part.rows {
                PartRows::Computed(rows) => {
                    let read = rows.outside(unread, reverse);
                    streams.push(Stream::gathered(number, rows, read, reverse));
                    continue;
                }
                PartRows::Table(table, _) => Some(&self.tables[*table].rows),
                PartRows::Join(join, _) => self.joins.get(*join).map(|join| &join.output.rows),
            };
            let now = rows.map(|rows| rows.cursor(&unread.lo, &unread.hi, reverse));
            let kept = kept.as_ref().expect("rows that are stored have a moment");
            streams.push(Stream::then(number, Then::new(now, kept, reverse)));
        }
        let _ = merge(
            &mut streams,
            reverse,
            &mut |key, value, stream| match reading.parts[stream.maker as usize].state {
                Some((state, maker)) => {
                    let spelled = spell_out(state, key, value, &mut give);
                    spelled.unwrap_or_else(|_| {
                        let join = self.joins.get(maker);
                        join.inspect(|join| join.left_out.set(join.left_out.get() + 1));
                        ControlFlow::Continue(())
                    })
                }
                None => give(key, value),
            },
        );
        drop(streams);
        drop(kept);
        reading.limits.limit = limit.map(|limit| limit - rows);
        reading.rows_left = reading.rows_left.map(|left| left.saturating_sub(rows));
        let Some(last) = last else {
            let is_limit_left = reading.limits.limit != Some(0);
            reading.ended_early |=
                reading.rows_left.is_some_and(|left| left > 0) || reading.is_cut && is_limit_left;
            return true;
        };
        reading.pass(last);
        reading.limits.limit == Some(0)
    }
}

impl Reading {
    /// Adds the memory that the reading uses to a counter, until the reading is dropped.
    pub fn charge(&mut self, to: &Arc<AtomicUsize>) {
        let mut computed = 0;
        for part in &self.parts {
            match &part.rows {
                PartRows::Table(_, moment) | PartRows::Join(_, moment) => moment.charge(to),
                PartRows::Computed(rows) => computed += rows.memory_bytes(),
            }
        }
        to.fetch_add(computed, Ordering::Relaxed);
        self.charged = Some((to.clone(), computed));
    }

    /// Returns whether the rest of the rows cannot be read: the former values exceeded their memory limit, or stored rows are
    /// missing.
    pub fn is_lost(&self) -> bool {
        self.ended_early
            || self.parts.iter().any(|part| match &part.rows {
                PartRows::Table(_, moment) | PartRows::Join(_, moment) => moment.is_lost(),
                PartRows::Computed(_) => false,
            })
    }

    /// Number of remaining rows, if one place stores all of them and none can be omitted: no row needs formatting.
    pub fn rows(&self) -> Option<u64> {
        self.rows_left
    }

    /// Marks a row, and all rows before it, as read.
    fn pass(&mut self, last: Box<[u8]>) {
        if self.limits.reverse {
            self.unread.hi = last;
        } else {
            let mut next = last.into_vec();
            next.push(0);
            self.unread.lo = next.into();
        }
        for part in &self.parts {
            if let PartRows::Table(_, moment) | PartRows::Join(_, moment) = &part.rows {
                moment.shrink_to(&self.unread);
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some((to, computed)) = &self.charged {
            to.fetch_sub(*computed, Ordering::Relaxed);
        }
    }
}

impl Part {
    fn kept(&self) -> Option<std::cell::Ref<'_, crate::base::moment::Kept>> {
        match &self.rows {
            PartRows::Table(_, moment) | PartRows::Join(_, moment) => Some(moment.kept()),
            PartRows::Computed(_) => None,
        }
    }
}
