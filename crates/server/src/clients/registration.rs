//! A connection's entry in the registry of clients, removed before its socket closes; see [`Clients`].

use std::sync::Arc;

use super::{Client, Clients, Tracking};
use crate::stats::CoreStats;

pub struct Registration {
    pub clients: Arc<Clients>,
    pub client: Arc<Client>,
    pub stats: Arc<CoreStats>,
    pub tracking: Arc<Tracking>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.close(&self.client);
        if let Some(tracker) = self.client.tracker.load_full() {
            self.tracking.turn_off(&tracker);
        }
        self.client.mailbox.close();
        self.stats.connections_closed.add(1);
    }
}
