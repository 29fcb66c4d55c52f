//! Twip and Newp over the network: the same client drives larder, Redis, memcached and PostgreSQL.
//!
//! ```text
//!  workload (operations, and what each read must find) ──► drive (one connection, pipelined, one thread)
//!                                                             │ encodes, and takes replies, by a store
//!                                                             ▼
//!  services (processes on one core, free ports) ◄── larder | redis | memcached | postgres
//! ```
//!
//! Read `workload`, then `drive` and `timelines`, then a system; `twip` and `newp` are the commands with their reports.
//!
//! Invariants:
//! 1. What a system must answer is computed from the operations alone; a system that answers otherwise fails the run.
//! 2. A client that fans out lets a check wait for what the same user's earlier subscription still copies, so its
//!    answers are those of a system that does the join itself.

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
