//! Clusters: what they cost. Each file is a command of its own.
//!
//! ```text
//!  servers (nodes on one core, the load on the other) ◄── cost: GET, MGET, SET by the number of nodes, requests passed on, Redis Cluster
//!                                                     ◄── twip: timelines over 1 to 8 nodes
//!                                                     ◄── replicas: what a write costs with 1, 2 and 3 copies
//! ```

pub mod cost;
mod map;
pub mod replicas;
mod servers;
pub mod twip;
