//! Maintenance of stores on low-priority threads. After a start, it reads the live versions into memory. From then on, it
//! measures their residency, closes removed versions, removes old ones, and starts compactions of versions with many layers.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Shared;
use crate::error::Error;
use crate::fetch::Pace;
use crate::fetch::warm::warm_served;
use crate::low_priority::spawn_low_priority;

/// Measuring residency takes at most this fraction (1/200) of one core's time.
const RESIDENCY_SHARE: u32 = 200;
const RESIDENCY_EVERY_MIN: Duration = Duration::from_secs(1);
const RESIDENCY_EVERY_MAX: Duration = Duration::from_secs(60);
const RETENTION_EVERY: Duration = Duration::from_secs(60);

pub struct Maintenance {
    /// Dropping it ends the maintenance thread.
    stop: SyncSender<()>,
    stopping: Arc<AtomicBool>,
    threads: [JoinHandle<()>; 2],
}

impl Maintenance {
    pub fn spawn(shared: Arc<Shared>) -> Result<Maintenance, Error> {
        let failed = |error| Error::Io(format!("cannot start the maintenance threads: {error}"));
        let stopping = Arc::new(AtomicBool::new(false));
        let (warmed, warm_stopping) = (shared.clone(), stopping.clone());
        let warming = spawn_low_priority("larder-warm", move || {
            let _guard = warmed.supervisor.guard();
            warm_served(&warmed, &|| !warm_stopping.load(Relaxed));
        })
        .map_err(failed)?;
        let (stop, stopped) = sync_channel::<()>(0);
        let upkeep_stopping = stopping.clone();
        let upkeep = spawn_low_priority("larder-upkeep", move || {
            let _guard = shared.supervisor.guard();
            let mut retained_at = Instant::now();
            let mut reported = HashSet::new();
            loop {
                shared.hot_keys.merge_samples();
                shared
                    .hot_keys
                    .keep_only(|name| shared.stores.get(name.as_str()).is_ok());
                let pause = refresh_residency(&shared, &mut reported);
                let pace = shared.pulls.throttle.pace();
                shared
                    .stores
                    .reap(&|| release_step(&pace, &upkeep_stopping));
                shared.pulls.compact_all(&shared);
                if retained_at.elapsed() >= RETENTION_EVERY {
                    shared.stores.retain_all(shared.settings.retention());
                    retained_at = Instant::now();
                }
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })
        .map_err(failed)?;
        Ok(Maintenance {
            stop,
            stopping,
            threads: [warming, upkeep],
        })
    }

    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        drop(self.stop);
        for thread in self.threads {
            // The supervisor reports a panic.
            let _ = thread.join();
        }
    }
}

/// Memory is released in pieces with pauses, because unmapping pages of a process interrupts all serving threads.
fn release_step(pace: &Pace<'_>, stopping: &AtomicBool) {
    const PAUSE: Duration = Duration::from_millis(1);
    if !stopping.load(Relaxed) {
        pace.step(0, &|| !stopping.load(Relaxed));
        std::thread::sleep(PAUSE);
    }
}

/// Measures residency, and returns the time until the next measurement. `reported` contains the versions whose damage has been
/// logged.
fn refresh_residency(shared: &Shared, reported: &mut HashSet<PathBuf>) -> Duration {
    let began = Instant::now();
    for store in shared.stores.list() {
        for version in store.open_versions() {
            version.refresh_residency();
            if !version.is_intact() && reported.insert(version.path().to_owned()) {
                tracing::error!(
                    store = %store.name,
                    version = %version.path().display(),
                    "a file of this version was truncated or cannot be read; reads of the lost part fail with CORRUPTED: roll back, or pull it again"
                );
            }
        }
    }
    (began.elapsed() * RESIDENCY_SHARE).clamp(RESIDENCY_EVERY_MIN, RESIDENCY_EVERY_MAX)
}
