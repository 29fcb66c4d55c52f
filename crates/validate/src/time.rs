//! The interval of a call, as the client observed it, and the verdict on a read.

/// A closed interval of nanoseconds on one monotonic clock: the call started at `start`, and its reply had arrived at
/// `end`. They may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    /// Returns `None` if `end` is before `start`.
    pub fn new(start: u64, end: u64) -> Option<Span> {
        (start <= end).then_some(Span { start, end })
    }

    /// Returns the span of a write with an unknown outcome: it may take effect at any time from `start` on, or never.
    pub fn unanswered(start: u64) -> Span {
        Span {
            start,
            end: u64::MAX,
        }
    }

    pub fn start(self) -> u64 {
        self.start
    }

    /// Returns the end; `u64::MAX` for a span without one.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Returns whether this call had ended when the other started. Calls that touch are concurrent.
    pub fn precedes(self, other: Span) -> bool {
        self.end < other.start
    }
}

/// The verdict of a checker on one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Some order of the writes explains the result.
    Acceptable,
    /// No order explains it: the read is *unpredictable* in BG's terms.
    Unacceptable,
    /// The decision would take too long; each checker documents when.
    Undecided,
}
