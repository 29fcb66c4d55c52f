//! The copy of the cluster's map in a node's data folder, `map.json`: the newest map that the node applied.
//!
//! A separate thread writes it, so that a slow disk delays nothing else. If several maps arrive during a write, it writes only
//! the last. A killed node may therefore return with a copy that is some changes older. The comparison with etcd's map needs only
//! a lower bound, and a recovery uses the newest copy of all nodes. A failed write is retried every second.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_batch::version::files;
use larder_cluster::map::Map;

use crate::error::Error;
use crate::log_limit::LogLimit;

const FILE: &str = "map.json";
/// The pause before a failed write is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Writes copies until it is dropped.
pub struct MapCopy {
    shared: Arc<WriterState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WriterState {
    pending: Mutex<PendingWrite>,
    changed: Condvar,
}

#[derive(Default)]
struct PendingWrite {
    map: Option<Arc<Map>>,
    is_stopping: bool,
}

/// Reads the copy of a data folder; `None` if it has none.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Corrupted`] if it is not a map.
pub fn read(data: &Path) -> Result<Option<Map>, Error> {
    let path = data.join(FILE);
    let text = match files::read_regular(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let map = Map::from_text(&text).map_err(|why| {
        Error::Corrupted(format!(
            "{}: {why}; if etcd's data is known to be the newest, remove the file",
            path.display()
        ))
    })?;
    Ok(Some(map))
}

impl MapCopy {
    /// Starts the thread that writes copies to a data folder.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be created.
    pub fn start(data: &Path) -> Result<MapCopy, Error> {
        let shared = Arc::new(WriterState::default());
        let (path, its_own) = (data.join(FILE), shared.clone());
        let thread = std::thread::Builder::new()
            .name("larder-map".to_owned())
            .spawn(move || its_own.write_all(&path));
        let thread = thread.map_err(|error| {
            Error::Io(format!(
                "cannot start the thread that writes the map: {error}"
            ))
        })?;
        Ok(MapCopy {
            shared,
            thread: Some(thread),
        })
    }

    /// Schedules a write of this map, unless a newer one follows first.
    pub fn schedule_write(&self, map: Arc<Map>) {
        self.shared.update(|next| next.map = Some(map));
    }
}

impl Drop for MapCopy {
    fn drop(&mut self) {
        self.shared.update(|next| next.is_stopping = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the map panicked");
        }
    }
}

impl WriterState {
    fn update(&self, change: impl FnOnce(&mut PendingWrite)) {
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Writes maps as they arrive, including the last one, until the end.
    fn write_all(&self, path: &Path) {
        let failed = LogLimit::default();
        loop {
            let next = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            let is_idle = |next: &mut PendingWrite| next.map.is_none() && !next.is_stopping;
            let waited = self.changed.wait_while(next, is_idle);
            let map = waited.unwrap_or_else(PoisonError::into_inner).map.take();
            let Some(map) = map else { return };
            let Err(error) = files::write_durably(path, map.to_text().as_bytes()) else {
                continue;
            };
            if let Some(times) = failed.note() {
                tracing::warn!(%error, times, "the copy of the cluster's map cannot be written; the node retries every second");
            }
            let mut next = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if next.is_stopping {
                return;
            }
            next.map.get_or_insert(map);
            let waits = |next: &mut PendingWrite| !next.is_stopping;
            let _ = self.changed.wait_timeout_while(next, RETRY_PAUSE, waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_cluster::map::{Change, ChangeId, ClusterId, Epoch, Settings};

    use super::*;

    #[test]
    fn the_last_map_is_written_before_the_copy_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap().is_none());
        let copy = MapCopy::start(folder.path()).unwrap();
        let mut map = Map::new("main", Settings::default()).with_id(ClusterId(5));
        for spare_percent in 10..30 {
            let settings = Settings {
                spare_percent,
                ..Settings::default()
            };
            let change = Change::SettingsChanged { settings };
            map = map.apply(&change, &ChangeId::default()).unwrap();
            copy.schedule_write(Arc::new(map.clone()));
        }
        drop(copy);
        let kept = read(folder.path()).unwrap().unwrap();
        assert_eq!((kept.id(), kept.epoch()), (ClusterId(5), Epoch(20)));
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let why = read(folder.path()).unwrap_err().to_string();
        assert!(why.contains("map.json"), "{why}");
    }
}
