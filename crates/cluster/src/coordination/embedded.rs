//! The coordination service for a single node: the file `cluster.json` in the data folder. It needs no setup.
//!
//! 1. A change takes effect when the new file is in place: it is written under a temporary name, synced and renamed, and the
//!    folder is synced. A crash leaves the old file or the new one.
//! 2. Only one process uses the file: it holds a lock on `cluster.lock`, which is released when the process ends.
//! 3. The process's lease lasts as long as the process. Keys bound to the lease of an earlier process are deleted when the file
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
    Coordination, Entry, Error, Event, Keys, LeaseId, Request, Response, Revision, Watched,
};

const FILE: &str = "cluster.json";
const FILE_BESIDE: &str = "cluster.json.new";
const LOCK: &str = "cluster.lock";

/// Number of past events that are kept for watches.
const EVENTS_KEPT: usize = 4096;

/// Exceeds the lifetime of any machine.
const FOR_EVER_SECONDS: u32 = u32::MAX;

#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    _lock: File,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    state: Mutex<State>,
    /// Notifies watches of the revision of each change.
    changed: watch::Sender<Revision>,
}

#[derive(Debug)]
struct State {
    store: Store,
    /// The leases of this process that have not been revoked.
    leases: BTreeSet<LeaseId>,
    last_lease: u64,
    events: VecDeque<Event>,
    /// All events after this revision are kept.
    kept_after: Revision,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
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
        let entries = entries.map_err(|why| damaged(&path, &why))?;
        let mut store = Store::new(Revision(stored.revision), entries);
        for lease in earlier {
            store.end_lease(LeaseId(lease));
        }
        let kept_after = store.revision();
        let state = State {
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
            &"another larder runs on this data folder; stop it, or give this one its own",
        )),
        Err(TryLockError::Error(error)) => Err(refused(&error)),
    }
}

fn read(path: &Path) -> Result<Stored, Error> {
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
            return Ok(Stored {
                format: FORMAT,
                revision: 0,
                last_lease: 0,
                entries: Vec::new(),
            });
        }
        Err(error) => return Err(damaged(path, &error)),
    };
    let stored: Stored = serde_json::from_slice(&text).map_err(|error| damaged(path, &error))?;
    match stored.format {
        FORMAT => Ok(stored),
        other => Err(damaged(
            path,
            &format!(
                "it has format {other}, and this larder knows {FORMAT}; run the larder that wrote it"
            ),
        )),
    }
}

fn damaged(path: &Path, why: &dyn std::fmt::Display) -> Error {
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, request: Request) -> Result<Response, Error> {
        let mut state = self.state();
        match request {
            Request::Read { keys, .. } => Ok(Response::Read(state.store.read(&keys))),
            Request::Recent { keys, after } => {
                Ok(Response::Recent(state.store.recent(&keys, after)))
            }
            Request::Grant { .. } => {
                let lease = LeaseId(state.last_lease + 1);
                self.write(&state.store, lease.0)?;
                state.last_lease = lease.0;
                state.leases.insert(lease);
                Ok(Response::Granted {
                    lease,
                    ttl_seconds: FOR_EVER_SECONDS,
                })
            }
            Request::KeepAlive(lease) => {
                let lasts = state.leases.contains(&lease);
                Ok(Response::KeptAlive(lasts.then_some(FOR_EVER_SECONDS)))
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
    fn commit(&self, state: &mut State, store: Store, events: Vec<Event>) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        self.write(&store, state.last_lease)?;
        state.store = store;
        state.events.extend(events);
        while state.events.len() > EVENTS_KEPT {
            state.forget_one_revision();
        }
        self.changed.send_replace(state.store.revision());
        Ok(())
    }

    fn write(&self, store: &Store, last_lease: u64) -> Result<(), Error> {
        let stored = Stored {
            format: FORMAT,
            revision: store.revision().0,
            last_lease,
            entries: store.entries().map(StoredEntry::encode).collect(),
        };
        let text = serde_json::to_vec_pretty(&stored).expect("names and values are text");
        let (path, beside) = (self.folder.join(FILE), self.folder.join(FILE_BESIDE));
        let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        let in_place = written.and_then(|()| fs::rename(&beside, &path));
        in_place.map_err(|error| Error::NotDone(failed(error)))?;
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::Unknown(failed(error)))
    }
}

impl State {
    fn forget_one_revision(&mut self) {
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
    fn heard(&self, keys: &Keys, after: Revision) -> Option<Watched> {
        if after < self.kept_after {
            return Some(Watched::Compacted);
        }
        let heard =
            (self.events.iter()).filter(|event| event.revision > after && keys.contain(&event.key));
        let events: Vec<Event> = heard.cloned().collect();
        (!events.is_empty()).then_some(Watched::Events(events))
    }
}

impl Coordination for Embedded {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let called = tokio::task::spawn_blocking(move || shared.call(request)).await;
            called.unwrap_or_else(|error| Err(Error::Unknown(format!("it was given up: {error}"))))
        })
    }

    fn watch(&self, keys: &Keys, after: Revision) -> BoxStream<'static, Watched> {
        let watching = Watching {
            shared: self.shared.clone(),
            changed: self.shared.changed.subscribe(),
            keys: keys.clone(),
            after,
        };
        Box::pin(stream::unfold(Some(watching), |watching| async {
            let mut watching = watching?;
            let heard = watching.hear().await?;
            let goes_on = heard != Watched::Compacted;
            Some((heard, goes_on.then_some(watching)))
        }))
    }
}

struct Watching {
    shared: Arc<Shared>,
    changed: watch::Receiver<Revision>,
    keys: Keys,
    after: Revision,
}

impl Watching {
    async fn hear(&mut self) -> Option<Watched> {
        loop {
            // Mark the current value as seen first, so that a later change wakes the wait below.
            self.changed.borrow_and_update();
            let heard = {
                let state = self.shared.state();
                let heard = state.heard(&self.keys, self.after);
                self.after = self.after.max(state.store.revision());
                heard
            };
            if heard.is_some() {
                return heard;
            }
            self.changed.changed().await.ok()?;
        }
    }
}
