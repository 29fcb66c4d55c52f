//! Connections to other nodes: sockets, TLS, and an interface of futures for the rest of the server.
//!
//! ```text
//!   Peers::ask, exchange ──► Link ◄── drive ══ socket ══ drive ──► Arrivals ──► Incoming: requests, with an Answering
//!            Answer ◄────────┘ │                           │
//!                              └─ larder_cluster::peer::Connection: what is promised, as a value
//! ```
//!
//! Each core has its own [`Peers`], over which it asks, and its own [`Arrivals`], in which it finds what others ask. Both are used on
//! that core alone. There is one connection from each core to each node; a listener's connection serves whatever core it names.
//!
//! `node` is this node's own life in a cluster that is kept in etcd, `one` a cluster of one node, `view` what both give the rest of the server
//! to go by.
//!
//! Read `link` first, then `drive`.

mod back_off;
mod drive;
mod incoming;
mod link;
mod listen;
pub mod node;
pub mod one;
mod peers;
pub(crate) mod pem;
pub mod slot_asks;
mod tls;
mod view;

use std::cell::RefCell;
use std::rc::Rc;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{Connection, Options};

pub use incoming::{Arrivals, Incoming};
pub use link::{Answer, Answering, Failure, Link};
pub use listen::accept;
pub use peers::Peers;
pub use tls::{Tls, TlsFiles};
#[cfg(test)]
pub use view::tests::registration;
pub use view::{Life, Places, View, core_of, slots_of};

/// How long rows of another node are trusted, at most, when it cannot be heard.
pub(crate) const SUBSCRIPTION_MS_MAX: u64 = 2_000;
/// Clocks of nodes that differ in pace by a tenth.
pub(crate) const MARGIN_MS: u64 = 250;

/// A node, as the map has it.
#[derive(Debug, Clone)]
pub struct Known {
    pub name: String,
    pub incarnation: Incarnation,
    /// `host:port` for other nodes.
    pub address: String,
}

impl Known {
    /// The names that its certificate may have.
    fn names(&self) -> [&str; 2] {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        [&self.name, host.trim_matches(['[', ']'])]
    }
}

/// The map, for connections: whatever it is at the time.
pub trait Members {
    /// This node, in its present life, where that is not the same from beginning to end.
    fn me(&self) -> Option<(NodeId, Incarnation)> {
        None
    }
    fn known(&self, node: NodeId) -> Option<Known>;
    fn epoch(&self) -> Epoch;

    /// Until when this node surely may act for its slots, if it is in this life.
    fn acts_until_ms(&self, _life: Incarnation) -> u64 {
        u64::MAX
    }

    /// A node was reached over a new connection, or why it was not.
    fn met(&self, _node: NodeId, _how: Result<(), &str>) {}
}

/// What the connections of one core share.
pub struct Core {
    options: Options,
    members: Rc<dyn Members>,
    tls: Option<Tls>,
    arrivals: Arrivals,
    /// Any numbers: nodes that lost the same node shall not return to it in the same moment.
    random: RefCell<Box<dyn FnMut() -> u64>>,
}

impl Core {
    pub fn new(
        options: Options,
        members: impl Members + 'static,
        tls: Option<Tls>,
        random: impl FnMut() -> u64 + 'static,
    ) -> Rc<Core> {
        Rc::new(Core {
            options,
            members: Rc::new(members),
            tls,
            arrivals: Arrivals::default(),
            random: RefCell::new(Box::new(random)),
        })
    }

    /// What others ask of this core's node, in its order.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// What this node says of itself now.
    fn options(&self) -> Options {
        let mut options = self.options.clone();
        options.me.epoch = self.members.epoch();
        if let Some(me) = self.members.me() {
            (options.me.node, options.me.incarnation) = me;
        }
        options
    }

    /// Has the other side of a connection trust this node no longer than it may act in its present life.
    fn limit_trust(&self, connection: &mut Connection) {
        let (members, life) = (self.members.clone(), connection.life());
        connection.set_acts_until(Rc::new(move || members.acts_until_ms(life)));
    }

    fn now_ms(&self) -> u64 {
        boot_ms()
    }
}
