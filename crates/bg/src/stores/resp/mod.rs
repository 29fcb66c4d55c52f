//! The Redis protocol for a worker of bg: few connections, with many calls in progress on each, on one thread.
//!
//! ```text
//!  emulated threads ──► Pool::call ──► output ─┐                    ┌─► receiver of the oldest call
//!      (all that are                           ├─ driver ─► socket ─┤
//!       ready together)                        └ one write          └ one read: token by token, without a copy
//! ```
//!
//! Read `connection` for the sharing of a socket, and `request` for the encoding of commands;
//! `larder_protocol::resp::client` implements the protocol. The driver of each connection is a task on the worker's
//! thread, so connecting needs a runtime where `tokio::task::spawn_local` works.
//!
//! Out of scope: RESP3, and push messages.

pub mod common;
mod connection;
mod request;

use std::rc::Rc;

pub use larder_protocol::resp::client::Token;

pub use connection::{Call, Receiver};
pub use request::{Text, command, hex, hex_of, number_of};

use crate::stores::contract::Failure;
use connection::Connection;

/// Several connections to one server.
pub struct Pool {
    connections: Vec<Connection>,
}

/// The address of a server, and its password.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port`
    pub address: String,
    pub password: Option<String>,
}

impl Pool {
    /// Opens `count` connections.
    ///
    /// # Errors
    /// A connection failed.
    pub async fn connect(server: Rc<Server>, count: usize) -> Result<Pool, Failure> {
        let mut connections = Vec::new();
        for _ in 0..count.max(1) {
            connections.push(Connection::open(server.clone()).await?);
        }
        Ok(Pool { connections })
    }

    /// Sends requests on the least busy connection, in one write if they are small. `encode` appends the requests, and
    /// `replies` is their number.
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
                .min_by_key(|connection| connection.in_flight())
                .expect("there is at least one"),
        };
        connection.call(replies, receiver, encode)
    }
}
