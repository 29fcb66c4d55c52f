//! Clusters: what they cost. Each file is a command of its own.
//!
//! ```text
//!  servers (nodes on one core, the load on the other) ◄── cost: GET, MGET, SET by the number of nodes, requests passed on, Redis Cluster
//! ```

pub mod cost;
mod servers;
