//! Tests the validation of objects and searches with all orders of small histories, a correct model, and faulty
//! models.

use larder_validate::objects::{
    Call, Condition, Event, ObjectWrite, SearchMode, State, expiry, judge, search,
};
use larder_validate::{Span, Verdict};

use crate::brute;
use crate::random::{Random, rounds};

/// `[a, 1, 0]`
fn state(a: u16) -> State {
    State::of([a, 1, 0])
}

fn put(a: u16) -> ObjectWrite {
    ObjectWrite {
        sets: [Some(a), Some(1), None],
        ..ObjectWrite::default()
    }
}

fn event(start: u64, end: u64, call: Call) -> Event {
    let span = Span::new(start, end).expect("in order");
    let object = 0;
    Event { object, span, call }
}

fn write(start: u64, end: u64, change: ObjectWrite) -> Event {
    event(start, end, Call::Change { change, held: None })
}

fn is(a: u16) -> Condition {
    Condition::any().within(0, a, a)
}

fn refused(history: &[Event], searches: SearchMode) -> Vec<usize> {
    let judged = judge(history, searches);
    assert_eq!(judged.undecided(), 0);
    judged.refused.iter().map(|it| it.event).collect()
}

fn refused_by_both(history: &[Event]) -> Vec<usize> {
    let exact = refused(history, SearchMode::Atomic);
    assert_eq!(refused(history, SearchMode::InRegions), exact);
    exact
}

#[test]
fn a_search_sees_changes_acknowledged_before_it_started() {
    let found = |from, call| refused_by_both(&[write(1, 5, put(7)), event(from, 20, call)]);
    assert_eq!(found(6, Call::Missed(is(7))), [1]);
    // Calls that touch are concurrent.
    assert_eq!(found(5, Call::Missed(is(7))), []);
    assert_eq!(found(6, Call::Missed(is(8))), []);
    assert_eq!(found(6, Call::Found(is(7), Some(state(7)))), []);
    // It shows an object that does not match, or that never existed.
    assert_eq!(found(6, Call::Found(is(8), None)), [1]);
    assert_eq!(found(6, Call::Found(is(7).negated(), None)), [1]);
    assert_eq!(
        found(6, Call::Found(is(7), Some(State::of([7, 2, 0])))),
        [1]
    );
    // An object that does not exist matches no condition.
    assert_eq!(
        refused_by_both(&[event(1, 2, Call::Found(is(7).negated(), None))]),
        [0]
    );
}

#[test]
fn a_get_after_a_search_does_not_go_back() {
    let read = Call::Read(state(1));
    let found = Call::Found(is(2), Some(state(2)));
    let writes = [write(1, 2, put(1)), write(4, 90, put(2))];
    let both = |first, second, searches| {
        let reads = [event(5, 6, first), event(7, 8, second)];
        refused(&[&writes[..], &reads].concat(), searches)
    };
    for searches in [SearchMode::Atomic, SearchMode::InRegions] {
        assert_eq!(both(read, found, searches), []);
        assert_eq!(both(found, read, searches), [3]);
    }
    // A search that reads copies may miss a write that is not acknowledged yet.
    for late in [Call::Missed(is(2)), Call::Found(is(1), None)] {
        assert_eq!(both(found, late, SearchMode::Atomic), [3]);
        assert_eq!(both(found, late, SearchMode::InRegions), []);
    }
    // The same with a write without a reply.
    let lost = Event {
        span: Span::unanswered(4),
        ..writes[1]
    };
    let reads = [event(5, 6, found), event(7, 8, read)];
    let history = [&[writes[0], lost][..], &reads].concat();
    assert_eq!(refused_by_both(&history), [3]);
}

#[test]
fn a_search_in_regions_reflects_changes_before_an_acknowledged_write() {
    let late = |from| {
        [
            write(1, 2, put(1)),
            write(3, 90, put(2)),
            write(4, 10, put(3)),
            event(5, 6, Call::Read(state(2))),
            event(7, 8, Call::Read(state(3))),
            event(from, 80, Call::Found(is(1), None)),
        ]
    };
    assert_eq!(refused(&late(10), SearchMode::InRegions), []);
    assert_eq!(refused(&late(11), SearchMode::InRegions), [5]);
    assert_eq!(refused(&late(10), SearchMode::Atomic), [5]);
}

#[test]
fn a_search_may_miss_only_objects_that_move_meanwhile() {
    let both = Condition::any().within(0, 1, 2);
    let missed = event(10, 20, Call::Missed(both));
    let moved = |from, to, change| [write(1, 2, put(1)), write(from, to, change), missed];
    for (from, to, change, is_excused) in [
        (12, 15, put(2), true),
        (3, 10, put(2), true),
        (20, 30, put(2), true),
        (3, 9, put(2), false),
        (3, 40, put(2), true),
        (21, 30, put(2), false),
        // Its state does not change.
        (12, 15, put(1), false),
    ] {
        let history = moved(from, to, change);
        assert_eq!(refused(&history, SearchMode::Atomic), [2]);
        let refused = refused(&history, SearchMode::InRegions);
        assert_eq!(refused.is_empty(), is_excused, "{from} {to} {change:?}");
    }
    // A write without a reply may have moved it, even if others have seen the move.
    let mut history = moved(4, 5, put(2)).to_vec();
    history[1].span = Span::unanswered(4);
    assert_eq!(refused(&history, SearchMode::InRegions), []);
    history.push(event(6, 7, Call::Read(state(2))));
    assert_eq!(refused(&history, SearchMode::InRegions), []);
    assert_eq!(refused(&history, SearchMode::Atomic), [2]);
}

#[test]
fn conditions_are_evaluated_where_the_write_takes_effect() {
    let change = ObjectWrite {
        only_if: Some(is(1)),
        ..put(2)
    };
    let held = |held| event(3, 4, Call::Change { change, held });
    let history = |first, answer, saw| {
        let read = event(5, 6, Call::Read(state(saw)));
        refused_by_both(&[write(1, 2, put(first)), held(answer), read])
    };
    assert_eq!(history(1, Some(true), 2), []);
    assert_eq!(history(1, None, 2), []);
    assert_eq!(history(5, None, 5), []);
    assert_eq!(history(5, Some(false), 5), []);
    assert_eq!(history(1, Some(false), 1), [1]);
    // A rejected write is assumed to have done what it reported.
    assert_eq!(history(5, Some(true), 2), [1]);
    assert_eq!(history(5, Some(true), 5), [1, 2]);
}

#[test]
fn an_object_expires_once_and_stays_absent() {
    let expire = |timer| ObjectWrite {
        only_if: Some(Condition::any()),
        timer: Some(timer),
        ..ObjectWrite::default()
    };
    let history = |saw: &[u16]| {
        let mut history = vec![
            write(1, 2, put(1)),
            write(3, 4, expire(9)),
            expiry(0, 9, 30),
        ];
        for (at, saw) in (10..).step_by(10).zip(saw) {
            let saw = match saw {
                0 => State::NONE,
                saw => state(*saw),
            };
            history.push(event(at, at + 1, Call::Read(saw)));
        }
        refused_by_both(&history)
    };
    assert_eq!(history(&[1, 1, 1, 1]), []);
    assert_eq!(history(&[1, 1, 0, 0]), []);
    assert_eq!(
        history(&[1, 0, 0, 0]),
        [4],
        "too early: and later it is its time"
    );
    assert_eq!(history(&[1, 1, 0, 1]), [6]);
    // The expiry belongs to another write: the rewritten object has none.
    let retried = [
        write(1, 2, put(1)),
        write(3, 4, expire(9)),
        expiry(0, 9, 5),
        write(11, 12, ObjectWrite::removal()),
        write(13, 14, put(1)),
        event(15, 16, Call::Read(State::NONE)),
    ];
    assert_eq!(refused_by_both(&retried), [5]);
}

#[test]
fn a_search_constrains_every_object() {
    let span = Span::new(3, 4).expect("in order");
    let shown = Some(state(1));
    let events = search(span, is(1), &[(2, shown), (0, None), (2, shown)], 4);
    let said: Vec<(u32, bool)> = events
        .iter()
        .map(|it| (it.object, matches!(it.call, Call::Found(..))))
        .collect();
    assert_eq!(
        said,
        [(2, true), (0, true), (2, true), (1, false), (3, false)]
    );
}

#[test]
fn expensive_cases_are_undecided_and_never_guessed() {
    // Each may have happened at any time, and all leave a different state.
    let lost = (0..40).map(|at| Event {
        span: Span::unanswered(at),
        ..write(
            at,
            at,
            ObjectWrite {
                sets: [Some(at as u16 + 1), None, Some(at as u16 % 7 + 1)],
                only_if: (at > 0).then(|| is(at as u16).negated()),
                ..put(1)
            },
        )
    });
    let mut history: Vec<Event> = lost.collect();
    let impossible = Call::Read(State::of([900, 900, 900]));
    history.push(event(100, 101, impossible));
    let verdict = judge(&history, SearchMode::Atomic).verdicts.pop();
    assert_ne!(verdict, Some(Verdict::Acceptable));
    // More concurrent calls than can be tracked.
    let many = (0..70).map(|at| write(at, 200, put(1)));
    let mut history: Vec<Event> = many.collect();
    history.push(event(201, 202, Call::Read(State::NONE)));
    let judged = judge(&history, SearchMode::Atomic);
    assert!(judged.undecided() > 0 && judged.refused.is_empty());
}

/// The state of an order of calls: the object, the number of its changes, and for each search whether it started, and
/// when.
type Known = (State, u32, Vec<Option<(State, u32)>>);

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    /// The start and the end of a search that does not find the object, with its number.
    Begins(usize),
    Ends(usize, Condition),
}

fn step(known: &Known, step: &Step) -> Option<Known> {
    let (state, changes, begun) = known;
    let mut next = known.clone();
    match step {
        Step::Begins(at) => next.2[*at] = Some((*state, *changes)),
        Step::Ends(at, condition) => {
            let (first, then) = begun[*at]?;
            let fits = condition.fits(first) && condition.fits(*state);
            if fits && then == *changes {
                return None;
            }
        }
        Step::Call(Call::Change { change, held }) => {
            let holds = change.only_if.is_none_or(|it| it.fits(*state));
            if held.is_some_and(|held| held != holds) {
                return None;
            }
            if holds {
                next.0 = naive(change, *state);
                next.1 += u32::from(next.0 != *state);
            }
        }
        Step::Call(Call::Read(saw)) if saw != state => return None,
        Step::Call(Call::Found(condition, saw)) => {
            if !condition.fits(*state) || saw.is_some_and(|saw| saw != *state) {
                return None;
            }
        }
        Step::Call(Call::Missed(condition)) if condition.fits(*state) => return None,
        Step::Call(_) => {}
    }
    Some(next)
}

/// Applies a change without timers.
fn naive(change: &ObjectWrite, state: State) -> State {
    let mut attributes = [0, 1, 2].map(|at| state.attribute(at));
    for (attribute, set) in attributes.iter_mut().zip(change.sets) {
        *attribute = set.unwrap_or(*attribute);
    }
    State::of(attributes)
}

fn has_order(history: &[Event], searches: SearchMode) -> bool {
    let mut steps = Vec::new();
    let mut begun = 0;
    for event in history {
        match event.call {
            Call::Missed(condition) if searches == SearchMode::InRegions => {
                steps.push((event.span, Step::Begins(begun)));
                steps.push((event.span, Step::Ends(begun, condition)));
                begun += 1;
            }
            call => steps.push((event.span, Step::Call(call))),
        }
    }
    let first = (State::NONE, 0, vec![None; begun]);
    match searches {
        SearchMode::Atomic => brute::has_order(&first, &steps, &step),
        SearchMode::InRegions => has_late_order(&first, &steps, 0),
    }
}

/// Like [`brute::has_order`], but a search may miss what others read before it started.
fn has_late_order(known: &Known, steps: &[(Span, Step)], placed: u32) -> bool {
    let waiting = |at: &usize| placed & 1 << at == 0;
    let rest = || (0..steps.len()).filter(waiting);
    if rest().all(|at| steps[at].0.end() == u64::MAX) {
        return true;
    }
    rest().any(|at| {
        let (span, own) = &steps[at];
        let is_before = |other: usize| {
            let (before, what) = &steps[other];
            before.precedes(*span) && (is_change(what) || !is_search(own))
        };
        !rest().any(is_before)
            && step(known, own).is_some_and(|next| has_late_order(&next, steps, placed | 1 << at))
    })
}

fn is_change(step: &Step) -> bool {
    matches!(step, Step::Call(Call::Change { .. }))
}

fn is_search(step: &Step) -> bool {
    !is_change(step) && !matches!(step, Step::Call(Call::Read(_)))
}

fn random_condition(random: &mut Random) -> Condition {
    let at = random.below(2) as usize;
    let first = random.below(3) as u16;
    let condition = Condition::any().within(at, first, first + random.below(2) as u16);
    if random.one_in(4) {
        condition.negated()
    } else {
        condition
    }
}

fn random_change(random: &mut Random) -> ObjectWrite {
    let value = random.below(3) as u16;
    let mut change = match random.below(4) {
        0 => ObjectWrite::removal(),
        1 => ObjectWrite {
            sets: [None, Some(value), None],
            ..ObjectWrite::default()
        },
        _ => ObjectWrite {
            sets: [Some(value), Some(1), None],
            ..ObjectWrite::default()
        },
    };
    change.only_if = random.one_in(3).then(|| random_condition(random));
    change
}

#[test]
fn validation_equals_brute_force_over_all_orders() {
    let mut random = Random::new(31);
    let (mut refused, mut accepted, mut excused) = (0, 0, 0);
    for _ in 0..rounds(6_000, 60_000) {
        let stamps = random.pick(&[6, 10, 16]);
        let span = |random: &mut Random| {
            let start = random.below(stamps);
            Span::new(start, start + random.pick(&[0, 1, 4, 8])).expect("in order")
        };
        let mut history = Vec::new();
        for _ in 0..1 + random.below(3) {
            let change = random_change(&mut random);
            let mut span = span(&mut random);
            let mut held = random.pick(&[None, Some(true), Some(true), Some(false)]);
            held = held.filter(|_| change.only_if.is_some());
            if random.one_in(5) {
                (span, held) = (Span::unanswered(span.start()), None);
            }
            let call = Call::Change { change, held };
            history.push(Event {
                object: 0,
                span,
                call,
            });
        }
        for _ in 0..1 + random.below(3) {
            let condition = random_condition(&mut random);
            let saw = State::of([random.below(3) as u16, random.below(2) as u16, 0]);
            let call = match random.below(5) {
                0 => Call::Read(saw),
                1 => Call::Found(condition, None),
                2 => Call::Found(condition, Some(saw)),
                _ => Call::Missed(condition),
            };
            let span = span(&mut random);
            history.push(Event {
                object: 0,
                span,
                call,
            });
        }
        let all = [SearchMode::Atomic, SearchMode::InRegions].map(|searches| {
            let judged = judge(&history, searches);
            let is_right = has_order(&history, searches);
            assert_eq!(
                judged.refused.is_empty(),
                is_right,
                "{searches:?} {history:?}"
            );
            assert_eq!(judged.undecided(), 0);
            // A rejected write is assumed to have done what it reported, which is a different history.
            let is_write = |it: &usize| matches!(history[*it].call, Call::Change { .. });
            let refused: Vec<usize> = judged.refused.iter().map(|it| it.event).collect();
            if !refused.iter().any(is_write) {
                let kept = history.iter().enumerate();
                let kept = kept.filter(|(at, _)| !refused.contains(at));
                let kept: Vec<Event> = kept.map(|(_, event)| *event).collect();
                assert!(has_order(&kept, searches), "{searches:?} {history:?}");
            }
            is_right
        });
        accepted += u64::from(all[0]);
        refused += u64::from(!all[1]);
        excused += u64::from(all[0] != all[1]);
    }
    assert!(
        refused > 300 && accepted > 300 && excused > 10,
        "{refused} {accepted} {excused}"
    );
}

/// The fault of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Nothing,
    /// An acknowledged write is not applied.
    LoseWrite,
    /// A search misses the last write.
    OldSearch,
    /// A search finds an object that was just removed.
    Ghost,
    /// A search returns an object that does not match.
    Unfit,
    /// A search misses an object that existed throughout.
    Leave,
    /// A read by key returns a state before a search that has ended.
    GoBack,
    /// A write is applied again after another one.
    Twice,
    /// A condition is evaluated earlier than the write is applied.
    LateCondition,
    /// An expired object returns.
    Return,
}

const LIES: [Lie; 9] = [
    Lie::LoseWrite,
    Lie::OldSearch,
    Lie::Ghost,
    Lie::Unfit,
    Lie::Leave,
    Lie::GoBack,
    Lie::Twice,
    Lie::LateCondition,
    Lie::Return,
];

const OBJECTS: u32 = 3;

/// A server of objects with a fault.
struct Model {
    now: [State; OBJECTS as usize],
    /// The state of each object before its last change.
    before: [State; OBJECTS as usize],
    /// The timer of each object; 0 means none.
    timers: [u16; OBJECTS as usize],
    /// The state of each object when it expired.
    gone: [State; OBJECTS as usize],
    again: Vec<(u32, ObjectWrite)>,
    last_timer: u16,
    lie: Lie,
    /// The fault occurs once in this many chances.
    one_in: u64,
}

impl Model {
    fn lies(&self, random: &mut Random, kind: Lie) -> bool {
        self.lie == kind && random.one_in(self.one_in)
    }

    fn apply(&mut self, object: u32, change: &ObjectWrite) {
        let own = object as usize;
        self.before[own] = self.now[own];
        self.now[own] = naive(change, self.now[own]);
        if !self.now[own].exists() {
            self.timers[own] = 0;
        }
    }

    fn write(&mut self, random: &mut Random, object: u32, span: Span) -> Event {
        let own = object as usize;
        let change = random_change(random);
        let looked_at = if self.lies(random, Lie::LateCondition) {
            self.before[own]
        } else {
            self.now[own]
        };
        let holds = change.only_if.is_none_or(|it| it.fits(looked_at));
        let is_lost = self.lies(random, Lie::LoseWrite);
        if holds && !is_lost {
            self.apply(object, &change);
        }
        if self.lies(random, Lie::Twice) {
            let only_if = None;
            self.again.push((object, ObjectWrite { only_if, ..change }));
        }
        let is_answered = !random.one_in(12);
        let span = if is_answered {
            span
        } else {
            Span::unanswered(span.start())
        };
        let held = (is_answered && change.only_if.is_some()).then_some(holds);
        let call = Call::Change { change, held };
        Event { object, span, call }
    }

    fn expire(&mut self, object: u32, span: Span) -> [Event; 2] {
        self.last_timer += 1;
        self.timers[object as usize] = self.last_timer;
        let change = ObjectWrite {
            only_if: Some(Condition::any()),
            timer: Some(self.last_timer),
            ..ObjectWrite::default()
        };
        let held = Some(true);
        let call = Call::Change { change, held };
        let goes = expiry(object, self.last_timer, span.start());
        [Event { object, span, call }, goes]
    }

    fn pass_time(&mut self, object: u32) {
        let own = object as usize;
        if self.timers[own] > 0 {
            self.gone[own] = self.now[own];
            self.apply(object, &ObjectWrite::removal());
        } else if self.lie == Lie::Return && self.gone[own].exists() {
            self.now[own] = std::mem::take(&mut self.gone[own]);
        }
    }

    fn read(&self, random: &mut Random, object: u32) -> Call {
        let own = object as usize;
        Call::Read(if self.lies(random, Lie::GoBack) {
            self.before[own]
        } else {
            self.now[own]
        })
    }

    /// Returns the result of a search that read one half of the objects in the state `first`, and the other half now.
    fn find(
        &self,
        random: &mut Random,
        condition: Condition,
        first: [State; OBJECTS as usize],
    ) -> Vec<(u32, Option<State>)> {
        let half = |state: State| state.attribute(0).is_multiple_of(2);
        let mut found = Vec::new();
        for object in 0..OBJECTS {
            let own = object as usize;
            for (mut seen, which) in [(first[own], true), (self.now[own], false)] {
                let is_ghost = !seen.exists() && self.lies(random, Lie::Ghost);
                if is_ghost || self.lies(random, Lie::OldSearch) {
                    seen = self.before[own];
                }
                let mut is_found = condition.fits(seen) && half(seen) == which;
                is_found |= seen.exists() && self.lies(random, Lie::Unfit);
                is_found &= !self.lies(random, Lie::Leave);
                if is_found {
                    found.push((object, Some(seen)));
                }
            }
        }
        found
    }
}

/// Returns the calls of clients on a model in which each call takes effect at an instant of its own. A search reads
/// at two instants, first one half of the objects and then the other; the first attribute determines the half.
fn model(random: &mut Random, lie: Lie, calls: u64, one_in: u64) -> Vec<Event> {
    let none = [State::NONE; OBJECTS as usize];
    let mut model = Model {
        now: none,
        before: none,
        timers: [0; OBJECTS as usize],
        gone: none,
        again: Vec::new(),
        last_timer: 0,
        lie,
        one_in,
    };
    let mut history: Vec<Event> = Vec::new();
    for at in 1..=calls {
        let instant = at * 10;
        let start = instant.saturating_sub(random.below(25));
        let span = Span::new(start, instant + random.below(25)).expect("in order");
        let object = random.below(OBJECTS.into()) as u32;
        match random.below(10) {
            0..=3 => history.push(model.write(random, object, span)),
            4 if model.now[object as usize].exists() => {
                history.extend(model.expire(object, span));
            }
            5 => model.pass_time(object),
            6 | 7 => {
                let call = model.read(random, object);
                history.push(Event { object, span, call });
            }
            _ => {
                let condition = random_condition(random);
                let first = model.now;
                if random.one_in(2) {
                    history.push(model.write(random, object, span));
                }
                let found = model.find(random, condition, first);
                history.extend(search(span, condition, &found, OBJECTS));
            }
        }
        if let Some((object, change)) = model.again.pop_if(|_| random.one_in(6)) {
            model.apply(object, &change);
        }
    }
    history
}

#[test]
fn every_reply_of_a_correct_model_is_accepted() {
    let mut random = Random::new(5);
    let mut exact = 0;
    for _ in 0..rounds(200, 5_000) {
        let history = model(&mut random, Lie::Nothing, 60, 1);
        let judged = judge(&history, SearchMode::InRegions);
        assert!(
            judged.refused.is_empty(),
            "{:#?}",
            judged.describe_rejected(&history, 1)
        );
        assert_eq!(judged.undecided(), 0);
        exact += judge(&history, SearchMode::Atomic).refused.len();
    }
    assert!(exact > 5, "searches missed {exact} objects that moved");
}

#[test]
fn each_kind_of_wrong_reply_is_detected() {
    for lie in LIES {
        let mut random = Random::new(77);
        let runs = 40;
        let found = (0..runs).filter(|_| {
            let history = model(&mut random, lie, 80, 4);
            let judged = judge(&history, SearchMode::InRegions);
            let told = judged.describe_rejected(&history, 2);
            assert_eq!(told.is_empty(), judged.refused.is_empty());
            !judged.refused.is_empty()
        });
        let found = found.count();
        assert!(found * 6 > runs, "{lie:?}: {found} of {runs}");
    }
}

#[test]
fn a_verdict_depends_on_the_history_alone() {
    let mut random = Random::new(8);
    let history = model(&mut random, Lie::OldSearch, 80, 4);
    let mut order: Vec<usize> = (0..history.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    let other: Vec<Event> = order.iter().map(|at| history[*at]).collect();
    let (first, second) = (
        judge(&history, SearchMode::InRegions),
        judge(&other, SearchMode::InRegions),
    );
    assert!(!first.refused.is_empty());
    for (at, from) in order.iter().enumerate() {
        assert_eq!(second.verdicts[at], first.verdicts[*from]);
    }
}
