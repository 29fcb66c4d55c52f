//! What reads that ended tell of writes in flight: the level `Atomic` of counts and of lists, beyond single writes that were seen.
//!
//! Two reads are held against each other in two ways:
//!
//! * *In turn*: the first ended before the second began. What the first returned bounds what the second may return, since no write that had taken effect
//!   is undone, and only those that were in flight during either, or lie between, can make a difference.
//! * *At once*: one list shows a write and lacks another, which a second list shows and lacks the first. No order of the two writes explains both,
//!   whatever the order of the reads.
//!
//! Invariants:
//!
//! 1. What is refused has no order of all calls. What only three or more reads together disprove may pass, and so may what differs from a read
//!    that is none of the last [`READS_MAX`] before it.
//! 2. A verdict depends on the history alone: reads are compared with those that ended last before they began, and orders of writes are told by reads
//!    in the order of their ends, whether the run is over or goes on.

use std::collections::HashSet;

use crate::Span;
use crate::record::{Record, What};

/// Of the reads that ended before one began, so many that ended last are held against it.
const READS_MAX: usize = 16;

/// Writes that a read tells of, beyond which their orders are not kept.
const TOLD_MAX: usize = 32;

/// Orders reads by their ends; equal for reads of the same answer alone.
type Key = (u64, u64, u32, u128, u64);

pub(super) fn key(read: &Record) -> Key {
    let (what, count) = match read.what {
        What::ReadSet(sketch) => (sketch.keys, sketch.count.into()),
        What::ReadCount(value) => (value as u128, u64::MAX),
        _ => (0, 0),
    };
    (read.span.end, read.span.start, read.session, what, count)
}

/// Reads that something was in flight for, by their ends, with what is known of each.
#[derive(Clone)]
pub(super) struct Earlier<T> {
    reads: Vec<(Key, T)>,
}

impl<T> Default for Earlier<T> {
    fn default() -> Earlier<T> {
        Earlier { reads: Vec::new() }
    }
}

impl<T> Earlier<T> {
    pub fn clear(&mut self) {
        self.reads.clear();
    }

    /// Whether this is so of each of the last that ended before a read began.
    pub fn lead_to(&self, read: Span, leads: impl Fn(&T) -> bool) -> bool {
        let ended = self.reads.partition_point(|(key, _)| key.0 < read.start);
        let last = &self.reads[ended.saturating_sub(READS_MAX)..ended];
        last.iter().all(|(_, told)| leads(told))
    }

    pub fn keep(&mut self, read: &Record, told: T) {
        let key = key(read);
        let place = self.reads.partition_point(|(other, _)| *other < key);
        self.reads.insert(place, (key, told));
    }

    /// No read that begins before this instant is to come.
    pub fn settle(&mut self, before: u64) {
        let ended = self.reads.partition_point(|(key, _)| key.0 < before);
        self.reads.drain(..ended.saturating_sub(READS_MAX));
    }
}

/// What a read of a number says of the deltas in flight.
#[derive(Clone)]
pub(super) struct Counted {
    pub value: i64,
    /// Of all writes that ended before the read.
    pub certain: i64,
    /// In flight during the read: which write, what it adds, when it ends.
    pub flights: Vec<(u64, i64, u64)>,
}

impl Counted {
    /// Whether a read that began after this one had ended may return this.
    pub fn leads_to(&self, later: &Counted, read: Span) -> bool {
        let ended = self.flights.iter().filter(|(_, _, end)| *end < read.start);
        let ended: i64 = ended.map(|(_, delta, _)| delta).sum();
        // What lies between the two for certain.
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

/// What a read of a list, or of its size, says of the elements in flight.
#[derive(Clone)]
pub(super) struct Sized {
    /// How many of them were in.
    pub members: i64,
    /// Those that one write alone decides: which, and whether it puts.
    pub decided: Vec<(u64, bool)>,
    /// How many others.
    pub others: i64,
}

impl Sized {
    /// Whether a read that began after this one had ended may have had so many members. Of an element that the same write decides in both, what it did
    /// stays done.
    pub fn leads_to(&self, later: &Sized) -> bool {
        let (mut puts, mut removes) = (0, 0);
        for (id, put) in &self.decided {
            if later.decided.iter().any(|(other, _)| other == id) {
                match put {
                    true => puts += 1,
                    false => removes += 1,
                }
            }
        }
        let own = self.others + self.decided.len() as i64 - puts - removes;
        let theirs = later.others + later.decided.len() as i64 - puts - removes;
        // As few as can be were put by then, and as many as can be not yet removed.
        let kept = removes.min(self.members);
        let put = (self.members - own - kept).max(0);
        put <= later.members && later.members <= puts + kept + theirs
    }
}

/// Which write took effect before which, as lists told.
#[derive(Clone, Default)]
pub(super) struct Orders(HashSet<(u64, u64)>);

impl Orders {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes what a read tells of writes: whether each had taken effect. False, and nothing taken, if earlier ones told otherwise.
    pub fn tell(&mut self, told: &[(u64, bool)]) -> bool {
        if told.len() > TOLD_MAX {
            return true;
        }
        let seen = told.iter().filter(|(_, seen)| *seen);
        let pairs = seen.flat_map(|(first, _)| {
            let unseen = told.iter().filter(|(_, seen)| !*seen);
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

    /// Forgets writes that no read is to come for.
    pub fn settle(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.0
            .retain(|(first, second)| is_kept(*first) && is_kept(*second));
    }
}
