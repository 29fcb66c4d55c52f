//! Tracks the writes of each list that are in progress, completed, and lost. Decides whether a result may be falsified
//! now: only if no order of the writes explains the false result, so that validation must find it.
//!
//! Invariants:
//!
//! 1. The results that [`Tracks::undo`] and [`Tracks::hold`] allow are wrong by the timestamps. Every write of the list
//!    ended before the read began, and none is in progress. No write is admitted that might begin, by its timestamp,
//!    before the read ends: [`Tracks::begin`] bars it.
//! 2. A lost write is final: no other write of the same pair or comment is admitted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use super::steps::{Entry, Return, Steps};
use crate::model::state::Change;

/// The number of recorded writes of a list.
const KEPT: usize = 16;

/// The subject of a write: a pair of members, or a resource and a comment on it.
pub type Subject = (u64, u64);

/// The tracks of all lists.
#[derive(Default)]
pub struct Tracks {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    lists: HashMap<u64, Track>,
    lost: HashSet<Subject>,
}

#[derive(Default)]
struct Track {
    under_way: u32,
    /// The outcome of a write is unknown.
    in_doubt: bool,
    done: VecDeque<Done>,
    /// The elements that were ever added or removed.
    written: HashSet<u64>,
    /// A step by which all forgotten writes had ended.
    forgotten: u64,
    /// Reads into which faults were injected.
    guarded: Vec<Return>,
    lost: Vec<Lost>,
}

#[derive(Clone)]
struct Done {
    entry: Entry,
    returned: Return,
    what: Undone,
    /// True if no other write had changed the element.
    first: bool,
}

/// A write, by its effect.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    pub element: u64,
    pub put: bool,
}

/// A write that was acknowledged but not executed.
#[derive(Clone)]
pub struct Lost {
    pub what: Undone,
    pub returned: Return,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    NotDone,
    /// Unknown.
    InDoubt,
    /// Not executed, but acknowledged.
    Lost,
}

impl Tracks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nobody panics within")
    }

    /// Records the start of a write of these lists. Returns false if it must be barred, because it might explain a
    /// fault.
    pub fn begin(&self, changes: &[Change], subject: Subject, entry: &Entry) -> bool {
        let mut known = self.known();
        let barred = |change: &Change| {
            let track = known.lists.get(&change.item);
            track.is_some_and(|it| it.guarded.iter().any(|read| !read.is_before(entry)))
        };
        if known.lost.contains(&subject) || changes.iter().any(barred) {
            return false;
        }
        for change in changes {
            known.lists.entry(change.item).or_default().under_way += 1;
        }
        true
    }

    pub fn end(
        &self,
        changes: &[Change],
        subject: Subject,
        entry: Entry,
        steps: &Steps,
        ended: Ended,
    ) {
        let mut known = self.known();
        let returned = steps.leave();
        if ended == Ended::Lost {
            known.lost.insert(subject);
        }
        for change in changes {
            let track = known.lists.entry(change.item).or_default();
            track.under_way -= 1;
            track.in_doubt |= ended == Ended::InDoubt;
            if !matches!(ended, Ended::Done | Ended::Lost) {
                continue;
            }
            let what = Undone {
                element: change.element,
                put: change.put,
            };
            let returned = returned.clone();
            if ended == Ended::Lost {
                let returned = returned.clone();
                track.lost.push(Lost { what, returned });
            }
            let first = track.written.insert(what.element);
            track.push(Done {
                entry,
                returned,
                what,
                first,
            });
        }
    }

    /// Returns the lost writes of a list so far.
    pub fn lost(&self, item: u64) -> Vec<Lost> {
        let known = self.known();
        let track = known.lists.get(&item);
        track.map_or_else(Vec::new, |track| track.lost.clone())
    }

    /// Returns whether no write of the list overlaps a read that ends now. If so, bars writes until the read's end has
    /// its timestamp.
    pub fn hold(&self, item: u64, read: &Entry, steps: &Steps) -> bool {
        let mut known = self.known();
        let track = known.lists.entry(item).or_default();
        let quiet = track.is_quiet(read);
        if quiet {
            track.guarded.push(steps.leave());
        }
        quiet
    }

    /// Like [`Tracks::hold`], and returns the last write of the list, if there is one.
    pub fn undo(&self, item: u64, read: &Entry, steps: &Steps) -> Option<Undone> {
        let mut known = self.known();
        let track = known.lists.get_mut(&item)?;
        let last = track.done.back()?.what;
        if !track.is_quiet(read) {
            return None;
        }
        track.guarded.push(steps.leave());
        Some(last)
    }

    /// Returns the current step, if no write of the list is in progress or uncertain.
    pub fn quiet_now(&self, item: u64, steps: &Steps) -> Option<u64> {
        let known = self.known();
        let track = known.lists.get(&item);
        let quiet = track.is_none_or(|track| track.under_way == 0 && !track.in_doubt);
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
    pub fn two_since(&self, item: u64, read: &Entry, since: u64, steps: &Steps) -> Option<Undone> {
        let mut known = self.known();
        let track = known.lists.get_mut(&item)?;
        // The complete duration of the read must still be recorded.
        if track.under_way > 0 || track.in_doubt || !track.remembers(read) {
            return None;
        }
        let of_read = || track.done.iter().filter(|it| !it.returned.is_before(read));
        let new: Vec<&Done> = of_read().filter(|it| it.entry.at > since).collect();
        let once = |element| of_read().filter(|it| it.what.element == element).count() == 1;
        let later = new
            .iter()
            .filter(|earlier| once(earlier.what.element))
            .find_map(|earlier| {
                let later = |it: &&&Done| {
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
    fn push(&mut self, done: Done) {
        self.done.push_back(done);
        if self.done.len() > KEPT
            && let Some(settled) = self.done[0].returned.settled()
        {
            self.forgotten = self.forgotten.max(settled);
            self.done.pop_front();
        }
    }

    /// Returns whether, by the timestamps, all writes ended before a read that ends now.
    fn is_quiet(&self, read: &Entry) -> bool {
        let all = || self.done.iter().all(|it| it.returned.is_before(read));
        self.under_way == 0 && !self.in_doubt && self.remembers(read) && all()
    }

    /// Returns whether all writes that may overlap the read, by the timestamps, are still recorded.
    fn remembers(&self, read: &Entry) -> bool {
        self.forgotten == 0 || read.is_after(self.forgotten)
    }
}
