//! A blocking client for larder: reads over the Redis protocol, operations over HTTP.
//!
//! ```text
//!  RespClient ── RESP over TCP ── the server's RESP port:  get, mget, any command
//!  AdminClient ── HTTP ── the server's HTTP port:  pull, swap, roll back, inspect
//!  ClusterClient ── RESP over TCP ── the nodes of a cluster: each key on the node that has it
//! ```
//!
//! Read `resp_client` for connection pooling and retries, `admin` for the operations, `cluster` for routing among
//! nodes, and `tls` for certificates. `larder_protocol::resp::client` encodes the bytes, and `larder_protocol::http`
//! defines the bodies.
//!
//! Any Redis client can read from a larder server; this one exists so that the command line, the demo and the tests
//! need no other.

mod admin;
mod cluster;
mod error;
mod resp_client;
mod tls;

pub use admin::{AdminClient, Dump, FetchedValue};
pub use cluster::{ClusterClient, ClusterCounts, ClusterNode, ClusterOptions, KeyResult};
pub use error::Error;
pub use larder_protocol::resp::client::{ErrorReply, Reply};
pub use resp_client::{RespClient, RespOptions};
pub use tls::{Tls, TlsFiles};
