//! Spaces compared with PostgreSQL, MariaDB and SQLite: the same hotels, questions and client.
//!
//! ```text
//!  hotels (generated, and the questions about them) ──► systems (requests of larder, PostgreSQL, MariaDB), sqlite (in process)
//!                                                        │ encoded before the clock starts
//!                                                        ▼
//!  beside, shapes (commands, reports) ◄── drive (connections, latencies, row counts)
//!
//!  model, servers, online (commands, reports) ◄── deployed (a server or the nodes of a cluster, their processor time, subspaces)
//! ```
//!
//! Read `hotels`, then `systems` and `drive`, then the commands.
//!
//! 1. The expected number of rows of each request is computed from the hotels alone. Another number fails the run.

pub mod comparison;
mod deployment;
mod drive;
mod hotels;
pub mod larger_than_memory;
pub mod model;
pub mod online;
pub mod servers;
pub mod shapes;
mod sqlite;
mod systems;
