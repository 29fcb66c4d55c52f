//! Recovery of stores: reads the data folder at a start.
//!
//! ```text
//! <data>/LOCK                     held by the only server of this folder
//! <data>/trash/                   removed stores, deleted at start
//! <data>/stores/<name>/LIVE       a link to the live version's folder
//! <data>/stores/<name>/v…         published versions
//! <data>/stores/<name>/v….pull    an interrupted pull, which the next pull of its source resumes
//! ```
//!
//! If a live version cannot be opened, the damage is logged as an error, and the store's reads return it: serving an older
//! version instead would be an undetected step back in time. Other stores are served.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use larder_batch::{PublicKey, StoreDir, Version};
use larder_types::{StoreName, VersionId, fault_point};
use rustix::fs::{FlockOperation, flock};

use super::program::Program;
use super::{
    KeptVersion, PullRecord, RetiredVersions, Store, StoreState, Stores, cluster_map, damaged,
    meta, no_live_version, remove_in_background, unchecked,
};
use crate::catalog::{Catalog, Cause, LiveStore, Unavailable};
use crate::descriptors::ensure_half_free;
use crate::error::Error;
use crate::loading::LoadProgress;
use crate::supervision::contain;

/// The lock of the data folder, released whenever the process ends.
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates the data folder if necessary, and locks it.
    pub fn take(data: &Path) -> Result<FolderLock, Error> {
        fs::create_dir_all(data).map_err(Error::io("create the data folder", data))?;
        let path = data.join("LOCK");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            return Err(Error::Io(format!(
                "the data folder {} is in use by another larder server (process {}); stop that one, or choose another folder with --data",
                data.display(),
                if owner.trim().is_empty() {
                    "unknown"
                } else {
                    owner.trim()
                }
            )));
        }
        file.set_len(0).map_err(Error::io("write", &path))?;
        writeln!(file, "{}", std::process::id()).map_err(Error::io("write", &path))?;
        Ok(FolderLock { _file: file })
    }
}

impl Stores {
    /// The stores of a data folder, none of them open yet.
    ///
    /// # Errors
    /// [`Error::Io`] if the stores' folder cannot be created.
    pub fn new(
        data: &Path,
        catalog: Arc<Catalog>,
        follows_cluster: bool,
        signers: Vec<PublicKey>,
        program: Option<Arc<Program>>,
    ) -> Result<Stores, Error> {
        let stores_folder = data.join("stores");
        fs::create_dir_all(&stores_folder).map_err(Error::io("create", &stores_folder))?;
        let trash = trash_folder(data);
        if trash.exists() {
            remove_in_background(trash);
        }
        Ok(Stores {
            data: data.to_owned(),
            catalog,
            follows_cluster,
            signers,
            program,
            applied_epoch: Mutex::default(),
            by_name: Mutex::default(),
            retired: RetiredVersions::default(),
        })
    }

    /// Opens every store in the folder and fills the catalog. If the map `follows_cluster`, the catalog is left to `Stores::show`. No
    /// stores are created or removed meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be read.
    pub fn recover(&self, progress: &LoadProgress) -> Result<(), Error> {
        let names = StoreDir::list(&self.data)?;
        progress.begin_stores(names.len() as u64);
        for name in names {
            fault_point("stores.opening");
            self.recover_or_report(name);
            progress.count_store();
        }
        progress.end_stores();
        Ok(())
    }

    /// Opens a store, or reports why it is not served. The other stores are served all the same.
    fn recover_or_report(&self, name: StoreName) {
        if !self.data.join("stores").join(name.as_str()).is_dir() {
            tracing::warn!(%name, "a file in the stores' folder was ignored");
            return;
        }
        match contain(&format!("opening store {name}"), || {
            self.recover_store(&name)
        }) {
            Ok(store) => {
                self.lock().insert(name, Arc::new(store));
            }
            Err(error) => {
                let reason = format!("store {name} cannot be read: {error}");
                report_fault(&self.catalog, &name, None, Cause::Damaged, reason);
            }
        }
    }

    /// Opens a store's folder, which is created if it is absent, and enters the store in the catalog.
    ///
    /// # Errors
    /// The folder cannot be read or created. A version that cannot be opened is no error: the store is not served then.
    pub(super) fn recover_store(&self, name: &StoreName) -> Result<Store, Error> {
        let dir = StoreDir::open_or_create(&self.data, name)?;
        dir.sweep()?;
        let mut versions = dir.versions()?;
        // The live version comes first, so that it gets its descriptors if there are not enough for all.
        let recorded_live = dir.live().ok().flatten();
        versions.sort_by_key(|id| Some(*id) != recorded_live);
        let kept: BTreeMap<VersionId, KeptVersion> = (versions.into_iter())
            .map(|id| {
                let may_open = if Some(id) == recorded_live {
                    Ok(())
                } else {
                    ensure_half_free()
                };
                (id, open_kept(&dir.version_path(id), name, id, may_open))
            })
            .collect();
        for (id, path) in dir.pulls()? {
            if kept.contains_key(&id) || !path.join(meta::PULL_FILE).exists() {
                dir.remove_pull(id)?;
                tracing::info!(store = %name, version = id.0, "a stale pull was removed");
            } else {
                tracing::info!(store = %name, version = id.0, "a pull was interrupted; the next pull of its source resumes it");
            }
        }
        let (live, unreadable) = match dir.live() {
            Ok(live) => (live, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let damage = match (live, unreadable) {
            _ if self.follows_cluster => None,
            (_, Some(why)) => Some((
                format!("the live version is unknown: {why}"),
                Cause::Damaged,
            )),
            (None, None) => None,
            (Some(id), None) => match kept.get(&id).map(|kept| &kept.opened) {
                Some(Ok(version)) => {
                    tracing::info!(store = %name, version = id.0, "open");
                    self.catalog.swap(LiveStore {
                        name: name.clone(),
                        version_id: id,
                        version: version.clone(),
                    });
                    None
                }
                Some(Err(error)) => Some((
                    format!("its live version {id} cannot be opened: {error}"),
                    match error {
                        Error::Io(_) => Cause::Unreadable,
                        _ => Cause::Damaged,
                    },
                )),
                None => Some((
                    format!("the folder of its live version {id} is missing"),
                    Cause::Damaged,
                )),
            },
        };
        match damage {
            Some((why, cause)) => {
                let remedy = match cause {
                    Cause::Unreadable => "repair that, and restart larder".to_owned(),
                    _ => format!("roll back with `larder store rollback {name}`, or push again"),
                };
                let reason = format!("store {name} cannot be read: {why}; {remedy}");
                report_fault(&self.catalog, name, live, cause, reason);
            }
            None if self.follows_cluster => {
                self.catalog.set_unavailable(cluster_map::map_unknown(name))
            }
            None if live.is_none() => self.catalog.set_unavailable(no_live_version(name)),
            None => {}
        }
        let mut history = meta::LiveHistory::read(dir.path());
        if let Some(live) = live {
            history.record_live(live);
        }
        Ok(Store {
            name: name.clone(),
            dir,
            state: Mutex::new(StoreState {
                kept,
                live,
                history,
                swap_count: 0,
                removed: false,
            }),
            retired: self.retired.clone(),
            program: self.program.clone(),
        })
    }
}

/// Returns the target of a rollback in a store's folder, like the server of that folder. Read-only.
///
/// # Errors
/// [`Error::Io`], or [`Error::Corrupted`] if `LIVE` cannot be read.
pub fn previous_version(dir: &StoreDir) -> Result<Option<VersionId>, Error> {
    let Some(live) = dir.live()? else {
        return Ok(None);
    };
    let is_usable = |id| {
        let path = dir.version_path(id);
        let is_checked = matches!(unchecked::read(&path), Ok(None));
        is_checked && damaged::read(&path).is_none() && Version::open(&path).is_ok()
    };
    Ok(meta::LiveHistory::read(dir.path()).previous(live, &dir.versions()?, is_usable))
}

fn report_fault(
    catalog: &Catalog,
    name: &StoreName,
    live: Option<VersionId>,
    cause: Cause,
    reason: String,
) {
    tracing::error!(store = %name, %reason, "not served");
    catalog.set_unavailable(Unavailable {
        name: name.clone(),
        version_id: live,
        reason,
        cause,
    });
}

fn open_kept(
    path: &Path,
    name: &StoreName,
    id: VersionId,
    may_open: Result<(), Error>,
) -> KeptVersion {
    let record = PullRecord::read(path);
    let unchecked = unchecked::read(path);
    let open = || contain("opening the version", || Ok(Version::open(path)?));
    let opened = match may_open.and_then(|()| open()) {
        Ok(version) if version.manifest().store != *name => Err(Error::Corrupted(format!(
            "its manifest is of store {}",
            version.manifest().store
        ))),
        Ok(version) => Ok(Arc::new(version)),
        Err(error) => Err(error),
    };
    let (unchecked, opened) = match unchecked {
        Ok(unchecked) => (unchecked, opened),
        Err(error) => (None, Err(Error::Corrupted(error.to_string()))),
    };
    if let Err(why) = &opened {
        tracing::error!(store = %name, version = id.0, %why, "a version cannot be opened");
    }
    if unchecked.is_some() {
        tracing::warn!(store = %name, version = id.0, "the server stopped before this version was checked; a swap to it, or another push, checks it");
    }
    let damaged = damaged::read(path);
    if let Some(reason) = &damaged {
        tracing::warn!(store = %name, version = id.0, %reason, "this version was found damaged");
    }
    KeptVersion {
        record,
        opened,
        unchecked,
        damaged,
    }
}

pub(super) fn trash_folder(data: &Path) -> PathBuf {
    data.join("trash")
}
