//! What this node knows of its cluster: its present view, how it is reached, and how it asks and tells others.
//!
//! With `cluster.mode = "one"` the cluster is this node (`cluster/one.rs`); with `"etcd"` it is one of many (`cluster/node`).

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use larder_cluster::controller::{Ask, Report};
use larder_cluster::coordination::Embedded;
use larder_cluster::map::{Epoch, Map, Member, NodeName, Registration, Roles};
use larder_protocol::config::{ClusterMode, NodeRoles, ServerConfig};

use crate::cluster::node::{self, NodeThread, Standing};
use crate::cluster::{View, one};
use crate::error::Error;
use crate::supervision::Guard;
use crate::tables::TablesHandle;

/// A node's place in its cluster, as all threads see it.
pub struct Membership {
    view: Arc<ArcSwap<View>>,
    /// `cluster.announce`: a host, and a port if that is another one too.
    announce: Option<(String, Option<u16>)>,
    home: Home,
    /// How far other nodes' clocks are from this one's, when that was measured last.
    clocks: Mutex<BTreeMap<NodeName, ClockSkew>>,
}

/// How far another node's clock is from this node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSkew {
    /// Negative: it is behind.
    pub ahead_ms: i64,
    /// By how much that may be wrong, either way.
    pub within_ms: u64,
}

/// What keeps the map.
enum Home {
    /// A file. This holds the lock on it.
    File {
        _service: Embedded,
    },
    Etcd(Box<node::Handle>),
}

/// Where this node listens.
pub struct Listens {
    pub resp: SocketAddr,
    pub http: Option<SocketAddr>,
    /// With `cluster.mode = "etcd"`.
    pub peer: Option<TcpListener>,
}

impl Membership {
    /// Prepares for the cluster of `cluster.mode`, if there is one. Of a cluster in etcd nothing is known before [`Membership::begin`].
    ///
    /// # Errors
    /// [`Error::BadRequest`] if a setting is wrong, [`Error::Corrupted`] or [`Error::Io`] if the map cannot be read or written.
    pub async fn open(
        config: &ServerConfig,
        cores: usize,
        listens: Listens,
    ) -> Result<Option<Membership>, Error> {
        let section = &config.cluster;
        if section.mode == ClusterMode::Off {
            return Ok(None);
        }
        let wrong = |key: &str, why: String| Error::BadRequest(format!("cluster.{key}: {why}"));
        let name: NodeName = (section.node.parse()).map_err(|why| wrong("node", why))?;
        let announce = announced(&section.announce).map_err(|why| wrong("announce", why))?;
        let peer = announced(&section.peer_announce).map_err(|why| wrong("peer_announce", why))?;
        let at = |key: &str, listens: Option<SocketAddr>, announced: &Option<_>| {
            let Some(addr) = listens else {
                return Ok(String::new());
            };
            let is_everywhere = addr.ip().is_unspecified() && section.mode == ClusterMode::Etcd;
            match announced {
                None if is_everywhere => Err(wrong(
                    key,
                    format!(
                        "this node listens on {addr}, which is no address that others could be told: set the host by which they reach it"
                    ),
                )),
                _ => Ok(address_text(addr, announced.as_ref())),
            }
        };
        let peer_addr = listens.peer.as_ref().and_then(|it| it.local_addr().ok());
        // What is announced for clients has the port of the Redis protocol.
        let host_alone = announce.clone().map(|(host, _)| (host, None));
        let registration = Registration {
            name,
            incarnation: Default::default(),
            disk: Default::default(),
            resp: at("announce", Some(listens.resp), &announce)?,
            http: at("announce", listens.http, &host_alone)?,
            peer: at("peer_announce", peer_addr, &peer)?,
            hostname: None,
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
            zone: section.zone.clone(),
            weight: section.weight,
            roles: match section.roles {
                NodeRoles::Base => Roles::Base,
                NodeRoles::Compute => Roles::Compute,
                NodeRoles::Both => Roles::Both,
            },
        };
        let (view, home) = match section.mode {
            ClusterMode::Etcd => {
                let view = View::first(
                    Map::new(&section.name, node::settings(config)),
                    registration.cores,
                );
                let view = Arc::new(ArcSwap::from_pointee(view));
                let handle = node::Handle::new(config, registration, view.clone(), listens.peer)?;
                (view, Home::Etcd(Box::new(handle)))
            }
            _ => {
                let (service, view) =
                    one::open(&config.server.data, &section.name, registration).await?;
                let view = Arc::new(ArcSwap::from_pointee(view));
                (view, Home::File { _service: service })
            }
        };
        Ok(Some(Membership {
            view,
            announce,
            home,
            clocks: Mutex::default(),
        }))
    }

    /// Begins this node's life in a cluster that is kept in etcd; each new view is given to `tell`, on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no thread to be had.
    pub fn begin(
        &self,
        tell: impl Fn(Arc<View>) + Send + 'static,
        tables: &TablesHandle,
        guard: Guard,
    ) -> Result<Option<NodeThread>, Error> {
        match &self.home {
            Home::File { .. } => Ok(None),
            Home::Etcd(handle) => handle
                .begin(
                    Box::new(tell),
                    tables.slot_asks.clone(),
                    tables.ability.clone(),
                    guard,
                )
                .map(Some),
        }
    }

    /// What this node goes by now.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Whether a map in etcd says what is where.
    pub fn is_in_etcd(&self) -> bool {
        matches!(self.home, Home::Etcd(_))
    }

    /// How this node stands with etcd; `None` where it needs none.
    pub fn standing(&self) -> Option<Arc<Standing>> {
        match &self.home {
            Home::File { .. } => None,
            Home::Etcd(handle) => Some(handle.standing()),
        }
    }

    /// What keeps the map; `None` where that is a file.
    pub fn node(&self) -> Option<&node::Handle> {
        match &self.home {
            Home::File { .. } => None,
            Home::Etcd(handle) => Some(handle),
        }
    }

    /// How many requests this node has sent to etcd: none of them for a command.
    pub fn etcd_requests(&self) -> u64 {
        match &self.home {
            Home::File { .. } => 0,
            Home::Etcd(handle) => handle.etcd_requests(),
        }
    }

    /// Whether they are: one load.
    #[inline]
    pub fn is_refusing(&self) -> bool {
        match &self.home {
            Home::File { .. } => false,
            Home::Etcd(handle) => handle.is_refusing(),
        }
    }

    /// Why commands on tables are refused, if all of them are: this node is no part of the cluster, or the cluster has not begun.
    pub fn refusal(&self) -> Option<String> {
        let standing = self.standing()?;
        standing.refusal(&self.view.load())
    }

    /// Where other nodes connect.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.home {
            Home::File { .. } => None,
            Home::Etcd(handle) => handle.peer_addr(),
        }
    }

    /// Where other nodes connect, for whoever accepts: once.
    #[allow(dead_code, reason = "for who accepts, pushes and replicates")]
    pub fn take_peer_listener(&self) -> Option<TcpListener> {
        match &self.home {
            Home::File { .. } => None,
            Home::Etcd(handle) => handle.take_peer_listener(),
        }
    }

    /// Asks the controller for something, and waits for its answer: a push is answered when it has ended. Who stops waiting takes nothing back.
    ///
    /// # Errors
    /// Why it is refused, or that it is unknown what became of it; in words for the person.
    pub async fn ask(&self, ask: Ask) -> Result<String, String> {
        match &self.home {
            Home::File { .. } => Err("this cluster is one node, and has nobody to ask: cluster.mode = \"etcd\" makes it one of many".to_owned()),
            Home::Etcd(handle) => handle.ask(ask).await,
        }
    }

    /// Changes what this node reports. It is told soon after, all of it; call this as often as there is news.
    #[allow(dead_code, reason = "for who accepts, pushes and replicates")]
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        if let Home::Etcd(handle) = &self.home {
            handle.report(change);
        }
    }

    /// Notes that another node has a map of this epoch.
    pub fn saw_epoch(&self, epoch: Epoch) {
        if let Home::Etcd(handle) = &self.home {
            handle.saw_epoch(epoch);
        }
    }

    /// Why this node must not answer by its own map, if it must not: see [`Standing::cut_off`].
    pub fn cut_off(&self) -> Option<String> {
        self.standing()?.cut_off(&self.view.load())
    }

    /// Notes whether another node was reached, or why not.
    pub fn met(&self, node: &NodeName, how: Result<(), &str>) {
        if let Home::Etcd(handle) = &self.home {
            handle.met(node, how);
        }
    }

    pub fn note_clock(&self, node: NodeName, skew: ClockSkew) {
        self.locked_clocks().insert(node, skew);
    }

    /// How far other nodes' clocks are from this one's: of nodes that this one has asked.
    pub fn clocks(&self) -> BTreeMap<NodeName, ClockSkew> {
        self.locked_clocks().clone()
    }

    pub fn has_clock(&self, node: &NodeName) -> bool {
        self.locked_clocks().contains_key(node)
    }

    fn locked_clocks(&self) -> MutexGuard<'_, BTreeMap<NodeName, ClockSkew>> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was noted of nodes that are not these.
    pub fn keep_met(&self, nodes: impl Fn(&NodeName) -> bool) {
        self.locked_clocks().retain(|name, _| nodes(name));
        if let Home::Etcd(handle) = &self.home {
            handle.keep_met(nodes);
        }
    }

    /// Where clients find a member of a view: host and port. This node is where a client has reached it, unless another address is announced.
    pub fn address(&self, view: &View, member: &Member, reached: SocketAddr) -> (String, u16) {
        let is_own = member.id == view.me;
        if let (Home::Etcd(_), Some(told)) = (&self.home, split(&member.registration.resp)) {
            // All members tell the same of each, so that clients know it again.
            return told;
        }
        match &self.announce {
            Some((host, port)) if is_own => (host.clone(), port.unwrap_or(reached.port())),
            _ => (reached.ip().to_canonical().to_string(), reached.port()),
        }
    }
}

/// `host:port`, as announced or else as it is.
fn address_text(addr: SocketAddr, announced: Option<&(String, Option<u16>)>) -> String {
    let Some((host, port)) = announced else {
        return addr.to_string();
    };
    let port = port.unwrap_or(addr.port());
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Host and port of an address that a member has registered.
pub fn split(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

/// What clients know a member by: 40 hexadecimal digits, the same as long as its data folder is.
pub fn shown_id(member: &Member) -> String {
    let name = larder_types::key_hash(member.name().as_str().as_bytes());
    format!(
        "{:016x}{:08x}{name:016x}",
        member.registration.disk.0, member.id.0
    )
}

/// `host`, `host:port` or `[host]:port`.
fn announced(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is not host:port or host");
    let (host, port) = match text.rsplit_once(':') {
        // An address of version 6 by itself has colons too.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, Some(port.parse().map_err(|_| wrong())?))
        }
        _ => (text, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.is_empty() || host.contains(char::is_whitespace) || port == Some(0) {
        true => Err(wrong()),
        false => Ok(Some((host.to_owned(), port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_a_host_with_or_without_a_port() {
        let host = |host: &str, port| Ok(Some((host.to_owned(), port)));
        assert_eq!(announced(""), Ok(None));
        assert_eq!(announced("larder.example"), host("larder.example", None));
        assert_eq!(
            announced("larder.example:7000"),
            host("larder.example", Some(7000))
        );
        assert_eq!(announced("fe80::1"), host("fe80::1", None));
        assert_eq!(announced("[fe80::1]:7000"), host("fe80::1", Some(7000)));
        for wrong in [
            "larder.example:",
            ":7000",
            "a b:1",
            "h:0",
            "h:70000",
            "[]:1",
        ] {
            assert!(announced(wrong).is_err(), "{wrong}");
        }
    }
}
