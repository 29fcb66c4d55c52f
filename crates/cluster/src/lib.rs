//! Many servers, one larder: who is a member, who has which slots, and what happens next.
//!
//! ```text
//!  reports, leases, asks, time ──► controller ──► Change ──► map::Map::apply ──► the next map ──► every node
//!                                      │
//!                                      └── placement: which node owns and copies each slot
//! ```
//!
//! Everything here is values in, values out: time, messages and randomness are arguments. Read
//! `map` first: what a cluster is, stands there, with its invariants.
//!
//! `coordination` is what keeps the map, the leases and the candidates: etcd, or a file for one node. There, and nowhere else, are parts
//! that touch the world: `coordination/embedded.rs`, `coordination/etcd`, `coordination/follow.rs`, `coordination/session.rs` and
//! `coordination/clock.rs`.
//!
//! `replication` is what the owner of a slot and its replicas say to one another, so that no acknowledged write is lost.
//!
//! `rebuild` makes a lost map again from what nodes have kept.
//!
//! `peer` is what nodes send one another, and the state of a connection: bytes in, bytes out. Its sockets are the server's.

pub mod controller;
pub mod coordination;
pub mod map;
pub mod peer;
pub mod placement;
pub mod rebuild;
pub mod replication;
