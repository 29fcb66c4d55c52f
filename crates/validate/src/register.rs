//! Registers: contents that writes replace as a whole (a wall, an attribute, an image, a comment's text).
//!
//! What is compared is a `u64` that stands for the content: its version, if the writer puts one in, or a hash. A write `a`
//! may be what a read returns if it began by the read's end and nothing certainly replaced it before:
//!
//! ```text
//!   a.start <= read.end,  and no write w with  a.end < w.start  and  w.end < read.start
//! ```
//!
//! The second half is `a.end >= M(read.start)`, where `M(t)` is the latest start of the writes that ended before `t`.
//! This is `count`'s rule for absolute writes without deltas; there, too, it is argued to be exact.
//!
//! Invariants:
//!
//! 1. [`Registers::new`] takes O(n log n), a read O(log n), also if many writes wrote the same content.
//! 2. [`Registers::tightened`] finds reads that no linear order of all calls explains, and only such: a read that returned
//!    what `w` wrote shows that `w` took effect by the end of that read, so later reads may not go back behind it. It is
//!    a stronger level than BG's, which judges each read for itself, and is to be reported beside it.

use crate::{Span, Verdict};

/// One write, or one read, of a whole content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub span: Span,
    pub value: u64,
}

/// All writes of one item, ready to judge its reads.
pub struct Registers {
    initial: u64,
    /// By content, then start; beside each the latest end among those of the same content up to it.
    by_value: Vec<(Content, u64)>,
    /// Ends, ascending, each with the latest start among this write and those that ended earlier.
    ended: Vec<(u64, u64)>,
    /// Starts, ascending, each with the earliest end among this write and those that began later.
    begun: Vec<(u64, u64)>,
}

impl Registers {
    /// Sorts the writes; they may come in any order.
    pub fn new(initial: u64, writes: &[Content]) -> Registers {
        let mut by_value: Vec<(Content, u64)> = writes
            .iter()
            .map(|write| (*write, write.span.end))
            .collect();
        by_value.sort_unstable_by_key(|(write, _)| (write.value, write.span.start, write.span.end));
        for index in 1..by_value.len() {
            if by_value[index].0.value == by_value[index - 1].0.value {
                by_value[index].1 = by_value[index].1.max(by_value[index - 1].1);
            }
        }
        let mut ended: Vec<(u64, u64)> = writes
            .iter()
            .map(|write| (write.span.end, write.span.start))
            .collect();
        ended.sort_unstable();
        for index in 1..ended.len() {
            ended[index].1 = ended[index].1.max(ended[index - 1].1);
        }
        let mut begun: Vec<(u64, u64)> = writes
            .iter()
            .map(|write| (write.span.start, write.span.end))
            .collect();
        begun.sort_unstable();
        for index in (1..begun.len()).rev() {
            begun[index - 1].1 = begun[index - 1].1.min(begun[index].1);
        }
        Registers {
            initial,
            by_value,
            ended,
            begun,
        }
    }

    /// The same writes, but none ends after a read that returned what it wrote. For histories in which every write has
    /// a content of its own, other than the initial one; reads of contents written twice tell nothing.
    pub fn tightened(initial: u64, writes: &[Content], reads: &[Content]) -> Registers {
        let mut first_seen: Vec<(u64, u64)> = reads
            .iter()
            .map(|read| (read.value, read.span.end))
            .collect();
        first_seen.sort_unstable();
        let mut values: Vec<u64> = writes.iter().map(|write| write.value).collect();
        values.sort_unstable();
        let tightened: Vec<Content> = writes
            .iter()
            .map(|write| {
                let writers = values.partition_point(|value| *value <= write.value)
                    - values.partition_point(|value| *value < write.value);
                let seen = first_seen.partition_point(|(value, _)| *value < write.value);
                let end = match first_seen.get(seen) {
                    Some((value, end))
                        if *value == write.value && writers == 1 && write.value != initial =>
                    {
                        // A read that ended before the write began saw the future; that is not for this level to say.
                        write.span.end.min(*end).max(write.span.start)
                    }
                    _ => write.span.end,
                };
                Content {
                    span: Span {
                        start: write.span.start,
                        end,
                    },
                    value: write.value,
                }
            })
            .collect();
        Registers::new(initial, &tightened)
    }

    pub fn judge(&self, read: Content) -> Verdict {
        let replaced = self.replaced(read.span.start);
        if replaced.is_none() && read.value == self.initial {
            return Verdict::Acceptable;
        }
        match self.latest_end(read.value, read.span.end) {
            Some(end) if end >= replaced.unwrap_or(0) => Verdict::Acceptable,
            _ => Verdict::Unacceptable,
        }
    }

    /// The last instant before `instant` at which this content was acceptable. None: at none.
    pub fn last_acceptable_before(&self, instant: u64, value: u64) -> Option<u64> {
        let latest = instant.checked_sub(1)?;
        // Acceptable until the first write that came wholly after it ended, or to this day.
        let until = |begun_from: usize| {
            self.begun
                .get(begun_from)
                .map_or(latest, |(_, end)| (*end).min(latest))
        };
        let initially = (value == self.initial).then(|| until(0));
        let written = self
            .latest_end(value, latest)
            .map(|end| until(self.begun.partition_point(|(start, _)| *start <= end)));
        initially.max(written)
    }

    /// Whether this is the initial content or any write wrote it.
    pub fn knows(&self, value: u64) -> bool {
        value == self.initial || self.latest_end(value, u64::MAX).is_some()
    }

    /// `M(instant)`; None while no write has ended.
    fn replaced(&self, instant: u64) -> Option<u64> {
        let ended = self.ended.partition_point(|(end, _)| *end < instant);
        ended.checked_sub(1).map(|last| self.ended[last].1)
    }

    /// The latest end of the writes of `value` that began by `instant`.
    fn latest_end(&self, value: u64, instant: u64) -> Option<u64> {
        let after = self
            .by_value
            .partition_point(|(write, _)| (write.value, write.span.start) <= (value, instant));
        let (write, end) = self.by_value[..after].last()?;
        (write.value == value).then_some(*end)
    }
}
