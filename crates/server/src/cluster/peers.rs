//! The nodes to which one core sends requests. Each is connected on first use, and reconnected after a pause when it was lost;
//! immediately if there is a sign that it may be reachable: it or this node has a new incarnation, or it has connected to this
//! node.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use larder_cluster::map::{Incarnation, NodeId};
use larder_cluster::peer::{Connection, ConnectionEvent, Requests};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::drive::{drive, finish};
use super::link::{Failure, Link, ResponseStream};
use super::{Core, PeerIdentity, tls};
use crate::back_off::{back_off, jitter};

/// Maximum pause before an unreachable node is retried.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Connections of one core to other nodes.
pub struct Peers {
    core: Rc<Core>,
    nodes: RefCell<HashMap<NodeId, PeerState>>,
}

#[derive(Default)]
struct PeerState {
    link: Option<Rc<Link>>,
    /// Number of consecutive failures.
    failures: u32,
    /// The time before which it is not retried.
    retry_at_ms: u64,
    /// Its incarnation, and this node's, at the last attempt.
    lives: Option<(Incarnation, Incarnation)>,
    /// The reason why it was lost.
    why: Option<Rc<str>>,
}

impl PeerState {
    fn retry_immediately(&mut self) {
        self.failures = 0;
        self.retry_at_ms = 0;
    }
}

impl Peers {
    pub fn new(core: Rc<Core>) -> Rc<Peers> {
        Rc::new(Peers {
            core,
            nodes: RefCell::default(),
        })
    }

    /// Returns the connection to a node, and starts it if there is none: requests are queued until it is established.
    ///
    /// # Errors
    /// The node was lost a short time ago, or is not a member.
    pub fn link(self: &Rc<Peers>, to: NodeId) -> Result<Rc<Link>, Failure> {
        let now_ms = self.core.now_ms();
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.entry(to).or_default();
        if let Some(link) = node.link.as_ref().filter(|link| !link.is_ended()) {
            return Ok(link.clone());
        }
        let identity = self.core.members.identity(to);
        let options = self.core.options();
        let lives = identity
            .as_ref()
            .map(|identity| (identity.incarnation, options.local.incarnation));
        if lives.is_some() && node.lives != lives {
            node.retry_immediately();
        }
        if node.link.is_some() || now_ms < node.retry_at_ms {
            let why = node.link.as_ref().and_then(|link| link.end_reason());
            let why = why.or_else(|| node.why.clone());
            let why =
                why.unwrap_or_else(|| format!("the connection to node {to} is ending").into());
            return Err(Failure::NotDone(why));
        }
        let Some(identity) = identity else {
            let why = format!("node {to} is not a member in this node's map");
            return Err(Failure::NotDone(why.into()));
        };
        node.lives = lives;
        let mut connection = Connection::connect(options, to, identity.incarnation, now_ms);
        self.core.limit_trust(&mut connection);
        let link = Link::new(connection, false);
        node.link = Some(link.clone());
        drop(nodes);
        tokio::task::spawn_local(self.clone().run(to, identity, link.clone()));
        Ok(link)
    }

    /// Records that a node has connected to this one, so it may be reachable.
    pub fn record_contact(&self, node: NodeId) {
        if let Some(node) = self.nodes.borrow_mut().get_mut(&node) {
            node.retry_immediately();
        }
    }

    /// Sends requests to a node.
    ///
    /// # Errors
    /// Nothing was sent.
    pub async fn request(
        self: &Rc<Peers>,
        to: NodeId,
        requests: Requests,
    ) -> Result<ResponseStream, Failure> {
        let link = self.link(to)?;
        link.request(requests).await
    }

    async fn run(self: Rc<Peers>, to: NodeId, identity: PeerIdentity, link: Rc<Link>) {
        let peer_name = format!("node {} at {}", identity.name, identity.address);
        if let Err(error) = self.connect(&identity, &link, &peer_name).await {
            link.connection().record_failure(&tls::explain(&error));
            let ended = link.connection().next_event(self.core.now_ms());
            if let Some(ConnectionEvent::Ended(ended)) = ended {
                finish(&self.core, &link, &ended, &peer_name);
            }
        }
        let random = (self.core.random.borrow_mut())();
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.entry(to).or_default();
        node.link = None;
        node.why = link.end_reason();
        if link.peer().is_some() {
            node.failures = 0;
        }
        node.failures = node.failures.saturating_add(1);
        let pause = jitter(back_off(node.failures, RETRY_PAUSE_MAX), random);
        node.retry_at_ms = self.core.now_ms() + pause.as_millis() as u64;
        drop(nodes);
        if let (None, Some(why)) = (link.peer(), link.end_reason()) {
            self.core.members.record_contact(to, Err(&why));
        }
    }

    /// # Errors
    /// The connection could not be established.
    async fn connect(
        &self,
        identity: &PeerIdentity,
        link: &Rc<Link>,
        peer_name: &str,
    ) -> io::Result<()> {
        let core = &self.core;
        let wait = Duration::from_millis(core.options.greeting_ms);
        let reject_hello = |_: &_| Err("this side sends the first greeting".to_owned());
        let connected = timeout(wait, TcpStream::connect(&identity.address)).await;
        let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        // On failure, small frames wait for acknowledgements, which is harmless.
        let _ = socket.set_nodelay(true);
        match &core.tls {
            None => drive(core, link, socket, peer_name, &reject_hello).await,
            Some(tls) => {
                let connected = timeout(wait, tls.connect(identity, socket)).await;
                let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                drive(core, link, socket, peer_name, &reject_hello).await;
            }
        }
        Ok(())
    }
}
