//! Derives from ended reads which writes in flight were applied: the level `Atomic` of counts and lists, beyond single
//! writes that were seen.
//!
//! Two reads are compared in two ways:
//!
//! * *Sequential reads*: the first ended before the second started. The result of the first bounds that of the
//!   second, since an applied write is never undone; only writes in flight during either read, or between them, can
//!   make a difference.
//! * *Contradicting orders*: one list shows a write and lacks another, while a second list shows the latter and lacks
//!   the former. No order of the two writes explains both, whatever the order of the reads.
//!
//! Invariants:
//!
//! 1. A rejected read has no order of all calls. A read that only three or more reads together disprove may be
//!    accepted, and so may one that contradicts a read that is not among the last [`READS_MAX`] before it.
//! 2. A verdict depends only on the history, whether validation runs during or after the run. A read is compared with
//!    those that ended last before it started, and the orders of writes are taken from reads in the order of their
//!    ends.

use std::collections::HashSet;

use crate::Span;
use crate::record::{Record, RecordKind};

/// The number of reads with which a read is compared: those that ended last before it started.
const READS_MAX: usize = 16;

/// Maximum number of writes of one read whose orders are recorded.
const REVEALED_MAX: usize = 32;

/// Orders reads by their ends; equal only for reads with the same result.
type Key = (u64, u64, u32, u128, u64);

pub(super) fn key(read: &Record) -> Key {
    let (what, count) = match read.what {
        RecordKind::ReadSet(sketch) => (sketch.keys, sketch.count.into()),
        RecordKind::ReadCount(value) => (value as u128, u64::MAX),
        _ => (0, 0),
    };
    (read.span.end, read.span.start, read.session, what, count)
}

/// Reads during which writes were in flight, ordered by their ends, with what each revealed.
#[derive(Clone)]
pub(super) struct EarlierReads<T> {
    reads: Vec<(Key, T)>,
}

impl<T> Default for EarlierReads<T> {
    fn default() -> EarlierReads<T> {
        EarlierReads { reads: Vec::new() }
    }
}

impl<T> EarlierReads<T> {
    pub fn clear(&mut self) {
        self.reads.clear();
    }

    /// Returns whether `leads` is true for each of the last reads that ended before this one started.
    pub fn lead_to(&self, read: Span, leads: impl Fn(&T) -> bool) -> bool {
        let ended = self.reads.partition_point(|(key, _)| key.0 < read.start);
        let last = &self.reads[ended.saturating_sub(READS_MAX)..ended];
        last.iter().all(|(_, revealed)| leads(revealed))
    }

    pub fn keep(&mut self, read: &Record, revealed: T) {
        let key = key(read);
        let place = self.reads.partition_point(|(other, _)| *other < key);
        self.reads.insert(place, (key, revealed));
    }

    /// Discards old reads. No later read starts before this instant.
    pub fn settle(&mut self, before: u64) {
        let ended = self.reads.partition_point(|(key, _)| key.0 < before);
        self.reads.drain(..ended.saturating_sub(READS_MAX));
    }
}

/// A read of a number, with the writes whose deltas its value may include.
#[derive(Clone)]
pub(super) struct CountRead {
    pub value: i64,
    /// The sum of all writes that ended before the read.
    pub certain: i64,
    /// The writes in flight during the read: id, delta, end.
    pub flights: Vec<(u64, i64, u64)>,
}

impl CountRead {
    /// Returns whether a read that started after this one ended may return the value of `later`.
    pub fn leads_to(&self, later: &CountRead, read: Span) -> bool {
        let ended = self.flights.iter().filter(|(_, _, end)| *end < read.start);
        let ended: i64 = ended.map(|(_, delta, _)| delta).sum();
        // The certain change between the two reads.
        let base = self.value + later.certain - self.certain - ended;
        let known = |id: u64| self.flights.iter().any(|(other, ..)| *other == id);
        let others = later.flights.iter().filter(|(id, ..)| !known(*id));
        let (mut least, mut most) = (base, base);
        for (_, delta, _) in self.flights.iter().chain(others) {
            least += delta.min(&0);
            most += delta.max(&0);
        }
        (least..=most).contains(&later.value)
    }
}

/// A read of a list, or of its size, reduced to the elements whose writes were in flight.
#[derive(Clone)]
pub(super) struct ListRead {
    /// The number of these elements that were in the list.
    pub members: i64,
    /// The elements that a single write decides: the write's id, and whether it adds the element.
    pub decided: Vec<(u64, bool)>,
    /// The number of other elements.
    pub others: i64,
}

impl ListRead {
    /// Returns whether a read that started after this one ended may have this number of members. If the same write
    /// decides an element in both reads, its effect is not undone.
    pub fn leads_to(&self, later: &ListRead) -> bool {
        let (mut puts, mut removes) = (0, 0);
        for (id, put) in &self.decided {
            if later.decided.iter().any(|(other, _)| other == id) {
                if *put { puts += 1 } else { removes += 1 }
            }
        }
        let own = self.others + self.decided.len() as i64 - puts - removes;
        let theirs = later.others + later.decided.len() as i64 - puts - removes;
        // The first read implies the minimum number of completed additions and the maximum number of pending
        // removals.
        let kept = removes.min(self.members);
        let put = (self.members - own - kept).max(0);
        put <= later.members && later.members <= puts + kept + theirs
    }
}

/// The order of pairs of writes, as revealed by lists.
#[derive(Clone, Default)]
pub(super) struct Orders(HashSet<(u64, u64)>);

impl Orders {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Records which writes a read saw and which not. Returns false, and records nothing, if earlier reads contradict
    /// it.
    pub fn add(&mut self, revealed: &[(u64, bool)]) -> bool {
        if revealed.len() > REVEALED_MAX {
            return true;
        }
        let seen = revealed.iter().filter(|(_, seen)| *seen);
        let pairs = seen.flat_map(|(first, _)| {
            let unseen = revealed.iter().filter(|(_, seen)| !*seen);
            unseen.map(move |(second, _)| (*first, *second))
        });
        if pairs
            .clone()
            .any(|(first, second)| self.0.contains(&(second, first)))
        {
            return false;
        }
        self.0.extend(pairs);
        true
    }

    /// Discards writes that no later read can concern.
    pub fn settle(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.0
            .retain(|(first, second)| is_kept(*first) && is_kept(*second));
    }
}
