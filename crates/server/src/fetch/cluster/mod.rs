//! Stores in a cluster: a version is live on all nodes or on none.
//!
//! ```text
//!  larder push ─► push: request to the controller ─► the map has a push ─► every node's agent: pulls its partitions, reports
//!                  ▲                                                                      │
//!                  └── live, or the reason why not ◄── map ◄── controller ◄───────────────┘
//! ```
//!
//! `push.rs` runs on the node that received the request, `agent.rs` on every node. `wanted_versions.rs` derives a node's requirements from
//! the map, and `partitions.rs` performs the pull. `stores/cluster_map.rs` is the state that reads use.

mod agent;
mod partitions;
pub(crate) mod push;
pub(crate) mod status;
mod wanted_versions;

pub(crate) use agent::{AgentThread, Wake};
pub(crate) use partitions::VersionRequest;
pub(crate) use wanted_versions::{http_root, locate_peer};
