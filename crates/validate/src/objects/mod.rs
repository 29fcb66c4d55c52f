//! Objects: what calls on single objects and searches over many of them saw of each object.
//!
//! An object is a few attributes that writes change one by one ([`Change`]), so that it is no register: a write of one attribute keeps what others wrote.
//! A search says something of every object that there may be: that it was found, and as what, or that it was not. Each of these is a call on that object
//! ([`search`] makes them); nothing is promised of several objects together. So objects are judged one by one, and of each it is asked whether one order of all calls
//! explains every answer: writes, reads by key and searches, of all clients. That covers what is promised of searches:
//!
//! * A search sees what was acknowledged before it began: the write comes before the search in any order.
//! * A read by key after a search does not go back behind it.
//! * A condition of a write was looked at where the write took effect ([`Call::Change`] has the answer).
//!
//! Two rules are weaker than for a register:
//!
//! 1. A search [in regions](Searches::InRegions) looks at copies in several places, which hear of a write before it is answered, and not all at one moment. So it may be
//!    behind a write that is not answered yet, though others have seen it: it comes before the write in the order, and what those saw after. And it may miss an object
//!    that a write changes which is not answered when it begins, even if it fits before and after: where it was it is gone, and where it is it has not come.
//! 2. An object that goes by its time is a change that nobody answers ([`expiry`]): from the time on it may happen or not. Whoever sees it gone makes it happen.
//!
//! Invariants, beside those of the crate:
//!
//! 1. A verdict is exact for the calls so far: a call is refused if no order explains it together with the calls that ended before it and were not refused.
//! 2. What takes too long is undecided, and then all later calls on that object are.
//!
//! `state` is what an object is and what a write does to it, `orders` follows all orders at once.

mod orders;
mod state;

use crate::{Span, Verdict};
pub use state::{ATTRIBUTES, Change, Condition, State};

/// One call on one object, as a client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub object: u32,
    /// Without an end if nobody answered: then it may have happened or not.
    pub span: Span,
    pub call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Change {
        change: Change,
        /// Whether its condition held, where the answer says so.
        held: Option<bool>,
    },
    /// Read by its key: the object is this.
    Read(State),
    /// A search for what fits found it, as this if the search shows it.
    Found(Condition, Option<State>),
    /// A search for what fits did not find it.
    Missed(Condition),
}

/// How searches look at objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Searches {
    /// At each at one instant, as a read by key does.
    AtOnce,
    /// In regions, by rule 1 of this module.
    InRegions,
}

/// What came of a history.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Of each event, in their order.
    pub verdicts: Vec<Verdict>,
    pub refused: Vec<Refused>,
}

/// A call that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its number in the history.
    pub event: usize,
    /// What the object may have been when the call ended, by all that ended before.
    pub states: Vec<State>,
}

impl Judged {
    pub fn undecided(&self) -> usize {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|it| **it == Verdict::Undecided).count()
    }

    /// The first refusals in sentences, each with the calls on its object that ran at the same time or just before.
    pub fn tell(&self, history: &[Event], most: usize) -> Vec<String> {
        let told = self.refused.iter().take(most).map(|refused| {
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
                "object {}: {} is explained by no order; it may have been {:?}. Around it:\n  {}",
                event.object,
                line(&event),
                refused.states,
                near.join("\n  ")
            )
        });
        told.collect()
    }
}

fn line(event: &Event) -> String {
    let end = match event.span.end() {
        u64::MAX => "unanswered".to_owned(),
        end => end.to_string(),
    };
    format!("{}..{end} {:?}", event.span.start(), event.call)
}

/// Judges all calls of a history, given in any order. No object is there at the beginning.
pub fn judge(history: &[Event], searches: Searches) -> Judged {
    let mut by_object: Vec<usize> = (0..history.len()).collect();
    by_object.sort_by_key(|event| history[*event].object);
    let mut judged = Judged {
        verdicts: vec![Verdict::Acceptable; history.len()],
        refused: Vec::new(),
    };
    for events in by_object.chunk_by(|a, b| history[*a].object == history[*b].object) {
        orders::judge_object(history, events, searches, &mut judged);
    }
    judged.refused.sort_by_key(|refused| refused.event);
    judged
}

/// What a search of this condition says of all objects from 0 up to `objects`: those that it `found`, with what it showed of them, and the others.
/// One that is found twice is two calls.
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

/// The object goes when the time has come that a change with this `timer` gave it, at `due` at the earliest.
pub fn expiry(object: u32, timer: u16, due: u64) -> Event {
    let change = Change {
        only_if: Some(Condition::timer_is(timer)),
        ..Change::removal()
    };
    Event {
        object,
        span: Span::unanswered(due),
        call: Call::Change { change, held: None },
    }
}
