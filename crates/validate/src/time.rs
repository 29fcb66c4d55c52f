//! When a call ran, as the client saw it, and what a checker says of it.

/// A closed interval of nanoseconds on one monotonic clock: the call began at `start`, and its answer
/// was there at `end`. Both may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    /// None if `end` is before `start`.
    pub fn new(start: u64, end: u64) -> Option<Span> {
        (start <= end).then_some(Span { start, end })
    }

    /// A write whose outcome nobody knows: it may take effect at any time from `start` on, or never.
    pub fn unanswered(start: u64) -> Span {
        Span {
            start,
            end: u64::MAX,
        }
    }

    pub fn start(self) -> u64 {
        self.start
    }

    /// `u64::MAX` for a span without an end.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Whether this call had ended when the other began. Calls that touch are concurrent.
    pub fn precedes(self, other: Span) -> bool {
        self.end < other.start
    }
}

/// What a checker says of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Some order of the writes explains the answer.
    Acceptable,
    /// None does: the read is *unpredictable* in BG's words.
    Unacceptable,
    /// Telling would take too long; see the checker for when that can be.
    Undecided,
}
