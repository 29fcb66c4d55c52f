//! Tables whose rows live in PostgreSQL (`[tables.<name>]`): what the server does with `larder-postgres`.
//!
//! ```text
//!  GET, RANGE ─► engine: Needs ───► read (waits) ──► Database::load ──┐
//!  SET, DEL   ─────────────────────► write (waits) ─► Database::write ─┤ thread "postgres"
//!                                                                    │
//!  engines ◄── follow, apply ◄── CoreMessage::Postgres ◄── spread ◄────────┘
//! ```
//!
//! Where there are several cores each keeps what it reads itself: it has it loaded, and is told of all changes. So what a
//! core answers is of one position of PostgreSQL's log, whatever tables it is computed from, and no core waits for another.
//!
//! Invariants:
//! 1. Each core applies what it is told in the order in which the connection's thread sent it. What all are told is numbered: cores
//!    that have applied the same number are at the same position.
//! 2. No row of such a table is in the journal: PostgreSQL keeps it.
//! 3. While the cores are paused they stand at one number, and nothing is applied.

mod apply;
mod follow;
mod read;
mod spread;
mod write;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_join::Engine;
use larder_postgres::{Address, Database, Mapping, Options};
use larder_protocol::config::{ClusterMode, ServerConfig, SlotLife};
use larder_protocol::errors::Code;
use larder_types::checksum32;

pub(super) use follow::PostgresProgress;
pub(crate) use read::RangeLoad;
pub use spread::PostgresUpdate;
pub(crate) use write::{WriteJob, WriteReply, take_write};

use super::{Refusal, TablesHandle};
use crate::error::Error;
use crate::supervision::Supervisor;

/// PostgreSQL cuts longer names off.
const SLOT_NAME_MAX: usize = 63;

/// The database and the tables that it keeps.
pub struct Postgres {
    database: Database,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    mappings: Vec<Mapping>,
}

impl Postgres {
    /// Begins to connect, if there are tables to keep there. Whether the database can be reached is not waited for.
    ///
    /// # Errors
    /// The address cannot be read, or the system gives no thread.
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
                    ClusterMode::Etcd => slot_of_node(&settings.slot_name, &config.cluster.node),
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
        let (sink, guard) = (spread::sink(tables), supervisor.guard());
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

    /// The mapped table that a key is of.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<&Mapping> {
        let mut mappings = self.mappings.iter();
        mappings.find(|mapping| key.starts_with(&mapping.prefix))
    }

    pub fn stats(&self) -> &larder_postgres::Stats {
        self.database.stats()
    }

    /// Ends the connections, and drops a permanent slot.
    pub fn stop(&self) {
        self.database.stop();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // The supervisor reports a panic.
        let _ = thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Nodes of a cluster may have the same configuration, and each follows PostgreSQL by itself: so the slot of each has the node's name in it.
fn slot_of_node(slot_name: &str, node: &str) -> String {
    let clean = |byte: u8| match byte.to_ascii_lowercase() {
        byte @ (b'a'..=b'z' | b'0'..=b'9' | b'_') => char::from(byte),
        _ => '_',
    };
    let own: String = node.bytes().map(clean).collect();
    let name = format!("{slot_name}_{own}");
    if own == node && name.len() <= SLOT_NAME_MAX {
        return name;
    }
    // Other names may come to the same.
    let sum = format!("_{:08x}", checksum32(node.as_bytes(), 0));
    let kept = name.len().min(SLOT_NAME_MAX - sum.len());
    format!("{}{sum}", &name[..kept])
}

/// Has the engine know which tables' rows come from PostgreSQL.
///
/// # Errors
/// A table has rows of its own, or a join computes it.
pub(super) fn declare(engine: &mut Engine, config: &ServerConfig) -> Result<(), Error> {
    for table in &config.mapped {
        let prefix = table.prefix().as_bytes();
        if engine.supply_from_elsewhere(prefix).is_ok() {
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
            "table {name} cannot be kept in PostgreSQL: {why}"
        )));
    }
    Ok(())
}

/// How an error of PostgreSQL's is answered.
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
    fn each_node_has_a_slot_that_postgresql_takes() {
        assert_eq!(slot_of_node("larder", "n1"), "larder_n1");
        let long = "x".repeat(64);
        let names = ["N1", "n-1", "n.1", "n_1", &long, &format!("{long}y")];
        let slots = names.map(|node| slot_of_node("larder", node));
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
