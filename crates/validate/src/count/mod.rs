//! Counts: the values that a read of a number may return while others change it.
//!
//! At an instant `t`, let `base(t)` be the initial value plus the deltas of all writes that ended before `t`, and
//! `inflight(t)` the writes with `start <= t <= end`. A read may return
//!
//! ```text
//!   for any t of the read:  base(t) + the sum of any subset of inflight(t)
//! ```
//!
//! This is exact. A linear order puts a set P of writes before the read, and P contains all predecessors of its
//! members. Let t be the maximum of the read's start and the starts in P: then all of P started by t, and no write
//! outside P ended before t. Conversely, any such choice at t is closed under precedence.
//!
//! An absolute write `a` overwrites the effects of earlier writes. At `t`, let `M(t)` be the latest start of the
//! absolute writes that ended before `t`. Then `a` may be the last absolute write before the read if `a.start <= t`
//! and `a.end >= M(t)`. It takes effect at some `u` with `max(M(t), a.start) <= u <= min(a.end, t)`, and
//!
//! ```text
//!   value = a's + all deltas with u < start and end < t + any subset of the deltas in flight at u or at t
//! ```
//!
//! Only the events need to be examined: a value that is acceptable between two events is acceptable at the event on
//! either side.
//!
//! Invariants:
//!
//! 1. Assume that all deltas are `+unit` or `-unit` (as in BG, with 1) and that there are no absolute writes. The
//!    values acceptable at an instant are then all multiples of `unit` from `lo(t)` to `hi(t)`, and adjacent instants
//!    have a value in common. The values acceptable for a read therefore range from the least `lo` to the greatest
//!    `hi`: [`Counts::new`] takes O(n log n), a read O(log n).
//! 2. Otherwise `lo` and `hi` only exclude instants, and the rest are examined. Each takes O(log n) and a subset sum
//!    of the deltas in flight. With absolute writes and deltas, all pairs of instants `t`, `u` are examined.
//!
//! `intervals` finds the writes in flight, `extent` the instants to examine, and `reach` computes subset sums.

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

/// The effect of a write on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Add(i32),
    Set(i32),
}

/// One write of the item; its span is [`Span::unanswered`] if its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub span: Span,
    pub effect: Effect,
}

/// All writes of one item, prepared for validating its reads.
pub struct Counts {
    initial: i64,
    /// The distinct instants at which a write starts or ends, ascending.
    events: Vec<u64>,
    /// `lo` and `hi` at each event.
    at: ExtentTree,
    /// `lo` and `hi` just after each event.
    after: Vec<Extent>,
    rule: Rule,
}

/// The rule by which verdicts follow from the extents.
enum Rule {
    /// All deltas are plus or minus this value: the extents decide (invariant 1).
    Steps(i64),
    /// The extents only exclude instants; the writes in flight decide (invariant 2).
    Sums(Box<Writes>),
}

struct Writes {
    deltas: Intervals,
    /// Ends of deltas, ascending, each with the sum of all deltas that ended up to then.
    ended_sums: Vec<(u64, i64)>,
    absolutes: Intervals,
    /// Ends of absolute writes, ascending, each with the latest start of those that ended up to then.
    ended_starts: Vec<(u64, u64)>,
}

impl Counts {
    /// Prepares the writes, which may be in any order. Deltas of zero are ignored.
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
            changes.push((write.span.start, ExtentEvent::Begins(delta)));
            if write.span.end < u64::MAX {
                changes.push((write.span.end, ExtentEvent::Ends(delta)));
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

    /// Returns whether a read over `read` may have returned `value`. The verdict is [`Verdict::Undecided`] only if so
    /// many different deltas are in flight that they have more than a million sums.
    pub fn judge(&self, read: Span, value: i64) -> Verdict {
        self.judge_moving(read, value).0
    }

    /// Returns the verdict, and whether more than one value was possible.
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
            self.at.first_containing(window, value, decide).is_some()
        };
        match (found, undecided) {
            (true, _) => Verdict::Acceptable,
            (false, true) => Verdict::Undecided,
            (false, false) => Verdict::Unacceptable,
        }
    }

    /// Returns the last instant before `instant` at which `value` was acceptable; `None` if there is none or the
    /// search is too expensive.
    pub fn last_acceptable_before(&self, instant: u64, value: i64) -> Option<u64> {
        let before = 0..self.events.partition_point(|&event| event < instant);
        let found = self
            .at
            .last_containing(before, value, |event| self.decides(event, value));
        found.map(|event| self.events[event]).or_else(|| {
            // Before the first write, only the initial value is acceptable.
            (value == self.initial && instant > 0).then_some(0)
        })
    }

    /// Returns the first instant after `instant` at which `value` is acceptable; `None` if there is none or the
    /// search is too expensive.
    pub fn first_acceptable_after(&self, instant: u64, value: i64) -> Option<u64> {
        let after = self.events.partition_point(|&event| event <= instant)..self.events.len();
        let found = self
            .at
            .first_containing(after, value, |event| self.decides(event, value));
        found.map(|event| self.events[event])
    }

    /// Returns all values that are acceptable for `read`, ascending; `None` if there are more than `limit` or the
    /// search is too expensive.
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

    /// Returns the range of events within `read`. If it is empty, its start is the number of events before the read.
    fn window(&self, read: Span) -> Range<usize> {
        let start = self.events.partition_point(|&event| event < read.start);
        let size = self.events[start..].partition_point(|&event| event <= read.end);
        start..start + size
    }

    /// Returns the extent between two events, given the number of earlier events.
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

    /// Calls `visit` with each certain sum at `instant`, and the deltas of which any subset may be added to it.
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
                // These are neither counted among the ended ones nor certainly overwritten.
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

/// Returns the ends of the deltas, ascending, each with the sum of all deltas that ended up to then.
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

enum ExtentEvent {
    Begins(i32),
    Ends(i32),
}

/// Returns the events, and the extents at and just after each. Absolute writes make extents unbounded.
fn extents(
    initial: i64,
    changes: &[(u64, ExtentEvent)],
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
            if let ExtentEvent::Begins(delta) = change {
                now.lo += i64::from(*delta).min(0);
                now.hi += i64::from(*delta).max(0);
            }
        }
        let here = now;
        for (_, change) in these {
            if let ExtentEvent::Ends(delta) = change {
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
