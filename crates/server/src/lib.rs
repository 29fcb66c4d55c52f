//! The larder server: everything between a socket and an open version.
//!
//! ```text
//!  RESP threads (one per core)          HTTP thread             fetch threads (low priority)
//!  resp/  ── Catalog::load ──┐     http/ ── Stores ──┐      fetch/ ── Stores::go_live
//!                            ▼                       ▼                   │
//!                        catalog.rs  ◄──────────  stores/  ◄────────────┘
//!                     (one pointer, read)     (disk and catalog, changed together)
//! ```
//!
//! `tables` contains the tables and joins. Each RESP thread has a part of them, with its own engine.
//!
//! - To follow a lookup, read `resp`, then `catalog`.
//! - To follow a pull, read `http/routes.rs`, `fetch/mod.rs`, `fetch/pull.rs`, `stores/mod.rs`.
//! - To follow a start, read `server.rs`, `shared.rs` (the state that all threads share), then `stores/recover.rs`.

mod back_off;
mod catalog;
mod client_tls;
mod clients;
mod clock;
pub mod cluster;
mod descriptors;
mod error;
pub mod fault_monitor;
mod fetch;
mod glob;
mod guess_limiter;
mod hot_keys;
mod http;
mod loading;
mod log_limit;
mod low_priority;
mod maintenance;
mod membership;
mod metrics;
mod password;
mod pinned_value;
pub mod resp;
mod server;
mod settings;
mod shared;
mod spaces;
pub mod stats;
mod stores;
mod supervision;
mod tables;
mod unsent;
mod watchdog;

pub use error::Error;
pub use fetch::FAULT_POINTS;
pub use fetch::compact::FAULT_POINTS as COMPACT_FAULT_POINTS;
pub use server::Server;
pub use shared::Shared;
pub use stores::{gates, previous_version, program};
