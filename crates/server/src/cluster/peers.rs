//! The nodes to which one core sends requests. Each is connected on first use, and reconnected after a pause when it was lost;
//! immediately if there is a sign that it may be reachable: it or this node has a new incarnation, or it has connected to this
//! node.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use larder_cluster::map::{Incarnation, NodeId};
use larder_cluster::peer::{Connection, Event, Requests};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::back_off::BackOff;
use super::drive::{drive, end};
use super::link::{Answer, Failure, Link};
use super::{Core, Known, tls};

/// Connections of one core to other nodes.
pub struct Peers {
    core: Rc<Core>,
    nodes: RefCell<HashMap<NodeId, Node>>,
}

#[derive(Default)]
struct Node {
    link: Option<Rc<Link>>,
    back_off: BackOff,
    /// The time before which it is not retried.
    not_before_ms: u64,
    /// Its incarnation, and this node's, at the last attempt.
    lives: Option<(Incarnation, Incarnation)>,
    /// The reason why it was lost.
    why: Option<Rc<str>>,
}

impl Node {
    fn try_at_once(&mut self) {
        self.back_off.reset();
        self.not_before_ms = 0;
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
        let known = self.core.members.known(to);
        let options = self.core.options();
        let lives = known
            .as_ref()
            .map(|known| (known.incarnation, options.me.incarnation));
        if lives.is_some() && node.lives != lives {
            node.try_at_once();
        }
        if node.link.is_some() || now_ms < node.not_before_ms {
            let why = node.link.as_ref().and_then(|link| link.why());
            let why = why.or_else(|| node.why.clone());
            let why =
                why.unwrap_or_else(|| format!("the connection to node {to} is ending").into());
            return Err(Failure::NotDone(why));
        }
        let Some(known) = known else {
            let why = format!("node {to} is no member in this node's map");
            return Err(Failure::NotDone(why.into()));
        };
        node.lives = lives;
        let mut connection = Connection::connect(options, to, known.incarnation, now_ms);
        self.core.limit_trust(&mut connection);
        let link = Link::new(connection, false);
        node.link = Some(link.clone());
        drop(nodes);
        tokio::task::spawn_local(self.clone().run(to, known, link.clone()));
        Ok(link)
    }

    /// Records that a node has connected to this one, so it may be reachable.
    pub fn heard_from(&self, node: NodeId) {
        if let Some(node) = self.nodes.borrow_mut().get_mut(&node) {
            node.try_at_once();
        }
    }

    /// Sends requests to a node.
    ///
    /// # Errors
    /// Nothing was sent.
    pub async fn ask(self: &Rc<Peers>, to: NodeId, requests: Requests) -> Result<Answer, Failure> {
        let link = self.link(to)?;
        link.ask(requests).await
    }

    async fn run(self: Rc<Peers>, to: NodeId, known: Known, link: Rc<Link>) {
        let whom = format!("node {} at {}", known.name, known.address);
        if let Err(error) = self.connect(&known, &link, &whom).await {
            link.connection().broken(&tls::explain(&error));
            let ended = link.connection().next_event(self.core.now_ms());
            if let Some(Event::Ended(ended)) = ended {
                end(&self.core, &link, &ended, &whom);
            }
        }
        let random = (self.core.random.borrow_mut())();
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.entry(to).or_default();
        node.link = None;
        node.why = link.why();
        if link.peer().is_some() {
            node.back_off.reset();
        }
        node.not_before_ms = self.core.now_ms() + node.back_off.next_ms(random);
        drop(nodes);
        if let (None, Some(why)) = (link.peer(), link.why()) {
            self.core.members.met(to, Err(&why));
        }
    }

    /// # Errors
    /// The connection could not be established.
    async fn connect(&self, known: &Known, link: &Rc<Link>, whom: &str) -> io::Result<()> {
        let core = &self.core;
        let wait = Duration::from_millis(core.options.greeting_ms);
        let nobody = |_: &_| Err("nobody is to greet here".to_owned());
        let connected = timeout(wait, TcpStream::connect(&known.address)).await;
        let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        // On failure, small frames wait for acknowledgements, which is harmless.
        let _ = socket.set_nodelay(true);
        match &core.tls {
            None => drive(core, link, socket, whom, &nobody).await,
            Some(tls) => {
                let connected = timeout(wait, tls.connect(known, socket)).await;
                let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                drive(core, link, socket, whom, &nobody).await;
            }
        }
        Ok(())
    }
}
