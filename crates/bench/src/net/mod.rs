//! Twip and Newp over the network: the same client drives larder, Redis, memcached and PostgreSQL.
//!
//! ```text
//!  workload (operations, and the expected result of each read) ──► drive (one connection, pipelined, one thread)
//!                                                             │ encodes requests and processes replies by a store
//!                                                             ▼
//!  services (processes on one core, free ports) ◄── larder | redis | memcached | postgres
//! ```
//!
//! Read `workload`, then `drive` and `timelines`, then a system; `twip` and `newp` are the commands with their reports.
//!
//! Invariants:
//!
//! 1. The expected results are computed from the operations alone. A system that returns other results fails the run.
//! 2. If the client fans out, a check waits for copies that an earlier subscription of the same user still makes. Its
//!    results are therefore those of a system that computes the join itself.

pub mod drive;
pub mod larder;
pub mod mariadb;
mod memcached;
pub mod newp;
mod newp_larder;
mod newp_redis;
mod pages;
pub mod postgres;
mod redis;
pub mod resp;
pub mod services;
pub mod timelines;
pub mod twip;
pub mod workload;
