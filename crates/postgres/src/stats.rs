//! What INFO and `/metrics` show of the connection to PostgreSQL.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts since the start, and how things are.
        #[derive(Default)]
        pub struct Stats {
            state: Mutex<String>,
            streaming: AtomicBool,
            tables: Mutex<Vec<(String, Option<String>)>>,
            $($(#[doc = $doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Stats {
            /// Name, meaning and value of each figure.
            pub fn figures(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc,)*).trim_ascii_start(), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// How far replication is behind PostgreSQL's log, about once a second
    lag_bytes,
    /// Position in PostgreSQL's log up to which all changes are here
    position,
    /// Loads that were asked for
    loads,
    /// Loads that were done again, because their snapshot was behind the stream
    loads_repeated,
    /// Loads that failed
    loads_failed,
    /// Rows that loads brought
    loaded_rows,
    /// Transactions that came by replication
    transactions,
    /// Changes of rows that came by replication
    changes,
    /// Changed rows that cannot be keys of their table
    misfits,
    /// Writes that were made through larder
    writes,
    /// Times that the connection was lost
    connections_lost,
    /// Times that all rows were forgotten
    forgotten,
}

/// The figures that are no counts.
pub const GAUGES: [&str; 2] = ["lag_bytes", "position"];

impl Stats {
    /// `streaming`, or what is done or wrong instead.
    pub fn state(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    /// The mapped tables by name, each with what keeps it from being read and followed, as of the last look at the database.
    pub fn tables(&self) -> Vec<(String, Option<String>)> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.clone()
    }

    /// What is wrong, for people: with the connection, or with some of the tables.
    pub fn faults(&self) -> Vec<String> {
        if !self.is_streaming() {
            return vec![format!("tables of PostgreSQL: {}", self.state())];
        }
        let tables = self.tables().into_iter();
        let faulty = tables.filter_map(|(name, fault)| Some((name, fault?)));
        let faults = faulty.map(|(name, fault)| format!("table {name} of PostgreSQL: {fault}"));
        faults.collect()
    }

    /// Logs what changed.
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

    /// Whether changes come in.
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
