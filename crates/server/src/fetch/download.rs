//! Files of a version, from where they are to a folder, on several threads.
//!
//! A segment may be had at several places: they are asked in their order, and one that could not give a segment is asked last for
//! those that follow.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use larder_batch::{Manifest, Partitions, SegmentEntry, fault_point};
use larder_remote::Location;
use larder_types::SLOTS;
use tokio::sync::watch;

use super::Pull;
use super::segment::{Fetch, Patience, back_off, remote, stalled};
use crate::Shared;
use crate::error::Error;
use crate::low_priority::lower_this_thread;

/// A fetch of one version's files.
pub struct Download<'a> {
    pub shared: &'a Shared,
    pub pull: &'a Pull,
    /// The first to be asked first.
    pub roots: &'a [Root],
}

/// A folder that holds a version, or those of its partitions that hold some slots.
#[derive(Debug, Clone)]
pub struct Root {
    pub place: Location,
    /// First and last of each range.
    pub slots: Vec<(u16, u16)>,
    /// Of a delta: the one layer whose segments are there; those of any layer may be if it is none.
    pub layer: Option<usize>,
}

impl Root {
    pub fn of_all(place: Location) -> Root {
        Root {
            place,
            slots: vec![(0, SLOTS - 1)],
            layer: None,
        }
    }

    /// Who has one slot of a partition has all of the partition.
    fn may_have(&self, wanted: &Wanted<'_>) -> bool {
        let (first, last) = wanted.entry.slots;
        let overlaps = |&(from, to): &(u16, u16)| from <= last && to >= first;
        self.layer.is_none_or(|layer| layer == wanted.layer) && self.slots.iter().any(overlaps)
    }
}

/// A segment that is wanted, and the file it is fetched into.
pub struct Wanted<'a> {
    pub entry: &'a SegmentEntry,
    /// Counted from the lowest, 0.
    pub layer: usize,
    pub path: PathBuf,
}

impl<'a> Wanted<'a> {
    /// Those of all layers of some partitions, into files of `folder` with the segments' names and `suffix`.
    pub fn of(
        manifest: &'a Manifest,
        partitions: &Partitions,
        folder: &Path,
        suffix: &str,
    ) -> Vec<Wanted<'a>> {
        let wanted = (0..manifest.partitions).filter(|it| partitions.contains(*it));
        wanted
            .flat_map(|partition| manifest.entries_of(partition).enumerate())
            .map(|(layer, entry)| Wanted {
                entry,
                layer,
                path: folder.join(format!("{}{suffix}", entry.file)),
            })
            .collect()
    }
}

/// Why a manifest is not the one that is wanted, to go on from "the version at ROOT".
pub enum Unfit {
    /// It is not signed as the configuration asks.
    Signature(String),
    Other(String),
}

impl Download<'_> {
    /// The first manifest at any of the places that `fits`.
    ///
    /// # Errors
    /// What the first place answered, if none has one.
    pub fn manifest(
        &self,
        fits: &dyn Fn(&Manifest) -> Result<(), Unfit>,
    ) -> Result<Manifest, Error> {
        let mut first = None;
        for root in self.roots {
            match self.manifest_of(&root.place, fits) {
                Ok(manifest) => return Ok(manifest),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(nowhere))
    }

    fn manifest_of(
        &self,
        root: &Location,
        fits: &dyn Fn(&Manifest) -> Result<(), Unfit>,
    ) -> Result<Manifest, Error> {
        let source = root.join(Manifest::FILE).map_err(remote)?;
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
        let manifest = Manifest::decode_any_signature(&source.to_string(), &bytes)
            .map_err(|error| wrong(error.to_string()))?;
        let signed = manifest.check_own_signature().map_err(Unfit::Signature);
        signed
            .and_then(|()| fits(&manifest))
            .map_err(|unfit| match unfit {
                Unfit::Other(why) => wrong(format!("the version at {root} {why}")),
                Unfit::Signature(why) => Error::Refused(format!("the version at {root} {why}")),
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
    pub fn segments(&self, wanted: &[Wanted<'_>]) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let failed = watch::Sender::new(false);
        let useless = Mutex::new(BTreeSet::new());
        let threads = self.threads().clamp(1, wanted.len());
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let worker = || {
                lower_this_thread();
                let result = self.segments_of_one_thread(wanted, &next, &failed, &useless);
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

    fn segments_of_one_thread(
        &self,
        wanted: &[Wanted<'_>],
        next: &AtomicUsize,
        failed: &watch::Sender<bool>,
        useless: &Mutex<BTreeSet<usize>>,
    ) -> Result<(), Error> {
        let runtime = Runtime::new()?;
        let fetch = Fetch {
            pull: self.pull,
            throttle: &self.shared.pulls.throttle,
            patience: self.patience(),
        };
        while let Some(one) = wanted.get(next.fetch_add(1, Relaxed)) {
            let mut others = failed.subscribe();
            runtime.block_on(async {
                tokio::select! {
                    result = self.segment(&fetch, one, useless) => result,
                    () = self.pull.cancelled() => Err(Error::Cancelled),
                    _ = others.wait_for(|failed| *failed) => Err(Error::Cancelled),
                }
            })?;
            fault_point("pull.segment");
        }
        Ok(())
    }

    /// One segment, from the first place that gives it.
    async fn segment(
        &self,
        fetch: &Fetch<'_>,
        wanted: &Wanted<'_>,
        useless: &Mutex<BTreeSet<usize>>,
    ) -> Result<(), Error> {
        let mut order: Vec<usize> = (0..self.roots.len())
            .filter(|at| self.roots[*at].may_have(wanted))
            .collect();
        {
            let useless = useless.lock().unwrap_or_else(PoisonError::into_inner);
            order.sort_by_key(|root| (useless.contains(root), self.roots[*root].layer.is_none()));
        }
        let mut errors: Vec<(usize, Error)> = Vec::new();
        for at in order {
            let root = &self.roots[at].place;
            let source = root.join(&wanted.entry.file).map_err(remote)?;
            match fetch.segment(&source, wanted.entry, &wanted.path).await {
                Ok(()) => return Ok(()),
                Err(error @ Error::Source { .. }) => {
                    if self.roots.len() > 1 {
                        tracing::info!(segment = %source, %error, "not to be had here; trying elsewhere");
                    }
                    let mut useless = useless.lock().unwrap_or_else(PoisonError::into_inner);
                    useless.insert(at);
                    errors.push((at, error));
                }
                Err(error) => return Err(error),
            }
        }
        // Where the layer is said to be says more than where only the delta is.
        let first = errors
            .into_iter()
            .min_by_key(|(at, _)| (self.roots[*at].layer.is_none(), *at));
        Err(first.map_or_else(nowhere, |(_, error)| error))
    }

    /// Where there are other places, a faulty one is not waited for.
    fn patience(&self) -> Patience {
        let patience = Patience::of(self.shared);
        match self.roots.iter().filter(|it| it.layer.is_none()).count() {
            0 | 1 => patience,
            _ => Patience {
                retries: patience.retries.min(1),
                ..patience
            },
        }
    }
}

fn nowhere() -> Error {
    Error::Source {
        message: "there is no place to fetch it from".to_owned(),
        retry: true,
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
