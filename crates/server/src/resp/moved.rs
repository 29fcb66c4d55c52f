//! A connection changes its core: the tables have one, and who uses them goes there, with its first command on them.
//!
//! So a command on tables never waits for another thread, requests of one connection stay in order, and with one
//! core nothing of this happens.

use std::net::TcpStream;
use std::sync::Arc;

use larder_protocol::resp::Proto;

use super::clients::{Client, Clients};
use crate::stats::CoreStats;

/// The core that owns the tables.
pub(super) const OWNER: usize = 0;

/// A connection's place in the registry, given back before its socket closes; see `clients`.
pub(super) struct Registration {
    pub clients: Arc<Clients>,
    pub client: Arc<Client>,
    pub stats: Arc<CoreStats>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.close(&self.client);
        self.stats.connections_closed.add(1);
    }
}

/// A connection on its way, with nothing left to send.
pub struct Moved {
    // First, so that it is dropped first.
    pub(super) registration: Registration,
    pub(super) stream: TcpStream,
    pub(super) proto: Proto,
    pub(super) authenticated: bool,
    /// What was read and not executed.
    pub(super) rest: Vec<u8>,
}
