//! The known data stores, and the interface that they implement.
//!
//! Read `contract` first: the traits to open a data store and to act on it. `load` loads a population, and `notes`
//! describes the stored data. Then read `memory`, the reference, and any other store: `larder`, `redis` (both use
//! `resp`), `postgres`, `casql` (PostgreSQL behind `memcached`), `mongodb`. `null` does nothing, and `faulty` injects
//! faults into another store. Several stores share the connections of `links` and `pipe`. `settings` parses `--set`.

mod casql;
pub mod contract;
mod faulty;
mod larder;
mod links;
pub mod load;
mod memcached;
mod memory;
mod mongodb;
pub mod notes;
mod null;
mod pipe;
mod postgres;
mod redis;
mod resp;
mod settings;

use contract::Store;

/// The name of a data store, and its description in `bg stores`.
pub struct StoreEntry {
    pub name: &'static str,
    pub about: &'static str,
    /// Opens the store. Rejects invalid addresses and unknown settings.
    pub open: fn(&Options) -> OpenResult,
}

pub type OpenResult = Result<Box<dyn Store>, String>;

/// The user's options for a data store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The address. `None`: the default address.
    pub address: Option<String>,
    /// The number of connections of each worker, if the store supports the option.
    pub connections: Option<usize>,
    /// `--set name=value`: settings of this store.
    pub settings: Vec<(String, String)>,
}

/// In the order of `bg stores`.
pub const STORES: &[StoreEntry] = &[
    StoreEntry {
        name: "larder",
        about: "rows and joins, each view is one range; --at 127.0.0.1:7379",
        open: larder::open,
    },
    StoreEntry {
        name: "postgres",
        about: "PostgreSQL; --set layout=basic|aggregate, rows=2|1",
        open: postgres::open,
    },
    StoreEntry {
        name: "postgres+memcached",
        about: "PostgreSQL behind a cache; --set memcached=host:port, consistency=lease|invalidate|ttl, ttl=500ms",
        open: casql::open,
    },
    StoreEntry {
        name: "mongodb",
        about: "MongoDB, or any server of its protocol; --at 127.0.0.1:27017",
        open: mongodb::open,
    },
    StoreEntry {
        name: "redis",
        about: "Redis, each action is one command or script; --at 127.0.0.1:6379",
        open: redis::open,
    },
    StoreEntry {
        name: "memory",
        about: "the reference, in this process; bg run loads it automatically",
        open: memory::open,
    },
    StoreEntry {
        name: "faulty:NAME",
        about: "another data store with injected faults: --set stale=0.01, lost, phantom, duplicate, fractured, error, unknown, stall",
        open: |_| Err("--store faulty:NAME: name the data store, such as faulty:memory".to_owned()),
    },
    StoreEntry {
        name: "null",
        about: "executes nothing and returns plausible results: measures bg itself",
        open: null::open,
    },
];

pub fn find(name: &str) -> Option<&'static StoreEntry> {
    STORES.iter().find(|entry| entry.name == name)
}

/// Opens a data store by its name.
///
/// # Errors
///
/// The name is unknown, or the data store rejects the options.
pub fn open(name: &str, options: &Options) -> OpenResult {
    if let Some(inner) = name.strip_prefix("faulty:") {
        return faulty::open(inner, options);
    }
    match find(name) {
        Some(entry) => (entry.open)(options),
        None => {
            let names: Vec<&str> = STORES.iter().map(|entry| entry.name).collect();
            Err(format!(
                "--store {name}: unknown data store; the data stores are {}",
                names.join(", ")
            ))
        }
    }
}
