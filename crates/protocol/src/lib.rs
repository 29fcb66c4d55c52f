//! The contract as data: requests, replies, and the server's configuration.
//!
//! ```text
//!  bytes of a connection ── resp::decode ──► Request ── Command::parse ──► Command (a table row, the arguments)
//!                                                            │ the server executes
//!  bytes of a connection ◄── resp::encode ── Reply bytes ◄───┘
//!
//! ```
//!
//! - `resp::client`: the client's side, which encodes requests and decodes replies.
//! - `http`: the JSON bodies of `/v1`, shared by the server, the client and the command line.
//! - `gates`: the conditions that a version must meet before it goes live.
//! - `browser`: rejects HTTP requests that come from pages of other sites.
//! - `errors`: one row per error code, with its RESP prefix, its HTTP status and its retry flag.
//! - `dump`: the payload of DUMP and RESTORE, with texts and hashes in Redis's RDB format.
//! - `config`: every key of `larder.toml`, with its default, unit, environment variable and documentation.
//!
//! This crate does no I/O and does not implement commands. The page of `commands` describes how to add one.

pub mod browser;
pub mod columns;
pub mod commands;
pub mod config;
pub mod dump;
pub mod errors;
mod gates;
pub mod http;
pub mod resp;
