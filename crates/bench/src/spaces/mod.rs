//! Spaces beside PostgreSQL, MariaDB and SQLite: the same hotels, the same questions, the same client.
//!
//! ```text
//!  hotels (generated, and what is asked of them) ──► systems (as requests of larder, of PostgreSQL, of MariaDB), sqlite (in process)
//!                                                        │ encoded before the clock starts
//!                                                        ▼
//!  beside, shapes (commands, reports) ◄── drive (connections, latencies, rows counted)
//!
//!  model, servers, online (commands, reports) ◄── deployed (a server or the nodes of a cluster, their processor time, subspaces)
//! ```
//!
//! Read `hotels`, then `systems` and `drive`, then the commands.
//!
//! 1. Each request knows how many rows it must be answered, from the hotels alone: another answer fails the run.

pub mod beside;
mod deployed;
mod drive;
mod hotels;
pub mod model;
pub mod online;
pub mod outgrown;
pub mod servers;
pub mod shapes;
mod sqlite;
mod systems;
