//! Simulation of nodes with their network, clocks and disks, with faults, from one seed.
//!
//! ```text
//!             Plan of faults (from the seed)
//!                      │
//!   seed ──► World: time, links, clocks, disks ── Input ──► Node::step ── Outputs ──► World ...
//! ```
//!
//! `node` defines simulated state machines; `world` runs several of them until a given time; `links` connects them;
//! `disk` defines what survives a crash; `faults` draws a plan. `seeds` runs a check with many seeds and reports the
//! one that failed; the same seed reproduces the run, down to the last message.
//!
//! A check has two parts: *safety*, while faults occur, and *liveness*: after [`World::calm`] there are no more
//! faults, and progress can be required.

mod disk;
mod faults;
mod links;
mod node;
mod random;
mod seeds;
mod world;

pub use disk::Disk;
pub use faults::{Fault, Plan, Scene};
pub use node::{Input, Node, NodeId, Output, Outputs, Start};
pub use random::Random;
pub use seeds::{check_found, for_each_seed};
pub use world::{Mark, Options, World};
