//! Benchmarks of clusters: their cost, and their reaction to failures and changes. Each file is one command.
//!
//! ```text
//!  servers (nodes on one core, the load on the other) ◄── cost: GET, MGET, SET by number of nodes, forwarded requests, Redis Cluster
//!                                                     ◄── twip: timelines over 1 to 8 nodes
//!                                                     ◄── replicas: the cost of a write with 1, 2 and 3 copies
//!  nodes   (killed, partitioned, restarted, added)    ◄── failover: unavailability and lost writes, compared with Redis Cluster
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
