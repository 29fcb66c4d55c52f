//! Spaces beside PostgreSQL: the same hotels, the same questions, the same client.
//!
//! ```text
//!  hotels (generated, and what is asked of them) ──► systems (as requests of larder, of PostgreSQL)
//!                                                        │ encoded before the clock starts
//!                                                        ▼
//!  beside, shapes (commands, reports) ◄── drive (connections, latencies, rows counted)
//! ```
//!
//! Read `hotels`, then `systems` and `drive`, then the commands.
//!
//! 1. Each request knows how many rows it must be answered, from the hotels alone: another answer fails the run.

pub mod beside;
mod drive;
mod hotels;
pub mod model;
pub mod shapes;
mod systems;
