//! What an object is, what a query asks of it, and what a write does to it.

use std::fmt;

/// Of an object, beside its timer.
pub const ATTRIBUTES: usize = 3;
const TIMER: usize = ATTRIBUTES;
const ALL: usize = ATTRIBUTES + 1;

/// Its attributes, 16 bits each; 0 is none. An object without any attribute is not there. Above them is its *timer*: a number that names by which write it has a
/// time to go, which no read shows.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State(u64);

impl State {
    /// There is no object.
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

    /// What reads show of it.
    pub fn visible(self) -> State {
        State(self.0 & !(0xffff << (16 * TIMER)))
    }

    pub fn is_there(self) -> bool {
        self.visible() != State::NONE
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
        match (self.is_there(), self.timer()) {
            (false, _) => write!(f, "none"),
            (true, 0) => write!(f, "{attributes:?}"),
            (true, timer) => write!(f, "{attributes:?} until {timer}"),
        }
    }
}

/// The states that a query asks for, or on which a write depends: the object is there, and each attribute has a value within its bounds, inclusive; or, if it is
/// turned round, not each has. What has bounds from 0 on may be missing. Only [`Condition::absent`] fits where there is no object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Condition {
    bounds: [(u16, u16); ALL],
    is_negated: bool,
    is_absent: bool,
}

impl Condition {
    /// Any object that is there.
    pub const fn any() -> Condition {
        Condition {
            bounds: [(0, u16::MAX); ALL],
            is_negated: false,
            is_absent: false,
        }
    }

    /// There is no object.
    pub const fn absent() -> Condition {
        Condition {
            is_absent: true,
            ..Condition::any()
        }
    }

    /// And this attribute is from `first` to `last`.
    pub const fn within(mut self, at: usize, first: u16, last: u16) -> Condition {
        self.bounds[at] = (first, last);
        self
    }

    /// An object that is there, and does not fit.
    pub const fn negated(mut self) -> Condition {
        self.is_negated = !self.is_negated;
        self
    }

    pub(super) const fn timer_is(timer: u16) -> Condition {
        Condition::any().within(TIMER, timer, timer)
    }

    /// The timer that it asks for.
    pub(super) fn timer(&self) -> Option<u16> {
        let (first, last) = self.bounds[TIMER];
        (first == last && !self.is_negated).then_some(first)
    }

    pub fn fits(&self, state: State) -> bool {
        let within = |(at, (first, last)): (usize, &(u16, u16))| {
            (*first..=*last).contains(&state.attribute(at))
        };
        let fits = self.bounds.iter().enumerate().all(within);
        match state.is_there() {
            true => !self.is_absent && fits != self.is_negated,
            false => self.is_absent,
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_absent {
            return write!(f, "absent");
        }
        let bounds = self.bounds.iter().enumerate();
        let asked = bounds.filter(|(_, bounds)| **bounds != (0, u16::MAX));
        let asked: Vec<String> = asked
            .map(|(at, (first, last))| format!("@{at}:[{first} {last}]"))
            .collect();
        let not = if self.is_negated { "not " } else { "" };
        write!(f, "{not}({})", asked.join(" "))
    }
}

/// What a write does to an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    /// Else it does nothing. `None`: it always does something.
    pub only_if: Option<Condition>,
    /// What the attributes become; 0 removes one.
    pub sets: [Option<u16>; ATTRIBUTES],
    /// By which number it has a time to go from then on; 0: it has none.
    pub timer: Option<u16>,
}

impl Change {
    /// The object goes.
    pub fn removal() -> Change {
        Change {
            sets: [Some(0); ATTRIBUTES],
            ..Change::default()
        }
    }

    pub(super) fn holds(&self, state: State) -> bool {
        self.only_if.is_none_or(|condition| condition.fits(state))
    }

    /// What becomes of an object, if the condition holds.
    pub(super) fn apply(&self, mut state: State) -> State {
        for (at, value) in self.sets.iter().enumerate() {
            if let Some(value) = value {
                state.set(at, *value);
            }
        }
        if let Some(timer) = self.timer {
            state.set(TIMER, timer);
        }
        // Its time goes with it.
        match state.is_there() {
            true => state,
            false => State::NONE,
        }
    }
}
