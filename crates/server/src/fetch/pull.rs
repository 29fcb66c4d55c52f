//! The steps of one pull, in order, on its own thread.
//!
//! What is left on disk when a step fails:
//!
//! | failure | left |
//! |---|---|
//! | source unreachable, server stopped, crash while fetching | `<v>.pull`: the next pull of this source goes on from it |
//! | crash between publishing and the gates' word | the version, said to be unchecked: the next pull of its bytes, or a swap to it, starts at verifying |
//! | crash between that and going live | the version, not live |
//! | wrong manifest, no space, cancelled | nothing |
//! | damaged version, gate refused | nothing |
//!
//! In all of them the live version is untouched: `go_live` is the only step that changes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use larder_batch::{Manifest, Version, fault_point};
use larder_protocol::http::{Gates, PullState};
use larder_remote::Location;
use larder_types::VersionId;
use tokio::sync::watch;

use super::segment::{Fetch, Patience, back_off, remote, stalled};
use super::{Pull, Stop, space, warm};
use crate::Shared;
use crate::error::Error;
use crate::low_priority::lower_this_thread;
use crate::stores::{PullRecord, Store, gates, unchecked, unix_seconds};

/// Runs the pull to its end.
pub fn run(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    tracing::info!(pull = pull.id, store = %pull.store, source = pull.source, "pull started");
    let result = Steps { shared, pull }.all();
    match &result {
        Ok(()) => tracing::info!(pull = pull.id, store = %pull.store, "pull done"),
        Err(error) => {
            tracing::warn!(pull = pull.id, store = %pull.store, %error, "pull ended; the live version is unchanged");
            if let Ok(store) = shared.stores.get(pull.store.as_str()) {
                shared.stores.remove_if_empty(&store);
            }
        }
    }
    result
}

struct Steps<'a> {
    shared: &'a Shared,
    pull: &'a Pull,
}

/// Where the version's bytes are when fetching is to begin.
enum Place {
    /// In a folder that may hold parts of it.
    Partial { id: VersionId, folder: PathBuf },
    /// Published by an earlier pull that did not get further.
    Published { id: VersionId },
}

impl Steps<'_> {
    fn all(&self) -> Result<(), Error> {
        let manifest = self.manifest()?;
        fault_point("pull.manifest");
        let store = self.shared.stores.get_or_create(&self.pull.store)?;
        let id = match self.place(&store, &manifest)? {
            Place::Published { id } => {
                self.pull.resumed(manifest.size_bytes);
                id
            }
            Place::Partial { id, folder } => {
                self.fetch(&store, id, &folder, &manifest)?;
                store.dir.publish(id)?;
                id
            }
        };
        fault_point("pull.published");
        let ready = self.prepare(&store, id);
        if let Err(error) = ready {
            self.remove_refused(&store, id, &error);
            return Err(error);
        }
        if self.pull.request.activate {
            self.pull.enter(PullState::Swapping);
            fault_point("pull.before_live");
            self.shared.stores.go_live(&store, id)?;
            fault_point("pull.swapped");
        }
        if let Err(error) = store.retain(self.shared.settings.retention()) {
            // The new version is live; an old one too many is no reason to say that the pull failed.
            tracing::warn!(store = %store.name, %error, "old versions were not removed");
        }
        fault_point("pull.retained");
        Ok(())
    }

    /// Fetches the manifest and refuses one that is not of this store.
    fn manifest(&self) -> Result<Manifest, Error> {
        let source = self.locate(Manifest::FILE)?;
        let patience = self.patience();
        let bytes = Runtime::new()?.block_on(async {
            tokio::select! {
                bytes = fetch_whole(&source, patience) => bytes,
                () = self.pull.cancelled() => Err(Error::Cancelled),
            }
        })?;
        let wrong = |message: String| Error::Source {
            message,
            retry: false,
        };
        let manifest = Manifest::decode(&source.to_string(), &bytes)
            .map_err(|error| wrong(error.to_string()))?;
        if manifest.store != self.pull.store {
            return Err(wrong(format!(
                "the version at {} is of store {} and was pulled into {}; push it there, or build it with --store {}",
                self.pull.source, manifest.store, self.pull.store, self.pull.store
            )));
        }
        for segment in &manifest.segments {
            if !is_plain_name(&segment.file) {
                return Err(wrong(format!(
                    "the manifest at {} names the file {:?}, which is outside the version's folder",
                    self.pull.source, segment.file
                )));
            }
        }
        self.pull.bytes_total.store(manifest.size_bytes, Relaxed);
        Ok(manifest)
    }

    /// Finds or makes the folder to fetch into, and removes what can no longer be of use.
    fn place(&self, store: &Store, manifest: &Manifest) -> Result<Place, Error> {
        if let Some(id) = store.published_not_live(&manifest.digest)? {
            self.pull.version.store(id.0, Relaxed);
            return Ok(Place::Published { id });
        }
        let newest = store.dir.versions()?.last().copied();
        let mut resumed = None;
        for (id, folder) in store.dir.pulls()? {
            let same =
                PullRecord::read(&folder).is_some_and(|record| record.source == self.pull.source);
            if same && resumed.is_none() && Some(id) > newest {
                tracing::info!(store = %store.name, version = id.0, "going on with an interrupted pull");
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
        Ok(Place::Partial { id, folder })
    }

    /// Reserves space, fetches every segment, and leaves `folder` ready to be published.
    fn fetch(
        &self,
        store: &Store,
        id: VersionId,
        folder: &Path,
        manifest: &Manifest,
    ) -> Result<(), Error> {
        let resumable = || -> Result<(), Error> {
            space::reserve(folder, manifest)?;
            let record = PullRecord {
                source: self.pull.source.clone(),
                pulled_at: unix_seconds(),
            };
            record.write(folder)?;
            unchecked::mark(folder, &self.gates())?;
            let path = folder.join(Manifest::FILE);
            std::fs::write(&path, manifest.encode()).map_err(Error::io("write", &path))?;
            fault_point("pull.reserved");
            self.segments(folder, manifest)?;
            fault_point("pull.fetched");
            Ok(())
        };
        let result = resumable();
        let keep = match &result {
            Ok(()) | Err(Error::Source { .. }) => true,
            Err(Error::Cancelled) => self.pull.stopped() == Some(Stop::Shutdown),
            Err(_) => false,
        };
        if !keep {
            tracing::info!(store = %store.name, version = id.0, "the parts fetched so far are removed");
            store.dir.remove_pull(id)?;
        }
        result
    }

    /// Fetches the segments on several threads. The first failure stops the others.
    fn segments(&self, folder: &Path, manifest: &Manifest) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let failed = watch::Sender::new(false);
        let threads = self.threads()?.clamp(1, manifest.segments.len());
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let worker = || {
                lower_this_thread();
                let result = self.segments_of_one_thread(folder, manifest, &next, &failed);
                if result.is_err() {
                    failed.send_replace(true);
                }
                result
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker.join().unwrap_or_else(|_| {
                        Err(Error::Io("a fetch thread panicked; see the log".to_owned()))
                    })
                })
                .collect()
        });
        self.pull.check_cancelled()?;
        // Threads stopped on account of another's failure say "cancelled"; that other one says why.
        let mut errors = results.into_iter().filter_map(Result::err);
        let first = errors.next();
        match errors.fold(first, |kept, error| match kept {
            Some(Error::Cancelled) => Some(error),
            kept => kept,
        }) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// `fetch.parallel`: they mostly wait for a source. A local one gives as fast as it is asked, and each thread then
    /// fills a core, whatever its priority; readers keep three quarters of them.
    fn threads(&self) -> Result<usize, Error> {
        let parallel = self.shared.config.fetch.parallel as usize;
        if self.root()?.as_local().is_none() {
            return Ok(parallel);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(parallel.min(cores.div_ceil(4)))
    }

    fn segments_of_one_thread(
        &self,
        folder: &Path,
        manifest: &Manifest,
        next: &AtomicUsize,
        failed: &watch::Sender<bool>,
    ) -> Result<(), Error> {
        let runtime = Runtime::new()?;
        let fetch = Fetch {
            pull: self.pull,
            throttle: &self.shared.pulls.throttle,
            patience: self.patience(),
        };
        let root = self.root()?;
        while let Some(entry) = manifest.segments.get(next.fetch_add(1, Relaxed)) {
            let source = root.join(&entry.file).map_err(remote)?;
            let path = folder.join(&entry.file);
            let mut others = failed.subscribe();
            runtime.block_on(async {
                tokio::select! {
                    result = fetch.segment(&source, entry, &path) => result,
                    () = self.pull.cancelled() => Err(Error::Cancelled),
                    _ = others.wait_for(|failed| *failed) => Err(Error::Cancelled),
                }
            })?;
            fault_point("pull.segment");
        }
        Ok(())
    }

    /// Opens, verifies, judges and warms the published version, and adds it to the store.
    fn prepare(&self, store: &Store, id: VersionId) -> Result<(), Error> {
        self.pull.enter(PullState::Verifying);
        let path = store.dir.version_path(id);
        let version = Version::open(&path)?;
        version.verify(&|_| self.pull.stopped().is_none())?;
        self.pull.check_cancelled()?;
        fault_point("pull.verified");
        let live = store.live();
        let live = live.as_ref().map(|(id, version)| (*id, &**version));
        gates::check(&self.gates(), &version, live)?;
        self.pull.enter(PullState::Warming);
        warm::warm_new(self.shared, &version, &|| self.pull.stopped().is_none());
        self.pull.check_cancelled()?;
        fault_point("pull.warmed");
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

    /// The request's gates, with the configuration's where the request has none.
    fn gates(&self) -> Gates {
        let configured = &self.shared.config.stores;
        let asked = self.pull.request.gates.clone().unwrap_or_default();
        Gates {
            min_records: asked.min_records.or(Some(configured.min_records)),
            max_shrink_percent: asked
                .max_shrink_percent
                .or(Some(configured.max_shrink_percent)),
            allow_empty: asked.allow_empty,
            canary: asked.canary,
        }
    }

    fn patience(&self) -> Patience {
        Patience {
            stall_timeout: Duration::from_secs(self.shared.config.fetch.stall_timeout_seconds),
            retries: self.shared.config.fetch.retries,
        }
    }

    fn root(&self) -> Result<Location, Error> {
        self.shared.pulls.locate(&self.pull.request.source)
    }

    fn locate(&self, file: &str) -> Result<Location, Error> {
        self.root()?.join(file).map_err(remote)
    }
}

/// A small file, asked for again after transient faults.
async fn fetch_whole(source: &Location, patience: Patience) -> Result<bytes::Bytes, Error> {
    let mut faults = 0;
    loop {
        let answer =
            tokio::time::timeout(patience.stall_timeout, source.get_all(Manifest::SIZE_MAX));
        let error = match answer.await {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(error)) => remote(error),
            Err(_) => stalled(source, patience.stall_timeout, 0),
        };
        faults += 1;
        if !error.info().retry || faults > patience.retries {
            return Err(error);
        }
        tracing::warn!(%source, faults, %error, "fetch failed; trying again");
        tokio::time::sleep(back_off(faults)).await;
    }
}

/// A runtime whose end waits for nobody: a name server or a file system that hangs holds up no cancel and no stop.
struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    fn new() -> Result<Runtime, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Io(format!("cannot start a runtime for the pull: {error}")))?;
        Ok(Runtime(Some(runtime)))
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let runtime = self.0.as_ref().expect("taken when dropped");
        runtime.block_on(work)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn is_plain_name(file: &str) -> bool {
    !file.is_empty() && !file.contains(['/', '\\', '\0']) && file != "." && file != ".."
}

/// Removes from an interrupted pull what the manifest does not want: the source may have changed.
fn drop_other_files(folder: &Path, manifest: &Manifest) -> Result<(), Error> {
    let before = std::fs::read(folder.join(Manifest::FILE))
        .ok()
        .and_then(|bytes| Manifest::decode("of the interrupted pull", &bytes).ok());
    let wanted = |name: &str| {
        let old = before
            .as_ref()?
            .segments
            .iter()
            .find(|entry| entry.file == name)?;
        let new = manifest.segments.iter().find(|entry| entry.file == name)?;
        (old.digest == new.digest && old.size_bytes == new.size_bytes).then_some(())
    };
    for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        let keep = entry.file_name().to_str().and_then(wanted).is_some();
        if !keep {
            let path = entry.path();
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}
