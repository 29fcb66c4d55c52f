//! Simulation: nodes, their network, clocks and disks, with all that may go wrong with them, from one seed.
//!
//! ```text
//!             Plan of faults (from the seed)
//!                      │
//!   seed ──► World: time, links, clocks, disks ── Input ──► Node::step ── Outputs ──► World ...
//! ```
//!
//! `node` is what a simulated state machine looks like; `world` runs some of them until a time; `links` is what lies between them, `disk` what a crash
//! leaves; `faults` draws a plan. `seeds` runs a check with one seed after another, and names the one that failed; the same seed gives the
//! same run, to the last message.
//!
//! A check has two parts: *safety*, while faults happen, and *liveness*: after [`World::calm`] nothing fails any more, and progress may be demanded.

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
