//! WATCH: EXEC does nothing if something that was watched has changed.
//!
//! | watched | has changed when |
//! |---|---|
//! | a row of a table | it was written, or came, or went, though it may be as it was (`tables::watched`) |
//! | a row that a join computes, or that lives in PostgreSQL | it has another value at EXEC |
//! | a key of a store | another version of the store is live |

use std::sync::atomic::Ordering;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::pending::Work;
use super::super::state::State;
use super::super::subject::is_of_table;
use super::of_other_node;
use super::rows::get;
use crate::catalog::{Lookup, Snapshot};
use crate::tables::postgres::Postgres;
use crate::tables::{Mark, Refusal, Tables, stopping};

/// What a connection watches.
#[derive(Default, Clone)]
pub(in crate::resp) struct Watching {
    mark: Mark,
    /// Keys of base rows, which leave the mark.
    rows: Vec<Vec<u8>>,
    /// Others of tables, with their values.
    values: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Names of stores, with the numbers of their live versions.
    stores: Vec<(Vec<u8>, u64)>,
    /// What all of it takes, here and on the cores that were told.
    bytes: usize,
}

/// What a key that is watched takes beside its bytes, here and on its core.
const WATCHED_BYTES: usize = 96;

fn live_version(snapshot: &Snapshot, store: &[u8]) -> u64 {
    match snapshot.lookup(store) {
        Lookup::Live(live) => live.version_id.0,
        _ => 0,
    }
}

impl Watching {
    /// The part of it that a core has.
    pub fn part(&self, is_its: impl Fn(&[u8]) -> bool) -> Watching {
        let (rows, values) = (self.rows.iter(), self.values.iter());
        Watching {
            mark: self.mark.clone(),
            rows: rows.filter(|key| is_its(key)).cloned().collect(),
            values: values.filter(|(key, _)| is_its(key)).cloned().collect(),
            stores: Vec::new(),
            bytes: 0,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn measured(mut self) -> Watching {
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

    /// Whether a row may have changed on another node, because this one does not have it, or did not for a while.
    pub fn has_moved(&self, tables: &Tables) -> bool {
        let handle = tables.handle();
        let values = self.values.iter().map(|(key, _)| key);
        let mut keys = self.rows.iter().chain(values);
        self.mark.load(Ordering::Acquire) || keys.any(|key| handle.owner_of(key) >= handle.cores())
    }

    /// Whether stores are as they were.
    pub fn stores_are_unchanged(&self, snapshot: &Snapshot) -> bool {
        let holds = |(store, version): &(Vec<u8>, u64)| live_version(snapshot, store) == *version;
        self.stores.iter().all(holds)
    }

    /// Whether all is as it was, where one core has all tables. What cannot be read at once counts as changed.
    pub fn is_unchanged(&self, tables: &Tables, snapshot: &Snapshot) -> bool {
        tables.expire_due(&self.rows);
        let values = tables.read(|engine, now| {
            self.values.iter().all(|(key, before)| {
                let mut value = None;
                let keep = |bytes: &[u8]| value = Some(bytes.to_vec());
                let read = get(engine, key, now, keep);
                read.is_ok() && value == *before
            })
        });
        values && self.stores_are_unchanged(snapshot) && !self.mark.load(Ordering::Acquire)
    }

    /// As [`Watching::holds`], for the part of one core, which is paused with the ticket.
    pub async fn part_is_unchanged(
        &self,
        tables: &Tables,
        postgres: Option<&Postgres>,
        ticket: Option<u64>,
    ) -> bool {
        for (key, before) in &self.values {
            match value(tables, postgres, key, ticket).await {
                Ok(value) if value == *before => {}
                _ => return false,
            }
        }
        tables.expire_due(&self.rows);
        !self.mark.load(Ordering::Acquire)
    }
}

async fn value(
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
    tables.read_waiting(ticket, postgres, read).await
}

/// A WATCH that is under way: the cores are told.
pub(in crate::resp) struct WatchJob {
    keys: Vec<Vec<u8>>,
    stores: Vec<(Vec<u8>, u64)>,
}

impl WatchJob {
    pub fn begin(
        state: &State,
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
            match is_of_table(snapshot, key) {
                true => keys.push(key.to_vec()),
                false => stores.push((key[..end].to_vec(), live_version(snapshot, &key[..end]))),
            }
        }
        Ok(Some(Work::Watch(WatchJob { keys, stores })))
    }

    pub async fn run(&mut self, state: &mut State) {
        match self.watch(state).await {
            Ok(()) => state.encoder().ok(),
            Err(refusal) => state.refuse(refusal),
        }
    }

    async fn watch(&mut self, state: &mut State) -> Result<(), Refusal> {
        // What was watched before stays watched where this fails.
        let mut watching = state.watching.clone().unwrap_or_default();
        watching.stores.append(&mut self.stores);
        let handle = state.core.shared.tables.clone();
        let elsewhere = self.keys.iter().map(|key| handle.owner_of(key));
        if let Some(place) = elsewhere.max().filter(|place| *place >= handle.cores()) {
            return Err(of_other_node(&state.core.tables, place, "watched"));
        }
        for core in 0..handle.cores() {
            let is_its = |key: &Vec<u8>| handle.owner_of(key) == core;
            let keys: Vec<Vec<u8>> = self.keys.iter().filter(|k| is_its(k)).cloned().collect();
            if keys.is_empty() {
                continue;
            }
            let (mark, shared) = (watching.mark.clone(), state.core.shared.clone());
            let told = handle.run_on(core, move |tables| async move {
                let (mut rows, mut values) = (Vec::new(), Vec::new());
                for key in keys {
                    if tables.is_computed(&key) || tables.is_mapped(&key) {
                        let postgres = shared.postgres.as_ref();
                        let value = value(&tables, postgres, &key, None).await?;
                        values.push((key, value));
                    } else {
                        // What has expired already goes before it is watched.
                        tables.expire_due(std::slice::from_ref(&key));
                        tables.watch(&key, &mark);
                        rows.push(key);
                    }
                }
                Ok((rows, values))
            });
            let told: Result<_, Refusal> = told.await.map_err(stopping)?;
            let (rows, values) = told?;
            watching.rows.extend(rows);
            watching.values.extend(values);
        }
        state.watching = Some(Box::new(watching.measured()));
        Ok(())
    }
}

/// UNWATCH.
pub(super) fn forget(state: &mut State) {
    state.watching = None;
    state.encoder().ok();
}

/// Whether EXEC is to do nothing, where one core has all tables.
pub(super) fn has_changed(state: &mut State, snapshot: &Snapshot) -> bool {
    let watching = state.watching.take();
    watching.is_some_and(|watching| !watching.is_unchanged(&state.core.tables, snapshot))
}
