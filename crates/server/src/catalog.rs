//! The live versions of all stores, as used by reads: one immutable snapshot behind one pointer.
//!
//! Invariants:
//! 1. A [`Snapshot`] never changes; a swap publishes a new one. A request that loads it once therefore sees complete versions
//!    only, however many keys it reads.
//! 2. Readers never wait: loading is one atomic read. Writers serialize on their own lock.
//! 3. A version's mapping and its files are released when the last reader drops its `Arc`.
//!
//! `stores`, not this module, ensures the order of a swap (`LIVE` on disk first, then this pointer).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::{ArcSwap, Guard};
use larder_batch::Version;
use larder_protocol::errors::Code;
use larder_types::{StoreName, VersionId};

/// A store's open live version.
pub struct LiveStore {
    pub name: StoreName,
    pub version_id: VersionId,
    pub version: Arc<Version>,
}

impl LiveStore {
    /// Returns whether values are so large on average (about 25 microseconds to read and check) that no serving thread should
    /// read them.
    #[inline]
    pub fn has_large_values(&self) -> bool {
        let manifest = self.version.manifest();
        manifest.value_bytes / LARGE_VALUE_BYTES >= manifest.record_count.max(1)
    }
}

const LARGE_VALUE_BYTES: u64 = 256 << 10;

/// A store that exists but has no readable live version.
#[derive(Debug, Clone)]
pub struct Unavailable {
    pub name: StoreName,
    /// The live version, if there is one that could not be opened.
    pub version_id: Option<VersionId>,
    /// A complete sentence for the client: the problem, and what to do.
    pub reason: String,
    pub cause: Cause,
}

/// The reason why a store has no readable live version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No version is live, or this node does not know yet which.
    NotLive,
    /// The live version's bytes are damaged.
    Damaged,
    /// The file system fails to read the live version.
    Unreadable,
    /// Another version may be live by now, and this node cannot find out which.
    CutOff,
}

impl Cause {
    /// The code of the error that reads return.
    pub fn code(self) -> Code {
        match self {
            Cause::NotLive => Code::NoLiveVersion,
            Cause::Damaged => Code::Corrupted,
            Cause::Unreadable => Code::Io,
            Cause::CutOff => Code::ClusterDown,
        }
    }

    /// Returns whether the store must be repaired before it can be read.
    pub fn is_fault(self) -> bool {
        matches!(self, Cause::Damaged | Cause::Unreadable)
    }
}

/// The result of looking up the text before a key's first `:`.
pub enum Lookup<'a> {
    Live(&'a Arc<LiveStore>),
    Unavailable(&'a Arc<Unavailable>),
    /// There is no store of this name.
    Absent,
}

/// The catalog's entry of a store.
#[derive(Clone)]
pub(crate) enum Entry {
    Live(Arc<LiveStore>),
    Unavailable(Arc<Unavailable>),
}

/// The stores at one instant.
#[derive(Clone, Default)]
pub struct Snapshot {
    stores: HashMap<Box<[u8]>, Entry>,
}

impl Snapshot {
    /// The live version of the store, or `None` if it is absent or unavailable. [`Snapshot::lookup`] distinguishes the two.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<LiveStore>> {
        match self.stores.get(name) {
            Some(Entry::Live(live)) => Some(live),
            _ => None,
        }
    }

    pub fn lookup(&self, name: &[u8]) -> Lookup<'_> {
        match self.stores.get(name) {
            Some(Entry::Live(live)) => Lookup::Live(live),
            Some(Entry::Unavailable(why)) => Lookup::Unavailable(why),
            None => Lookup::Absent,
        }
    }

    /// Returns a copy in which these versions replace the live ones of their stores.
    pub(crate) fn with_versions(&self, versions: Vec<LiveStore>) -> Snapshot {
        let mut all = self.clone();
        for live in versions {
            let name = live.name.as_str().as_bytes().into();
            all.stores.insert(name, Entry::Live(Arc::new(live)));
        }
        all
    }

    pub(crate) fn entry(&self, name: &StoreName) -> Option<&Entry> {
        self.stores.get(name.as_str().as_bytes())
    }

    /// The readable stores, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LiveStore>> {
        self.stores.values().filter_map(|entry| match entry {
            Entry::Live(live) => Some(live),
            Entry::Unavailable(_) => None,
        })
    }

    /// The unreadable stores, in no particular order.
    pub fn unavailable(&self) -> impl Iterator<Item = &Arc<Unavailable>> {
        self.stores.values().filter_map(|entry| match entry {
            Entry::Live(_) => None,
            Entry::Unavailable(why) => Some(why),
        })
    }
}

/// Called with the name of a store.
type ChangeListener = Box<dyn Fn(&[u8]) + Send + Sync>;

/// The pointer to the current [`Snapshot`].
#[derive(Default)]
pub struct Catalog {
    current: ArcSwap<Snapshot>,
    write_lock: Mutex<()>,
    listener: OnceLock<ChangeListener>,
}

impl Catalog {
    /// Load once per request, and use the result for all of it.
    pub fn load(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// Makes `live` the version that new requests read.
    pub fn swap(&self, live: LiveStore) {
        self.change(|stores| {
            let name = live.name.as_str().as_bytes().into();
            stores.insert(name, Entry::Live(Arc::new(live)));
        });
    }

    /// Records that the store exists and cannot be read.
    pub fn set_unavailable(&self, why: Unavailable) {
        self.change(|stores| {
            let name = why.name.as_str().as_bytes().into();
            stores.insert(name, Entry::Unavailable(Arc::new(why)));
        });
    }

    pub fn remove(&self, name: &StoreName) {
        self.change(|stores| {
            stores.remove(name.as_str().as_bytes());
        });
    }

    /// Atomically replaces all stores.
    pub(crate) fn replace(&self, stores: Vec<(StoreName, Entry)>) {
        self.change(|before| {
            *before = stores
                .into_iter()
                .map(|(name, entry)| (name.as_str().as_bytes().into(), entry))
                .collect();
        });
    }

    /// Calls `changed` with the name of each store that changes, once new requests see the change.
    pub(crate) fn on_change(&self, changed: impl Fn(&[u8]) + Send + Sync + 'static) {
        // Set once, by the server.
        let _ = self.listener.set(Box::new(changed));
    }

    fn change(&self, edit: impl FnOnce(&mut HashMap<Box<[u8]>, Entry>)) {
        let _writing = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load_full();
        let mut next = Snapshot::clone(&before);
        edit(&mut next.stores);
        let next = Arc::new(next);
        self.current.store(next.clone());
        let Some(changed) = self.listener.get() else {
            return;
        };
        let names = before.stores.keys().chain(next.stores.keys());
        for name in names.collect::<HashSet<_>>() {
            let is_same = match (before.stores.get(name), next.stores.get(name)) {
                (Some(Entry::Live(one)), Some(Entry::Live(other))) => Arc::ptr_eq(one, other),
                (Some(Entry::Unavailable(one)), Some(Entry::Unavailable(other))) => {
                    Arc::ptr_eq(one, other)
                }
                _ => false,
            };
            if !is_same {
                changed(name);
            }
        }
    }
}
