//! Keeps, for each list, which writes are under way, which were the last and which were lost. From these it says whether an answer may be
//! falsified now: only where no order of the writes would explain the false one, so that it must be found.
//!
//! Invariants:
//!
//! 1. What [`Tracks::undo`] and [`Tracks::hold`] allow is wrong by the stamps: every write of the list ended before the read began, none is under
//!    way, and none gets in that may begin, by its stamp, before the read ends: [`Tracks::begin`] bars it.
//! 2. What was lost stays as it is: no other write of the same pair or comment gets in.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use super::steps::{Entry, Return, Steps};
use crate::model::state::Change;

/// Writes of a list that are remembered.
const KEPT: usize = 16;

/// What a write is about: a pair of members, or a resource and a comment on it.
pub type Subject = (u64, u64);

/// Of all lists.
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
    /// Nobody knows what became of a write.
    in_doubt: bool,
    done: VecDeque<Done>,
    /// Elements that were ever put or removed.
    written: HashSet<u64>,
    /// By this step all that were forgotten had ended.
    forgotten: u64,
    /// Reads with faults in them.
    guarded: Vec<Return>,
    lost: Vec<Lost>,
}

#[derive(Clone)]
struct Done {
    entry: Entry,
    returned: Return,
    what: Undone,
    /// Whether no other had written the element.
    first: bool,
}

/// A write by what it did.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    pub element: u64,
    pub put: bool,
}

/// A write that was acknowledged and not done.
#[derive(Clone)]
pub struct Lost {
    pub what: Undone,
    pub returned: Return,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    NotDone,
    /// Nobody knows.
    InDoubt,
    /// Not done, and said to be.
    Lost,
}

impl Tracks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nobody panics within")
    }

    /// A write of these lists begins. False: it must not, or a fault might be none.
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

    /// Writes of a list that were lost so far.
    pub fn lost(&self, item: u64) -> Vec<Lost> {
        let known = self.known();
        let track = known.lists.get(&item);
        track.map_or_else(Vec::new, |track| track.lost.clone())
    }

    /// Whether a read that ends now sees a list that nobody wrote meanwhile; if so nobody does before its end is stamped.
    pub fn hold(&self, item: u64, read: &Entry, steps: &Steps) -> bool {
        let mut known = self.known();
        let track = known.lists.entry(item).or_default();
        let quiet = track.is_quiet(read);
        if quiet {
            track.guarded.push(steps.leave());
        }
        quiet
    }

    /// As [`Tracks::hold`], and the last write of the list if there was one.
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

    /// This step, if no write of a list is under way or in doubt.
    pub fn quiet_now(&self, item: u64, steps: &Steps) -> Option<u64> {
        let known = self.known();
        let track = known.lists.get(&item);
        let quiet = track.is_none_or(|track| track.under_way == 0 && !track.in_doubt);
        quiet.then(|| steps.step())
    }

    /// The later of two writes of a list that came in since then, one after the other had ended, if nothing else wrote the element
    /// of the earlier one since the read began, nor that of the later one ever, and no write is under way: before the later one the list was never as
    /// after it, and by then the earlier one was done for good. The list is held then.
    pub fn two_since(&self, item: u64, read: &Entry, since: u64, steps: &Steps) -> Option<Undone> {
        let mut known = self.known();
        let track = known.lists.get_mut(&item)?;
        // All of the read's time must still be remembered.
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
    /// Remembers a write, and forgets one that every read to come is behind.
    fn push(&mut self, done: Done) {
        self.done.push_back(done);
        if self.done.len() > KEPT
            && let Some(settled) = self.done[0].returned.settled()
        {
            self.forgotten = self.forgotten.max(settled);
            self.done.pop_front();
        }
    }

    /// Whether all writes ended before a read that ends now, by the stamps.
    fn is_quiet(&self, read: &Entry) -> bool {
        let all = || self.done.iter().all(|it| it.returned.is_before(read));
        self.under_way == 0 && !self.in_doubt && self.remembers(read) && all()
    }

    /// Whether all that may overlap the read, by the stamps, is here.
    fn remembers(&self, read: &Entry) -> bool {
        self.forgotten == 0 || read.is_after(self.forgotten)
    }
}
