//! Which writes of each list are under way and which were the last: where a fault is certainly one.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::state::Change;

/// Writes of a list that are remembered.
const KEPT: usize = 16;

/// Of all lists; moments are numbers in the order in which they were asked for.
#[derive(Default)]
pub struct Tracks {
    moment: AtomicU64,
    lists: Mutex<HashMap<u64, Track>>,
}

#[derive(Default)]
struct Track {
    under_way: u32,
    /// When the last write began.
    begun: u64,
    /// Nobody knows what became of a write.
    in_doubt: bool,
    done: VecDeque<Done>,
}

#[derive(Clone, Copy)]
struct Done {
    begun: u64,
    ended: u64,
    what: Undone,
}

/// A write by what it did.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    pub element: u64,
    pub put: bool,
}

impl Tracks {
    pub fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// A write of these lists begins.
    pub fn begin(&self, changes: &[Change]) -> u64 {
        let mut lists = self.lists.lock().expect("nobody panics within");
        let begun = self.now();
        for change in changes {
            let track = lists.entry(change.item).or_default();
            track.under_way += 1;
            track.begun = begun;
        }
        begun
    }

    /// It was done, or it was not; None: nobody knows.
    pub fn end(&self, changes: &[Change], begun: u64, outcome: Option<bool>) {
        let mut lists = self.lists.lock().expect("nobody panics within");
        let ended = self.now();
        for change in changes {
            let track = lists.entry(change.item).or_default();
            track.under_way -= 1;
            track.in_doubt |= outcome.is_none();
            if outcome == Some(true) {
                track.done.push_back(Done {
                    begun,
                    ended,
                    what: Undone {
                        element: change.element,
                        put: change.put,
                    },
                });
            }
            if track.done.len() > KEPT {
                track.done.pop_front();
            }
        }
    }

    /// Whether no write of a list was under way since this moment, and none is in doubt.
    pub fn quiet_since(&self, item: u64, since: u64) -> bool {
        let lists = self.lists.lock().expect("nobody panics within");
        lists.get(&item).is_none_or(|track| track.is_quiet(since))
    }

    /// The last write of a list, if it was quiet since then.
    pub fn undo(&self, item: u64, since: u64) -> Option<Undone> {
        let lists = self.lists.lock().expect("nobody panics within");
        let track = lists.get(&item)?;
        let last = track.done.back()?;
        track.is_quiet(since).then_some(last.what)
    }

    /// This moment, if no write of a list is under way or in doubt.
    pub fn quiet_now(&self, item: u64) -> Option<u64> {
        let lists = self.lists.lock().expect("nobody panics within");
        let quiet = lists
            .get(&item)
            .is_none_or(|track| track.under_way == 0 && !track.in_doubt);
        quiet.then(|| self.now())
    }

    /// The later of two writes of a list that began since then, one after the other had ended, if nothing else wrote the element
    /// of either since the read began and no write is under way: during the read and before the later one the list was never as after it,
    /// and by then the earlier one was done for good.
    pub fn two_since(&self, item: u64, read_began: u64, since: u64) -> Option<Undone> {
        let lists = self.lists.lock().expect("nobody panics within");
        let track = lists.get(&item)?;
        // All of the read's time must still be remembered.
        let forgotten =
            track.done.len() == KEPT && track.done.front().is_some_and(|it| it.ended > read_began);
        if track.under_way > 0 || track.in_doubt || forgotten {
            return None;
        }
        let of_read = || track.done.iter().filter(|it| it.ended > read_began);
        let new: Vec<Done> = of_read().copied().filter(|it| it.begun > since).collect();
        let once = |element| of_read().filter(|it| it.what.element == element).count() == 1;
        new.iter()
            .filter(|earlier| once(earlier.what.element))
            .find_map(|earlier| {
                let later = |it: &&Done| it.begun > earlier.ended && once(it.what.element);
                new.iter().find(later)
            })
            .map(|later| later.what)
    }
}

impl Track {
    fn is_quiet(&self, since: u64) -> bool {
        // Without a write since then, those that had begun before had ended, too, if none is under way now.
        let ended = self.done.back().is_none_or(|last| last.ended < since);
        self.under_way == 0 && !self.in_doubt && self.begun < since && ended
    }
}
