//! Enumerates all orders of the calls on one object simultaneously.
//!
//! Time advances through the starts and ends of calls. A *course* is one possible history so far: the state of the
//! object, and which of the running calls have taken effect. A write takes effect as late as possible: when a call
//! ends that depends on it. A read takes effect as soon as the object has the state that it saw, since that changes
//! nothing. (Wing and Gong, "Testing and verifying concurrent objects", 1993; Lowe's "just in time" linearization,
//! 2017, shows that late is sufficient.)
//!
//! ```text
//!   begin(call) ─► an index among the running calls; a read takes effect in courses that match it
//!   end(call)   ─► keep courses in which it has taken effect, possibly after pending writes; none: rejected and ignored
//! ```
//!
//! A write without a reply runs forever. It is dropped when it can have no more effect, or has happened in every
//! course.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{ObjectWrite, State};
use super::{Call, Event, ObjectVerdicts, RejectedCall, SearchMode};
use crate::Verdict;

/// Maximum number of concurrent calls on one object: one bit each.
const RUNNING_MAX: usize = 64;
const COURSES_MAX: usize = 1 << 13;
const STATES_REPORTED_MAX: usize = 8;
/// The index of a write that will never be acknowledged and need not be tracked.
const UNTRACKED: usize = RUNNING_MAX;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Course {
    state: State,
    /// The running calls that have taken effect: a bit set by their indexes.
    done: u64,
    /// Previous states, before writes that have taken effect but are not acknowledged yet, each with the index of the
    /// write, in order. Searches in regions may see these.
    behind: Vec<(usize, State)>,
}

/// A course without the unacknowledged writes.
type CourseKey = (State, u64, Vec<(usize, State)>);

struct Orders<'a> {
    history: &'a [Event],
    searches: SearchMode,
    running: [Option<usize>; RUNNING_MAX],
    courses: BTreeSet<Course>,
}

/// The search is too expensive.
struct TooMany;

/// Validates the calls on one object, given by their indexes.
pub(super) fn judge_object(
    history: &[Event],
    events: &[usize],
    searches: SearchMode,
    judged: &mut ObjectVerdicts,
) {
    // At equal instants, starts come before ends.
    let ends = |event: &usize| history[*event].span.end() < u64::MAX;
    let begin = events
        .iter()
        .map(|it| (history[*it].span.start(), false, *it));
    let end = events.iter().filter(|it| ends(it));
    let end = end.map(|it| (history[*it].span.end(), true, *it));
    let mut steps: Vec<(u64, bool, usize)> = begin.chain(end).collect();
    steps.sort_unstable();
    let first = Course {
        state: State::NONE,
        done: 0,
        behind: Vec::new(),
    };
    let mut orders = Orders {
        history,
        searches,
        running: [None; RUNNING_MAX],
        courses: BTreeSet::from([first]),
    };
    for (at, (_, is_end, event)) in steps.iter().enumerate() {
        let stepped = if *is_end {
            orders.end(*event, judged)
        } else {
            orders.begin(*event)
        };
        if let Err(TooMany) = stepped {
            for (_, _, event) in steps[at..].iter().filter(|step| step.1) {
                judged.verdicts[*event] = Verdict::Undecided;
            }
            return;
        }
    }
}

impl Orders<'_> {
    fn begin(&mut self, event: usize) -> Result<(), TooMany> {
        let mut free = self.running.iter().position(Option::is_none);
        if free.is_none() {
            self.drop_spent();
            free = self.running.iter().position(Option::is_none);
        }
        let place = free.ok_or(TooMany)?;
        self.running[place] = Some(event);
        let call = self.history[event].call;
        let begun = std::mem::take(&mut self.courses).into_iter();
        let begun = begun.map(|course| {
            if course.is_seen_by(&call) {
                course.with(place)
            } else {
                course
            }
        });
        self.courses = begun.collect();
        Ok(())
    }

    fn end(&mut self, event: usize, judged: &mut ObjectVerdicts) -> Result<(), TooMany> {
        let running = self.running.iter();
        let place = { running }.position(|it| *it == Some(event));
        let place = place.expect("it has begun");
        let mut ended = BTreeSet::new();
        let mut seen = self.courses.clone();
        let mut left: Vec<Course> = seen.iter().cloned().collect();
        while let Some(course) = left.pop() {
            if course.has(place) {
                ended.insert(course.answered(place));
                continue;
            }
            for next in self.next(&course) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
            if seen.len() > COURSES_MAX {
                return Err(TooMany);
            }
        }
        if ended.is_empty() {
            let states: BTreeSet<State> = seen.iter().map(|course| course.state).collect();
            judged.verdicts[event] = Verdict::Unacceptable;
            judged.refused.push(RejectedCall {
                event,
                states: states.into_iter().take(STATES_REPORTED_MAX).collect(),
            });
            ended = self.without(event, place);
        }
        self.running[place] = None;
        self.courses = ended;
        self.drop_dominated();
        self.drop_spent();
        Ok(())
    }

    /// Returns the possible continuations by one running write.
    fn next(&self, course: &Course) -> Vec<Course> {
        let running = self.running.iter().enumerate();
        let next = running.filter_map(|(place, event)| {
            let event = &self.history[(*event)?];
            let Call::Change { change, held } = &event.call else {
                return None;
            };
            if course.has(place) {
                return None;
            }
            let holds = change.holds(course.state);
            if held.is_some_and(|held| held != holds) {
                return None;
            }
            let after = if holds {
                change.apply(course.state)
            } else {
                course.state
            };
            // A write without an effect and without a known outcome need not have happened.
            let is_idle = after == course.state && event.span.end() == u64::MAX;
            (!is_idle).then(|| self.after(course.clone().with(place), place, after))
        });
        next.collect()
    }

    /// Continues the course: a write at this index sets the object to this state.
    fn after(&self, mut course: Course, place: usize, state: State) -> Course {
        let has_moved = state.without_timer() != course.state.without_timer();
        let is_late = self.searches == SearchMode::InRegions;
        if is_late {
            course.behind.push((place, course.state));
        }
        course.state = state;
        for (place, event) in self.running.iter().enumerate() {
            let Some(event) = event else { continue };
            let call = &self.history[*event].call;
            let is_missed = matches!(call, Call::Missed(_)) && has_moved && is_late;
            if is_missed || sees(call, state) == Some(true) {
                course = course.with(place);
            }
        }
        course
    }

    /// Returns all courses without this call. A write that is rejected although it reports success is assumed to have
    /// happened.
    fn without(&self, event: usize, place: usize) -> BTreeSet<Course> {
        let forced = |course: &Course| match &self.history[event].call {
            Call::Change {
                change,
                held: Some(true),
            } => self.after(course.clone(), place, change.apply(course.state)),
            _ => course.clone(),
        };
        let forced = self.courses.iter().map(forced);
        forced.map(|course| course.answered(place)).collect()
    }

    /// Removes redundant courses: of those that differ only in which unacknowledged writes have happened, the ones
    /// with fewer can become the others.
    fn drop_dominated(&mut self) {
        let mut unanswered = 0;
        for (place, event) in self.running.iter().enumerate() {
            let is_unanswered = |event: &usize| self.history[*event].span.end() == u64::MAX;
            unanswered |= u64::from(event.as_ref().is_some_and(is_unanswered)) << place;
        }
        let mut kept: BTreeMap<CourseKey, Vec<u64>> = BTreeMap::new();
        let mut by_count: Vec<Course> = std::mem::take(&mut self.courses).into_iter().collect();
        by_count.sort_by_key(|course| (course.done & unanswered).count_ones());
        for course in by_count {
            let known = course.done & !unanswered;
            let same = kept.entry((course.state, known, course.behind));
            let same = same.or_default();
            let done = course.done & unanswered;
            if same.iter().all(|fewer| fewer & done != *fewer) {
                same.push(done);
            }
        }
        let all = kept
            .into_iter()
            .flat_map(|((state, known, behind), unknown)| {
                unknown.into_iter().map(move |done| Course {
                    state,
                    done: known | done,
                    behind: behind.clone(),
                })
            });
        self.courses = all.collect();
    }

    /// Drops unacknowledged writes that have happened in every course, or that wait for a timer that no course has
    /// and no write sets.
    fn drop_spent(&mut self) {
        for place in 0..RUNNING_MAX {
            let Some(event) = self.running[place] else {
                continue;
            };
            let event = &self.history[event];
            let Call::Change { change, .. } = &event.call else {
                continue;
            };
            if event.span.end() < u64::MAX {
                continue;
            }
            let has_happened = self.courses.iter().all(|course| course.has(place));
            if has_happened || self.cannot_take_effect(change) {
                self.running[place] = None;
                let without = std::mem::take(&mut self.courses).into_iter();
                self.courses = without.map(|course| course.dropped(place)).collect();
            }
        }
    }

    fn cannot_take_effect(&self, change: &ObjectWrite) -> bool {
        let Some(timer) = change.only_if.and_then(|condition| condition.timer()) else {
            return false;
        };
        let sets = |event: &usize| match &self.history[*event].call {
            Call::Change { change, .. } => change.timer == Some(timer),
            _ => false,
        };
        let is_set = self.courses.iter().any(|it| it.state.timer() == timer);
        let may_be = self.running.iter().flatten().any(sets);
        !is_set && !may_be
    }
}

impl Course {
    fn has(&self, place: usize) -> bool {
        self.done >> place & 1 == 1
    }

    fn with(mut self, place: usize) -> Course {
        self.done |= 1 << place;
        self
    }

    /// Ends the acknowledged call at this index: no later search may see the state before it.
    fn answered(&self, place: usize) -> Course {
        let mut course = self.clone().dropped(place);
        if let Some(last) = self.behind.iter().rposition(|(of, _)| *of == place) {
            course.behind.drain(..=last);
        }
        course
    }

    /// Ends the call at this index; searches may continue to see the state before it.
    fn dropped(mut self, place: usize) -> Course {
        self.done &= !(1 << place);
        for (of, _) in &mut self.behind {
            if *of == place {
                *of = UNTRACKED;
            }
        }
        self
    }

    /// Returns whether a call that starts now can see this course: its current state or, for a search, a state before
    /// writes that are not acknowledged yet.
    fn is_seen_by(&self, call: &Call) -> bool {
        let fits = |state: &State| sees(call, *state) == Some(true);
        let before = || self.behind.iter().any(|(_, state)| fits(state));
        match call {
            Call::Missed(_) => {
                let has_moved = |(_, before): &(usize, State)| {
                    before.without_timer() != self.state.without_timer()
                };
                self.behind.iter().any(has_moved) || fits(&self.state)
            }
            Call::Found(..) => fits(&self.state) || before(),
            _ => fits(&self.state),
        }
    }
}

/// Returns whether a read sees this state; `None` if the call is not a read.
fn sees(call: &Call, state: State) -> Option<bool> {
    match call {
        Call::Change { .. } => None,
        Call::Read(saw) => Some(state.without_timer() == *saw),
        Call::Found(condition, saw) => {
            let is_same = saw.is_none_or(|saw| state.without_timer() == saw);
            Some(is_same && condition.fits(state))
        }
        Call::Missed(condition) => Some(!condition.fits(state)),
    }
}
