//! The comments on each resource, as far as the clients know.
//!
//! Several threads may act on one resource concurrently: each comment is numbered by one thread and deleted by one, so
//! no thread needs to hold the resource. A comment is taken before it is deleted, and put back if the data store
//! rejects the deletion.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use larder_types::Random;

use super::Change;
use crate::model::item::Kind;
use crate::model::population::Population;

const SHARDS: usize = 256;

/// The comments of all resources. Resources in their initial state use no memory.
pub struct Comments {
    initial: u64,
    shards: Box<[Mutex<HashMap<u64, Thread>>]>,
}

/// The comments on one resource.
struct Thread {
    /// The number of the next comment.
    next: u64,
    known: Vec<u64>,
    /// Comments whose last write has an unknown outcome, and whether that write adds them.
    retired: Vec<(u64, bool)>,
}

impl Comments {
    pub fn new(population: &Population) -> Comments {
        Comments {
            initial: population.comments.into(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns a number for a new comment. The caller then calls [`posted`](Self::posted) or [`retire`](Self::retire),
    /// or neither if the data store rejects the comment.
    pub fn next_number(&self, resource: u64) -> u64 {
        self.update_thread(resource, |thread| {
            thread.next += 1;
            thread.next - 1
        })
    }

    pub fn add(&self, resource: u64, comment: u64) {
        self.update_thread(resource, |thread| thread.known.push(comment));
    }

    /// Returns whether there is a comment to delete.
    pub fn has_any(&self, resource: u64) -> bool {
        match self.shard(resource).get(&resource) {
            Some(thread) => !thread.known.is_empty(),
            None => self.initial > 0,
        }
    }

    /// Takes a comment for deletion. [`posted`](Self::posted) puts it back.
    pub fn take(&self, resource: u64, random: &mut Random) -> Option<u64> {
        if !self.has_any(resource) {
            return None;
        }
        self.update_thread(resource, |thread| match thread.known.len() {
            0 => None,
            size => Some(thread.known.swap_remove(random.index(size))),
        })
    }

    /// Records that the outcome of adding (or deleting) this comment will never be known.
    pub fn retire(&self, resource: u64, comment: u64, put: bool) {
        self.update_thread(resource, |thread| thread.retired.push((comment, put)));
    }

    pub(super) fn visit_changes(&self, visit: &mut dyn FnMut(Change)) {
        for shard in &self.shards {
            let shard = shard.lock().expect("no panic while locked");
            let mut resources: Vec<_> = shard.iter().collect();
            resources.sort_unstable_by_key(|(resource, _)| **resource);
            for (resource, thread) in resources {
                self.visit_changes_of(*resource, thread, visit);
            }
        }
    }

    fn visit_changes_of(&self, resource: u64, thread: &Thread, visit: &mut dyn FnMut(Change)) {
        let mut visit = |element, put, certain| {
            visit(Change {
                item: Kind::Comments.item(resource),
                element,
                put,
                certain,
            });
        };
        // A comment whose deletion has an unknown outcome counts as present before it.
        let deleting = thread.retired.iter().filter(|(_, put)| !put);
        let mut now = thread.known.clone();
        now.extend(deleting.map(|(comment, _)| *comment));
        now.sort_unstable();
        for comment in now.iter().filter(|comment| **comment >= self.initial) {
            visit(*comment, true, true);
        }
        for comment in (0..self.initial).filter(|comment| now.binary_search(comment).is_err()) {
            visit(comment, false, true);
        }
        for (comment, put) in &thread.retired {
            visit(*comment, *put, false);
        }
    }

    fn update_thread<T>(&self, resource: u64, change: impl FnOnce(&mut Thread) -> T) -> T {
        let mut shard = self.shard(resource);
        change(shard.entry(resource).or_insert_with(|| Thread {
            next: self.initial,
            known: (0..self.initial).collect(),
            retired: Vec::new(),
        }))
    }

    fn shard(&self, resource: u64) -> MutexGuard<'_, HashMap<u64, Thread>> {
        self.shards[resource as usize % SHARDS]
            .lock()
            .expect("no panic while locked")
    }
}
