//! Reading: a long answer is handed out some rows at a time, all of one moment, while others read and write.
//!
//! ```text
//!  begin_range ──► the first rows ──► Reading ──► read_more ──► rows ──► read_more ──► … ──► all
//!                                        └ from here on every part remembers what changes in it (see `moment`)
//! ```
//!
//! 1. What is held is fresh: it was viewed by the same operation, and is held before that operation evicts anything.
//! 2. A reading ends where its range or its limit ends. Where the stored rows end before, it is lost: a shorter answer would be
//!    wrong.
//! 3. A part is the rows of the table itself, those of one of its joins, or those that were computed for this read. Of two rows
//!    with one key the first part's is seen, as in `view`.

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

/// What is still to be handed out of a range. It costs memory for what changes meanwhile, until it is dropped.
pub struct Reading {
    unread: KeyRange,
    limits: Limits,
    parts: Vec<Part>,
    /// How many rows are left, where that is known (see [`Reading::rows`]).
    rows_left: Option<u64>,
    /// `unread` ends before the range that was asked for: it was viewed no further than the limit needs.
    is_cut: bool,
    /// The rows ended before the range or the limit did.
    ended_early: bool,
    /// Who counts what it keeps, and what of that does not change.
    charged: Option<(Arc<AtomicUsize>, usize)>,
}

struct Part {
    rows: PartRows,
    /// How its rows are spelled out, if they are, and the join that they are of.
    state: Option<(&'static dyn RowState, JoinId)>,
}

enum PartRows {
    Table(TableId, Rc<Moment>),
    Join(JoinId, Rc<Moment>),
    Computed(Gathered),
}

impl Engine {
    /// Holds a range that this operation has viewed, or a part of it, to be read on as it is now. `viewed` is what was made for
    /// the read; `None` if all its rows were found filled and settled.
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

    /// Whether all rows that joins store of a viewed range are there.
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

    /// How many rows a reading has that was just held, if one place stores them all and no row can be left out.
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

    /// What long answers keep of rows that changed meanwhile.
    pub fn held_bytes(&self) -> usize {
        self.reads.held.bytes()
    }

    /// Sets how many bytes one long answer may keep of rows that change meanwhile, and how many all together: beyond that it
    /// cannot be read to its end. At first: any.
    pub fn set_held_limits(&mut self, each_max: usize, all_max: usize) {
        self.reads.held.set_limits(each_max, all_max);
        self.reads.held.make_room();
    }

    /// Hands out what comes next, at most `rows_max` rows and until `each` breaks: the row that it breaks at is handed out. Says
    /// whether that was all. Rows that do not add up are left out, as by [`Engine::range`]. Of an answer that is lost
    /// ([`Reading::is_lost`]) nothing comes any more.
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
    /// Adds to a count what it keeps, from now until it is dropped.
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

    /// Whether the rest of the rows cannot be read: so much has changed since that it is not known any more what the rows
    /// were, or fewer are there than the range has.
    pub fn is_lost(&self) -> bool {
        self.ended_early
            || self.parts.iter().any(|part| match &part.rows {
                PartRows::Table(_, moment) | PartRows::Join(_, moment) => moment.is_lost(),
                PartRows::Computed(_) => false,
            })
    }

    /// How many rows are left, if all that is read is stored in one place, and no row is spelled out: it may be left out then.
    pub fn rows(&self) -> Option<u64> {
        self.rows_left
    }

    /// A row has been read, and all before it.
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
