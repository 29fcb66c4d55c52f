//! Tracks the writes of each list that are in progress, completed, and lost. Decides whether a result may be falsified
//! now: only if no order of the writes explains the false result, so that validation must find it.
//!
//! Invariants:
//!
//! 1. The results that [`Tracks::guard_last_write`] and [`Tracks::guard_read`] allow are wrong by the timestamps. Every
//!    write of the list ended before the read began, and none is in progress. No write is admitted that might begin, by
//!    its timestamp, before the read ends: [`Tracks::begin`] bars it.
//! 2. A lost write is final: no other write of the same pair or comment is admitted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use super::steps::{CallEntry, CallReturn, Steps};
use crate::model::state::Change;

/// The number of recorded writes of a list.
const WRITES_KEPT: usize = 16;

/// The subject of a write: a pair of members, or a resource and a comment on it.
pub type Subject = (u64, u64);

/// The tracks of all lists.
#[derive(Default)]
pub struct Tracks {
    known: Mutex<TrackTable>,
}

#[derive(Default)]
struct TrackTable {
    lists: HashMap<u64, Track>,
    lost: HashSet<Subject>,
}

#[derive(Default)]
struct Track {
    in_flight: u32,
    /// The outcome of a write is unknown.
    uncertain: bool,
    done: VecDeque<CompletedWrite>,
    /// The elements that were ever added or removed.
    written: HashSet<u64>,
    /// A step by which all forgotten writes had ended.
    forgotten: u64,
    /// Reads into which faults were injected.
    guarded: Vec<CallReturn>,
    lost: Vec<AcknowledgedLoss>,
}

#[derive(Clone)]
struct CompletedWrite {
    entry: CallEntry,
    returned: CallReturn,
    what: WriteEffect,
    /// True if no other write had changed the element.
    first: bool,
}

/// A write, by its effect.
#[derive(Clone, Copy, Debug)]
pub struct WriteEffect {
    pub element: u64,
    pub put: bool,
}

/// A write that was acknowledged but not executed.
#[derive(Clone)]
pub struct AcknowledgedLoss {
    pub what: WriteEffect,
    pub returned: CallReturn,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Executed,
    NotDone,
    /// Unknown.
    Uncertain,
    /// Not executed, but acknowledged.
    Lost,
}

impl Tracks {
    fn lock(&self) -> MutexGuard<'_, TrackTable> {
        self.known.lock().expect("no panic while locked")
    }

    /// Records the start of a write of these lists. Returns false if it must be barred, because it might explain a
    /// fault.
    pub fn begin(&self, changes: &[Change], subject: Subject, entry: &CallEntry) -> bool {
        let mut known = self.lock();
        let barred = |change: &Change| {
            let track = known.lists.get(&change.item);
            track.is_some_and(|it| it.guarded.iter().any(|read| !read.is_before(entry)))
        };
        if known.lost.contains(&subject) || changes.iter().any(barred) {
            return false;
        }
        for change in changes {
            known.lists.entry(change.item).or_default().in_flight += 1;
        }
        true
    }

    pub fn end(
        &self,
        changes: &[Change],
        subject: Subject,
        entry: CallEntry,
        steps: &Steps,
        ended: WriteOutcome,
    ) {
        let mut known = self.lock();
        let returned = steps.leave();
        if ended == WriteOutcome::Lost {
            known.lost.insert(subject);
        }
        for change in changes {
            let track = known.lists.entry(change.item).or_default();
            track.in_flight -= 1;
            track.uncertain |= ended == WriteOutcome::Uncertain;
            if !matches!(ended, WriteOutcome::Executed | WriteOutcome::Lost) {
                continue;
            }
            let what = WriteEffect {
                element: change.element,
                put: change.put,
            };
            let returned = returned.clone();
            if ended == WriteOutcome::Lost {
                let returned = returned.clone();
                track.lost.push(AcknowledgedLoss { what, returned });
            }
            let first = track.written.insert(what.element);
            track.push(CompletedWrite {
                entry,
                returned,
                what,
                first,
            });
        }
    }

    /// Returns the lost writes of a list so far.
    pub fn lost_writes(&self, item: u64) -> Vec<AcknowledgedLoss> {
        let known = self.lock();
        let track = known.lists.get(&item);
        track.map_or_else(Vec::new, |track| track.lost.clone())
    }

    /// Returns whether no write of the list overlaps a read that ends now. If so, bars writes until the read's end has
    /// its timestamp.
    pub fn guard_read(&self, item: u64, read: &CallEntry, steps: &Steps) -> bool {
        let mut known = self.lock();
        let track = known.lists.entry(item).or_default();
        let quiet = track.is_quiet(read);
        if quiet {
            track.guarded.push(steps.leave());
        }
        quiet
    }

    /// Like [`Tracks::guard_read`], and returns the last write of the list, if there is one.
    pub fn guard_last_write(
        &self,
        item: u64,
        read: &CallEntry,
        steps: &Steps,
    ) -> Option<WriteEffect> {
        let mut known = self.lock();
        let track = known.lists.get_mut(&item)?;
        let last = track.done.back()?.what;
        if !track.is_quiet(read) {
            return None;
        }
        track.guarded.push(steps.leave());
        Some(last)
    }

    /// Returns the current step, if no write of the list is in progress or uncertain.
    pub fn quiet_step(&self, item: u64, steps: &Steps) -> Option<u64> {
        let known = self.lock();
        let track = known.lists.get(&item);
        let quiet = track.is_none_or(|track| track.in_flight == 0 && !track.uncertain);
        quiet.then(|| steps.step())
    }

    /// Returns the later of two consecutive writes of a list that began after `since`, and holds the list. The
    /// conditions are:
    ///
    /// - Nothing else has written the element of the earlier write since the read began.
    /// - Nothing else has ever written the element of the later write.
    /// - No write is in progress.
    ///
    /// Before the later write, the list never had its final state, and the earlier write was complete by then.
    pub fn find_fracture(
        &self,
        item: u64,
        read: &CallEntry,
        since: u64,
        steps: &Steps,
    ) -> Option<WriteEffect> {
        let mut known = self.lock();
        let track = known.lists.get_mut(&item)?;
        // The complete duration of the read must still be recorded.
        if track.in_flight > 0 || track.uncertain || !track.covers(read) {
            return None;
        }
        let of_read = || track.done.iter().filter(|it| !it.returned.is_before(read));
        let new: Vec<&CompletedWrite> = of_read().filter(|it| it.entry.at > since).collect();
        let once = |element| of_read().filter(|it| it.what.element == element).count() == 1;
        let later = new
            .iter()
            .filter(|earlier| once(earlier.what.element))
            .find_map(|earlier| {
                let later = |it: &&&CompletedWrite| {
                    it.first && earlier.returned.is_before(&it.entry) && once(it.what.element)
                };
                new.iter().find(later)
            })?
            .what;
        track.guarded.push(steps.leave());
        Some(later)
    }
}

impl Track {
    /// Records a write, and forgets one that precedes all future reads.
    fn push(&mut self, done: CompletedWrite) {
        self.done.push_back(done);
        if self.done.len() > WRITES_KEPT
            && let Some(settled) = self.done[0].returned.settled()
        {
            self.forgotten = self.forgotten.max(settled);
            self.done.pop_front();
        }
    }

    /// Returns whether, by the timestamps, all writes ended before a read that ends now.
    fn is_quiet(&self, read: &CallEntry) -> bool {
        let all = || self.done.iter().all(|it| it.returned.is_before(read));
        self.in_flight == 0 && !self.uncertain && self.covers(read) && all()
    }

    /// Returns whether all writes that may overlap the read, by the timestamps, are still recorded.
    fn covers(&self, read: &CallEntry) -> bool {
        self.forgotten == 0 || read.is_after(self.forgotten)
    }
}
