//! This node's participation in a cluster whose map is in etcd (`cluster.mode = "etcd"`), on one thread, `larder-cluster`.
//!
//! ```text
//!   start ─► read the keys ─► create the map, if there is none ─► the folder's identity ─► lease ─► register ─┐
//!                  ▲                   (lifecycle)                    (disk)                                  │
//!                  │                                                                                          ▼
//!                  └──────────────── the lease has ended ◄──────── renew, follow, lead, report, ask ◄─────────┘
//!                                                              (map_watcher) (control) (reports) (requests)
//! ```
//!
//! 1. The server listens from its start. Until the map assigns slots, commands on tables are rejected with the reason, which
//!    `/readyz` and INFO also show ([`NodeHealth`]).
//! 2. A view contains the incarnation in which it was published, with that incarnation's lease. A lease therefore never counts
//!    with a map of another incarnation.
//! 3. All writes are compare-and-swaps. Writes for this incarnation also compare that its registration, or its candidacy, still
//!    exists.
//! 4. While etcd is unavailable, only the status changes, and writes are rejected once the lease may have expired.

mod control;
mod coordination_state;
mod disk;
mod fault_watch;
mod health;
mod lifecycle;
mod map_copy;
mod map_watcher;
mod peer_failures;
mod reports;
mod requests;
mod slot_writer;
mod write;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_cluster::controller::{ControllerRequest, Report};
use larder_cluster::coordination::{
    Coordination, Etcd, EtcdConfig, Keys, Outcome, Revision, TlsFiles, Writer, boot_ms,
};
use larder_cluster::map::{self, Epoch, NodeName, Registration, Settings};
use larder_protocol::config::{Acknowledge, ServerConfig};
use tokio::sync::{mpsc, watch};

use super::View;
use super::slot_requests::SlotRequests;
use crate::error::Error;
use crate::fault_monitor::FaultMonitor;
use crate::supervision::PanicGuard;
use coordination_state::{MAP, NEWER};
use disk::Disk;
use map_copy::MapCopy;
use peer_failures::PeerFailures;
use reports::Reports;
use requests::QueuedRequest;

pub use coordination_state::{CoordinationState, RevisionedMap};
pub use disk::identity;
pub use health::NodeHealth;

/// Maximum time for other nodes to take over this node's slots when the server stops. After that, they wait for the end of its
/// lease.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// Maximum duration of the end of an incarnation. After that, its lease expires.
const INCARNATION_END_MAX: Duration = Duration::from_secs(1);

/// This node's cluster, for all threads.
pub struct Handle {
    health: Arc<ArcSwap<NodeHealth>>,
    /// True if [`NodeHealth::refusal`] returns a reason.
    is_refusing: Arc<AtomicBool>,
    reports: Arc<Reports>,
    peer_failures: PeerFailures,
    requests: mpsc::UnboundedSender<QueuedRequest>,
    peer_listener: Mutex<Option<TcpListener>>,
    peer_addr: Option<SocketAddr>,
    etcd: Arc<Etcd>,
    /// The newest epoch that another node has sent.
    peer_epoch: Arc<AtomicU64>,
    /// The initial state of the thread.
    start: Mutex<Option<Start>>,
}

struct Start {
    service: Arc<dyn Coordination>,
    registration: Registration,
    settings: Settings,
    cluster: String,
    disk: Disk,
    /// The newest map that this node applied, and the writer of its copies.
    state: CoordinationState,
    map_copy: MapCopy,
    view: Arc<ArcSwap<View>>,
    /// The sender and the receiver of requests to the controller.
    request_sender: mpsc::UnboundedSender<QueuedRequest>,
    requests: mpsc::UnboundedReceiver<QueuedRequest>,
    slot_requests: Arc<SlotRequests>,
    fault_monitor: Arc<FaultMonitor>,
}

/// Called for each new view.
pub type ViewCallback = Box<dyn Fn(Arc<View>) + Send>;

impl Handle {
    /// Creates the handle without connecting.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for an invalid configuration, and the errors of [`Disk::open`].
    pub fn new(
        config: &ServerConfig,
        registration: Registration,
        view: Arc<ArcSwap<View>>,
        peer: Option<TcpListener>,
    ) -> Result<Handle, Error> {
        let section = &config.cluster;
        check_peer_security(config, peer.as_ref())?;
        let name = registration.name.to_string();
        let disk = Disk::open(
            &config.server.data,
            &section.name,
            &name,
            config.tables.fsync,
        )?;
        let data = &config.server.data;
        let (copy, map_copy) = (map_copy::read(data)?, MapCopy::start(data)?);
        let state = CoordinationState::with_copy(copy, disk.identity().is_some());
        let service = Etcd::new(etcd_config(config, &name));
        let service =
            service.map_err(|error| Error::BadRequest(format!("cluster.etcd: {error}")))?;
        let etcd = Arc::new(service);
        let (sender, requests) = mpsc::unbounded_channel();
        let peer_epoch = Arc::new(AtomicU64::new(0));
        Ok(Handle {
            health: Arc::new(ArcSwap::from_pointee(NodeHealth::new(
                registration.name.clone(),
                section.etcd.join(", "),
                state.clone(),
                peer_epoch.clone(),
            ))),
            peer_epoch,
            is_refusing: Arc::new(AtomicBool::new(true)),
            reports: Arc::default(),
            peer_failures: PeerFailures::new(section.lease_seconds * 1000),
            requests: sender.clone(),
            peer_addr: peer.as_ref().and_then(|peer| peer.local_addr().ok()),
            peer_listener: Mutex::new(peer),
            etcd: etcd.clone(),
            start: Mutex::new(Some(Start {
                service: etcd.clone(),
                registration,
                settings: initial_settings(config),
                cluster: section.name.clone(),
                disk,
                state,
                map_copy,
                view,
                request_sender: sender,
                requests,
                slot_requests: Arc::default(),
                fault_monitor: Arc::default(),
            })),
        })
    }

    /// Begins this node's first incarnation, once. The owners of its slots request changes of the map through `slot_requests`; the
    /// lease depends on `fault_monitor`.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be created.
    pub fn begin(
        &self,
        on_view: ViewCallback,
        slot_requests: Arc<SlotRequests>,
        fault_monitor: Arc<FaultMonitor>,
        guard: PanicGuard,
    ) -> Result<NodeThread, Error> {
        let start = self
            .start
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut start =
            start.ok_or_else(|| Error::Io("the node has already started".to_owned()))?;
        start.slot_requests = slot_requests;
        start.fault_monitor = fault_monitor;
        let failed = |error: std::io::Error| {
            Error::Io(format!("cannot start the thread of the cluster: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let (health, reports) = (self.health.clone(), self.reports.clone());
        let is_refusing = self.is_refusing.clone();
        let thread = std::thread::Builder::new()
            .name("larder-cluster".to_owned())
            .spawn(move || {
                let _guard = guard;
                let shared_health = map_watcher::SharedHealth {
                    health,
                    is_refusing,
                };
                let node = lifecycle::NodeLifecycle::new(start, shared_health, reports, on_view);
                runtime.block_on(node.run(stopped))
            })
            .map_err(failed)?;
        Ok(NodeThread { stop, thread })
    }

    /// The number of requests that this node has sent to etcd.
    pub fn etcd_requests(&self) -> u64 {
        self.etcd.requests()
    }

    #[inline]
    pub fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Relaxed)
    }

    pub fn health(&self) -> Arc<NodeHealth> {
        self.health.load_full()
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
    }

    pub fn take_peer_listener(&self) -> Option<TcpListener> {
        let mut peer = self
            .peer_listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        peer.take()
    }

    /// # Errors
    /// See `Membership::ask`.
    pub async fn request(&self, request: ControllerRequest) -> Result<String, String> {
        requests::send(&self.requests, request).await
    }

    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        self.reports.change(change);
    }

    /// Records that another node has a map of this epoch.
    pub fn observe_epoch(&self, epoch: Epoch) {
        self.peer_epoch.fetch_max(epoch.0, Ordering::AcqRel);
    }

    /// Records that another node was reached, or the reason why not.
    pub fn record_contact(&self, node: &NodeName, how: Result<(), &str>) {
        if self.peer_failures.record(node, how, boot_ms()) {
            self.report_peer_failures();
        }
    }

    /// Writes a rebuilt map in place of etcd's. `found` is etcd's map on which the plan was based.
    ///
    /// # Errors
    /// A message: the reason why it is not written, or that the outcome is unknown.
    pub async fn write_recovered(
        &self,
        map: &map::Map,
        found: Option<&RevisionedMap>,
    ) -> Result<(), String> {
        let mut writer = Writer::new("recover", random());
        let at = found.map_or(Revision(0), |it| it.revision);
        let change = (writer.change())
            .if_unchanged(MAP, at)
            .put(MAP, map.to_text());
        let service: &dyn Coordination = &*self.etcd;
        let written = service.change(&change).await;
        match written.map_err(|error| error.to_string())? {
            Outcome::Done(_) => Ok(()),
            Outcome::Conflict(_) => Err(
                "the map in etcd was changed concurrently; see larder cluster status".to_owned(),
            ),
        }
    }

    /// Reads the current map from etcd; `None` if there is none.
    ///
    /// # Errors
    /// A message: etcd does not answer, or has an invalid map.
    pub async fn read_map(&self) -> Result<Option<RevisionedMap>, String> {
        let service: &dyn Coordination = &*self.etcd;
        let read = service.read(&Keys::one(MAP)).await;
        let read = read.map_err(|error| format!("etcd does not answer: {error}"))?;
        let map = read
            .entries
            .first()
            .map(coordination_state::read_map)
            .transpose();
        map.map_err(|why| why.to_string())
    }

    /// Reads the epochs up to which nodes have applied the map of a cluster, according to the marks that they left when etcd's
    /// map went back.
    ///
    /// # Errors
    /// A message: etcd does not answer.
    pub async fn read_marks(&self) -> Result<Vec<(map::ClusterId, Epoch)>, String> {
        let service: &dyn Coordination = &*self.etcd;
        let read = service.read(&Keys::with_prefix(NEWER)).await;
        let read = read.map_err(|error| format!("etcd does not answer: {error}"))?;
        Ok(read
            .entries
            .iter()
            .filter_map(coordination_state::read_mark)
            .collect())
    }

    /// Discards the records about other nodes than these.
    pub fn retain_peers(&self, nodes: impl Fn(&NodeName) -> bool) {
        if self.peer_failures.retain(nodes) {
            self.report_peer_failures();
        }
    }

    fn report_peer_failures(&self) {
        self.report(|report| report.unreached = self.peer_failures.lasting_failures());
    }
}

/// The thread while it runs.
pub struct NodeThread {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Disk>,
}

impl NodeThread {
    /// Hands over this node's slots while it still serves them, and then ends its lease, so that other nodes wait for nothing.
    /// Must be called before anything else is stopped.
    pub fn leave(self) -> StoppedNode {
        self.stop.send_replace(true);
        let disk = self.thread.join();
        // The supervisor reports a panic.
        StoppedNode(disk.ok())
    }
}

/// The node no longer serves any slot.
pub struct StoppedNode(Option<Disk>);

impl StoppedNode {
    /// Records a graceful stop. Must be called when nothing is written any more and the journal is closed.
    pub fn record_stop(self) {
        let Some(mut disk) = self.0 else { return };
        if let Err(error) = disk.record_stop() {
            tracing::warn!(%error, "the graceful stop of this node cannot be recorded");
        }
    }
}

/// A number that is unique to this process.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// The initial settings of a new cluster.
pub fn initial_settings(config: &ServerConfig) -> Settings {
    let (cluster, tables) = (&config.cluster, &config.tables);
    Settings {
        replicas: tables.replicas.try_into().unwrap_or(u8::MAX),
        min_copies: cluster.min_copies.try_into().unwrap_or(u8::MAX),
        acknowledge: match tables.acknowledge {
            Acknowledge::Owner => map::Acknowledge::Owner,
            Acknowledge::Replicas => map::Acknowledge::Replicas,
        },
        lease_ms: cluster.lease_seconds * 1000,
        replace_after_ms: cluster.replace_after_seconds * 1000,
        start_nodes: cluster.start_nodes,
        // The configuration counts the live version too.
        versions_kept: config
            .stores
            .retain_versions
            .saturating_sub(1)
            .try_into()
            .unwrap_or(u8::MAX),
        ..Settings::default()
    }
}

fn etcd_config(config: &ServerConfig, name: &str) -> EtcdConfig {
    let section = &config.cluster;
    let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
    let members = section.etcd.len().max(1);
    EtcdConfig {
        endpoints: section.etcd.clone(),
        prefix: format!("/larder/{}/", section.name),
        user: (!section.etcd_user.is_empty())
            .then(|| (section.etcd_user.clone(), section.etcd_password.clone())),
        tls: TlsFiles {
            authority: file(&section.etcd_ca),
            certificate: file(&section.etcd_cert),
            key: file(&section.etcd_key),
        },
        // Distributes the nodes over the members.
        first: (larder_types::key_hash(name.as_bytes()) % members as u64) as usize,
        request_timeout: None,
    }
}

/// Rejects a configuration in which anyone who reaches the peer port could act as a node, unless it is declared as intended.
fn check_peer_security(config: &ServerConfig, peer: Option<&TcpListener>) -> Result<(), Error> {
    let section = &config.cluster;
    let addr = peer.and_then(|peer| peer.local_addr().ok());
    let is_local = addr.is_none_or(|addr| addr.ip().to_canonical().is_loopback());
    if is_local || section.plain || !section.tls_cert.is_empty() {
        return Ok(());
    }
    Err(Error::BadRequest(format!(
        "cluster.peer ({}) can be reached by other machines, and no certificate is configured, so any process there could read and change \
         all data: set cluster.tls_ca, cluster.tls_cert and cluster.tls_key (larder cluster certs creates them), or listen on \
         127.0.0.1; if the network itself is private, confirm this with --set cluster.plain=true",
        section.peer
    )))
}
