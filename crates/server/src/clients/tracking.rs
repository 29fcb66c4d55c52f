//! Client-side caching (CLIENT TRACKING): tracks which keys clients have read and may have cached, and notifies them of changes.
//!
//! ```text
//!  a tracked read, on the key's core ──► table of that core ─┐
//!  a read of a store ─────────────────► table of all stores ─┴─► the key changes ──► Tracker ──► Mailbox of its client or its redirect
//!                                        BCAST: prefixes ───────────────────────────────┘
//! ```
//!
//! 1. A read and its entry in the table happen in one step of the key's core, so that no change occurs between them.
//! 2. A key has an entry until its next change, which removes the entry: a client that does not read the key again is not
//!    notified again.
//! 3. A table with too many keys evicts some, each with an invalidation, so that no client keeps an untracked value.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::Client;
use super::mailbox::Notification;

/// The memory of a table entry in addition to its key, per client.
const ENTRY_BYTES: usize = 160;

/// The reads of a client that are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AllReads,
    /// Reads that follow CLIENT CACHING yes.
    OptIn,
    /// All reads except those that follow CLIENT CACHING no.
    OptOut,
    /// No reads: the client is notified of all changes of keys with its prefixes.
    Broadcast,
}

/// A client with tracking on.
pub struct Tracker {
    pub client: Arc<Client>,
    /// The connection that receives the invalidations, if it is not the client's own.
    pub redirect: Option<Arc<Client>>,
    pub mode: Mode,
    /// For [`Mode::Broadcast`]; empty means all keys.
    pub prefixes: Vec<Box<[u8]>>,
    pub noloop: bool,
    /// The reads in execution are tracked.
    tracks_reads: AtomicBool,
    is_off: AtomicBool,
    is_broken: AtomicBool,
    bytes_max: usize,
}

impl Tracker {
    pub fn new(client: Arc<Client>, mode: Mode, bytes_max: usize) -> Tracker {
        Tracker {
            client,
            redirect: None,
            mode,
            prefixes: Vec::new(),
            noloop: false,
            tracks_reads: AtomicBool::new(matches!(mode, Mode::AllReads | Mode::OptOut)),
            is_off: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            bytes_max,
        }
    }

    pub fn tracks_reads(&self) -> bool {
        self.tracks_reads.load(Ordering::Relaxed)
    }

    /// Sets whether subsequent reads are tracked. Earlier reads must have completed.
    pub fn set_tracks_reads(&self, tracks: bool) {
        self.tracks_reads.store(tracks, Ordering::Relaxed);
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// The memory of the client's entries in the tables.
    fn tracked_bytes(&self) -> &AtomicUsize {
        &self.client.tracked_bytes
    }

    fn id(&self) -> u64 {
        self.client.id
    }

    /// Returns whether the client is notified of changes of a key that it has not read.
    fn matches_prefix(&self, key: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|own| key.starts_with(own))
    }

    /// Sends an invalidation of a key, or of all keys.
    pub fn send(&self, key: Option<&[u8]>) {
        if self.is_off.load(Ordering::Relaxed) {
            return;
        }
        let target = self.redirect.as_ref().unwrap_or(&self.client);
        if target.is_closed() {
            self.is_broken.store(true, Ordering::Relaxed);
            if self.client.accepts_notifications() {
                self.client
                    .mailbox
                    .put(Notification::RedirectionBroken(target.id));
            }
            return;
        }
        if target.accepts_notifications() {
            target
                .mailbox
                .put(Notification::Invalidate(key.map(Arc::from)));
        }
    }
}

/// All clients with tracking on.
pub struct Tracking {
    trackers: ArcSwap<Vec<Arc<Tracker>>>,
    /// True if at least one client has tracking on.
    is_on: AtomicBool,
    write_lock: Mutex<()>,
    stores: Mutex<TrackingTable>,
    /// The number of entries of all tables.
    keys: AtomicUsize,
    keys_max: usize,
}

impl Tracking {
    pub fn new(keys_max: usize) -> Tracking {
        Tracking {
            trackers: ArcSwap::default(),
            is_on: AtomicBool::new(false),
            write_lock: Mutex::new(()),
            stores: Mutex::default(),
            keys: AtomicUsize::new(0),
            keys_max,
        }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The number of keys with entries.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub fn clients(&self) -> usize {
        self.trackers.load().len()
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Arc<Tracker>>)) {
        let _writing = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut next = Vec::clone(&self.trackers.load());
        edit(&mut next);
        let is_on = !next.is_empty();
        self.trackers.store(Arc::new(next));
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    pub fn turn_on(&self, tracker: Arc<Tracker>) {
        tracker.client.tracker.store(Some(tracker.clone()));
        self.change(|all| all.push(tracker));
    }

    pub fn turn_off(&self, tracker: &Arc<Tracker>) {
        tracker.is_off.store(true, Ordering::Relaxed);
        tracker.client.tracker.store(None);
        self.change(|all| all.retain(|other| !Arc::ptr_eq(other, tracker)));
        if !self.is_on() {
            let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            stores.clear(self);
        }
    }

    /// Returns whether a BCAST client is notified of changes of a key.
    pub fn broadcasts(&self, key: &[u8]) -> bool {
        let all = self.trackers.load();
        all.iter()
            .any(|tracker| tracker.mode == Mode::Broadcast && tracker.matches_prefix(key))
    }

    /// Notifies the BCAST clients of a change of a key. `by`: the client that made it.
    pub fn broadcast(&self, key: &[u8], by: u64) {
        for tracker in self.trackers.load().iter() {
            let is_match = tracker.mode == Mode::Broadcast && tracker.matches_prefix(key);
            if is_match && !(tracker.noloop && tracker.id() == by) {
                tracker.send(Some(key));
            }
        }
    }

    /// Invalidates everything that clients have cached.
    pub fn invalidate_all(&self) {
        self.trackers
            .load()
            .iter()
            .for_each(|tracker| tracker.send(None));
    }

    /// Records that a client has read a key of a store.
    pub fn track_record(&self, tracker: &Arc<Tracker>, key: &[u8]) {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.add(self, tracker, key);
    }

    /// Notifies clients that another version of a store is live.
    pub fn invalidate_store(&self, name: &[u8]) {
        if !self.is_on() {
            return;
        }
        let prefix = [name, b":"].concat();
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.invalidate_prefix(self, &prefix);
        drop(stores);
        for tracker in self.trackers.load().iter() {
            let overlaps = |own: &[u8]| own.starts_with(&prefix) || prefix.starts_with(own);
            let is_match =
                tracker.prefixes.is_empty() || tracker.prefixes.iter().any(|own| overlaps(own));
            if tracker.mode == Mode::Broadcast && is_match {
                // It is unknown which of the store's keys the client has cached.
                tracker.send(None);
            }
        }
    }
}

/// Keys that clients have read, each with these clients.
#[derive(Default)]
pub struct TrackingTable {
    keys: BTreeMap<Box<[u8]>, Vec<Arc<Tracker>>>,
    /// The key that was evicted last.
    hand: Box<[u8]>,
}

/// Finds a client's entry among the trackers of a key, which are sorted by client.
fn position(trackers: &[Arc<Tracker>], tracker: &Tracker) -> Result<usize, usize> {
    trackers.binary_search_by_key(&tracker.id(), |one| one.id())
}

impl TrackingTable {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Records that a client has read a key. If there is no room, the client is immediately notified that the value is stale.
    pub fn add(&mut self, tracking: &Tracking, tracker: &Arc<Tracker>, key: &[u8]) {
        if let Some(trackers) = self.keys.get_mut(key)
            && let Ok(at) = position(trackers, tracker)
        {
            // The client may have turned tracking off and on again since.
            trackers[at] = tracker.clone();
            return;
        }
        let bytes = key.len() + ENTRY_BYTES;
        let tracked = tracker.tracked_bytes();
        if tracked.load(Ordering::Relaxed) + bytes > tracker.bytes_max {
            return tracker.send(Some(key));
        }
        let trackers = match self.keys.get_mut(key) {
            Some(trackers) => trackers,
            None => {
                tracking.keys.fetch_add(1, Ordering::Relaxed);
                self.keys.entry(key.into()).or_default()
            }
        };
        if let Err(at) = position(trackers, tracker) {
            trackers.insert(at, tracker.clone());
        }
        tracked.fetch_add(bytes, Ordering::Relaxed);
        if tracking.keys() > tracking.keys_max {
            self.make_room(tracking);
        }
    }

    /// Evicts the next key in turn.
    fn make_room(&mut self, tracking: &Tracking) {
        let after = (Bound::Excluded(&self.hand), Bound::Unbounded);
        let next = self.keys.range::<Box<[u8]>, _>(after).next();
        let Some((key, _)) = next.or_else(|| self.keys.first_key_value()) else {
            return;
        };
        let key = key.clone();
        self.invalidate(tracking, &key, &|_| false);
        self.hand = key;
    }

    /// Notifies the clients that have read a key, except those that `is_skipped` selects, and removes the entry.
    pub fn invalidate(
        &mut self,
        tracking: &Tracking,
        key: &[u8],
        skips: &dyn Fn(&Tracker) -> bool,
    ) {
        let Some(trackers) = self.keys.remove(key) else {
            return;
        };
        tracking.keys.fetch_sub(1, Ordering::Relaxed);
        for tracker in trackers {
            let bytes = key.len() + ENTRY_BYTES;
            tracker.tracked_bytes().fetch_sub(bytes, Ordering::Relaxed);
            if !skips(&tracker) {
                tracker.send(Some(key));
            }
        }
    }

    fn invalidate_prefix(&mut self, tracking: &Tracking, prefix: &[u8]) {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let matching = self.keys.range::<[u8], _>(from).map(|(key, _)| key.clone());
        let matching: Vec<_> = matching.take_while(|key| key.starts_with(prefix)).collect();
        for key in matching {
            self.invalidate(tracking, &key, &|_| false);
        }
    }

    /// Removes all keys; the clients are notified by other means.
    pub fn clear(&mut self, tracking: &Tracking) {
        for (key, trackers) in std::mem::take(&mut self.keys) {
            tracking.keys.fetch_sub(1, Ordering::Relaxed);
            for tracker in trackers {
                let bytes = key.len() + ENTRY_BYTES;
                tracker.tracked_bytes().fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }
}
