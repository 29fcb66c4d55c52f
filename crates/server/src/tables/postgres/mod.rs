//! Tables whose rows are in PostgreSQL (`[tables.<name>]`): connects the engines to `larder-postgres`.
//!
//! ```text
//!  GET, RANGE ─► engine: Needs ───► read (waits) ──► Database::load ──┐
//!  SET, DEL   ─────────────────────► write (waits) ─► Database::write ─┤ thread "postgres"
//!                                                                    │
//!  engines ◄── progress, apply ◄── CoreMessage::Postgres ◄── distribute ◄──┘
//! ```
//!
//! Each of several cores loads and keeps the rows that it reads, and receives all changes. A core's replies therefore
//! reflect one position of PostgreSQL's log, whatever tables they are computed from, and no core waits for another.
//!
//! Invariants:
//! 1. Each core applies updates in the order in which the connection's thread sent them. Updates for all cores are
//!    numbered: cores that have applied the same number are at the same position.
//! 2. The journal contains no rows of these tables: PostgreSQL stores them.
//! 3. While the cores are paused, they are at the same number, and apply nothing.

mod apply;
mod distribute;
mod progress;
mod read;
mod write;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_join::Engine;
use larder_postgres::{Address, Database, Mapping, Options};
use larder_protocol::config::{ClusterMode, ServerConfig, SlotLife};
use larder_protocol::errors::Code;
use larder_types::checksum32;

pub use distribute::PostgresUpdate;
pub(super) use progress::PostgresProgress;
pub(crate) use read::RangeLoad;
pub(crate) use write::{WriteJob, WriteReply, parse_write};

use super::{Refusal, TablesHandle};
use crate::error::Error;
use crate::supervision::Supervisor;

/// PostgreSQL truncates longer names.
const SLOT_NAME_MAX: usize = 63;

/// The database connection, and the mapped tables.
pub struct Postgres {
    database: Database,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    mappings: Vec<Mapping>,
}

impl Postgres {
    /// Starts to connect, if there are mapped tables. Does not wait for the connection.
    ///
    /// # Errors
    /// The address is invalid, or the system cannot create a thread.
    pub fn start(
        config: &ServerConfig,
        tables: Arc<TablesHandle>,
        supervisor: &Supervisor,
    ) -> Result<Option<Postgres>, Error> {
        if config.mapped.is_empty() {
            return Ok(None);
        }
        let settings = &config.postgres;
        let timeout = Duration::from_secs(settings.statement_timeout_seconds);
        let address = Address::parse(&settings.url, timeout).map_err(Error::BadRequest)?;
        let mappings: Vec<Mapping> = config.mapped.iter().map(Mapping::new).collect();
        let options = Options {
            address,
            publication: settings.publication.clone(),
            permanent_slot: match settings.slot {
                SlotLife::Permanent => Some(match config.cluster.mode {
                    ClusterMode::Etcd => node_slot_name(&settings.slot_name, &config.cluster.node),
                    _ => settings.slot_name.clone(),
                }),
                SlotLife::Temporary => None,
            },
            connections: settings.connections,
            load_rows_max: settings.load_rows_max,
            atomic_changes_max: settings.atomic_changes_max,
            silence_timeout: Duration::from_secs(settings.silence_timeout_seconds),
            stale: Duration::from_secs(settings.stale_seconds),
            mappings: mappings.clone(),
        };
        let (sink, guard) = (distribute::sink(tables), supervisor.guard());
        // The thread owns the sink, and with it the guard.
        let sink = move |event| {
            let _ = &guard;
            sink(event);
        };
        let (database, thread) = Database::spawn(options, Box::new(sink)).map_err(|error| {
            Error::Io(format!("cannot start the thread for PostgreSQL: {error}"))
        })?;
        Ok(Some(Postgres {
            database,
            thread: Mutex::new(Some(thread)),
            mappings,
        }))
    }

    /// Returns the mapped table of a key.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<&Mapping> {
        let mut mappings = self.mappings.iter();
        mappings.find(|mapping| key.starts_with(&mapping.prefix))
    }

    pub fn stats(&self) -> &larder_postgres::Stats {
        self.database.stats()
    }

    /// Closes the connections, and drops a permanent slot.
    pub fn stop(&self) {
        self.database.stop();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // The supervisor reports a panic.
        let _ = thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The name of a node's replication slot. Nodes of a cluster may have the same configuration, but each needs its own
/// slot, so the name contains the node's name.
fn node_slot_name(slot_name: &str, node: &str) -> String {
    let clean = |byte: u8| match byte.to_ascii_lowercase() {
        byte @ (b'a'..=b'z' | b'0'..=b'9' | b'_') => char::from(byte),
        _ => '_',
    };
    let own: String = node.bytes().map(clean).collect();
    let name = format!("{slot_name}_{own}");
    if own == node && name.len() <= SLOT_NAME_MAX {
        return name;
    }
    // Different node names may yield the same text.
    let sum = format!("_{:08x}", checksum32(node.as_bytes(), 0));
    let kept = name.len().min(SLOT_NAME_MAX - sum.len());
    format!("{}{sum}", &name[..kept])
}

/// Declares the mapped tables to the engine.
///
/// # Errors
/// A table has its own rows, or a join computes it.
pub(super) fn declare(engine: &mut Engine, config: &ServerConfig) -> Result<(), Error> {
    for table in &config.mapped {
        let prefix = table.prefix().as_bytes();
        if engine.declare_external(prefix).is_ok() {
            continue;
        }
        let name = &table.name;
        let why = match engine.table_of(prefix) {
            Some(true) => format!("a join computes it; drop the join (without [tables.{name}])"),
            _ => format!(
                "it has rows in the data folder; remove them (without [tables.{name}]: RANGEDEL), or choose another name"
            ),
        };
        return Err(Error::BadRequest(format!(
            "table {name} cannot be stored in PostgreSQL: {why}"
        )));
    }
    Ok(())
}

/// The error to report for an error of PostgreSQL.
fn refusal(error: larder_postgres::Error) -> Refusal {
    use larder_postgres::Error;
    let code = match error {
        Error::Unreachable(_) | Error::Setup(_) => Code::Source,
        Error::Unknown(_) => Code::Io,
        _ => Code::BadRequest,
    };
    (code, error.message().replace(['\r', '\n'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_valid_slot_name() {
        assert_eq!(node_slot_name("larder", "n1"), "larder_n1");
        let long = "x".repeat(64);
        let names = ["N1", "n-1", "n.1", "n_1", &long, &format!("{long}y")];
        let slots = names.map(|node| node_slot_name("larder", node));
        for (at, slot) in slots.iter().enumerate() {
            let is_right = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
            assert!(
                slot.len() <= SLOT_NAME_MAX && slot.bytes().all(is_right),
                "{slot}"
            );
            assert!(!slots[..at].contains(slot), "{slots:?}");
        }
    }
}
