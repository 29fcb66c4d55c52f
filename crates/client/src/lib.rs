//! A blocking client for larder: reads over the Redis protocol, operations over HTTP.
//!
//! ```text
//!  RespClient ── RESP over TCP ── the server's RESP port:  get, mget, any command
//!  AdminClient ── HTTP ── the server's HTTP port:  pull, swap, roll back, look
//! ```
//!
//! Read `resp_client` for how connections are pooled and when a command is sent again, and `admin` for
//! the operations. The bytes are `larder_protocol::resp::client`, the bodies `larder_protocol::http`.
//!
//! Any Redis client reads a larder server; this one exists so that the command line, the demo and
//! the tests need no other.

mod admin;
mod error;
mod resp_client;

pub use admin::{AdminClient, Fetched};
pub use error::Error;
pub use larder_protocol::resp::client::{ErrorReply, Reply};
pub use resp_client::{RespClient, RespOptions};
