//! The coordination service for a single node: the file `cluster.json` in the data folder. It needs no setup.
//!
//! 1. A change takes effect when the new file is in place: it is written under a temporary name, synced and renamed, and the
//!    folder is synced. A crash leaves the old file or the new one.
//! 2. Only one process uses the file: it holds a lock on `cluster.lock`, which is released when the process ends.
//! 3. The process's lease is_held as long as the process. Keys bound to the lease of an earlier process are deleted when the file
//!    is opened.
//! 4. Watches receive the changes of this process, which are all changes. The events of some thousand past revisions are
//!    available.
//!
//! The file does not support more than one node, not even on a shared file system.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::store::Store;
use super::{
    Coordination, Entry, Error, KeyEvent, Keys, LeaseId, Request, Response, Revision, WatchItem,
};

const FILE: &str = "cluster.json";
const TEMPORARY_FILE: &str = "cluster.json.new";
const LOCK: &str = "cluster.lock";

/// Number of past events that are kept for watches.
const EVENTS_KEPT: usize = 4096;

/// Exceeds the lifetime of any machine.
const UNLIMITED_SECONDS: u32 = u32::MAX;

#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    _lock: File,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    state: Mutex<EmbeddedState>,
    /// Notifies watches of the revision of each change.
    changed: watch::Sender<Revision>,
}

#[derive(Debug)]
struct EmbeddedState {
    store: Store,
    /// The leases of this process that have not been revoked.
    leases: BTreeSet<LeaseId>,
    last_lease: u64,
    events: VecDeque<KeyEvent>,
    /// All events after this revision are kept.
    kept_after: Revision,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileContents {
    format: u32,
    revision: u64,
    /// Lease numbers continue across processes, so that no number is reused.
    last_lease: u64,
    entries: Vec<StoredEntry>,
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    key: String,
    created: u64,
    modified: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<u64>,
    #[serde(flatten)]
    value: StoredValue,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredValue {
    Text(String),
    Base64(String),
}

const FORMAT: u32 = 1;

impl Embedded {
    /// Opens the file in this folder, or creates it. The folder must exist.
    ///
    /// # Errors
    /// [`Error::Refused`] if another process has the file open, or if it cannot be read.
    pub fn open(folder: &Path) -> Result<Embedded, Error> {
        let lock = lock(folder)?;
        let path = folder.join(FILE);
        let stored = read(&path)?;
        let earlier: Vec<u64> = stored
            .entries
            .iter()
            .filter_map(|entry| entry.lease)
            .collect();
        let entries: Result<Vec<Entry>, String> = stored
            .entries
            .into_iter()
            .map(StoredEntry::decode)
            .collect();
        let entries = entries.map_err(|why| unreadable(&path, &why))?;
        let mut store = Store::new(Revision(stored.revision), entries);
        for lease in earlier {
            store.end_lease(LeaseId(lease));
        }
        let kept_after = store.revision();
        let state = EmbeddedState {
            store,
            leases: BTreeSet::new(),
            last_lease: stored.last_lease,
            events: VecDeque::new(),
            kept_after,
        };
        Ok(Embedded {
            shared: Arc::new(Shared {
                folder: folder.to_owned(),
                state: Mutex::new(state),
                changed: watch::Sender::new(kept_after),
            }),
            _lock: lock,
        })
    }
}

fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let refused = |why: &dyn std::fmt::Display| {
        Error::Refused(format!("{} cannot be locked: {why}", path.display()))
    };
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        // To read and write: opening a pipe to write alone waits for a reader.
        .read(true)
        .write(true)
        .open(&path);
    let file = opened.map_err(|error| refused(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(refused(
            &"another larder process uses this data folder; stop it, or configure another folder",
        )),
        Err(TryLockError::Error(error)) => Err(refused(&error)),
    }
}

fn read(path: &Path) -> Result<FileContents, Error> {
    let is_regular = |it: fs::Metadata| {
        if it.is_file() {
            Ok(())
        } else {
            // A read of a pipe would wait forever.
            Err(io::Error::other("it is not a regular file"))
        }
    };
    let read = fs::metadata(path).and_then(is_regular);
    let text = match read.and_then(|()| fs::read(path)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(FileContents {
                format: FORMAT,
                revision: 0,
                last_lease: 0,
                entries: Vec::new(),
            });
        }
        Err(error) => return Err(unreadable(path, &error)),
    };
    let stored: FileContents =
        serde_json::from_slice(&text).map_err(|error| unreadable(path, &error))?;
    match stored.format {
        FORMAT => Ok(stored),
        other => Err(unreadable(
            path,
            &format!(
                "it has format {other}, and this version reads format {FORMAT}; run the version that wrote it"
            ),
        )),
    }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Refused(format!("{} cannot be read: {why}", path.display()))
}

impl StoredEntry {
    fn encode(entry: &Entry) -> StoredEntry {
        StoredEntry {
            key: entry.key.clone(),
            created: entry.created.0,
            modified: entry.modified.0,
            lease: entry.lease.map(|lease| lease.0),
            value: match std::str::from_utf8(&entry.value) {
                Ok(text) => StoredValue::Text(text.to_owned()),
                Err(_) => StoredValue::Base64(BASE64_STANDARD.encode(&entry.value)),
            },
        }
    }

    fn decode(self) -> Result<Entry, String> {
        let value = match self.value {
            StoredValue::Text(text) => Bytes::from(text),
            StoredValue::Base64(text) => BASE64_STANDARD
                .decode(text)
                .map_err(|error| format!("the value of {}: {error}", self.key))?
                .into(),
        };
        Ok(Entry {
            key: self.key,
            value,
            created: Revision(self.created),
            modified: Revision(self.modified),
            lease: self.lease.map(LeaseId),
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, EmbeddedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, request: Request) -> Result<Response, Error> {
        let mut state = self.state();
        match request {
            Request::Read { keys, .. } => Ok(Response::Read(state.store.read(&keys))),
            Request::RecentWrites { keys, after } => Ok(Response::RecentWrites(
                state.store.recent_writes(&keys, after),
            )),
            Request::Grant { .. } => {
                let lease = LeaseId(state.last_lease + 1);
                self.write(&state.store, lease.0)?;
                state.last_lease = lease.0;
                state.leases.insert(lease);
                Ok(Response::Granted {
                    lease,
                    ttl_seconds: UNLIMITED_SECONDS,
                })
            }
            Request::KeepAlive(lease) => {
                let is_held = state.leases.contains(&lease);
                Ok(Response::KeptAlive(is_held.then_some(UNLIMITED_SECONDS)))
            }
            Request::Revoke(lease) => {
                let mut store = state.store.clone();
                let events = store.end_lease(lease);
                self.commit(&mut state, store, events)?;
                state.leases.remove(&lease);
                Ok(Response::Revoked)
            }
            Request::Change(change) => {
                change.check()?;
                let bound = change.puts.iter().filter_map(|put| put.lease);
                if let Some(ended) = bound.clone().find(|lease| !state.leases.contains(lease)) {
                    return Err(Error::LeaseEnded(ended));
                }
                let mut store = state.store.clone();
                let (outcome, events) = store.change(&change);
                self.commit(&mut state, store, events)?;
                Ok(Response::Changed(outcome))
            }
        }
    }

    /// Makes these events durable, then visible.
    fn commit(
        &self,
        state: &mut EmbeddedState,
        store: Store,
        events: Vec<KeyEvent>,
    ) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        self.write(&store, state.last_lease)?;
        state.store = store;
        state.events.extend(events);
        while state.events.len() > EVENTS_KEPT {
            state.drop_oldest_revision();
        }
        self.changed.send_replace(state.store.revision());
        Ok(())
    }

    fn write(&self, store: &Store, last_lease: u64) -> Result<(), Error> {
        let stored = FileContents {
            format: FORMAT,
            revision: store.revision().0,
            last_lease,
            entries: store.entries().map(StoredEntry::encode).collect(),
        };
        let text = serde_json::to_vec_pretty(&stored).expect("the entries are always serializable");
        let (path, temporary) = (self.folder.join(FILE), self.folder.join(TEMPORARY_FILE));
        let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        let in_place = written.and_then(|()| fs::rename(&temporary, &path));
        in_place.map_err(|error| Error::NotDone(failed(error)))?;
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::Unknown(failed(error)))
    }
}

impl EmbeddedState {
    fn drop_oldest_revision(&mut self) {
        let Some(oldest) = self.events.front().map(|event| event.revision) else {
            return;
        };
        self.kept_after = oldest;
        while self
            .events
            .front()
            .is_some_and(|event| event.revision == oldest)
        {
            self.events.pop_front();
        }
    }

    /// Returns the next events of a watch, or `None` if there are none yet.
    fn events_after(&self, keys: &Keys, after: Revision) -> Option<WatchItem> {
        if after < self.kept_after {
            return Some(WatchItem::Compacted);
        }
        let item = (self.events.iter())
            .filter(|event| event.revision > after && keys.contains(&event.key));
        let events: Vec<KeyEvent> = item.cloned().collect();
        (!events.is_empty()).then_some(WatchItem::Events(events))
    }
}

impl Coordination for Embedded {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let called = tokio::task::spawn_blocking(move || shared.call(request)).await;
            called.unwrap_or_else(|error| {
                Err(Error::Unknown(format!("the request was aborted: {error}")))
            })
        })
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, WatchItem> {
        let cursor = WatchCursor {
            shared: self.shared.clone(),
            changed: self.shared.changed.subscribe(),
            keys: keys.clone(),
            after,
        };
        Box::pin(stream::unfold(Some(cursor), |cursor| async {
            let mut cursor = cursor?;
            let item = cursor.next_item().await?;
            let continues = item != WatchItem::Compacted;
            Some((item, continues.then_some(cursor)))
        }))
    }
}

struct WatchCursor {
    shared: Arc<Shared>,
    changed: watch::Receiver<Revision>,
    keys: Keys,
    after: Revision,
}

impl WatchCursor {
    async fn next_item(&mut self) -> Option<WatchItem> {
        loop {
            // Mark the current value as seen first, so that a later change wakes the wait below.
            self.changed.borrow_and_update();
            let item = {
                let state = self.shared.state();
                let item = state.events_after(&self.keys, self.after);
                self.after = self.after.max(state.store.revision());
                item
            };
            if item.is_some() {
                return item;
            }
            self.changed.changed().await.ok()?;
        }
    }
}
