//! Pulls partitions of one of the cluster's versions to this node. The map specifies the version, its digest and the slots.
//!
//! ```text
//!  manifest: kept, or in the interrupted pull, or from the source, or from a peer; its digest must match the map
//!      │
//!      ├─ version not present ──────► <v>.pull: segments ─ note ─ publish ─ verify ─ gates ─ warm ─► kept
//!      └─ some partitions missing ──► <v>: segments in the same folder ─ unchecked ─ note ─ reopen ─ verify ─► kept
//! ```
//!
//! The state after a failed step is as in `pull.rs`. A kept version stays readable throughout; its new partitions become visible
//! once all of them are present.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use larder_batch::version::files;
use larder_batch::{Manifest, Partitions, Version};
use larder_protocol::http::{Gates, PullState};
use larder_types::{StoreName, VersionId, fault_point};

use super::wanted_versions::locate_peer;
use crate::Shared;
use crate::clock::unix_seconds;
use crate::error::Error;
use crate::fetch::download::{Download, Mismatch, Root, WantedSegment};
use crate::fetch::local::{self, LinkedSegments};
use crate::fetch::pull::{check_pullable, drop_other_files, verify_fetched};
use crate::fetch::{Pull, Stop, base_sources, space, warm};
use crate::stores::{PullRecord, Store, gates, unchecked};

/// The suffix of segments that are fetched into the folder of a kept version.
const FETCHED_SUFFIX: &str = ".pull";

/// The parts of a version that must be present.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionRequest {
    pub store: StoreName,
    pub version: VersionId,
    /// The digest of the manifest.
    pub digest: String,
    pub source: String,
    /// First and last slot of each range.
    pub slots: Vec<(u16, u16)>,
    /// The gates that the version must pass; `None` if it has been live.
    pub gates: Option<Gates>,
    /// Nodes to pull from if the source fails.
    pub peers: Vec<Peer>,
}

/// Another node that has slots.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// The URL of the version's folder.
    pub root: String,
    pub slots: Vec<(u16, u16)>,
}

/// Pulls the missing parts, and adds the version to the kept ones.
///
/// # Errors
/// The errors of a pull.
pub fn pull_partitions(
    shared: &Arc<Shared>,
    pull: &Pull,
    order: &VersionRequest,
) -> Result<(), Error> {
    let roots = roots(shared, order);
    let store = shared.stores.get_or_create(&order.store)?;
    PartitionPull {
        shared,
        pull,
        order,
        roots: &roots,
        store: &store,
    }
    .run()
}

/// The places to pull from, the source first. A source that this node may not read is skipped if peers may have the version.
fn roots(shared: &Shared, order: &VersionRequest) -> Vec<Result<Root, Error>> {
    let source = shared.pulls.locate(&order.source).map(Root::for_all_slots);
    let peers = order.peers.iter().map(|peer| {
        Ok(Root {
            place: locate_peer(shared, &peer.root)?,
            slots: peer.slots.clone(),
            layer: None,
        })
    });
    std::iter::once(source).chain(peers).collect()
}

struct PartitionPull<'a> {
    shared: &'a Arc<Shared>,
    pull: &'a Pull,
    order: &'a VersionRequest,
    roots: &'a [Result<Root, Error>],
    store: &'a Store,
}

impl PartitionPull<'_> {
    fn run(&self) -> Result<(), Error> {
        let id = self.order.version;
        self.pull.version.store(id.0, Relaxed);
        let kept = self.store.open_with_digest(id, &self.order.digest)?;
        let manifest = match &kept {
            Some(version) => version.manifest().clone(),
            None => self.load_manifest()?,
        };
        let required = Partitions::of_slots(self.order.slots.iter().copied(), manifest.partitions);
        let here = kept
            .as_ref()
            .map_or_else(Partitions::default, |version| version.local_partitions());
        let missing = required.without(&here);
        let of = |partitions: &Partitions| -> u64 {
            let entries = manifest.entries();
            let some = entries.filter(|entry| partitions.contains(entry.partition.0));
            some.map(|entry| entry.size_bytes).sum()
        };
        self.pull.bytes_total.store(of(&missing), Relaxed);
        match kept {
            None => self.pull_version(&manifest, &required),
            Some(_) if missing.is_empty() => self.store.check_unchecked(id),
            Some(_) => {
                self.store.check_unchecked(id)?;
                self.add_partitions(&manifest, &here, &missing)
            }
        }
    }

    fn load_manifest(&self) -> Result<Manifest, Error> {
        let path = self.store.dir.pull_path(self.order.version);
        let fetched = files::read_regular(&path.join(Manifest::FILE)).ok();
        let fetched =
            fetched.and_then(|bytes| Manifest::decode("of the interrupted pull", &bytes).ok());
        if let Some(manifest) = fetched.filter(|it| it.digest == self.order.digest) {
            return Ok(manifest);
        }
        let (store, digest) = (&self.order.store, &self.order.digest);
        self.with_download(|download| {
            download.fetch_manifest(&|manifest| {
                check_pullable(self.shared, manifest, store)?;
                if manifest.digest == *digest { Ok(()) } else { Err(Mismatch::Other(format!(
                        "has digest {}, and the pushed version has {digest}: it is another version, or it was changed",
                        manifest.digest
                    ))) }
            })
        })
    }

    fn fetch(&self, manifest: &Manifest, segments: &[WantedSegment<'_>]) -> Result<(), Error> {
        let base = base_sources::find_base_sources(
            self.shared,
            self.pull,
            manifest,
            &self.order.source,
            segments,
        )?;
        let fetched = self.with_download(|download| {
            let roots = [download.roots, &base.roots].concat();
            Download {
                roots: &roots,
                ..download
            }
            .fetch_segments(segments)
        });
        fetched.map_err(|error| base.explain(error))
    }

    /// If a source may not be read and no other node has the version, returns the source's error.
    fn with_download<T>(
        &self,
        work: impl FnOnce(Download<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let roots: Vec<Root> = self.roots.iter().flatten().cloned().collect();
        let done = work(Download {
            shared: self.shared,
            pull: self.pull,
            roots: &roots,
        });
        match (done, &self.roots[0]) {
            (Err(Error::Source { .. }), Err(refused)) => Err(refused.clone()),
            (done, _) => done,
        }
    }

    /// Pulls a version that is not present.
    fn pull_version(&self, manifest: &Manifest, required: &Partitions) -> Result<(), Error> {
        let (id, store) = (self.order.version, self.store);
        let folder = store.dir.begin_pull(id)?;
        let fetched = self.fetch_version(&folder, manifest, required);
        if !self.can_resume(&fetched) {
            store.dir.remove_pull(id)?;
        }
        let linked = fetched?;
        fault_point("pull.fetched");
        // The folder in its place belongs to another version with this number.
        store.remove_stale(id)?;
        store.dir.publish(id)?;
        fault_point("pull.published");
        let ready = self.prepare(id, &linked);
        if let Err(error) = &ready
            && self.pull.stopped() != Some(Stop::Shutdown)
        {
            tracing::info!(store = %store.name, version = id.0, %error, "the refused version is removed");
            store.forget(id)?;
        }
        ready
    }

    fn fetch_version(
        &self,
        folder: &Path,
        manifest: &Manifest,
        partitions: &Partitions,
    ) -> Result<LinkedSegments, Error> {
        drop_other_files(folder, manifest)?;
        let segments = WantedSegment::of(manifest, partitions, folder, "");
        let (segments, linked) = local::link_local_segments(self.store, self.pull, segments)?;
        space::reserve(folder, &segments)?;
        self.record().write(folder)?;
        unchecked::mark(
            folder,
            &self.order.gates.clone().unwrap_or_else(gates::accept_all),
        )?;
        let path = folder.join(Manifest::FILE);
        std::fs::write(&path, manifest.encode()).map_err(Error::io("write", &path))?;
        fault_point("pull.reserved");
        self.fetch(manifest, &segments)?;
        // An interrupted pull may have had other slots.
        partitions.keep_only(folder, manifest)?;
        Ok(linked)
    }

    fn record(&self) -> PullRecord {
        PullRecord {
            source: self.pull.source.clone(),
            pulled_at: unix_seconds(),
        }
    }

    fn can_resume<T>(&self, result: &Result<T, Error>) -> bool {
        match result {
            Ok(_) | Err(Error::Source { .. }) => true,
            Err(Error::Cancelled) => self.pull.stopped() == Some(Stop::Shutdown),
            Err(_) => false,
        }
    }

    /// Opens, verifies, checks and warms the published version, and adds it to the store.
    fn prepare(&self, id: VersionId, linked: &LinkedSegments) -> Result<(), Error> {
        self.pull.enter(PullState::Verifying);
        let path = self.store.dir.version_path(id);
        let version = Version::open(&path)?;
        let should_continue = || self.pull.stopped().is_none();
        verify_fetched(self.shared, self.pull, &version, linked)?;
        self.pull.check_cancelled()?;
        if let Some(gates) = &self.order.gates {
            let live = self.store.live();
            let live = live.as_ref().map(|(id, version)| (*id, &**version));
            let program = self.shared.stores.program();
            let verdict = gates::check(gates, program, &version, live, &should_continue);
            self.pull.check_cancelled()?;
            verdict?;
        }
        self.warm(&version)?;
        unchecked::clear(&path)?;
        fault_point("pull.checked");
        let record = PullRecord::read(&path).unwrap_or_default();
        self.store.add(id, Arc::new(version), record)
    }

    fn warm(&self, version: &Version) -> Result<(), Error> {
        self.pull.enter(PullState::Warming);
        let should_continue = || self.pull.stopped().is_none();
        warm::warm_new(self.shared, version, &should_continue);
        warm::warm_hot_keys(self.shared, &self.store.name, version, &should_continue);
        version.refresh_residency();
        self.pull.check_cancelled()
    }

    /// Adds partitions to a kept version.
    fn add_partitions(
        &self,
        manifest: &Manifest,
        here: &Partitions,
        missing: &Partitions,
    ) -> Result<(), Error> {
        let id = self.order.version;
        let folder = self.store.dir.version_path(id);
        let segments = || WantedSegment::of(manifest, missing, &folder, FETCHED_SUFFIX);
        let (fetching, _) = local::link_local_segments(self.store, self.pull, segments())?;
        let fetched =
            space::reserve(&folder, &fetching).and_then(|()| self.fetch(manifest, &fetching));
        let segments = segments();
        if !self.can_resume(&fetched) {
            for segment in &segments {
                let _ = std::fs::remove_file(&segment.path);
            }
        }
        fetched?;
        for WantedSegment { entry, path, .. } in &segments {
            files::sync_file(path)?;
            let to = folder.join(&entry.file);
            std::fs::rename(path, &to).map_err(Error::io("rename to its place", &to))?;
        }
        files::sync_folder(&folder)?;
        // After a crash, the server verifies all of the version at its next start.
        unchecked::mark_kept(&folder, &gates::accept_all())?;
        here.with(missing).write(&folder)?;
        fault_point("pull.added");
        self.pull.enter(PullState::Verifying);
        let version = Version::open(&folder)?;
        let should_continue = || self.pull.stopped().is_none();
        let pace = self.shared.pulls.throttle.pace();
        let verified =
            version.verify_partitions(missing, &|done| pace.advance_to(done, &should_continue));
        if let Err(error) = verified {
            here.keep_only(&folder, manifest)?;
            unchecked::clear(&folder)?;
            return Err(error.into());
        }
        unchecked::clear(&folder)?;
        self.warm(&version)?;
        self.store.replace(id, Arc::new(version))
    }
}

/// Removes the partitions whose slots are elsewhere from a kept version's folder. Readers of the version are not affected.
///
/// # Errors
/// [`Error::Io`], [`Error::Corrupted`]. The partitions may then remain on disk, but are not reported.
pub fn drop_partitions(store: &Store, id: VersionId, keep: &Partitions) -> Result<(), Error> {
    let (_, version) = store.version(Some(larder_types::VersionSelector::Number(id)))?;
    let folder = store.dir.version_path(id);
    keep.keep_only(&folder, version.manifest())?;
    let left = Version::open(&folder)?;
    left.refresh_residency();
    store.replace(id, Arc::new(left))
}
