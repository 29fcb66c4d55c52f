//! The statistics of the connection to PostgreSQL that INFO and `/metrics` show.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use crate::snapshot::Lsn;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters since the start, and the current state.
        #[derive(Default)]
        pub struct Stats {
            state: Mutex<String>,
            streaming: AtomicBool,
            tables: Mutex<Vec<(String, Option<String>)>>,
            creating: Mutex<Option<String>>,
            /// The position up to which all changes were passed on, and the number of batches that were passed on but
            /// not applied.
            delivered: AtomicU64,
            unapplied: AtomicU64,
            $($(#[doc = $doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Stats {
            /// Returns the name, meaning and value of each statistic.
            pub fn figures(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc,)*).trim_ascii_start(), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Bytes of PostgreSQL's log that are not replicated yet; updated about once a second
    lag_bytes,
    /// Position in PostgreSQL's log up to which all changes are applied
    position,
    /// Requested loads
    loads,
    /// Loads that were repeated because their snapshot was older than the replication stream
    loads_repeated,
    /// Loads that failed
    loads_failed,
    /// Loaded rows
    loaded_rows,
    /// Transactions received by replication
    transactions,
    /// Transactions with more than `postgres.atomic_changes_max` changes or 64 MiB, which are applied in parts
    transactions_in_parts,
    /// 1 while a transaction is applied in parts; reads may then see a part of it
    settling,
    /// Row changes received by replication
    changes,
    /// Changed rows whose columns do not form a key of their table
    misfits,
    /// Writes executed through larder
    writes,
    /// Number of times that the connection was lost
    connections_lost,
    /// Number of times that all loaded rows were discarded
    forgotten,
}

/// The statistics that are gauges instead of counters.
pub const GAUGES: [&str; 3] = ["lag_bytes", "position", "settling"];

/// A guard that is held while changes are passed to the tables. Dropping it reports them as applied and makes room for
/// more.
pub struct Credit {
    stats: Arc<Stats>,
    /// The position up to which everything is applied when the guard is dropped.
    position: Lsn,
    _room: OwnedSemaphorePermit,
}

impl Credit {
    pub(crate) fn new(stats: Arc<Stats>, position: Lsn, room: OwnedSemaphorePermit) -> Credit {
        stats.unapplied.fetch_add(1, SeqCst);
        Credit {
            stats,
            position,
            _room: room,
        }
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        let is_last = self.stats.unapplied.fetch_sub(1, SeqCst) == 1;
        let delivered = if is_last {
            self.stats.delivered.load(SeqCst)
        } else {
            0
        };
        self.stats
            .position
            .fetch_max(self.position.max(delivered), SeqCst);
    }
}

impl Stats {
    /// Records that all changes up to a position were passed on.
    pub(crate) fn set_delivered(&self, position: Lsn) {
        self.delivered.store(position, SeqCst);
        if self.unapplied.load(SeqCst) == 0 {
            self.position.fetch_max(position, SeqCst);
        }
    }

    /// Records the start of a stream.
    pub(crate) fn begin_at(&self, position: Lsn) {
        self.delivered.store(position, SeqCst);
        self.position.store(position, SeqCst);
    }

    /// Returns `streaming`, or a description of the current activity or error.
    pub fn state(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    /// Returns the names of the mapped tables, each with the fault that prevents reading and following it, as of the
    /// last check of the database.
    pub fn tables(&self) -> Vec<(String, Option<String>)> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.clone()
    }

    /// Returns descriptions of the faults: of the connection, or of individual tables.
    pub fn faults(&self) -> Vec<String> {
        if !self.is_streaming() {
            return vec![format!("tables of PostgreSQL: {}", self.state())];
        }
        let tables = self.tables().into_iter();
        let faulty = tables.filter_map(|(name, fault)| Some((name, fault?)));
        let faults = faulty.map(|(name, fault)| format!("table {name} of PostgreSQL: {fault}"));
        faults.collect()
    }

    /// Returns the name of the slot that is being created.
    pub(crate) fn creating(&self) -> Option<String> {
        let slot = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
    }

    pub(crate) fn set_creating(&self, slot: Option<&str>) {
        let mut creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        *creating = slot.map(str::to_owned);
    }

    /// Sets the state of the tables, and logs the differences.
    pub(crate) fn set_tables(&self, now: Vec<(String, Option<String>)>) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, fault) in &now {
            let mut before = tables.iter();
            let before = before.find(|(other, _)| other == name);
            let before = before.and_then(|(_, fault)| fault.as_ref());
            match fault {
                Some(fault) if before != Some(fault) => tracing::error!(
                    table = name,
                    reason = fault,
                    "a table of PostgreSQL can be neither read nor followed; others do not depend on it"
                ),
                None if before.is_some() => {
                    tracing::info!(table = name, "a table of PostgreSQL is followed again");
                }
                _ => {}
            }
        }
        *tables = now;
    }

    /// Returns whether changes are being received.
    pub fn is_streaming(&self) -> bool {
        self.streaming.load(Relaxed)
    }

    pub(crate) fn set_state(&self, state: &str, streaming: bool) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone_into(&mut now);
        self.streaming.store(streaming, Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }

    pub(crate) fn set(gauge: &AtomicU64, value: u64) {
        gauge.store(value, Relaxed);
    }
}
