//! Objects: validates calls on single objects and searches over many objects.
//!
//! An object has a few attributes that writes change individually ([`Change`]). It is therefore not a register: a
//! write of one attribute preserves what others wrote. A search makes a statement about every possible object: that
//! it was found, with which state, or that it was not. Each statement is a call on that object ([`search`] creates
//! them); there are no guarantees about several objects together. Objects are therefore validated one by one: one
//! order of all calls of all clients on the object (writes, reads by key and searches) must explain every result.
//! This covers the guarantees of searches:
//!
//! * A search sees every write that was acknowledged before it started: the write comes before the search in any
//!   order.
//! * A read by key after a search does not see an earlier state.
//! * The condition of a write was evaluated when the write took effect ([`Call::Change`] has the result).
//!
//! Two rules are weaker than for a register:
//!
//! 1. A search [in regions](Searches::InRegions) reads copies in several places. They receive a write before it is
//!    acknowledged, but not all at the same instant. The search may therefore miss a write that is not acknowledged
//!    yet, even if others have seen it: in the order, it comes before that write, and others that saw the write come
//!    after. It may also miss an object that a concurrent write moves, even if the object matches before and after:
//!    the old copy is gone, and the new one has not arrived.
//! 2. The expiry of an object is a change that no reply acknowledges ([`expiry`]): from the due time on it may happen
//!    or not. A call that sees the object gone implies that it has happened.
//!
//! Invariants, in addition to those of the crate:
//!
//! 1. A verdict is exact for the calls so far: a call is rejected if no order explains it together with the calls
//!    that ended before it and were not rejected.
//! 2. If a verdict takes too long, it is undecided, and so are all later calls on that object.
//!
//! `state` defines the state of an object and the effect of a write, and `orders` enumerates all orders
//! simultaneously.

mod orders;
mod state;

use crate::{Span, Verdict};
pub use state::{ATTRIBUTES, Condition, ObjectWrite, State};

/// One call on one object, as a client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub object: u32,
    /// Without an end if there was no reply: the call may have happened or not.
    pub span: Span,
    pub call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Change {
        change: ObjectWrite,
        /// The outcome of the condition, if the reply states it.
        held: Option<bool>,
    },
    /// A read by key returned this state.
    Read(State),
    /// A search with this condition found the object, with this state if the search shows it.
    Found(Condition, Option<State>),
    /// A search with this condition did not find the object.
    Missed(Condition),
}

/// The way in which searches read objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchMode {
    /// Each object at one instant, like a read by key.
    Atomic,
    /// In regions, by rule 1 of this module.
    InRegions,
}

/// The result of validating a history.
#[derive(Clone, Debug, Default)]
pub struct ObjectVerdicts {
    /// One verdict per event, in order.
    pub verdicts: Vec<Verdict>,
    pub refused: Vec<RejectedCall>,
}

/// A call that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedCall {
    /// The event's index in the history.
    pub event: usize,
    /// The possible states of the object when the call ended, according to all calls that ended before.
    pub states: Vec<State>,
}

impl ObjectVerdicts {
    pub fn undecided(&self) -> usize {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|it| **it == Verdict::Undecided).count()
    }

    /// Formats the first rejected calls, each with the calls on its object that were concurrent or just before.
    pub fn describe_rejected(&self, history: &[Event], most: usize) -> Vec<String> {
        let lines = self.refused.iter().take(most).map(|refused| {
            let event = history[refused.event];
            let mut near: Vec<&Event> = history
                .iter()
                .filter(|it| it.object == event.object && it.span.start() <= event.span.end())
                .collect();
            near.sort_by_key(|it| (it.span.end(), it.span.start()));
            let from = near
                .iter()
                .position(|it| it.span.end() >= event.span.start());
            let from = from.unwrap_or(near.len()).saturating_sub(8);
            let near: Vec<String> = near[from..].iter().take(40).map(|it| line(it)).collect();
            format!(
                "object {}: no order explains {}; the object may have been {:?}. Calls around it:\n  {}",
                event.object,
                line(&event),
                refused.states,
                near.join("\n  ")
            )
        });
        lines.collect()
    }
}

fn line(event: &Event) -> String {
    let end = match event.span.end() {
        u64::MAX => "unanswered".to_owned(),
        end => end.to_string(),
    };
    format!("{}..{end} {:?}", event.span.start(), event.call)
}

/// Validates all calls of a history, in any order. Initially no object exists.
pub fn judge(history: &[Event], searches: SearchMode) -> ObjectVerdicts {
    let mut by_object: Vec<usize> = (0..history.len()).collect();
    by_object.sort_by_key(|event| history[*event].object);
    let mut judged = ObjectVerdicts {
        verdicts: vec![Verdict::Acceptable; history.len()],
        refused: Vec::new(),
    };
    for events in by_object.chunk_by(|a, b| history[*a].object == history[*b].object) {
        orders::judge_object(history, events, searches, &mut judged);
    }
    judged.refused.sort_by_key(|refused| refused.event);
    judged
}

/// Returns the calls that a search with this condition makes on all objects from 0 up to `objects`: on those that it
/// `found`, with the state that it showed, and on the others. An object that is found twice has two calls.
pub fn search(
    span: Span,
    condition: Condition,
    found: &[(u32, Option<State>)],
    objects: u32,
) -> Vec<Event> {
    let missed = (0..objects).filter(|object| found.iter().all(|(it, _)| it != object));
    let missed = missed.map(|object| Event {
        object,
        span,
        call: Call::Missed(condition),
    });
    let found = found.iter().map(|(object, state)| Event {
        object: *object,
        span,
        call: Call::Found(condition, *state),
    });
    found.chain(missed).collect()
}

/// Returns the expiry of an object: it may be removed from `due` on, if its expiry time is the one that a change with
/// this `timer` set.
pub fn expiry(object: u32, timer: u16, due: u64) -> Event {
    let change = ObjectWrite {
        only_if: Some(Condition::timer_is(timer)),
        ..ObjectWrite::removal()
    };
    Event {
        object,
        span: Span::unanswered(due),
        call: Call::Change { change, held: None },
    }
}
