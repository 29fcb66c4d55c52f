//! Counts: which values may a read of a number return while others change it?
//!
//! At an instant `t`, let `base(t)` be the initial value and the deltas of all writes that ended before
//! `t`, and `inflight(t)` the writes with `start <= t <= end`. A read may return
//!
//! ```text
//!   for any t of the read:  base(t) + the sum of any subset of inflight(t)
//! ```
//!
//! That is exact. A linear order puts a set P of writes before the read; P holds whatever precedes one of its
//! members. Let t be the latest of the read's start and the starts in P: then all of P began by t, and
//! nothing outside P ended before t. The other way, any such choice at t is closed under precedence.
//!
//! An absolute write `a` cuts off what was before it. At `t`, let `M(t)` be the latest start of the absolute
//! writes that ended before `t`. Then `a` may be the last one before the read if `a.start <= t` and
//! `a.end >= M(t)`; it takes effect at some `u` with `max(M(t), a.start) <= u <= min(a.end, t)`, and
//!
//! ```text
//!   value = a's + all deltas with u < start and end < t + any subset of the deltas in flight at u or at t
//! ```
//!
//! Only some instants matter: whatever is acceptable between two events is so at the event on either side.
//!
//! Invariants:
//!
//! 1. While all deltas are `+unit` or `-unit` (all of BG's are, with 1) and nothing is absolute, the values acceptable at an
//!    instant are all multiples of `unit` from `lo(t)` to `hi(t)`, and neighbouring instants share a value. So
//!    those of a read are all from the least `lo` to the greatest `hi`: [`Counts::new`] takes O(n log n), a read O(log n).
//! 2. Otherwise `lo` and `hi` only rule out instants, and what remains is tried: O(log n) and a subset sum of what was in
//!    flight, for each instant tried. With absolute writes beside deltas, all pairs of instants `t`, `u` are.
//!
//! `intervals` finds what was in flight, `extent` the instants worth a look, `reach` sums subsets.

mod extent;
mod flights;
mod intervals;
mod reach;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use crate::{Span, Verdict};
pub(crate) use extent::{Extent, ExtentTree};
pub(crate) use flights::Flights;
use intervals::{Flight, Intervals};

/// What a write does to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Add(i32),
    Set(i32),
}

/// One write of the item; [`Span::unanswered`] if its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub span: Span,
    pub effect: Effect,
}

/// All writes of one item, ready to judge its reads.
pub struct Counts {
    initial: i64,
    /// The instants at which a write began or ended, ascending, each once.
    events: Vec<u64>,
    /// For each event, what `lo` and `hi` are at it.
    at: ExtentTree,
    /// For each event, what `lo` and `hi` are just after it.
    after: Vec<Extent>,
    rule: Rule,
}

/// How much the extents say.
enum Rule {
    /// All deltas are plus or minus this much: the extents say everything (invariant 1).
    Steps(i64),
    /// They rule out, and the writes in flight decide (invariant 2).
    Sums(Box<Writes>),
}

struct Writes {
    deltas: Intervals,
    /// Ends of deltas, ascending, with the sum of this delta and of those that ended earlier.
    ended_sums: Vec<(u64, i64)>,
    absolutes: Intervals,
    /// Ends of absolute writes, ascending, with the latest start among this one and those that ended earlier.
    ended_starts: Vec<(u64, u64)>,
}

impl Counts {
    /// Sorts the writes; they may come in any order. A delta of zero is no write.
    pub fn new(initial: impl Into<i64>, writes: &[Write]) -> Counts {
        let initial = initial.into();
        let mut changes = Vec::with_capacity(writes.len() * 2);
        let mut unit = None;
        let mut regular = true;
        for write in writes {
            let delta = match write.effect {
                Effect::Add(0) => continue,
                Effect::Add(delta) => delta,
                Effect::Set(_) => 0,
            };
            regular &=
                delta != 0 && *unit.get_or_insert(delta.unsigned_abs()) == delta.unsigned_abs();
            changes.push((write.span.start, Change::Begins(delta)));
            if write.span.end < u64::MAX {
                changes.push((write.span.end, Change::Ends(delta)));
            }
        }
        changes.sort_unstable_by_key(|change| change.0);
        let absolute = writes
            .iter()
            .any(|write| matches!(write.effect, Effect::Set(_)));
        let (events, at, after) = extents(initial, &changes, absolute);
        let rule = if regular {
            Rule::Steps(unit.map_or(1, i64::from))
        } else {
            Rule::Sums(Box::new(Writes::new(writes)))
        };
        Counts {
            initial,
            events,
            at: ExtentTree::new(at),
            after,
            rule,
        }
    }

    /// Whether a read over `read` may have returned `value`. [`Verdict::Undecided`] only with so many different
    /// deltas in flight at once that their sums are more than a million.
    pub fn judge(&self, read: Span, value: i64) -> Verdict {
        self.judge_moving(read, value).0
    }

    /// The verdict, and whether more than one value was possible.
    pub(crate) fn judge_moving(&self, read: Span, value: i64) -> (Verdict, bool) {
        let window = self.window(read);
        let extent = if window.is_empty() {
            self.between(window.start)
        } else {
            self.at.over(window.clone())
        };
        let verdict = self.judge_within(read, value, window, extent);
        let moving = match extent {
            Extent::ANY => self.acceptable(read, 1).is_none(),
            _ => extent.lo != extent.hi,
        };
        (verdict, moving)
    }

    fn judge_within(
        &self,
        read: Span,
        value: i64,
        window: Range<usize>,
        extent: Extent,
    ) -> Verdict {
        if let Rule::Steps(unit) = self.rule {
            let acceptable = extent.holds(value) && (value - self.initial) % unit == 0;
            return if acceptable {
                Verdict::Acceptable
            } else {
                Verdict::Unacceptable
            };
        }
        let mut undecided = false;
        let found = if window.is_empty() {
            extent.holds(value) && self.sums_to(read.start, value, &mut undecided)
        } else {
            let decide = |event| self.sums_to(self.events[event], value, &mut undecided);
            self.at.first_holding(window, value, decide).is_some()
        };
        match (found, undecided) {
            (true, _) => Verdict::Acceptable,
            (false, true) => Verdict::Undecided,
            (false, false) => Verdict::Unacceptable,
        }
    }

    /// The last instant before `instant` at which `value` was acceptable. None: at none, or telling takes too long.
    pub fn last_acceptable_before(&self, instant: u64, value: i64) -> Option<u64> {
        let before = 0..self.events.partition_point(|&event| event < instant);
        let found = self
            .at
            .last_holding(before, value, |event| self.decides(event, value));
        found.map(|event| self.events[event]).or_else(|| {
            // Before the first write, nothing but the initial value.
            (value == self.initial && instant > 0).then_some(0)
        })
    }

    /// The first instant after `instant` at which `value` is acceptable. None: at none, or telling takes too long.
    pub fn first_acceptable_after(&self, instant: u64, value: i64) -> Option<u64> {
        let after = self.events.partition_point(|&event| event <= instant)..self.events.len();
        let found = self
            .at
            .first_holding(after, value, |event| self.decides(event, value));
        found.map(|event| self.events[event])
    }

    /// All that is acceptable for `read`, ascending; None if that is more than `limit` values or takes too long.
    pub fn acceptable(&self, read: Span, limit: usize) -> Option<Vec<i64>> {
        let window = self.window(read);
        if let Rule::Steps(unit) = self.rule {
            let extent = if window.is_empty() {
                self.between(window.start)
            } else {
                self.at.over(window)
            };
            let count = (extent.hi - extent.lo) / unit;
            return (count < limit as i64)
                .then(|| (0..=count).map(|step| extent.lo + step * unit).collect());
        }
        let mut values = BTreeSet::new();
        let instants = if window.is_empty() {
            &[read.start][..]
        } else {
            &self.events[window]
        };
        for &instant in instants {
            let flow =
                self.each_alternative(instant, &mut |base, free| match reach::all(base, free) {
                    Some(sums) if values.len() + sums.len() <= limit.saturating_mul(2) => {
                        values.extend(sums);
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                });
            if flow.is_break() {
                return None;
            }
        }
        (values.len() <= limit).then(|| values.into_iter().collect())
    }

    /// The events within `read`. If there are none, the number of events before it is where the range begins.
    fn window(&self, read: Span) -> Range<usize> {
        let start = self.events.partition_point(|&event| event < read.start);
        let size = self.events[start..].partition_point(|&event| event <= read.end);
        start..start + size
    }

    /// What holds between two events, `before` events being earlier.
    fn between(&self, before: usize) -> Extent {
        before
            .checked_sub(1)
            .map_or(Extent::one(self.initial), |event| self.after[event])
    }

    fn decides(&self, event: usize, value: i64) -> bool {
        match self.rule {
            Rule::Steps(unit) => (value - self.initial) % unit == 0,
            Rule::Sums(_) => self.sums_to(self.events[event], value, &mut false),
        }
    }

    fn sums_to(&self, instant: u64, value: i64, undecided: &mut bool) -> bool {
        let flow = self.each_alternative(instant, &mut |base, free| match reach::reaches(
            base, free, value,
        ) {
            Some(true) => ControlFlow::Break(()),
            Some(false) => ControlFlow::Continue(()),
            None => {
                *undecided = true;
                ControlFlow::Continue(())
            }
        });
        flow.is_break()
    }

    /// Calls `visit` with every sum that is certain at `instant`, and the deltas of which any subset may come to it.
    fn each_alternative(
        &self,
        instant: u64,
        visit: &mut dyn FnMut(i64, &[i32]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Rule::Sums(writes) = &self.rule else {
            return ControlFlow::Continue(());
        };
        let inflight = writes.deltas.holding(instant, instant);
        let deltas: Vec<i32> = inflight.iter().map(|write| write.value).collect();
        let ended = writes.ended_sum(instant);
        let latest_start = writes.latest_start(instant);
        if latest_start.is_none() {
            visit(self.initial + ended, &deltas)?;
        }
        for Flight { span, value, .. } in
            writes.absolutes.holding(instant, latest_start.unwrap_or(0))
        {
            let first = span.start.max(latest_start.unwrap_or(0));
            for cut in writes.deltas.starts_from(first, span.end.min(instant)) {
                let mut free = deltas.clone();
                // Neither counted among those that ended, nor cut off for certain.
                let both: i64 = inflight
                    .iter()
                    .filter(|write| write.span.start <= cut)
                    .map(|write| i64::from(write.value))
                    .sum();
                let earlier = writes.deltas.holding(cut, cut);
                free.extend(
                    earlier
                        .iter()
                        .filter(|write| write.span.end < instant)
                        .map(|write| write.value),
                );
                let certain = ended - writes.deltas.started_sum(cut) + both;
                visit(i64::from(value) + certain, &free)?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl Writes {
    fn new(writes: &[Write]) -> Writes {
        let mut deltas = Vec::new();
        let mut absolutes = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let (list, value) = match write.effect {
                Effect::Add(0) => continue,
                Effect::Add(delta) => (&mut deltas, delta),
                Effect::Set(value) => (&mut absolutes, value),
            };
            list.push(Flight {
                span: write.span,
                value,
                index: index as u32,
            });
        }
        let ended_sums = ended_sums(&deltas);
        let mut ended_starts: Vec<(u64, u64)> = absolutes
            .iter()
            .map(|write| (write.span.end, write.span.start))
            .collect();
        ended_starts.sort_unstable();
        let mut latest = 0;
        for ended in &mut ended_starts {
            latest = latest.max(ended.1);
            ended.1 = latest;
        }
        Writes {
            deltas: Intervals::new(deltas),
            ended_sums,
            absolutes: Intervals::new(absolutes),
            ended_starts,
        }
    }

    fn ended_sum(&self, instant: u64) -> i64 {
        let ended = self.ended_sums.partition_point(|(end, _)| *end < instant);
        ended
            .checked_sub(1)
            .map_or(0, |last| self.ended_sums[last].1)
    }

    fn latest_start(&self, instant: u64) -> Option<u64> {
        let ended = self.ended_starts.partition_point(|(end, _)| *end < instant);
        ended.checked_sub(1).map(|last| self.ended_starts[last].1)
    }
}

/// Ends, ascending, each with the sum of this delta and of those that ended earlier.
fn ended_sums(deltas: &[Flight]) -> Vec<(u64, i64)> {
    let mut sums: Vec<(u64, i64)> = deltas
        .iter()
        .map(|write| (write.span.end, i64::from(write.value)))
        .collect();
    sums.sort_unstable();
    let mut sum = 0;
    for ended in &mut sums {
        sum += ended.1;
        ended.1 = sum;
    }
    sums
}

enum Change {
    Begins(i32),
    Ends(i32),
}

/// The events, and the extents at and just after each. Absolute writes make extents unbounded.
fn extents(
    initial: i64,
    changes: &[(u64, Change)],
    absolute: bool,
) -> (Vec<u64>, Vec<Extent>, Vec<Extent>) {
    let mut events = Vec::with_capacity(changes.len());
    let mut at = Vec::with_capacity(changes.len());
    let mut after = Vec::with_capacity(changes.len());
    let mut now = Extent::one(initial);
    let mut rest = changes;
    while let Some(&(event, _)) = rest.first() {
        let (these, later) =
            rest.split_at(rest.iter().take_while(|change| change.0 == event).count());
        rest = later;
        for (_, change) in these {
            if let Change::Begins(delta) = change {
                now.lo += i64::from(*delta).min(0);
                now.hi += i64::from(*delta).max(0);
            }
        }
        let here = now;
        for (_, change) in these {
            if let Change::Ends(delta) = change {
                now.lo += i64::from(*delta).max(0);
                now.hi += i64::from(*delta).min(0);
            }
        }
        events.push(event);
        at.push(if absolute { Extent::ANY } else { here });
        after.push(if absolute { Extent::ANY } else { now });
    }
    (events, at, after)
}
