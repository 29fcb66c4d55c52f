//! WATCH: makes EXEC a no-op if a watched key has changed.
//!
//! | watched | has changed if |
//! |---|---|
//! | a row of a table | it was written, created or removed, even if its value is the same (`tables::watched`) |
//! | a row that a join computes, or that PostgreSQL is_unchanged_store | its value at EXEC is different |
//! | a key of a store | another version of the store is live |

use std::sync::atomic::Ordering;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::pending::Work;
use super::super::state::ConnectionState;
use super::super::subject::is_of_table;
use super::rows::get;
use super::rows_on_other_node;
use crate::catalog::{Lookup, Snapshot};
use crate::tables::postgres::Postgres;
use crate::tables::{Refusal, Tables, WatchFlag, stopping};

/// The keys that a connection watches.
#[derive(Default, Clone)]
pub(in crate::resp) struct WatchedKeys {
    flag: WatchFlag,
    /// Keys of base rows. Their changes set the flag.
    rows: Vec<Vec<u8>>,
    /// Other keys of tables, with their values.
    values: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Names of stores, with the numbers of their live versions.
    stores: Vec<(Vec<u8>, u64)>,
    /// Memory of all entries, on this core and on the cores that watch the rows.
    bytes: usize,
}

/// Memory of a watched key besides its bytes, on this core and on the row's core.
const WATCHED_BYTES: usize = 96;

fn live_version(snapshot: &Snapshot, store: &[u8]) -> u64 {
    match snapshot.lookup(store) {
        Lookup::Live(live) => live.version_id.0,
        _ => 0,
    }
}

impl WatchedKeys {
    /// Returns the part that concerns one core.
    pub fn part_for(&self, is_owned: impl Fn(&[u8]) -> bool) -> WatchedKeys {
        let (rows, values) = (self.rows.iter(), self.values.iter());
        WatchedKeys {
            flag: self.flag.clone(),
            rows: rows.filter(|key| is_owned(key)).cloned().collect(),
            values: values.filter(|(key, _)| is_owned(key)).cloned().collect(),
            stores: Vec::new(),
            bytes: 0,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn with_size(mut self) -> WatchedKeys {
        let rows = self.rows.iter().map(|key| 2 * key.len() + WATCHED_BYTES);
        let values = self
            .values
            .iter()
            .map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len) + WATCHED_BYTES);
        let stores = self
            .stores
            .iter()
            .map(|(name, _)| name.len() + WATCHED_BYTES);
        self.bytes = rows.chain(values).chain(stores).sum();
        self
    }

    /// Returns whether a row may have changed on another node, because this node does not own it or temporarily did not
    /// own it.
    pub fn has_moved(&self, tables: &Tables) -> bool {
        let handle = tables.handle();
        let values = self.values.iter().map(|(key, _)| key);
        let mut keys = self.rows.iter().chain(values);
        self.flag.load(Ordering::Acquire) || keys.any(|key| handle.owner_of(key) >= handle.cores())
    }

    /// Returns whether the live versions of the stores are unchanged.
    pub fn stores_are_unchanged(&self, snapshot: &Snapshot) -> bool {
        let is_unchanged_store =
            |(store, version): &(Vec<u8>, u64)| live_version(snapshot, store) == *version;
        self.stores.iter().all(is_unchanged_store)
    }

    /// Returns whether all keys are unchanged, on a server with one core. A key that cannot be read immediately counts
    /// as changed.
    pub fn is_unchanged(&self, tables: &Tables, snapshot: &Snapshot) -> bool {
        tables.remove_expired(&self.rows);
        let values = tables.read(|engine, now| {
            self.values.iter().all(|(key, before)| {
                let mut value = None;
                let keep = |bytes: &[u8]| value = Some(bytes.to_vec());
                let read = get(engine, key, now, keep);
                read.is_ok() && value == *before
            })
        });
        values && self.stores_are_unchanged(snapshot) && !self.flag.load(Ordering::Acquire)
    }

    /// As [`WatchedKeys::is_unchanged`], for the part of one core, which is paused with the ticket.
    pub async fn part_is_unchanged(
        &self,
        tables: &Tables,
        postgres: Option<&Postgres>,
        ticket: Option<u64>,
    ) -> bool {
        for (key, before) in &self.values {
            match read_value(tables, postgres, key, ticket).await {
                Ok(value) if value == *before => {}
                _ => return false,
            }
        }
        tables.remove_expired(&self.rows);
        !self.flag.load(Ordering::Acquire)
    }
}

async fn read_value(
    tables: &Tables,
    postgres: Option<&Postgres>,
    key: &[u8],
    ticket: Option<u64>,
) -> Result<Option<Vec<u8>>, Refusal> {
    let read = |engine: &mut larder_join::Engine, now: u64| {
        let mut value = None;
        get(engine, key, now, |bytes| value = Some(bytes.to_vec()))?;
        Ok(value)
    };
    tables.read_when_available(ticket, postgres, read).await
}

/// A WATCH in progress, which registers the keys on their cores.
pub(in crate::resp) struct WatchJob {
    keys: Vec<Vec<u8>>,
    stores: Vec<(Vec<u8>, u64)>,
}

impl WatchJob {
    pub fn begin(
        state: &ConnectionState,
        snapshot: &Snapshot,
        request: Request<'_>,
    ) -> Result<Option<Work>, Refusal> {
        if state.transaction.is_some() {
            let message = "WATCH inside MULTI is not allowed".to_owned();
            return Err((Code::BadRequest, message));
        }
        let (mut keys, mut stores) = (Vec::new(), Vec::new());
        for key in request.args().skip(1) {
            let end = key.iter().position(|byte| matches!(byte, b'|' | b':'));
            let end = end.unwrap_or(key.len());
            if is_of_table(snapshot, key) {
                keys.push(key.to_vec())
            } else {
                stores.push((key[..end].to_vec(), live_version(snapshot, &key[..end])))
            }
        }
        Ok(Some(Work::Watch(WatchJob { keys, stores })))
    }

    pub async fn run(&mut self, state: &mut ConnectionState) {
        match self.watch(state).await {
            Ok(()) => state.encoder().ok(),
            Err(refusal) => state.refuse(refusal),
        }
    }

    async fn watch(&mut self, state: &mut ConnectionState) -> Result<(), Refusal> {
        // If this fails, the previously watched keys stay watched.
        let mut watched_keys = state.watched_keys.clone().unwrap_or_default();
        watched_keys.stores.append(&mut self.stores);
        let handle = state.core.shared.tables.clone();
        let places = self.keys.iter().map(|key| handle.owner_of(key));
        if let Some(place) = places.max().filter(|place| *place >= handle.cores()) {
            return Err(rows_on_other_node(&state.core.tables, place, "watched"));
        }
        for core in 0..handle.cores() {
            let is_owned = |key: &Vec<u8>| handle.owner_of(key) == core;
            let keys: Vec<Vec<u8>> = self.keys.iter().filter(|k| is_owned(k)).cloned().collect();
            if keys.is_empty() {
                continue;
            }
            let (flag, shared) = (watched_keys.flag.clone(), state.core.shared.clone());
            let registered = handle.run_on(core, move |tables| async move {
                let (mut rows, mut values) = (Vec::new(), Vec::new());
                for key in keys {
                    if tables.is_computed(&key) || tables.is_mapped(&key) {
                        let postgres = shared.postgres.as_ref();
                        let value = read_value(&tables, postgres, &key, None).await?;
                        values.push((key, value));
                    } else {
                        // Expired rows are removed first, so that their removal does not count as a change.
                        tables.remove_expired(std::slice::from_ref(&key));
                        tables.watch(&key, &flag);
                        rows.push(key);
                    }
                }
                Ok((rows, values))
            });
            let registered: Result<_, Refusal> = registered.await.map_err(stopping)?;
            let (rows, values) = registered?;
            watched_keys.rows.extend(rows);
            watched_keys.values.extend(values);
        }
        state.watched_keys = Some(Box::new(watched_keys.with_size()));
        Ok(())
    }
}

/// Executes UNWATCH.
pub(in crate::resp) fn unwatch(state: &mut ConnectionState) {
    state.watched_keys = None;
    state.encoder().ok();
}

/// Returns whether EXEC must be a no-op, on a server with one core.
pub(super) fn has_changed(state: &mut ConnectionState, snapshot: &Snapshot) -> bool {
    let watched_keys = state.watched_keys.take();
    watched_keys
        .is_some_and(|watched_keys| !watched_keys.is_unchanged(&state.core.tables, snapshot))
}
