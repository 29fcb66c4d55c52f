//! bg: rates a data store by social actions under an agreement, and proves what it read.
//!
//! The benchmark is BG (Barahmand and Ghandeharizadeh, "BG: A Benchmark to Evaluate Interactive Social Networking
//! Actions", CIDR 2013, and its technical report): members who look at each other's profiles, invite, accept,
//! thaw and comment. A run measures how many such *actions* a second a data store does, how many of them within the agreed
//! time, and how many of its answers no order of the writes explains.
//!
//! ```text
//!   ui ──► coordinate ──► run ──┐
//!    │                          ├──► verdict ──► stores ──► model
//!    └───► rate ────────────────┘
//! ```
//!
//! Each folder is a room, and an arrow is who knows whom: a room knows those that its arrows lead to and those behind them, and no other
//! (`cargo xtask tidy` checks it). Read them from the right: `model` is whom there is and what they do, `stores` what a data store must answer,
//! `verdict` what a trial gives and whether it was right and good enough, `run` one trial in this process, `coordinate` the same with several
//! processes, `rate` the search for the best load, `ui` what a user sees. Each room's `mod.rs` says in which order to read it.

pub mod coordinate;
pub mod model;
pub mod rate;
pub mod run;
pub mod stores;
pub mod ui;
pub mod verdict;
