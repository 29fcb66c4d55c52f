//! The contract as data: what clients may send, what comes back, and how a server is configured.
//!
//! ```text
//!  bytes of a connection ── resp::decode ──► Request ── Command::parse ──► Command (a table row, the arguments)
//!                                                            │ the server executes
//!  bytes of a connection ◄── resp::encode ── Reply bytes ◄───┘
//!
//!  resp::client  the other side of the two arrows: requests out, replies in
//!  http     JSON bodies of /v1, shared by the server, the client and the command line
//!  gates    what a version must satisfy before it may go live
//!  browser  which HTTP requests come for a page of another site
//!  errors   one row per error code: its RESP prefix, its HTTP status, whether to retry
//!  dump     the payload of DUMP and RESTORE: texts and hashes in Redis's RDB format
//!  config   every key of larder.toml: default, unit, environment variable, documentation
//! ```
//!
//! Nothing here does I/O or knows what a command does. `commands` says how to add one.

pub mod browser;
pub mod columns;
pub mod commands;
pub mod config;
pub mod dump;
pub mod errors;
mod gates;
pub mod http;
pub mod resp;
