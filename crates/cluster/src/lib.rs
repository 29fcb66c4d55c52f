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

pub mod map;
