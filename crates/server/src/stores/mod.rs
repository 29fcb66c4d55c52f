//! All stores of this server: their versions on disk, the live version of each, and the catalog.
//!
//! Invariants:
//! 1. A version becomes visible to reads only after `LIVE` durably names it (`go_live`): an acknowledged swap survives a crash.
//! 2. A published version is never modified; it is added, made live, and removed as a whole. In a cluster, its folder gains and
//!    loses partitions, and the version is reopened.
//! 3. Retention never removes the live version and the one before it, and a request never removes the live one.
//! 4. No version becomes live before it was verified and has passed its gates (`unchecked`). A version that is known to be
//!    damaged, or that is empty while the live one is not, becomes live only if forced (`damaged`).
//! 5. In a cluster, the map determines the live version, and replaces invariants 1 and 3: see `cluster_map`.
//! 6. Kept versions stay open, so that a rollback to any of them only writes `LIVE` and changes a pointer.
//!
//! Files of a removed version are unlinked immediately; the system frees them when the last reader's mapping is gone. One lock
//! per store covers its folder and list; reads of keys never take it.

mod cluster_map;
mod damaged;
pub mod gates;
mod meta;
mod process_mark;
pub mod program;
mod recover;
mod retention;
pub(crate) mod unchecked;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_batch::version::files;
use larder_batch::{Built, Manifest, PublicKey, StoreDir, Version};
use larder_cluster::map::Epoch;
use larder_protocol::http::{BuiltStatus, Gates, PullStatus, StoreStatus, VersionStatus};
use larder_types::{StoreName, VersionId, VersionSelector, fault_point};

use crate::catalog::{Catalog, Cause, LiveStore, Unavailable};
use crate::clock::unix_time;
use crate::error::Error;

pub use program::Program;

pub use meta::PullRecord;
pub use recover::{FolderLock, previous_version};
pub use retention::Retention;

/// All stores by name.
pub struct Stores {
    data: PathBuf,
    catalog: Arc<Catalog>,
    /// True if a map determines the live versions: see `cluster_map`.
    follows_cluster: bool,
    /// The accepted signers. If empty, versions need no signature.
    signers: Vec<PublicKey>,
    /// Checks every version before it becomes live.
    program: Option<Arc<Program>>,
    /// The epoch of the map that the catalog reflects.
    applied_epoch: Mutex<Epoch>,
    by_name: Mutex<BTreeMap<StoreName, Arc<Store>>>,
    retired: RetiredVersions,
}

/// Removed versions that may still have readers. Unmapping a large deleted file takes long, so [`Stores::reap`] should drop the
/// last reference, not a serving thread.
#[derive(Clone, Default)]
struct RetiredVersions(Arc<Mutex<Vec<Arc<Version>>>>);

/// One store. A handle is cheap to keep; operations on a removed store return `NO_SUCH_STORE`.
pub struct Store {
    pub name: StoreName,
    /// The folder. The lock is held for changes of `LIVE` and removals, but not for publishing, which syncs large files.
    pub(crate) dir: StoreDir,
    state: Mutex<StoreState>,
    retired: RetiredVersions,
    program: Option<Arc<Program>>,
}

struct StoreState {
    kept: BTreeMap<VersionId, KeptVersion>,
    live: Option<VersionId>,
    history: meta::LiveHistory,
    /// Since the server started.
    swap_count: u64,
    removed: bool,
}

/// A published version on this server's disk.
struct KeptVersion {
    /// `None` if `pull.json` is absent.
    record: Option<PullRecord>,
    /// The error, if it cannot be read.
    opened: Result<Arc<Version>, Error>,
    /// The gates that it must pass before it may become live; `None` once it has passed.
    unchecked: Option<Gates>,
    /// The damage that a verification or a dump found.
    damaged: Option<String>,
}

/// The result of a swap or a rollback.
#[derive(Debug, Clone, Copy)]
pub struct SwapOutcome {
    pub live: VersionId,
    /// The target of a rollback from now.
    pub previous: Option<VersionId>,
    pub took: Duration,
}

impl Stores {
    pub fn get(&self, name: &str) -> Result<Arc<Store>, Error> {
        let known = name.parse::<StoreName>().ok();
        known
            .and_then(|name| self.lock().get(&name).cloned())
            .ok_or_else(|| Error::NoSuchStore(name.chars().take(80).collect()))
    }

    pub fn list(&self) -> Vec<Arc<Store>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the store of this name, created without versions if necessary.
    pub fn get_or_create(&self, name: &StoreName) -> Result<Arc<Store>, Error> {
        let mut by_name = self.lock();
        if let Some(store) = by_name.get(name) {
            return Ok(store.clone());
        }
        // Recovers it as at a start, because a folder that a start could not read may exist.
        let store = Arc::new(self.recover_store(name)?);
        by_name.insert(name.clone(), store.clone());
        Ok(store)
    }

    /// The program that checks every version, if one is configured.
    pub fn program(&self) -> Option<&Program> {
        self.program.as_deref()
    }

    /// Makes a kept version live: on disk first, then for reads. A version that a crash left unchecked is checked first, which
    /// may take long.
    pub fn go_live(&self, store: &Store, id: VersionId) -> Result<SwapOutcome, Error> {
        store.check_unchecked(id)?;
        let started = Instant::now();
        let mut state = store.lock()?;
        self.go_live_locked(store, &mut state, id, started)
    }

    /// Like [`Stores::go_live`], if `before` is still live.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another version is live.
    pub fn replace_live(
        &self,
        store: &Store,
        id: VersionId,
        before: VersionId,
    ) -> Result<SwapOutcome, Error> {
        let started = Instant::now();
        let mut state = store.lock()?;
        if state.live != Some(before) {
            return Err(Error::Conflict(format!(
                "another version of store {} went live while version {before} was compacted; the compacted version is discarded",
                store.name
            )));
        }
        self.go_live_locked(store, &mut state, id, started)
    }

    /// Checks that the manifest is signed as the configuration requires.
    ///
    /// # Errors
    /// The reason, as a continuation of "the version".
    pub fn check_signature(&self, manifest: &Manifest) -> Result<(), String> {
        if self.signers.is_empty() {
            Ok(())
        } else {
            manifest.check_signature(&self.signers)
        }
    }

    /// Returns whether only signed versions may become live.
    pub fn needs_signature(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Like [`Stores::check_signature`], for a version that the map is to make live, if it is on this node.
    pub fn check_signature_here(&self, name: &StoreName, id: VersionId) -> Result<(), Error> {
        let Ok(store) = self.get(name.as_str()) else {
            return Ok(());
        };
        let version = store.open_version(&*store.lock()?, id);
        let checked = version.map_or(Ok(()), |it| self.check_signature(it.manifest()));
        checked.map_err(|why| Error::Refused(format!("version {id} of {name} {why}")))
    }

    /// Makes a kept version live at a client's request, unless it is harmful: see `damaged`.
    pub fn swap(
        &self,
        store: &Store,
        to: VersionSelector,
        force: bool,
    ) -> Result<SwapOutcome, Error> {
        let id = {
            let state = store.lock()?;
            let id = store.resolve(&state, to)?;
            if !force {
                store.check_swap(&state, id)?;
            }
            id
        };
        self.go_live(store, id)
    }

    fn go_live_locked(
        &self,
        store: &Store,
        state: &mut StoreState,
        id: VersionId,
        started: Instant,
    ) -> Result<SwapOutcome, Error> {
        let version = store.open_version(state, id)?;
        if state.live != Some(id) {
            self.check_signature(version.manifest())
                .map_err(|why| Error::Refused(format!("version {id} of {} {why}", store.name)))?;
        }
        let unchecked = state
            .kept
            .get(&id)
            .is_some_and(|kept| kept.unchecked.is_some());
        assert!(
            !unchecked,
            "invariant 4: version {id} of {} was judged",
            store.name
        );
        store.dir.set_live(Some(id))?;
        fault_point("pull.live");
        state.live = Some(id);
        state.swap_count += 1;
        self.catalog.swap(LiveStore {
            name: store.name.clone(),
            version_id: id,
            version,
        });
        let took = started.elapsed();
        state.history.record_live(id);
        if let Err(error) = state.history.write(store.dir.path()) {
            tracing::warn!(store = %store.name, %error, "the history of live versions was not written");
        }
        tracing::info!(store = %store.name, version = id.0, took_us = took.as_micros() as u64, "live");
        Ok(SwapOutcome {
            live: id,
            previous: state.previous(),
            took,
        })
    }

    /// Removes a version that is not live, and returns its number. Current readers of the version are not affected.
    pub fn remove_version(
        &self,
        store: &Store,
        which: VersionSelector,
    ) -> Result<VersionId, Error> {
        let mut state = store.lock()?;
        let id = store.resolve(&state, which)?;
        if state.live == Some(id) {
            return Err(Error::Conflict(format!(
                "version {id} of store {} is live; roll back or swap to another one first",
                store.name
            )));
        }
        let kept = state.kept.remove(&id);
        let kept = kept.ok_or_else(|| store.no_such_version(&state, id))?;
        drop(state);
        store.unlink(id, Some(kept))?;
        Ok(id)
    }

    /// Removes a store with all its versions. Current readers of its live version are not affected.
    pub fn remove(&self, store: &Store) -> Result<(), Error> {
        let mut by_name = self.lock();
        let mut state = store.lock()?;
        let trash = recover::trash_folder(&self.data);
        std::fs::create_dir_all(&trash).map_err(Error::io("create", &trash))?;
        let trash_path = trash.join(format!("{}.{}", store.name, unix_time().as_nanos()));
        std::fs::rename(store.dir.path(), &trash_path)
            .map_err(Error::io("remove", store.dir.path()))?;
        files::sync_folder(&self.data.join("stores"))?;
        state.removed = true;
        for (_, kept) in std::mem::take(&mut state.kept) {
            store.retired.retire(kept);
        }
        by_name.remove(&store.name);
        self.catalog.remove(&store.name);
        drop((state, by_name));
        tracing::info!(store = %store.name, "removed");
        remove_in_background(trash_path);
        Ok(())
    }

    /// Removes a store that a failed first pull left empty.
    pub fn remove_if_empty(&self, store: &Store) {
        let empty = store.lock().is_ok_and(|state| {
            let pulls_left = store.dir.pulls().map_or(true, |pulls| !pulls.is_empty());
            state.kept.is_empty() && state.live.is_none() && !pulls_left
        });
        if empty && let Err(error) = self.remove(store) {
            tracing::warn!(store = %store.name, %error, "an empty store's folder was not removed");
        }
    }

    /// Drops removed versions without other readers, in pieces. `step` is called after each piece.
    pub fn reap(&self, step: &dyn Fn()) {
        let done: Vec<Arc<Version>> = {
            let mut retired = self.retired.lock();
            // No reader can obtain a removed version, so a count of one stays one.
            retired
                .extract_if(.., |version| Arc::strong_count(version) == 1)
                .collect()
        };
        for version in done.into_iter().filter_map(Arc::into_inner) {
            version.release(step);
        }
    }

    /// One sentence for each store whose live version is damaged or unreadable.
    pub fn damaged(&self) -> Vec<String> {
        let snapshot = self.catalog.load();
        let damaged = snapshot.unavailable().filter(|why| why.cause.is_fault());
        damaged.map(|why| why.reason.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StoreName, Arc<Store>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn lock(&self) -> Result<MutexGuard<'_, StoreState>, Error> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.removed {
            return Err(Error::NoSuchStore(self.name.to_string()));
        }
        Ok(state)
    }

    /// Returns the requested version, or the live one, if it is open.
    pub fn version(
        &self,
        which: Option<VersionSelector>,
    ) -> Result<(VersionId, Arc<Version>), Error> {
        let state = self.lock()?;
        let id = self.resolve(&state, which.unwrap_or(VersionSelector::Live))?;
        Ok((id, self.open_version(&state, id)?))
    }

    /// Resolves a requested version to its number. A number is returned unchanged, whether kept or not.
    fn resolve(&self, state: &StoreState, which: VersionSelector) -> Result<VersionId, Error> {
        match which {
            VersionSelector::Number(id) => Ok(id),
            VersionSelector::Live => state
                .live
                .ok_or_else(|| Error::NoLiveVersion(no_live_version(&self.name).reason)),
            VersionSelector::Previous => state.previous().ok_or_else(|| {
                Error::Refused(format!(
                    "store {} has no earlier version to return to; it keeps {}; name one to make it live",
                    self.name,
                    show_kept(&state.kept)
                ))
            }),
        }
    }

    fn open_version(&self, state: &StoreState, id: VersionId) -> Result<Arc<Version>, Error> {
        match state.kept.get(&id).map(|kept| &kept.opened) {
            Some(Ok(version)) => Ok(version.clone()),
            Some(Err(error)) => {
                let text = format!(
                    "version {id} of store {} cannot be opened: {error}",
                    self.name
                );
                Err(match error {
                    Error::Io(_) => Error::Io(text),
                    _ => Error::Corrupted(text),
                })
            }
            None => Err(self.no_such_version(state, id)),
        }
    }

    /// The live version and its number, if it is open.
    pub fn live(&self) -> Option<(VersionId, Arc<Version>)> {
        let state = self.lock().ok()?;
        let id = state.live?;
        let version = self.open_version(&state, id).ok()?;
        Some((id, version))
    }

    /// All kept versions, the oldest first.
    pub fn kept_versions(&self) -> Vec<VersionId> {
        let state = self.lock();
        state.map_or_else(|_| Vec::new(), |state| state.kept.keys().copied().collect())
    }

    /// The number of times that a version became live since the server started.
    pub fn swap_count(&self) -> u64 {
        self.lock().map_or(0, |state| state.swap_count)
    }

    pub fn open_versions(&self) -> Vec<Arc<Version>> {
        let Ok(state) = self.lock() else {
            return Vec::new();
        };
        let kept = state.kept.values();
        kept.filter_map(|kept| kept.opened.as_ref().ok().cloned())
            .collect()
    }

    /// A version newer than the live one with this digest: the remainder of a pull that ended between publishing and going live.
    pub fn find_published(&self, digest: &str) -> Result<Option<VersionId>, Error> {
        let state = self.lock()?;
        let mut newer = state.kept.iter().filter(|(id, _)| Some(**id) > state.live);
        let found = newer.find(|(_, kept)| {
            let open = kept.opened.as_ref().ok();
            kept.damaged.is_none()
                && open.is_some_and(|version| version.manifest().digest == digest)
        });
        Ok(found.map(|(id, _)| *id))
    }

    /// Returns whether this version is kept and has passed its gates.
    pub fn is_checked(&self, id: VersionId) -> bool {
        let state = self.lock();
        state.is_ok_and(|state| {
            let kept = state.kept.get(&id);
            kept.is_some_and(|kept| kept.unchecked.is_none())
        })
    }

    /// Returns whether a kept version is damaged.
    pub fn has_damage(&self) -> bool {
        let state = self.lock();
        state.is_ok_and(|state| state.kept.values().any(|kept| kept.damaged.is_some()))
    }

    /// The segments of all intact kept versions, by digest.
    pub fn local_segments(&self) -> HashMap<String, PathBuf> {
        let mut segments = HashMap::new();
        let Ok(state) = self.lock() else {
            return segments;
        };
        let is_sound = |kept: &&KeptVersion| kept.damaged.is_none() && kept.unchecked.is_none();
        for kept in state.kept.values().filter(is_sound) {
            let Some(version) = kept.opened.as_ref().ok().filter(|it| it.is_intact()) else {
                continue;
            };
            for partition in version.local_partitions().iter() {
                for entry in version.manifest().partition_entries(partition) {
                    let path = version.path().join(&entry.file);
                    segments.insert(entry.digest.clone(), path);
                }
            }
        }
        segments
    }

    /// Versions that are newer than the live one and whose source begins with `source`.
    pub fn newer_than_live_from(&self, source: &str) -> Result<Vec<VersionId>, Error> {
        let state = self.lock()?;
        let newer = state.kept.iter().filter(|(id, _)| Some(**id) > state.live);
        let is_from_source = |kept: &KeptVersion| {
            let record = kept.record.as_ref();
            record.is_some_and(|record| record.source.starts_with(source))
        };
        Ok(newer
            .filter(|(_, kept)| is_from_source(kept))
            .map(|(id, _)| *id)
            .collect())
    }

    /// Removes a published version, whether listed here or not.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is live.
    pub fn forget(&self, id: VersionId) -> Result<(), Error> {
        let mut state = self.lock()?;
        if state.live == Some(id) {
            return Err(Error::Conflict(format!(
                "version {id} of store {} is live",
                self.name
            )));
        }
        let kept = state.kept.remove(&id);
        drop(state);
        self.unlink(id, kept)
    }

    /// Deletes the files of a version that is no longer listed. This may take long, so the lock is not held: no request can
    /// obtain the version any more.
    fn unlink(&self, id: VersionId, kept: Option<KeptVersion>) -> Result<(), Error> {
        self.dir.remove(id)?;
        if let Some(kept) = kept {
            self.retired.retire(kept);
        }
        tracing::info!(store = %self.name, version = id.0, "version removed");
        Ok(())
    }

    fn no_such_version(&self, state: &StoreState, id: VersionId) -> Error {
        Error::NoSuchVersion {
            store: self.name.clone(),
            version: id.0,
            kept: state.kept.keys().copied().collect(),
        }
    }

    /// Adds a version that was just published, opened and checked.
    pub fn add(
        &self,
        id: VersionId,
        version: Arc<Version>,
        record: PullRecord,
    ) -> Result<(), Error> {
        let kept = KeptVersion {
            record: Some(record),
            opened: Ok(version),
            unchecked: None,
            damaged: None,
        };
        self.lock()?.kept.insert(id, kept);
        Ok(())
    }

    pub fn status(&self, pull: Option<PullStatus>) -> Result<StoreStatus, Error> {
        let state = self.lock()?;
        Ok(StoreStatus {
            name: self.name.clone(),
            live: state.live.map(|id| id.0),
            previous: state.previous().map(|id| id.0),
            versions: state
                .kept
                .iter()
                .rev()
                .map(|(id, kept)| kept.status(*id, state.live == Some(*id)))
                .collect(),
            pull,
        })
    }
}

impl StoreState {
    fn previous(&self) -> Option<VersionId> {
        let live = self.live?;
        let is_usable = |kept: &KeptVersion| {
            kept.opened.is_ok() && kept.unchecked.is_none() && kept.damaged.is_none()
        };
        let kept: Vec<VersionId> = self.kept.keys().copied().collect();
        self.history
            .previous(live, &kept, |id| self.kept.get(&id).is_some_and(is_usable))
    }
}

impl RetiredVersions {
    fn retire(&self, kept: KeptVersion) {
        if let Ok(version) = kept.opened {
            self.lock().push(version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Version>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptVersion {
    fn size_bytes(&self) -> u64 {
        let open = self.opened.as_ref().ok();
        open.map_or(0, |version| version.manifest().size_bytes)
    }

    fn status(&self, id: VersionId, live: bool) -> VersionStatus {
        /// Maximum number of inputs that are listed in a version's source.
        const INPUTS_NAMED: usize = 3;
        let manifest = self.opened.as_ref().ok().map(|version| version.manifest());
        let built = manifest.and_then(|m| m.built.as_ref()).map(built_status);
        let pulled_from = self.record.as_ref().map(|record| record.source.clone());
        let inputs = built
            .as_ref()
            .map(|built| built.describe_inputs(INPUTS_NAMED));
        VersionStatus {
            version: id.0,
            live,
            record_count: manifest.map_or(0, |m| m.record_count),
            size_bytes: manifest.map_or(0, |m| m.size_bytes),
            key_bytes: manifest.map_or(0, |m| m.key_bytes),
            value_bytes: manifest.map_or(0, |m| m.value_bytes),
            partitions: manifest.map_or(0, |m| m.partitions),
            layers: manifest.map_or(1, |m| m.layer_count() as u32),
            compression: manifest.map_or(String::new(), |m| m.compression.to_string()),
            source: inputs.or_else(|| pulled_from.clone()),
            pulled_from,
            pulled_at: self.record.as_ref().map(|record| record.pulled_at),
            resident_bytes: self
                .opened
                .as_ref()
                .ok()
                .map(|version| version.residency().resident_bytes),
            digest: manifest.map_or(String::new(), |m| m.digest.clone()),
            unchecked: self.unchecked.is_some(),
            damaged: self.damaged.clone(),
            built,
        }
    }
}

fn built_status(built: &Built) -> BuiltStatus {
    BuiltStatus {
        by: built.by.clone(),
        at: built.at,
        inputs: built.inputs.clone(),
        more_inputs: built.more_inputs,
        key: built.key.clone(),
        value: built.value.clone(),
        value_column: built.value_column.clone(),
        collect_as: built.collect_as.map(|framing| framing.name().to_owned()),
        options: built.options.clone(),
    }
}

pub(crate) fn no_live_version(name: &StoreName) -> Unavailable {
    Unavailable {
        name: name.clone(),
        version_id: None,
        reason: format!(
            "store {name} has no live version yet; push one with `larder push`, or make a kept one live with `larder store swap`"
        ),
        cause: Cause::NotLive,
    }
}

fn show_kept(kept: &BTreeMap<VersionId, KeptVersion>) -> String {
    let show = |(id, kept): (&VersionId, &KeptVersion)| match kept.damaged {
        Some(_) => format!("version {id} (damaged)"),
        None => format!("version {id}"),
    };
    let shown: Vec<String> = kept.iter().map(show).collect();
    if shown.is_empty() {
        "none".to_owned()
    } else {
        shown.join(", ")
    }
}

/// Deletes a folder on a background thread, because unlinking large files takes long. Leftovers of a crash are removed at the
/// next start.
fn remove_in_background(path: PathBuf) {
    let remove = move || remove_tree(&path);
    if let Err(error) = crate::low_priority::spawn_low_priority("larder-trash", remove) {
        tracing::warn!(%error, "cannot start a thread to empty the trash; the next start empties it");
    }
}

fn remove_tree(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot empty the trash");
        }
        _ => {}
    }
}
