//! Clusters: what they cost, and how they bear what happens to them. Each file is a command of its own.
//!
//! ```text
//!  servers (nodes on one core, the load on the other) ◄── cost: GET, MGET, SET by the number of nodes, requests passed on, Redis Cluster
//!                                                     ◄── twip: timelines over 1 to 8 nodes
//!                                                     ◄── replicas: what a write costs with 1, 2 and 3 copies
//!  nodes   (killed, cut off, started again, added)    ◄── failover: how long nothing is answered, what is lost; beside Redis Cluster
//!                                                     ◄── growth: a fourth node, under load
//! ```

pub mod cost;
pub mod failover;
pub mod growth;
pub mod map;
mod nodes;
mod probes;
mod redis;
pub mod replicas;
pub mod servers;
pub mod twip;
