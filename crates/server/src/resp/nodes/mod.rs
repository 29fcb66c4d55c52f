//! The other nodes of a cluster from the viewpoint of one core: the connections to each, the messages received over
//! them, and requests that are routed to the owners of their keys.
//!
//! ```text
//!   Incoming ─► batch_router ─► peers ═══ a connection ═══► arrivals ─► remote, on this core or, by message, on the named one
//!                    │ NotDone: waits for a newer view, and routes again
//!                    └ Unknown: retries reads, returns UNKNOWN for writes
//! ```

mod arrivals;
mod batch_router;
mod clock_skew;
mod newer_map;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_cluster::map::{Epoch, Incarnation, Member, MemberState, NodeId};
use larder_cluster::peer::{Execution, Options, PeerInfo, Requests};
use larder_protocol::commands::{Batch, OwnedCommand};
use larder_protocol::config::{ClusterMode, ServerConfig};

use super::core::Core;
use super::incoming::PIECES_MAX;
use crate::Shared;
use crate::clients::Client;
use crate::cluster::{
    self, MARGIN_MS, Members, PeerIdentity, Peers, SUBSCRIPTION_MS_MAX, Tls, TlsFiles,
};
use crate::error::Error;

pub(super) use arrivals::{encode_piece, receive_arrivals};
pub(super) use batch_router::{BatchRouter, BatchTarget, ROUTE_TIMEOUT, RoutedBatch};

/// Maximum number of concurrent requests of one core to another core.
const STREAMS_MAX: u32 = 4_096;
const GREETING_MS: u64 = 3_000;
/// Maximum bytes queued for one connection; further senders wait.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// Interval between two checks of the connections to other nodes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of nodes to which a connection is opened in advance.
const CONNECTED_MAX: usize = 64;
/// Maximum number of cached clients of other nodes.
const CLIENTS_MAX: usize = 256;

/// A core's connections to other nodes.
pub(super) struct Nodes {
    pub net: Rc<cluster::Core>,
    pub peers: Rc<Peers>,
    clients: RefCell<HashMap<Option<SocketAddr>, Arc<Client>>>,
}

/// The cluster map, as the connections of one core use it.
struct MapMembers(Arc<Shared>, usize);

impl Members for MapMembers {
    fn me(&self) -> Option<(NodeId, Incarnation)> {
        let view = self.0.membership.as_ref()?.view();
        let life = view.own().map(|own| own.registration.incarnation);
        Some((view.me, life.unwrap_or_default()))
    }

    fn identity(&self, node: NodeId) -> Option<PeerIdentity> {
        let view = self.0.membership.as_ref()?.view();
        let member = view.map.member(node)?;
        Some(PeerIdentity {
            name: member.name().to_string(),
            incarnation: member.registration.incarnation,
            address: member.registration.peer.clone(),
        })
    }

    fn epoch(&self) -> Epoch {
        let membership = self.0.membership.as_ref();
        membership.map_or(Epoch(0), |membership| membership.view().map.epoch())
    }

    fn serves_until_ms(&self, life: Incarnation) -> u64 {
        let view = self.0.membership.as_ref().map(|it| it.view());
        let life = view
            .as_ref()
            .filter(|view| view.is_up())
            .and_then(|view| view.life.as_ref())
            .filter(|present| present.incarnation == life);
        life.map_or(0, |life| life.held.until_ms())
    }

    /// Records the result of a connection attempt, on core 0 only, which connects to all nodes: see [`keep_connected`].
    fn record_contact(&self, node: NodeId, how: Result<(), &str>) {
        let membership = self.0.membership.as_ref().filter(|_| self.1 == 0);
        if let Some(membership) = membership
            && let Some(member) = membership.view().map.member(node)
        {
            membership.record_contact(member.name(), how);
        }
    }
}

/// Reads the certificates of `cluster.tls_*`; `None` if the nodes communicate in plaintext.
///
/// # Errors
/// [`Error::BadRequest`]: a file is unusable.
pub(super) fn tls(config: &ServerConfig) -> Result<Option<Tls>, Error> {
    let cluster = &config.cluster;
    if cluster.mode != ClusterMode::Etcd || cluster.tls_cert.is_empty() {
        return Ok(None);
    }
    let files = TlsFiles {
        authority: (&cluster.tls_ca).into(),
        certificate: (&cluster.tls_cert).into(),
        key: (&cluster.tls_key).into(),
    };
    let opened = Tls::open(&files);
    opened
        .map(Some)
        .map_err(|why| Error::BadRequest(format!("cluster.tls_*: {why}")))
}

/// Opens connections to other nodes in advance, and reopens lost ones, so that unreachable nodes are reported early. In
/// a large cluster, it connects only to the nodes with the next higher ids. Never returns.
pub(super) async fn keep_connected(shared: Arc<Shared>, peers: Rc<Peers>) {
    let Some(membership) = &shared.membership else {
        return;
    };
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut checks: u64 = 0;
    loop {
        tick.tick().await;
        checks += 1;
        let view = membership.view();
        if !view.is_up() {
            membership.retain_contacts(|_| false);
            continue;
        }
        let is_connectable =
            |member: &&Member| member.state != MemberState::Down && member.id != view.me;
        let members = view.map.members();
        let higher = members.iter().filter(|it| it.id > view.me);
        let lower = members.iter().filter(|it| it.id < view.me);
        for member in higher
            .chain(lower)
            .filter(is_connectable)
            .take(CONNECTED_MAX)
        {
            // The failed attempt has already recorded its cause.
            if peers.link(member.id).is_err() {
                continue;
            }
            if newer_map::is_due(&view) {
                let compared = newer_map::compare(shared.clone(), peers.clone(), member.id);
                tokio::task::spawn_local(compared);
            }
            let is_new = !membership.has_clock(member.name());
            if is_new || checks.is_multiple_of(clock_skew::CHECKS_PER_MEASUREMENT) {
                let (peers, name) = (peers.clone(), member.name().clone());
                let measured = clock_skew::measure(shared.clone(), peers, member.id, name);
                tokio::task::spawn_local(measured);
            }
        }
        membership.retain_contacts(|name| {
            let member = view.map.member_named(name);
            member.as_ref().is_some_and(is_connectable)
        });
    }
}

/// Returns a node's reply to a command that does not depend on the map.
async fn request_reply(peers: &Rc<Peers>, node: NodeId, command: OwnedCommand) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    Batch::from(command.command()).encode(&mut bytes);
    let requests = Requests {
        core: 0,
        execution: Execution::OneByOne,
        proto: 2,
        client: None,
        epoch: 0,
        versions: Vec::new(),
        batch: Bytes::from(bytes),
    };
    let mut pieces = peers.request(node, requests).await.ok()?;
    let mut reply = Vec::new();
    while let Some(piece) = pieces.next().await.ok()? {
        reply.extend_from_slice(&piece.bytes);
    }
    Some(reply)
}

fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Nodes {
    /// Returns `None` if the server is not a node of an etcd cluster.
    pub fn of(shared: &Arc<Shared>, core: usize, tls: Option<Tls>) -> Option<Rc<Nodes>> {
        let cluster = &shared.config.cluster;
        if cluster.mode != ClusterMode::Etcd || shared.membership.is_none() {
            return None;
        }
        let lease_ms = (cluster.lease_seconds * 500).min(SUBSCRIPTION_MS_MAX);
        let options = Options {
            cluster: cluster.name.clone(),
            local: PeerInfo {
                core: core as u16,
                lease_ms,
                streams_max: STREAMS_MAX,
                pieces_max: PIECES_MAX as u32,
                ..PeerInfo::default()
            },
            ping_every_ms: lease_ms / 4,
            margin_ms: MARGIN_MS,
            silence_ms: lease_ms,
            greeting_ms: GREETING_MS,
            queued_bytes_max: QUEUED_BYTES_MAX,
        };
        let net = cluster::Core::new(
            options,
            MapMembers(shared.clone(), core),
            tls,
            random_number,
        );
        let peers = Peers::new(net.clone());
        Some(Rc::new(Nodes {
            net,
            peers,
            clients: RefCell::default(),
        }))
    }

    /// Returns the client that represents a client of another node.
    fn client(&self, core: &Core, addr: Option<SocketAddr>) -> Arc<Client> {
        let mut clients = self.clients.borrow_mut();
        if let Some(cached) = clients.get(&addr) {
            return cached.clone();
        }
        if clients.len() == CLIENTS_MAX {
            clients.clear();
        }
        let client = core.clients.new_remote(core.index, addr);
        clients.insert(addr, client.clone());
        client
    }
}
