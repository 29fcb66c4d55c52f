//! The state of an object, the condition of a query, and the effect of a write.

use std::fmt;

/// The number of attributes, without the timer.
pub const ATTRIBUTES: usize = 3;
const TIMER: usize = ATTRIBUTES;
const ALL: usize = ATTRIBUTES + 1;

/// Four values of 16 bits: the attributes, where 0 means absent, and the *timer*. An object without attributes does
/// not exist. The timer identifies the write that set the object's expiry time; reads do not show it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State(u64);

impl State {
    /// The object does not exist.
    pub const NONE: State = State(0);

    pub fn of(attributes: [u16; ATTRIBUTES]) -> State {
        let mut state = State::NONE;
        for (at, value) in attributes.into_iter().enumerate() {
            state.set(at, value);
        }
        state
    }

    pub fn attribute(self, at: usize) -> u16 {
        (self.0 >> (16 * at)) as u16
    }

    /// Returns the part that reads show.
    pub fn without_timer(self) -> State {
        State(self.0 & !(0xffff << (16 * TIMER)))
    }

    pub fn exists(self) -> bool {
        self.without_timer() != State::NONE
    }

    pub(super) fn timer(self) -> u16 {
        self.attribute(TIMER)
    }

    fn set(&mut self, at: usize, value: u16) {
        self.0 &= !(0xffff << (16 * at));
        self.0 |= u64::from(value) << (16 * at);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes: Vec<u16> = (0..ATTRIBUTES).map(|at| self.attribute(at)).collect();
        match (self.exists(), self.timer()) {
            (false, _) => write!(f, "none"),
            (true, 0) => write!(f, "{attributes:?}"),
            (true, timer) => write!(f, "{attributes:?} until {timer}"),
        }
    }
}

/// A predicate on states, for queries and conditional writes: the object exists, and each attribute is within its
/// inclusive bounds, or, if negated, at least one is not. An attribute whose bounds include 0 may be absent. Only
/// [`Condition::absent`] matches if the object does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Condition {
    bounds: [(u16, u16); ALL],
    is_negated: bool,
    is_absent: bool,
}

impl Condition {
    /// Returns the condition for any existing object.
    pub const fn any() -> Condition {
        Condition {
            bounds: [(0, u16::MAX); ALL],
            is_negated: false,
            is_absent: false,
        }
    }

    /// Returns the condition that the object does not exist.
    pub const fn absent() -> Condition {
        Condition {
            is_absent: true,
            ..Condition::any()
        }
    }

    /// Adds the condition that this attribute is from `first` to `last`.
    pub const fn within(mut self, at: usize, first: u16, last: u16) -> Condition {
        self.bounds[at] = (first, last);
        self
    }

    /// Returns the condition for an existing object that does not match.
    pub const fn negated(mut self) -> Condition {
        self.is_negated = !self.is_negated;
        self
    }

    pub(super) const fn timer_is(timer: u16) -> Condition {
        Condition::any().within(TIMER, timer, timer)
    }

    /// Returns the timer that it requires.
    pub(super) fn timer(&self) -> Option<u16> {
        let (first, last) = self.bounds[TIMER];
        (first == last && !self.is_negated).then_some(first)
    }

    pub fn fits(&self, state: State) -> bool {
        let within = |(at, (first, last)): (usize, &(u16, u16))| {
            (*first..=*last).contains(&state.attribute(at))
        };
        let fits = self.bounds.iter().enumerate().all(within);
        if state.exists() {
            !self.is_absent && fits != self.is_negated
        } else {
            self.is_absent
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_absent {
            return write!(f, "absent");
        }
        let bounds = self.bounds.iter().enumerate();
        let conditions = bounds.filter(|(_, bounds)| **bounds != (0, u16::MAX));
        let conditions: Vec<String> = conditions
            .map(|(at, (first, last))| format!("@{at}:[{first} {last}]"))
            .collect();
        let not = if self.is_negated { "not " } else { "" };
        write!(f, "{not}({})", conditions.join(" "))
    }
}

/// The effect of a write on an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectWrite {
    /// The condition under which the write has an effect; `None` means always.
    pub only_if: Option<Condition>,
    /// The new values of the attributes; 0 removes one.
    pub sets: [Option<u16>; ATTRIBUTES],
    /// The timer that identifies the new expiry time; 0 means none.
    pub timer: Option<u16>,
}

impl ObjectWrite {
    /// Removes the object.
    pub fn removal() -> ObjectWrite {
        ObjectWrite {
            sets: [Some(0); ATTRIBUTES],
            ..ObjectWrite::default()
        }
    }

    pub(super) fn holds(&self, state: State) -> bool {
        self.only_if.is_none_or(|condition| condition.fits(state))
    }

    /// Returns the new state, if the condition holds.
    pub(super) fn apply(&self, mut state: State) -> State {
        for (at, value) in self.sets.iter().enumerate() {
            if let Some(value) = value {
                state.set(at, *value);
            }
        }
        if let Some(timer) = self.timer {
            state.set(TIMER, timer);
        }
        // A removed object has no timer.
        if state.exists() { state } else { State::NONE }
    }
}
