//! Downloads the files of a version into a folder, on several threads.
//!
//! A segment may be available at several places. They are tried in order; a place that could not supply a segment is tried last
//! for the following ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use larder_batch::{Manifest, Partitions, SegmentEntry};
use larder_remote::Location;
use larder_types::{SLOTS, fault_point};
use tokio::sync::watch;

use super::Pull;
use super::segment::{BACK_OFF_MAX, Fetch, RetryPolicy, stall_error, to_source_error};
use crate::Shared;
use crate::back_off::back_off;
use crate::error::Error;
use crate::low_priority::lower_thread_priority;

/// A download of one version's files.
pub struct Download<'a> {
    pub shared: &'a Shared,
    pub pull: &'a Pull,
    /// In order of preference.
    pub roots: &'a [Root],
}

/// A folder with a version, or with the partitions of some of its slots.
#[derive(Debug, Clone)]
pub struct Root {
    pub place: Location,
    /// First and last slot of each range.
    pub slots: Vec<(u16, u16)>,
    /// For a delta: the only layer whose segments are there, or `None` if segments of any layer may be.
    pub layer: Option<usize>,
}

impl Root {
    pub fn for_all_slots(place: Location) -> Root {
        Root {
            place,
            slots: vec![(0, SLOTS - 1)],
            layer: None,
        }
    }

    /// A node that has one slot of a partition has the complete partition.
    fn may_hold(&self, segment: &WantedSegment<'_>) -> bool {
        let (first, last) = segment.entry.slots;
        let overlaps = |&(from, to): &(u16, u16)| from <= last && to >= first;
        self.layer.is_none_or(|layer| layer == segment.layer) && self.slots.iter().any(overlaps)
    }
}

/// A required segment, and the file into which it is fetched.
pub struct WantedSegment<'a> {
    pub entry: &'a SegmentEntry,
    /// The layer, counted from the lowest, which is 0.
    pub layer: usize,
    pub path: PathBuf,
}

impl<'a> WantedSegment<'a> {
    /// The segments of all layers of some partitions, with files in `folder` named after the segments, plus `suffix`.
    pub fn of(
        manifest: &'a Manifest,
        partitions: &Partitions,
        folder: &Path,
        suffix: &str,
    ) -> Vec<WantedSegment<'a>> {
        let numbers = (0..manifest.partitions).filter(|it| partitions.contains(*it));
        numbers
            .flat_map(|partition| manifest.partition_entries(partition).enumerate())
            .map(|(layer, entry)| WantedSegment {
                entry,
                layer,
                path: folder.join(format!("{}{suffix}", entry.file)),
            })
            .collect()
    }
}

/// The reason why a manifest is rejected, as a continuation of "the version at ROOT".
pub enum Mismatch {
    /// It is not signed as the configuration requires.
    Signature(String),
    Other(String),
}

impl Download<'_> {
    /// Returns the first manifest at any of the places that `fits`.
    ///
    /// # Errors
    /// The first place's error, if no place has one.
    pub fn fetch_manifest(
        &self,
        fits: &dyn Fn(&Manifest) -> Result<(), Mismatch>,
    ) -> Result<Manifest, Error> {
        let mut first = None;
        for root in self.roots {
            match self.fetch_manifest_from(&root.place, fits) {
                Ok(manifest) => return Ok(manifest),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(no_source))
    }

    fn fetch_manifest_from(
        &self,
        root: &Location,
        fits: &dyn Fn(&Manifest) -> Result<(), Mismatch>,
    ) -> Result<Manifest, Error> {
        let source = root.join(Manifest::FILE).map_err(to_source_error)?;
        let retry_policy = self.retry_policy();
        let bytes = Runtime::new()?.block_on(async {
            tokio::select! {
                bytes = fetch_manifest_bytes(&source, retry_policy) => bytes,
                () = self.pull.cancelled() => Err(Error::Cancelled),
            }
        })?;
        let wrong = |message: String| Error::Source {
            message,
            retry: false,
        };
        let manifest = Manifest::decode_any_signature(&source.to_string(), &bytes)
            .map_err(|error| wrong(error.to_string()))?;
        let signed = manifest.check_own_signature().map_err(Mismatch::Signature);
        signed
            .and_then(|()| fits(&manifest))
            .map_err(|unfit| match unfit {
                Mismatch::Other(why) => wrong(format!("the version at {root} {why}")),
                Mismatch::Signature(why) => Error::Refused(format!("the version at {root} {why}")),
            })?;
        for segment in manifest.entries() {
            if !is_plain_name(&segment.file) {
                return Err(wrong(format!(
                    "the manifest at {root} names the file {:?}, which is outside the version's folder",
                    segment.file
                )));
            }
        }
        Ok(manifest)
    }

    /// Fetches the segments on several threads. The first failure stops the others.
    pub fn fetch_segments(&self, segments: &[WantedSegment<'_>]) -> Result<(), Error> {
        if segments.is_empty() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let failed = watch::Sender::new(false);
        let failed_roots = Mutex::new(BTreeSet::new());
        let threads = self.threads().clamp(1, segments.len());
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let worker = || {
                lower_thread_priority();
                let result = self.run_worker(segments, &next, &failed, &failed_roots);
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
        // Threads that were stopped because of another thread's failure return `Cancelled`; the other thread's error is the
        // cause.
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

    /// The number of threads: `fetch.parallel`, because they mostly wait for the source. A local source never waits, so that each
    /// thread fills a core regardless of its priority; in that case, three quarters of the cores are left to reads.
    fn threads(&self) -> usize {
        let parallel = self.shared.config.fetch.parallel as usize;
        let is_local = self
            .roots
            .first()
            .is_some_and(|it| it.place.as_local().is_some());
        if !is_local {
            return parallel;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        parallel.min(cores.div_ceil(4))
    }

    fn run_worker(
        &self,
        segments: &[WantedSegment<'_>],
        next: &AtomicUsize,
        failed: &watch::Sender<bool>,
        failed_roots: &Mutex<BTreeSet<usize>>,
    ) -> Result<(), Error> {
        let runtime = Runtime::new()?;
        let fetch = Fetch {
            pull: self.pull,
            throttle: &self.shared.pulls.throttle,
            retry_policy: self.retry_policy(),
        };
        while let Some(segment) = segments.get(next.fetch_add(1, Relaxed)) {
            let mut others = failed.subscribe();
            runtime.block_on(async {
                tokio::select! {
                    result = self.fetch_segment(&fetch, segment, failed_roots) => result,
                    () = self.pull.cancelled() => Err(Error::Cancelled),
                    _ = others.wait_for(|failed| *failed) => Err(Error::Cancelled),
                }
            })?;
            fault_point("pull.segment");
        }
        Ok(())
    }

    /// Fetches one segment from the first place that supplies it.
    async fn fetch_segment(
        &self,
        fetch: &Fetch<'_>,
        segment: &WantedSegment<'_>,
        failed_roots: &Mutex<BTreeSet<usize>>,
    ) -> Result<(), Error> {
        let mut order: Vec<usize> = (0..self.roots.len())
            .filter(|at| self.roots[*at].may_hold(segment))
            .collect();
        {
            let failed_roots = failed_roots.lock().unwrap_or_else(PoisonError::into_inner);
            order.sort_by_key(|root| {
                (
                    failed_roots.contains(root),
                    self.roots[*root].layer.is_none(),
                )
            });
        }
        let mut errors: Vec<(usize, Error)> = Vec::new();
        for at in order {
            let root = &self.roots[at].place;
            let source = root.join(&segment.entry.file).map_err(to_source_error)?;
            match fetch
                .fetch_segment(&source, segment.entry, &segment.path)
                .await
            {
                Ok(()) => return Ok(()),
                Err(error @ Error::Source { .. }) => {
                    if self.roots.len() > 1 {
                        tracing::info!(segment = %source, %error, "the segment is not available here; trying another source");
                    }
                    let mut failed_roots =
                        failed_roots.lock().unwrap_or_else(PoisonError::into_inner);
                    failed_roots.insert(at);
                    errors.push((at, error));
                }
                Err(error) => return Err(error),
            }
        }
        // The error of the layer's own place is more useful than that of a place for the delta.
        let first = errors
            .into_iter()
            .min_by_key(|(at, _)| (self.roots[*at].layer.is_none(), *at));
        Err(first.map_or_else(no_source, |(_, error)| error))
    }

    /// If there are several places, a faulty one gets fewer retries.
    fn retry_policy(&self) -> RetryPolicy {
        let retry_policy = RetryPolicy::from_config(self.shared);
        match self.roots.iter().filter(|it| it.layer.is_none()).count() {
            0 | 1 => retry_policy,
            _ => RetryPolicy {
                retries: retry_policy.retries.min(1),
                ..retry_policy
            },
        }
    }
}

fn no_source() -> Error {
    Error::Source {
        message: "there is no source to fetch it from".to_owned(),
        retry: true,
    }
}

/// Fetches a small file, with retries after transient faults.
async fn fetch_manifest_bytes(
    source: &Location,
    retry_policy: RetryPolicy,
) -> Result<bytes::Bytes, Error> {
    let mut faults = 0;
    loop {
        let answer = tokio::time::timeout(
            retry_policy.stall_timeout,
            source.get_all(Manifest::SIZE_MAX),
        );
        let error = match answer.await {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(error)) => to_source_error(error),
            Err(_) => stall_error(source, retry_policy.stall_timeout, 0),
        };
        faults += 1;
        if !error.info().retry || faults > retry_policy.retries {
            return Err(error);
        }
        tracing::warn!(%source, faults, %error, "fetch failed; trying again");
        tokio::time::sleep(back_off(faults, BACK_OFF_MAX)).await;
    }
}

/// A runtime that does not wait for its tasks when it is dropped, so that a hanging name server or file system does not delay a
/// cancellation or a shutdown.
pub struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    pub fn new() -> Result<Runtime, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Io(format!("cannot start a runtime for the pull: {error}")))?;
        Ok(Runtime(Some(runtime)))
    }

    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
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
