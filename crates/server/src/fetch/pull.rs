//! The steps of one pull, in order, on its own thread.
//!
//! State on disk after a failed step:
//!
//! | failure | state on disk |
//! |---|---|
//! | source unreachable, server stopped, crash while fetching | `<v>.pull`: the next pull from this source resumes it |
//! | crash between publishing and the result of the gates | the version, marked as unchecked: the next pull of the same bytes, or a swap to it, starts with the verification |
//! | crash between that and going live | the version, not live |
//! | wrong manifest, no space, cancelled | nothing |
//! | damaged version, rejected by a gate | nothing; or, if an earlier pull had completed the version, that version |
//!
//! The live version is unchanged in all cases: `go_live` is the only step that changes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use larder_batch::version::files;
use larder_batch::{Manifest, Partitions, SegmentEntry, Version};
use larder_protocol::http::{Gates, PullState};
use larder_types::{StoreName, VersionId, fault_point};

use super::download::{Download, Mismatch, Root, WantedSegment};
use super::local::{self, LinkedSegments};
use super::{Pull, Stop, base_sources, space, warm};
use crate::Shared;
use crate::clock::unix_seconds;
use crate::descriptors::ensure_room;
use crate::error::Error;
use crate::stores::{PullRecord, Store, gates, unchecked};
use crate::supervision::contain;

/// Runs the pull to its end.
pub fn run(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    tracing::info!(pull = pull.id, store = %pull.store, source = pull.source, "pull started");
    let steps = shared
        .pulls
        .locate(&pull.request.source)
        .map(|root| StorePull {
            shared,
            pull,
            roots: [Root::for_all_slots(root)],
        });
    let result = steps.and_then(|steps| steps.run());
    match &result {
        Ok(()) => {
            let bytes_per_second = pull.status().bytes_per_second;
            tracing::info!(pull = pull.id, store = %pull.store, bytes_per_second, "pull done");
        }
        Err(error) => {
            tracing::warn!(pull = pull.id, store = %pull.store, %error, "pull ended; the live version is unchanged");
            if let Ok(store) = shared.stores.get(pull.store.as_str()) {
                shared.stores.remove_if_empty(&store);
            }
        }
    }
    result
}

struct StorePull<'a> {
    shared: &'a Shared,
    pull: &'a Pull,
    /// The source.
    roots: [Root; 1],
}

/// The location of the version's bytes when fetching starts.
enum PullTarget {
    /// In a folder that may contain parts of it.
    Partial { id: VersionId, folder: PathBuf },
    /// Published by an earlier pull, and not live.
    Published { id: VersionId },
}

impl StorePull<'_> {
    fn run(&self) -> Result<(), Error> {
        let manifest = self.fetch_manifest()?;
        fault_point("pull.manifest");
        let store = self.shared.stores.get_or_create(&self.pull.store)?;
        let (id, linked) = match self.choose_target(&store, &manifest)? {
            PullTarget::Published { id } => {
                self.pull.count_resumed(manifest.size_bytes);
                (id, LinkedSegments::default())
            }
            PullTarget::Partial { id, folder } => {
                let linked = self.fetch(&store, id, &folder, &manifest)?;
                store.dir.publish(id)?;
                (id, linked)
            }
        };
        fault_point("pull.published");
        // A version that has already passed its gates may be swapped in or removed by others while it is checked again.
        let is_kept = store.is_checked(id);
        let what = format!("verifying version {id} of store {}", store.name);
        let ready = contain(&what, || self.prepare(&store, id, &linked, is_kept));
        if let Err(error) = ready {
            if !is_kept {
                self.remove_refused(&store, id, &error);
            }
            return Err(error);
        }
        if self.pull.request.activate {
            self.pull.enter(PullState::Swapping);
            fault_point("pull.before_live");
            self.shared.stores.go_live(&store, id)?;
            fault_point("pull.swapped");
        }
        if let Err(error) = store.retain(self.shared.settings.retention()) {
            // The new version is live; a surplus old version does not make the pull a failure.
            tracing::warn!(store = %store.name, %error, "old versions were not removed");
        }
        fault_point("pull.retained");
        Ok(())
    }

    /// Fetches the manifest, and rejects one of another store.
    fn fetch_manifest(&self) -> Result<Manifest, Error> {
        let store = &self.pull.store;
        let manifest = self
            .download()
            .fetch_manifest(&|manifest| check_pullable(self.shared, manifest, store))?;
        ensure_room(manifest.entries().count(), &self.shared.config)?;
        self.pull.bytes_total.store(manifest.size_bytes, Relaxed);
        Ok(manifest)
    }

    fn download(&self) -> Download<'_> {
        Download {
            shared: self.shared,
            pull: self.pull,
            roots: &self.roots,
        }
    }

    /// Finds or creates the folder to fetch into, and removes leftovers that are no longer useful.
    fn choose_target(&self, store: &Store, manifest: &Manifest) -> Result<PullTarget, Error> {
        let published = store.find_published(&manifest.digest)?;
        // The same data may be present with another signature, or with none.
        if let Some(id) = published.filter(|id| self.is_signed(store, *id)) {
            self.pull.version.store(id.0, Relaxed);
            return Ok(PullTarget::Published { id });
        }
        let newest = store.dir.versions()?.last().copied();
        let mut resumed = None;
        for (id, folder) in store.dir.pulls()? {
            let same =
                PullRecord::read(&folder).is_some_and(|record| record.source == self.pull.source);
            if same && resumed.is_none() && Some(id) > newest {
                tracing::info!(store = %store.name, version = id.0, "resuming an interrupted pull");
                resumed = Some((id, folder));
            } else {
                store.dir.remove_pull(id)?;
            }
        }
        let (id, folder) = match resumed {
            Some(resumed) => resumed,
            None => {
                let id = store.dir.next_version()?;
                (id, store.dir.begin_pull(id)?)
            }
        };
        self.pull.version.store(id.0, Relaxed);
        drop_other_files(&folder, manifest)?;
        Ok(PullTarget::Partial { id, folder })
    }

    fn is_signed(&self, store: &Store, id: VersionId) -> bool {
        let path = store.dir.version_path(id).join(Manifest::FILE);
        let manifest = files::read_regular(&path).ok();
        let manifest = manifest.and_then(|it| Manifest::decode("of a published version", &it).ok());
        manifest.is_none_or(|it| self.shared.stores.check_signature(&it).is_ok())
    }

    /// Reserves space, fetches every segment, and leaves `folder` ready to be published.
    fn fetch(
        &self,
        store: &Store,
        id: VersionId,
        folder: &Path,
        manifest: &Manifest,
    ) -> Result<LinkedSegments, Error> {
        let fetch_resumable = || -> Result<LinkedSegments, Error> {
            let all = Partitions::all(manifest.partitions);
            let segments = WantedSegment::of(manifest, &all, folder, "");
            let (segments, linked) = local::link_local_segments(store, self.pull, segments)?;
            fault_point("pull.linked");
            space::reserve(folder, &segments)?;
            let record = PullRecord {
                source: self.pull.source.clone(),
                pulled_at: unix_seconds(),
            };
            record.write(folder)?;
            unchecked::mark(folder, &self.gates())?;
            let path = folder.join(Manifest::FILE);
            std::fs::write(&path, manifest.encode()).map_err(Error::io("write", &path))?;
            fault_point("pull.reserved");
            let source = &self.pull.request.source;
            let base = base_sources::find_base_sources(
                self.shared,
                self.pull,
                manifest,
                source,
                &segments,
            )?;
            let roots = [&self.roots[..], &base.roots].concat();
            let download = Download {
                roots: &roots,
                ..self.download()
            };
            let fetched = download.fetch_segments(&segments);
            fetched.map_err(|error| base.explain(error))?;
            fault_point("pull.fetched");
            Ok(linked)
        };
        let result = fetch_resumable();
        let keep = match &result {
            Ok(_) | Err(Error::Source { .. }) => true,
            Err(Error::Cancelled) => self.pull.stopped() == Some(Stop::Shutdown),
            Err(_) => false,
        };
        if !keep {
            tracing::info!(store = %store.name, version = id.0, "the parts fetched so far are removed");
            store.dir.remove_pull(id)?;
        }
        result
    }

    /// Opens, verifies, checks and warms the published version, and adds it to the store, unless the store already keeps it.
    fn prepare(
        &self,
        store: &Store,
        id: VersionId,
        linked: &LinkedSegments,
        is_kept: bool,
    ) -> Result<(), Error> {
        self.pull.enter(PullState::Verifying);
        let path = store.dir.version_path(id);
        let version = Version::open(&path)?;
        let should_continue = || self.pull.stopped().is_none();
        verify_fetched(self.shared, self.pull, &version, linked)?;
        self.pull.check_cancelled()?;
        fault_point("pull.verified");
        let live = store.live();
        let live = live.as_ref().map(|(id, version)| (*id, &**version));
        let program = self.shared.stores.program();
        let verdict = gates::check(&self.gates(), program, &version, live, &should_continue);
        // The result of a program that was terminated by the cancellation does not count.
        self.pull.check_cancelled()?;
        verdict?;
        self.pull.enter(PullState::Warming);
        warm::warm_new(self.shared, &version, &should_continue);
        warm::warm_hot_keys(self.shared, &store.name, &version, &should_continue);
        self.pull.check_cancelled()?;
        fault_point("pull.warmed");
        if is_kept {
            return if store.is_checked(id) {
                Ok(())
            } else {
                Err(Error::Conflict(format!(
                    "version {id} of store {}, which has these bytes, was removed during its checks; push it again",
                    store.name
                )))
            };
        }
        unchecked::clear(&path)?;
        fault_point("pull.checked");
        let record = PullRecord::read(&path).unwrap_or_default();
        store.add(id, Arc::new(version), record)
    }

    fn remove_refused(&self, store: &Store, id: VersionId, error: &Error) {
        if self.pull.stopped() == Some(Stop::Shutdown) {
            return;
        }
        tracing::info!(store = %store.name, version = id.0, %error, "the refused version is removed");
        if let Err(error) = store.forget(id) {
            tracing::warn!(store = %store.name, version = id.0, %error, "a refused version was not removed");
        }
    }

    fn gates(&self) -> Gates {
        gates::merge_with_config(
            self.shared,
            &self.pull.store,
            self.pull.request.gates.clone(),
        )
    }
}

/// Rejects a manifest of another store, and one that is not signed as the configuration requires.
pub(super) fn check_pullable(
    shared: &Shared,
    manifest: &Manifest,
    store: &StoreName,
) -> Result<(), Mismatch> {
    if manifest.store == *store {
        shared
            .stores
            .check_signature(manifest)
            .map_err(Mismatch::Signature)
    } else {
        Err(Mismatch::Other(format!(
            "is of store {} and was pulled into {store}; push it there, or build it with --store {store}",
            manifest.store
        )))
    }
}

/// Verifies the fetched files of a version.
pub(super) fn verify_fetched(
    shared: &Shared,
    pull: &Pull,
    version: &Version,
    linked: &LinkedSegments,
) -> Result<(), Error> {
    let here = version.local_partitions();
    let is_fetched = |entry: &SegmentEntry| !linked.has(entry);
    let pace = shared.pulls.throttle.pace();
    let should_continue = || pull.stopped().is_none();
    version.verify_files(&here, &is_fetched, &|done| {
        pace.advance_to(done, &should_continue)
    })?;
    Ok(())
}

/// Removes files that the manifest does not list from an interrupted pull, because the source may have changed.
pub(super) fn drop_other_files(folder: &Path, manifest: &Manifest) -> Result<(), Error> {
    let before = files::read_regular(&folder.join(Manifest::FILE))
        .ok()
        .and_then(|bytes| Manifest::decode("of the interrupted pull", &bytes).ok());
    let is_reusable = |name: &str| {
        let old = before
            .as_ref()?
            .entries()
            .find(|entry| entry.file == name)?;
        let new = manifest.entries().find(|entry| entry.file == name)?;
        (old.digest == new.digest && old.size_bytes == new.size_bytes).then_some(())
    };
    for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        let keep = entry.file_name().to_str().and_then(is_reusable).is_some();
        if !keep {
            let path = entry.path();
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}
