//! Registers: contents that a write replaces completely (a wall, an attribute, an image, a comment's text).
//!
//! A `u64` represents the content: its version, if the writer includes one, or a hash. A read may return the content
//! of a write `a` if `a` started before or at the read's end and no write certainly replaced it before the read:
//!
//! ```text
//!   a.start <= read.end,  and no write w with  a.end < w.start  and  w.end < read.start
//! ```
//!
//! The second half is `a.end >= M(read.start)`, where `M(t)` is the latest start of the writes that ended before `t`.
//! This is the rule of `count` for absolute writes without deltas, where its exactness is also proved.
//!
//! Invariants:
//!
//! 1. [`Registers::new`] takes O(n log n) and a read O(log n), even if many writes wrote the same content.
//! 2. `order` validates all reads together in O(n log n): a stricter level than BG's, which validates each read
//!    separately.

mod order;

use crate::{Span, Verdict};
pub use order::judge_together;
pub(crate) use order::{EarlierBounds, ReadBounds, judge_after};

/// One write or one read of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub span: Span,
    pub value: u64,
}

/// All writes of one item, prepared for validating its reads.
pub struct Registers {
    initial: u64,
    /// Ordered by content, then start; each with the two latest ends among the writes of the same content up to it.
    by_value: Vec<(Content, Latest)>,
    /// Ends, ascending, each with the latest start of the writes that ended up to then.
    ended: Vec<(u64, u64)>,
    /// Starts, ascending, each with the earliest end among the writes from this one on, and the two latest ends among
    /// the writes up to it.
    begun: Vec<(u64, u64, Latest)>,
}

/// The write with the latest end among several, and the second latest end.
#[derive(Clone, Copy)]
struct Latest {
    end: u64,
    write: u32,
    second: Option<u64>,
}

/// The write that a read shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// The initial content.
    Initial,
    Write(usize),
    /// One of several writes of the same content.
    OneOf,
}

impl Latest {
    fn and(self, other: Latest) -> Latest {
        let (first, next) = if self.end >= other.end {
            (self, other)
        } else {
            (other, self)
        };
        Latest {
            second: first.second.max(Some(next.end)),
            ..first
        }
    }
}

impl Registers {
    /// Prepares the writes, which may be in any order.
    pub fn new(initial: u64, writes: &[Content]) -> Registers {
        let alone = |index: usize| Latest {
            end: writes[index].span.end,
            write: index as u32,
            second: None,
        };
        let mut by_value: Vec<(Content, Latest)> = (0..writes.len())
            .map(|index| (writes[index], alone(index)))
            .collect();
        by_value.sort_unstable_by_key(|(write, _)| (write.value, write.span));
        for index in 1..by_value.len() {
            if by_value[index].0.value == by_value[index - 1].0.value {
                by_value[index].1 = by_value[index].1.and(by_value[index - 1].1);
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
        let mut begun: Vec<(u64, u64, Latest)> = (0..writes.len())
            .map(|index| {
                (
                    writes[index].span.start,
                    writes[index].span.end,
                    alone(index),
                )
            })
            .collect();
        begun.sort_unstable_by_key(|write| (write.0, write.1));
        for index in 1..begun.len() {
            begun[index].2 = begun[index].2.and(begun[index - 1].2);
            let back = begun.len() - index;
            begun[back - 1].1 = begun[back - 1].1.min(begun[back].1);
        }
        Registers {
            initial,
            by_value,
            ended,
            begun,
        }
    }

    pub fn judge(&self, read: Content) -> Verdict {
        self.judge_from(read, self.replaced(read.span.start))
    }

    /// Returns the verdict, and whether reads of this span may differ. If they may not, they reveal nothing beyond
    /// the writes.
    pub(crate) fn judge_contested(&self, read: Content) -> (Verdict, bool) {
        let replaced = self.replaced(read.span.start);
        (
            self.judge_from(read, replaced),
            self.contested_from(read.span, replaced),
        )
    }

    fn judge_from(&self, read: Content, replaced: Option<u64>) -> Verdict {
        if replaced.is_none() && read.value == self.initial {
            return Verdict::Acceptable;
        }
        match self.latest_end(read.value, read.span.end) {
            Some(end) if end >= replaced.unwrap_or(0) => Verdict::Acceptable,
            _ => Verdict::Unacceptable,
        }
    }

    /// Returns the last instant before `instant` at which this content was acceptable; `None` if there is none.
    pub fn last_acceptable_before(&self, instant: u64, value: u64) -> Option<u64> {
        let latest = instant.checked_sub(1)?;
        // A content is acceptable until the earliest end of a write that started after the content's write had ended,
        // if there is one.
        let until = |begun_from: usize| {
            self.begun
                .get(begun_from)
                .map_or(latest, |(_, end, _)| (*end).min(latest))
        };
        let initially = (value == self.initial).then(|| until(0));
        let written = self
            .latest_end(value, latest)
            .map(|end| until(self.begun.partition_point(|(start, _, _)| *start <= end)));
        initially.max(written)
    }

    /// Returns whether this is the initial content or was written by any write.
    pub fn was_written(&self, value: u64) -> bool {
        value == self.initial || self.latest_end(value, u64::MAX).is_some()
    }

    /// Returns `M(instant)`; `None` if no write has ended.
    pub(crate) fn replaced(&self, instant: u64) -> Option<u64> {
        let ended = self.ended.partition_point(|(end, _)| *end < instant);
        ended.checked_sub(1).map(|last| self.ended[last].1)
    }

    /// Returns the latest end of the writes of `value` that started at or before `instant`.
    fn latest_end(&self, value: u64, instant: u64) -> Option<u64> {
        self.latest(value, instant).map(|latest| latest.end)
    }

    fn latest(&self, value: u64, instant: u64) -> Option<Latest> {
        let after = self
            .by_value
            .partition_point(|(write, _)| (write.value, write.span.start) <= (value, instant));
        let (write, latest) = self.by_value[..after].last()?;
        (write.value == value).then_some(*latest)
    }

    /// Returns whether reads of this span may differ.
    fn is_contested(&self, read: Span) -> bool {
        self.contested_from(read, self.replaced(read.start))
    }

    fn contested_from(&self, read: Span, replaced: Option<u64>) -> bool {
        let begun = self.begun.partition_point(|write| write.0 <= read.end);
        let Some((_, _, latest)) = begun.checked_sub(1).map(|last| self.begun[last]) else {
            return false;
        };
        match replaced {
            Some(replaced) => latest.second.is_some_and(|end| end >= replaced),
            None => true,
        }
    }

    /// Returns the write that an acceptable read shows.
    fn writer(&self, read: Content) -> Writer {
        let replaced = self.replaced(read.span.start);
        let initial = replaced.is_none() && read.value == self.initial;
        let still = |end: u64| replaced.is_none_or(|replaced| end >= replaced);
        match self.latest(read.value, read.span.end) {
            Some(latest) if still(latest.end) => match latest.second {
                _ if initial => Writer::OneOf,
                Some(end) if still(end) => Writer::OneOf,
                _ => Writer::Write(latest.write as usize),
            },
            _ => Writer::Initial,
        }
    }
}
