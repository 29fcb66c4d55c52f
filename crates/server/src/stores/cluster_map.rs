//! Stores of a cluster node: the map determines which versions exist and which one is live, and the folder follows.
//!
//! 1. Reads use the map's live version from the moment in which this node applies the map (`apply_map`): the catalog changes
//!    immediately, the folder's `LIVE` later (`note_live`). After a start, no version is live before the node has a map.
//! 2. A live version that is not on this node is in the catalog nevertheless, without partitions: its keys are elsewhere, not
//!    absent.
//! 3. Versions in the folder that are not in the map are removed. `cluster.json` in a store's folder marks the store as the
//!    cluster's. Without it, the store was created before the node joined, and nothing of it is removed until the map has a store
//!    of that name.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use larder_batch::Version;
use larder_batch::version::files;
use larder_cluster::map::{self, Epoch, Map};
use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use super::{KeptVersion, Store, Stores, no_live_version};
use crate::catalog::{Cause, Entry, LiveStore, Unavailable};
use crate::error::Error;

const FILE: &str = "cluster.json";

#[derive(Serialize, Deserialize)]
struct ClusterMark {
    cluster: String,
}

impl Stores {
    /// Makes the map's live versions visible to reads, without disk access. A map that is older than the current one is ignored.
    pub fn apply_map(&self, map: &Map) {
        let mut applied = self
            .applied_epoch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if map.epoch() < *applied {
            return;
        }
        *applied = map.epoch();
        let before = self.catalog.load();
        let here = self.lock();
        let entries = map.stores().iter().map(|(name, store)| {
            let shown = before.entry(name);
            let entry = match &store.live {
                None => empty_entry(name, shown),
                Some(live) => {
                    let here = here.get(name);
                    live_entry(
                        name,
                        live,
                        shown,
                        here.and_then(|here| here.ready_version(live)),
                    )
                }
            };
            (name.clone(), entry)
        });
        let entries: Vec<(StoreName, Entry)> = entries.collect();
        drop(here);
        self.catalog.replace(entries);
    }

    /// Rejects reads of all stores until there is a map of this epoch: other nodes have one, and this node cannot get it.
    pub fn refuse_reads(&self, epoch: Epoch, why: &str) {
        let mut applied = self
            .applied_epoch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if epoch <= *applied {
            return;
        }
        *applied = epoch;
        let before = self.catalog.load();
        let live = before.iter().map(|live| &live.name);
        let names = live.chain(before.unavailable().map(|it| &it.name));
        let refused = names.map(|name| {
            let entry = Entry::Unavailable(Arc::new(Unavailable {
                name: name.clone(),
                version_id: None,
                reason: format!("store {name} cannot be read: {why}"),
                cause: Cause::CutOff,
            }));
            (name.clone(), entry)
        });
        let refused: Vec<(StoreName, Entry)> = refused.collect();
        self.catalog.replace(refused);
    }

    /// Returns the store of this name, created as one of the cluster's if necessary.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn get_or_create_marked(
        &self,
        name: &StoreName,
        cluster: &str,
    ) -> Result<Arc<Store>, Error> {
        let store = self.get_or_create(name)?;
        let path = store.dir.path().join(FILE);
        if !path.exists() {
            let cluster = cluster.to_owned();
            let mark =
                serde_json::to_vec(&ClusterMark { cluster }).expect("plain structs become JSON");
            files::write_durably(&path, &mark)?;
        }
        Ok(store)
    }

    /// Removes stores that belonged to the cluster and are no longer in its map.
    pub fn drop_unlisted(&self, map: &Map) {
        for store in self.list() {
            if map.stores().contains_key(&store.name) || !is_marked(store.dir.path()) {
                continue;
            }
            if let Err(error) = self.remove(&store) {
                tracing::warn!(store = %store.name, %error, "a store that the cluster removed was not removed here");
            }
        }
    }
}

fn empty_entry(name: &StoreName, shown: Option<&Entry>) -> Entry {
    let nothing = no_live_version(name);
    match shown {
        Some(Entry::Unavailable(why)) if why.reason == nothing.reason => {
            Entry::Unavailable(why.clone())
        }
        _ => Entry::Unavailable(Arc::new(nothing)),
    }
}

/// Returns the catalog entry of a live version. A version that is not present is shown without partitions.
fn live_entry(
    name: &StoreName,
    live: &map::Version,
    shown: Option<&Entry>,
    here: Option<Arc<Version>>,
) -> Entry {
    let shown = match shown {
        Some(Entry::Live(shown)) if shown.version_id == live.version => Some(shown),
        _ => None,
    };
    let is_shown = |shown: &&Arc<LiveStore>| match &here {
        Some(here) => Arc::ptr_eq(&shown.version, here),
        None => {
            !shown.version.has_any_partition() || shown.version.manifest().digest == live.digest
        }
    };
    match shown.filter(is_shown) {
        Some(shown) => Entry::Live(shown.clone()),
        None => Entry::Live(Arc::new(LiveStore {
            name: name.clone(),
            version_id: live.version,
            version: here.unwrap_or_else(|| Arc::new(Version::without_partitions(name, None))),
        })),
    }
}

fn is_marked(folder: &Path) -> bool {
    folder.join(FILE).exists()
}

impl Store {
    /// Records the live version on disk, for programs that read the folder and for a server that starts without a cluster.
    ///
    /// # Errors
    /// [`Error::NoSuchStore`] if it was removed meanwhile.
    pub fn note_live(&self, live: Option<&map::Version>) -> Result<(), Error> {
        let is_here = live.is_some_and(|live| self.ready_version(live).is_some());
        let live = live.map(|live| live.version);
        let mut state = self.lock()?;
        if state.live != live {
            state.live = live;
            if let Some(version) = live {
                tracing::info!(store = %self.name, version = version.0, is_here, "live");
                state.swap_count += 1;
                state.history.record_live(version);
            }
        }
        let history = state.history.clone();
        drop(state);
        if self.dir.live().ok().flatten() == live || live.is_some() && !is_here {
            return Ok(());
        }
        let written = self.dir.set_live(live).map_err(Error::from);
        if let Err(error) = written.and_then(|()| history.write(self.dir.path())) {
            tracing::warn!(store = %self.name, %error, "the live version was not recorded on this node; the cluster map has it");
        }
        Ok(())
    }

    /// Returns the version if it may be read: it is open, has the map's digest, and has passed its gates.
    pub fn ready_version(&self, wanted: &map::Version) -> Option<Arc<Version>> {
        let state = self.lock().ok()?;
        let kept = state.kept.get(&wanted.version)?;
        let open = kept
            .opened
            .as_ref()
            .ok()
            .filter(|_| kept.unchecked.is_none());
        open.filter(|open| open.manifest().digest == wanted.digest)
            .cloned()
    }

    /// Returns a kept version that has passed its gates.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`], [`Error::Corrupted`], [`Error::Refused`].
    pub fn checked_version(&self, id: VersionId) -> Result<Arc<Version>, Error> {
        let state = self.lock()?;
        if state
            .kept
            .get(&id)
            .is_some_and(|kept| kept.unchecked.is_some())
        {
            let name = &self.name;
            return Err(Error::Refused(format!(
                "version {id} of store {name} is not checked yet"
            )));
        }
        self.open_version(&state, id)
    }

    /// Like [`Store::ready`], but also returns a version that has not passed its gates yet.
    ///
    /// # Errors
    /// [`Error::NoSuchStore`].
    pub fn open_with_digest(
        &self,
        id: VersionId,
        digest: &str,
    ) -> Result<Option<Arc<Version>>, Error> {
        let state = self.lock()?;
        let open = state
            .kept
            .get(&id)
            .and_then(|kept| kept.opened.as_ref().ok());
        Ok(open
            .filter(|open| open.manifest().digest == digest)
            .cloned())
    }

    /// Replaces a version that was open with other partitions.
    ///
    /// # Errors
    /// [`Error::NoSuchStore`], or [`Error::NoSuchVersion`] if it was removed meanwhile.
    pub fn replace(&self, id: VersionId, version: Arc<Version>) -> Result<(), Error> {
        let mut state = self.lock()?;
        let Some(kept) = state.kept.get_mut(&id) else {
            return Err(self.no_such_version(&state, id));
        };
        let before = std::mem::replace(&mut kept.opened, Ok(version));
        drop(state);
        if let Ok(before) = before {
            self.retired.lock().push(before);
        }
        Ok(())
    }

    /// Removes versions that are not in `wanted`, and those with the same number but another digest.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_only(&self, wanted: &[map::Version]) -> Result<(), Error> {
        let is_wanted = |id: VersionId, kept: &KeptVersion| {
            let mut wanted = wanted.iter().filter(|it| it.version == id);
            wanted.any(|it| match &kept.opened {
                Ok(version) => version.manifest().digest == it.digest,
                Err(_) => false,
            })
        };
        let mut state = self.lock()?;
        let others: Vec<(VersionId, KeptVersion)> = state
            .kept
            .extract_if(.., |id, kept| !is_wanted(*id, kept))
            .collect();
        drop(state);
        for (id, kept) in others {
            self.unlink_any(id, Some(kept))?;
        }
        for (id, _) in self.dir.pulls()? {
            if !wanted.iter().any(|it| it.version == id) {
                self.dir.remove_pull(id)?;
            }
        }
        Ok(())
    }

    /// Removes the version with this number, if there is one, because it is not the map's.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove_stale(&self, id: VersionId) -> Result<(), Error> {
        let kept = self.lock()?.kept.remove(&id);
        if kept.is_some() || self.dir.version_path(id).exists() {
            self.unlink_any(id, kept)
        } else {
            Ok(())
        }
    }

    /// Like `unlink`, but also removes the version to which `LIVE` points.
    fn unlink_any(&self, id: VersionId, kept: Option<KeptVersion>) -> Result<(), Error> {
        if self.dir.live().ok().flatten() == Some(id) {
            self.dir.set_live(None)?;
        }
        self.unlink(id, kept)
    }
}

/// The state of a store before this node has a map.
pub(super) fn map_unknown(name: &StoreName) -> Unavailable {
    Unavailable {
        name: name.clone(),
        version_id: None,
        reason: format!(
            "the live version of store {name} is unknown: this node has not reached its cluster since it started; use another node, or try again"
        ),
        cause: Cause::NotLive,
    }
}
