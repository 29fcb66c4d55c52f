//! The Redis protocol as a worker of bg speaks it: few connections, many calls under way on each, on one thread.
//!
//! ```text
//!  emulated threads ──► Pool::call ──► output ─┐                    ┌─► receiver of the oldest call
//!      (as many as                             ├─ driver ─► socket ─┤
//!       are ready together)                    └ one write          └ one read: token by token, where it arrived
//! ```
//!
//! Read `connection` for how calls share a socket, `request` for how commands are written; the bytes are
//! `larder_protocol::resp::client`. Each connection's driver is a task of the worker's thread: connecting needs a runtime where
//! `tokio::task::spawn_local` works.
//!
//! What it leaves out: RESP3, and messages that nobody asked for.

pub mod common;
mod connection;
mod request;

use std::rc::Rc;

pub use larder_protocol::resp::client::Token;

pub use connection::{Call, Receiver};
pub use request::{Text, command, hex, hex_of, number_of};

use crate::stores::contract::Failure;
use connection::Connection;

/// Some connections to one server.
pub struct Pool {
    connections: Vec<Connection>,
}

/// Where a server is, and what it asks for.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port`
    pub address: String,
    pub password: Option<String>,
}

impl Pool {
    /// # Errors
    /// One of them cannot be made.
    pub async fn connect(server: Rc<Server>, count: usize) -> Result<Pool, Failure> {
        let mut connections = Vec::new();
        for _ in 0..count.max(1) {
            connections.push(Connection::open(server.clone()).await?);
        }
        Ok(Pool { connections })
    }

    /// Sends requests, as one where they are few, on the connection that is least busy. `encode` appends them, and `replies` says how many
    /// they are.
    pub fn call<R: Receiver>(
        &self,
        replies: u32,
        receiver: R,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Call<R> {
        let connection = match &self.connections[..] {
            [only] => only,
            several => several
                .iter()
                .min_by_key(|connection| connection.under_way())
                .expect("there is at least one"),
        };
        connection.call(replies, receiver, encode)
    }
}
