//! The data stores that bg knows, by name, and what all of them must do.
//!
//! Read `contract` first: the trait that opens one and the trait that acts on one. `load` fills one with a population, `notes` is what it keeps about itself
//! beside that. Then `memory`, the reference, and any other: `larder`, `redis` (both by `resp`), `postgres`, `casql` (PostgreSQL behind
//! `memcached`), `mongodb`. `null` does nothing, and `faulty` wraps another and lies. `links` and `pipe` are connections that several of them use, `settings`
//! reads `--set`.

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

/// A data store's name and what `bg stores` says of it.
pub struct Known {
    pub name: &'static str,
    pub about: &'static str,
    /// Opens it; refuses an address it cannot use and settings it does not know.
    pub open: fn(&Options) -> Opened,
}

pub type Opened = Result<Box<dyn Store>, String>;

/// What the user said of a data store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where it is; its usual address if not said.
    pub address: Option<String>,
    /// Connections of each worker, where a store lets one choose.
    pub connections: Option<usize>,
    /// `--set name=value`, of this store alone.
    pub settings: Vec<(String, String)>,
}

/// In the order in which `bg stores` lists them.
pub const KNOWN: &[Known] = &[
    Known {
        name: "larder",
        about: "rows and joins, each view one range; --at 127.0.0.1:7379",
        open: larder::open,
    },
    Known {
        name: "postgres",
        about: "PostgreSQL; --set layout=basic|aggregate, rows=2|1",
        open: postgres::open,
    },
    Known {
        name: "postgres+memcached",
        about: "PostgreSQL behind a cache; --set memcached=host:port, consistency=lease|invalidate|ttl, ttl=500ms",
        open: casql::open,
    },
    Known {
        name: "mongodb",
        about: "MongoDB or what speaks its protocol; --at 127.0.0.1:27017",
        open: mongodb::open,
    },
    Known {
        name: "redis",
        about: "Redis, each action one command or script; --at 127.0.0.1:6379",
        open: redis::open,
    },
    Known {
        name: "memory",
        about: "in this process, the reference; bg run loads it by itself",
        open: memory::open,
    },
    Known {
        name: "faulty:NAME",
        about: "another with faults: --set stale=0.01, lost, phantom, duplicate, fractured, error, unknown, stall",
        open: |_| Err("--store faulty:NAME: name the data store, such as faulty:memory".to_owned()),
    },
    Known {
        name: "null",
        about: "does nothing and answers as if: rates bg itself",
        open: null::open,
    },
];

pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

/// Opens a data store by its name.
///
/// # Errors
///
/// A name nobody knows, or what the data store says of its options.
pub fn open(name: &str, options: &Options) -> Opened {
    if let Some(inner) = name.strip_prefix("faulty:") {
        return faulty::open(inner, options);
    }
    match find(name) {
        Some(known) => (known.open)(options),
        None => {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            Err(format!(
                "--store {name}: no data store of that name; there are {}",
                names.join(", ")
            ))
        }
    }
}
