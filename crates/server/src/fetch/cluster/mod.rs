//! Stores in a cluster: a version is live on all nodes or on none.
//!
//! ```text
//!  larder push ─► push: request to the controller ─► the map has a push ─► every node's agent: pulls its partitions, reports
//!                  ▲                                                                      │
//!                  └── live, or the reason why not ◄── map ◄── controller ◄───────────────┘
//! ```
//!
//! `push.rs` runs on the node that received the request, `agent.rs` on every node. `wanted.rs` derives a node's requirements from
//! the map, and `partitions.rs` performs the pull. `stores/followed.rs` is the state that reads use.

mod agent;
mod partitions;
pub(crate) mod push;
pub(crate) mod status;
mod wanted;

pub(crate) use agent::{AgentThread, Wake};
pub(crate) use partitions::Order;
pub(crate) use wanted::{http_root, place};
