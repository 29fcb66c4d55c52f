//! bg: rates a data store by social actions under a service level agreement (SLA), and validates the values that it
//! read.
//!
//! The benchmark is BG (Barahmand and Ghandeharizadeh, "BG: A Benchmark to Evaluate Interactive Social Networking
//! Actions", CIDR 2013, and its technical report). Members view each other's profiles, invite, accept, thaw and
//! comment. A run measures how many such *actions* per second a data store completes, how many of them complete within
//! the agreed time, and how many reads no serial order of the writes explains.
//!
//! ```text
//!   ui ──► coordinate ──► run ──┐
//!    │                          ├──► verdict ──► stores ──► model
//!    └───► rate ────────────────┘
//! ```
//!
//! Each folder is a module of this diagram. A module may use those that its arrows lead to, directly or indirectly, and
//! no other (`cargo xtask tidy` enforces it). Read them from the right:
//!
//! - `model`: the members and their actions.
//! - `stores`: the interface that a data store must implement, and its implementations.
//! - `verdict`: the measurements of a trial, their validation, and the SLA.
//! - `run`: one trial in this process.
//! - `coordinate`: a trial with several processes.
//! - `rate`: the search for the highest load.
//! - `ui`: the command line and the web pages.
//!
//! The `mod.rs` of each module states the order in which to read its files.

pub mod coordinate;
pub mod model;
pub mod rate;
pub mod run;
pub mod stores;
pub mod ui;
pub mod verdict;
