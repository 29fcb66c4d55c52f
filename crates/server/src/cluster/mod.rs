//! Connections to other nodes: sockets, TLS, and an interface of futures for the rest of the server.
//!
//! ```text
//!   Peers::request, exchange ──► Link ◄── drive ══ socket ══ drive ──► Arrivals ──► Incoming: requests, with a Responder
//!             ResponseStream ◄───┘ │                           │
//!                                  └─ larder_cluster::peer::Connection: the protocol, sans-IO
//! ```
//!
//! Each core has its own [`Peers`], to which it sends requests, and its own [`Arrivals`], from which it takes the requests of
//! others. Both are used only on that core. There is one connection from each core to each node. An accepted connection carries
//! requests for any core.
//!
//! `node` is this node's participation in a cluster whose map is in etcd, and `one` is a cluster of a single node. Both provide a
//! `view` to the rest of the server.
//!
//! Start with `link`, then `drive`.

mod drive;
mod incoming;
mod link;
mod listen;
pub mod node;
pub mod one;
mod peers;
pub(crate) mod pem;
pub mod slot_requests;
mod tls;
mod view;

use std::cell::RefCell;
use std::rc::Rc;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{Connection, Options};

pub use incoming::{Arrivals, Incoming};
pub use link::{Failure, Link, Responder, ResponseStream};
pub use listen::accept;
pub use peers::Peers;
pub use tls::{Tls, TlsFiles};
#[cfg(test)]
pub use view::tests::registration;
pub use view::{Life, Places, View, core_of, slots_of};

/// Maximum time for which rows of another node are trusted without contact.
pub(crate) const SUBSCRIPTION_MS_MAX: u64 = 2_000;
/// Safety margin for clocks of nodes whose speeds differ by a tenth.
pub(crate) const MARGIN_MS: u64 = 250;

/// A node according to the map.
#[derive(Debug, Clone)]
pub struct PeerIdentity {
    pub name: String,
    pub incarnation: Incarnation,
    /// `host:port` for other nodes.
    pub address: String,
}

impl PeerIdentity {
    /// The names that its certificate may have.
    fn certificate_names(&self) -> [&str; 2] {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        [&self.name, host.trim_matches(['[', ']'])]
    }
}

/// The current map, for connections.
pub trait Members {
    /// This node in its current incarnation, if that can change.
    fn me(&self) -> Option<(NodeId, Incarnation)> {
        None
    }
    fn identity(&self, node: NodeId) -> Option<PeerIdentity>;
    fn epoch(&self) -> Epoch;

    /// The time until which this node certainly may serve its slots in this incarnation.
    fn serves_until_ms(&self, _life: Incarnation) -> u64 {
        u64::MAX
    }

    /// Reports that a node was reached over a new connection, or the reason why it was not.
    fn record_contact(&self, _node: NodeId, _how: Result<(), &str>) {}
}

/// The state shared by the connections of one core.
pub struct Core {
    options: Options,
    members: Rc<dyn Members>,
    tls: Option<Tls>,
    arrivals: Arrivals,
    /// A source of randomness, so that nodes do not all reconnect to a lost node at the same moment.
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

    /// The messages from other nodes for this core, in order.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// This node's current description for greetings.
    fn options(&self) -> Options {
        let mut options = self.options.clone();
        options.local.epoch = self.members.epoch();
        if let Some(me) = self.members.me() {
            (options.local.node, options.local.incarnation) = me;
        }
        options
    }

    /// Limits the peer's trust in this node's rows to the time for which the node may serve them in its current incarnation.
    fn limit_trust(&self, connection: &mut Connection) {
        let (members, life) = (self.members.clone(), connection.incarnation());
        connection.set_serve_deadline(Rc::new(move || members.serves_until_ms(life)));
    }

    fn now_ms(&self) -> u64 {
        boot_ms()
    }
}
