//! The control plane of a cluster: membership, placement of slots, and the changes of the cluster map.
//!
//! ```text
//!  reports, leases, requests, time ──► controller ──► Change ──► map::Map::apply ──► the next map ──► every node
//!                                          │
//!                                          └── placement: which node owns and replicates each slot
//! ```
//!
//! The crate is sans-IO: time, messages and randomness are arguments. Start with `map`, which defines the cluster map and its
//! invariants.
//!
//! - `coordination` stores the map, the leases and the candidates in etcd, or in a file for a single node. It contains the only
//!   modules with I/O: `coordination/embedded.rs`, `coordination/etcd`, `coordination/follow.rs`, `coordination/session.rs` and
//!   `coordination/clock.rs`.
//! - `replication` is the protocol between the owner of a slot and its replicas. It ensures that no acknowledged write is lost.
//! - `rebuild` rebuilds a lost map from the state that the nodes have stored.
//! - `peer` defines the messages between nodes and the state of a connection, on byte buffers. The server owns the sockets.

pub mod controller;
pub mod coordination;
pub mod map;
pub mod peer;
pub mod placement;
pub mod rebuild;
pub mod replication;
