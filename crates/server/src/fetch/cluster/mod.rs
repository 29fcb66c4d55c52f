//! Stores in a cluster: a version is live everywhere or nowhere.
//!
//! ```text
//!  larder push ─► push: asks the controller ─► the map has a push ─► agent of every node: pulls its partitions, reports
//!                    ▲                                                        │
//!                    └── live, or why not ◄── the map: live ◄── controller ◄──┘
//! ```
//!
//! `push.rs` is what the node does that a person asked, `agent.rs` what every node does, `wanted.rs` what the map asks of it,
//! `partitions.rs` the pull itself. What readers see is `stores/followed.rs`.

mod agent;
mod partitions;
pub(crate) mod push;
pub(crate) mod status;
mod wanted;

pub(crate) use agent::{AgentThread, Wake};
pub(crate) use partitions::Order;
pub(crate) use wanted::{http_root, place};
