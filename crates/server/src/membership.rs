//! This node's membership in its cluster: its current view, its addresses, and its requests and reports.
//!
//! With `cluster.mode = "one"`, the cluster consists of this node (`cluster/one.rs`); with `"etcd"`, it has many nodes
//! (`cluster/node`).

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use larder_cluster::controller::{ControllerRequest, Report};
use larder_cluster::coordination::Embedded;
use larder_cluster::map::{Epoch, Map, Member, NodeName, Registration, Roles};
use larder_protocol::config::{ClusterMode, NodeRoles, ServerConfig};

use crate::cluster::node::{self, NodeHealth, NodeThread};
use crate::cluster::{View, one};
use crate::error::Error;
use crate::supervision::PanicGuard;
use crate::tables::TablesHandle;

/// A node's membership in its cluster, shared by all threads.
pub struct Membership {
    view: Arc<ArcSwap<View>>,
    /// `cluster.announce`: a host, and a port if that differs too.
    announce: Option<(String, Option<u16>)>,
    backend: Backend,
    /// The last measured offsets of other nodes' clocks from this one's.
    clocks: Mutex<BTreeMap<NodeName, ClockSkew>>,
}

/// The offset of another node's clock from this node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSkew {
    /// Negative if the other clock is behind.
    pub ahead_ms: i64,
    /// The maximum error, in either direction.
    pub within_ms: u64,
}

/// The storage of the map.
enum Backend {
    /// A file. The service holds its lock.
    File {
        _service: Embedded,
    },
    Etcd(Box<node::Handle>),
}

/// The addresses on which this node listens.
pub struct ListenAddresses {
    pub resp: SocketAddr,
    pub http: Option<SocketAddr>,
    /// With `cluster.mode = "etcd"`.
    pub peer: Option<TcpListener>,
}

impl Membership {
    /// Prepares the cluster of `cluster.mode`, if there is one. Nothing is known about a cluster in etcd before
    /// [`Membership::begin`].
    ///
    /// # Errors
    /// [`Error::BadRequest`] if a setting is wrong, [`Error::Corrupted`] or [`Error::Io`] if the map cannot be read or written.
    pub async fn open(
        config: &ServerConfig,
        cores: usize,
        listens: ListenAddresses,
    ) -> Result<Option<Membership>, Error> {
        let section = &config.cluster;
        if section.mode == ClusterMode::Off {
            return Ok(None);
        }
        let wrong = |key: &str, why: String| Error::BadRequest(format!("cluster.{key}: {why}"));
        let name: NodeName = (section.node.parse()).map_err(|why| wrong("node", why))?;
        let announce = parse_announced(&section.announce).map_err(|why| wrong("announce", why))?;
        let peer =
            parse_announced(&section.peer_announce).map_err(|why| wrong("peer_announce", why))?;
        let at = |key: &str, listens: Option<SocketAddr>, announced: &Option<_>| {
            let Some(addr) = listens else {
                return Ok(String::new());
            };
            let is_unspecified = addr.ip().is_unspecified() && section.mode == ClusterMode::Etcd;
            match announced {
                None if is_unspecified => Err(wrong(
                    key,
                    format!(
                        "this node listens on {addr}, an address that other nodes cannot connect to: set the host by which they reach it"
                    ),
                )),
                _ => Ok(address_text(addr, announced.as_ref())),
            }
        };
        let peer_addr = listens.peer.as_ref().and_then(|it| it.local_addr().ok());
        // The announced port is that of the Redis protocol.
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
        let (view, backend) = match section.mode {
            ClusterMode::Etcd => {
                let view = View::initial(
                    Map::new(&section.name, node::initial_settings(config)),
                    registration.cores,
                );
                let view = Arc::new(ArcSwap::from_pointee(view));
                let handle = node::Handle::new(config, registration, view.clone(), listens.peer)?;
                (view, Backend::Etcd(Box::new(handle)))
            }
            _ => {
                let (service, view) =
                    one::open(&config.server.data, &section.name, registration).await?;
                let view = Arc::new(ArcSwap::from_pointee(view));
                (view, Backend::File { _service: service })
            }
        };
        Ok(Some(Membership {
            view,
            announce,
            backend,
            clocks: Mutex::default(),
        }))
    }

    /// Starts this node's participation in a cluster in etcd. `notify` is called with each new view, on a separate thread.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be created.
    pub fn begin(
        &self,
        notify: impl Fn(Arc<View>) + Send + 'static,
        tables: &TablesHandle,
        guard: PanicGuard,
    ) -> Result<Option<NodeThread>, Error> {
        match &self.backend {
            Backend::File { .. } => Ok(None),
            Backend::Etcd(handle) => handle
                .begin(
                    Box::new(notify),
                    tables.slot_requests.clone(),
                    tables.fault_monitor.clone(),
                    guard,
                )
                .map(Some),
        }
    }

    /// The current view.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Returns whether a map in etcd determines the placement.
    pub fn uses_etcd(&self) -> bool {
        matches!(self.backend, Backend::Etcd(_))
    }

    /// This node's status with etcd; `None` if it does not use etcd.
    pub fn health(&self) -> Option<Arc<NodeHealth>> {
        match &self.backend {
            Backend::File { .. } => None,
            Backend::Etcd(handle) => Some(handle.health()),
        }
    }

    /// The node's handle in a cluster in etcd; `None` if the map is in a file.
    pub fn node(&self) -> Option<&node::Handle> {
        match &self.backend {
            Backend::File { .. } => None,
            Backend::Etcd(handle) => Some(handle),
        }
    }

    /// The number of requests that this node has sent to etcd. Executing commands requires none.
    pub fn etcd_requests(&self) -> u64 {
        match &self.backend {
            Backend::File { .. } => 0,
            Backend::Etcd(handle) => handle.etcd_requests(),
        }
    }

    /// Returns whether commands on tables are rejected, at the cost of one atomic load.
    #[inline]
    pub fn is_refusing(&self) -> bool {
        match &self.backend {
            Backend::File { .. } => false,
            Backend::Etcd(handle) => handle.is_refusing(),
        }
    }

    /// The reason why all commands on tables are rejected, if they are: this node is not part of the cluster, or the cluster has
    /// not started.
    pub fn refusal(&self) -> Option<String> {
        let health = self.health()?;
        health.refusal(&self.view.load())
    }

    /// The address to which other nodes connect.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.backend {
            Backend::File { .. } => None,
            Backend::Etcd(handle) => handle.peer_addr(),
        }
    }

    /// Returns the listener for other nodes, once.
    #[allow(dead_code, reason = "for accepting, pushing and replicating")]
    pub fn take_peer_listener(&self) -> Option<TcpListener> {
        match &self.backend {
            Backend::File { .. } => None,
            Backend::Etcd(handle) => handle.take_peer_listener(),
        }
    }

    /// Sends an operator request to the controller, and waits for its answer; a push is answered when it has ended. Dropping the
    /// future does not withdraw the request.
    ///
    /// # Errors
    /// A message for the operator: the reason for a rejection, or that the outcome is unknown.
    pub async fn submit(&self, request: ControllerRequest) -> Result<String, String> {
        match &self.backend {
            Backend::File { .. } => Err("this cluster has one node and no controller: set cluster.mode = \"etcd\" for a cluster of several nodes".to_owned()),
            Backend::Etcd(handle) => handle.request(request).await,
        }
    }

    /// Changes this node's report, which is soon written completely. May be called as often as necessary.
    #[allow(dead_code, reason = "for accepting, pushing and replicating")]
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        if let Backend::Etcd(handle) = &self.backend {
            handle.report(change);
        }
    }

    /// Records that another node has a map of this epoch.
    pub fn observe_epoch(&self, epoch: Epoch) {
        if let Backend::Etcd(handle) = &self.backend {
            handle.observe_epoch(epoch);
        }
    }

    /// The reason why this node must not serve by its own map, if so: see [`NodeHealth::cut_off_reason`].
    pub fn cut_off_reason(&self) -> Option<String> {
        self.health()?.cut_off_reason(&self.view.load())
    }

    /// Records that another node was reached, or the reason why not.
    pub fn record_contact(&self, node: &NodeName, how: Result<(), &str>) {
        if let Backend::Etcd(handle) = &self.backend {
            handle.record_contact(node, how);
        }
    }

    pub fn note_clock(&self, node: NodeName, skew: ClockSkew) {
        self.locked_clocks().insert(node, skew);
    }

    /// The clock offsets of the nodes to which this one has sent requests.
    pub fn clocks(&self) -> BTreeMap<NodeName, ClockSkew> {
        self.locked_clocks().clone()
    }

    pub fn has_clock(&self, node: &NodeName) -> bool {
        self.locked_clocks().contains_key(node)
    }

    fn locked_clocks(&self) -> MutexGuard<'_, BTreeMap<NodeName, ClockSkew>> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the records about other nodes than these.
    pub fn retain_contacts(&self, nodes: impl Fn(&NodeName) -> bool) {
        self.locked_clocks().retain(|name, _| nodes(name));
        if let Backend::Etcd(handle) = &self.backend {
            handle.retain_peers(nodes);
        }
    }

    /// The host and port at which clients can reach a member of a view. For this node, this is the address that the client has
    /// used, unless another one is announced.
    pub fn address(&self, view: &View, member: &Member, reached: SocketAddr) -> (String, u16) {
        let is_own = member.id == view.me;
        if let (Backend::Etcd(_), Some(registered)) =
            (&self.backend, split(&member.registration.resp))
        {
            // All members give the same address for each, so that clients recognize it.
            return registered;
        }
        match &self.announce {
            Some((host, port)) if is_own => (host.clone(), port.unwrap_or(reached.port())),
            _ => (reached.ip().to_canonical().to_string(), reached.port()),
        }
    }
}

/// `host:port`, as announced or as bound.
fn address_text(addr: SocketAddr, announced: Option<&(String, Option<u16>)>) -> String {
    let Some((host, port)) = announced else {
        return addr.to_string();
    };
    let port = port.unwrap_or(addr.port());
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Splits an address that a member has registered into host and port.
pub fn split(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

/// A member's id for clients: 40 hexadecimal digits, unchanged for the lifetime of its data folder.
pub fn shown_id(member: &Member) -> String {
    let name = larder_types::key_hash(member.name().as_str().as_bytes());
    format!(
        "{:016x}{:08x}{name:016x}",
        member.registration.disk.0, member.id.0
    )
}

/// Parses `host`, `host:port` or `[host]:port`.
fn parse_announced(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is not host:port or host");
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address without a port contains colons too.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, Some(port.parse().map_err(|_| wrong())?))
        }
        _ => (text, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains(char::is_whitespace) || port == Some(0) {
        Err(wrong())
    } else {
        Ok(Some((host.to_owned(), port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_a_host_with_or_without_a_port() {
        let host = |host: &str, port| Ok(Some((host.to_owned(), port)));
        assert_eq!(parse_announced(""), Ok(None));
        assert_eq!(
            parse_announced("larder.example"),
            host("larder.example", None)
        );
        assert_eq!(
            parse_announced("larder.example:7000"),
            host("larder.example", Some(7000))
        );
        assert_eq!(parse_announced("fe80::1"), host("fe80::1", None));
        assert_eq!(
            parse_announced("[fe80::1]:7000"),
            host("fe80::1", Some(7000))
        );
        for wrong in [
            "larder.example:",
            ":7000",
            "a b:1",
            "h:0",
            "h:70000",
            "[]:1",
        ] {
            assert!(parse_announced(wrong).is_err(), "{wrong}");
        }
    }
}
