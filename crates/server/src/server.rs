//! Start and stop: the order in which the parts of a server start and stop.
//!
//! Start: lock the folder, bind both ports, serve HTTP, open the stores, maintain residency and retention, load the tables, serve
//! RESP, which replies LOADING before. Stop: both listeners, pulls, the rest. Ports are bound before the stores are opened, so
//! that a port in use is reported first; they accept connections only after that.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use larder_protocol::config::{ClusterMode, ServerConfig};

use crate::cluster::View;
use crate::cluster::node::NodeThread;
use crate::descriptors::raise_limit;
use crate::error::Error;
use crate::fetch::cluster::AgentThread;
use crate::http::HttpThread;
use crate::maintenance::Maintenance;
use crate::membership::{ListenAddresses, Membership};
use crate::resp::{RespListeners, RespThreads};
use crate::shared::Shared;
use crate::stores::FolderLock;
use crate::tables::CoreMessage;
use crate::watchdog::Watchdog;
use crate::{http, resp};

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    resp: RespThreads,
    resp_addr: SocketAddr,
    http: HttpThread,
    maintenance: Maintenance,
    node: Option<NodeThread>,
    agent: Option<AgentThread>,
    watchdog: Watchdog,
    _lock: FolderLock,
}

impl Server {
    /// Starts a server on `config.server.data`. Opening many large stores takes a while and blocks the calling task.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder is in use or a port cannot be bound; the message names it.
    pub async fn start(config: ServerConfig) -> Result<Server, Error> {
        raise_limit();
        let lock = FolderLock::take(&config.server.data)?;
        let resp_listeners = resp::bind(&config)?;
        let resp_addr = resp_listeners.addr();
        let http_listener = bind(&config.server.http, "http")?;
        protect(&config, "resp", Some(resp_addr))?;
        protect(&config, "http", http_listener.local_addr().ok())?;
        let peer = (config.cluster.mode == ClusterMode::Etcd).then(|| {
            listen(
                &config.cluster.peer,
                "cluster.peer",
                "--set cluster.peer=ADDR:PORT",
            )
        });
        let listens = ListenAddresses {
            resp: resp_addr,
            http: http_listener.local_addr().ok(),
            peer: peer.transpose()?,
        };
        let cores = crate::stats::thread_count(&config);
        let membership = Membership::open(&config, cores, listens).await?;
        let shared = Arc::new(Shared {
            membership,
            resp_addr: Some(resp_addr),
            ..Shared::new(config)?
        });
        let tables = shared.config.server.data.join("tables");
        shared.loading.begin(larder_journal::size_on_disk(&tables));
        let http = http::spawn(shared.clone(), http_listener)?;
        tracing::info!(resp = %resp_addr, http = %http.addr(), "opening the stores and the tables");
        let (maintenance, resp) = match shared.open(resp_listeners) {
            Ok(open) => open,
            Err(error) => {
                http.begin_stop();
                http.join();
                return Err(error);
            }
        };
        let node = shared.begin_in_cluster()?;
        let agent = AgentThread::spawn(&shared)?;
        let watchdog = Watchdog::spawn(&shared)?;
        tracing::info!(resp = %resp_addr, http = %http.addr(), "serving");
        Ok(Server {
            shared,
            resp,
            resp_addr,
            http,
            maintenance,
            node,
            agent,
            watchdog,
            _lock: lock,
        })
    }

    pub fn resp_addr(&self) -> SocketAddr {
        self.resp_addr
    }

    /// The address to which other nodes connect, with `cluster.mode = "etcd"`.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.membership.as_ref()?.peer_addr()
    }

    pub fn http_addr(&self) -> SocketAddr {
        self.http.addr()
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Waits until an essential thread fails, and returns the reason. The process should then end: acknowledged writes are as
    /// durable as `tables.fsync` specifies.
    pub async fn failed(&self) -> String {
        self.shared.supervisor.failed().await
    }

    /// Finishes current requests, closes connections, keeps what running pulls have fetched, and waits for all threads.
    ///
    /// # Errors
    /// The reason why a thread failed, now or before.
    pub async fn stop(self) -> Result<(), Error> {
        let Server {
            shared,
            resp,
            http,
            maintenance,
            node,
            agent,
            watchdog,
            ..
        } = self;
        let left = node.map(NodeThread::leave);
        // Both stop concurrently, so that a slow client of one does not keep the other's port open.
        http.begin_stop();
        resp.begin_stop();
        http.join();
        resp.join();
        if let Some(postgres) = &shared.postgres {
            postgres.stop();
        }
        shared.pulls.shut_down();
        if let Some(agent) = agent {
            agent.stop();
        }
        maintenance.stop();
        watchdog.stop();
        if let Some(why) = shared.supervisor.failure() {
            return Err(Error::Io(why));
        }
        if let Some(left) = left {
            left.record_stop();
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Rejects a configuration that serves everyone who can reach an address, unless a password or a certificate is required or that
/// is declared as intended.
fn protect(config: &ServerConfig, section: &str, addr: Option<SocketAddr>) -> Result<(), Error> {
    let is_local = addr.is_some_and(|addr| addr.ip().to_canonical().is_loopback());
    let is_protected =
        !config.server.password.is_empty() || !config.server.tls_client_ca.is_empty();
    if is_local || !config.server.protected_mode || is_protected {
        return Ok(());
    }
    let addr = addr.map_or_else(String::new, |addr| format!(" ({addr})"));
    Err(Error::BadRequest(format!(
        "server.{section}{addr} can be reached by other machines, and no password is required, so anyone there could read and \
         change everything: set server.password (LARDER_SERVER_PASSWORD) or server.tls_client_ca, or listen on 127.0.0.1; where the network itself keeps \
         strangers out, pass --set server.protected_mode=false"
    )))
}

impl Shared {
    /// Opens the stores and the tables, and serves RESP, which replies LOADING before.
    fn open(
        self: &Arc<Self>,
        listeners: RespListeners,
    ) -> Result<(Maintenance, RespThreads), Error> {
        let starting = resp::start_loading(self.clone(), listeners)?;
        let opened = self.stores.recover(&self.loading).and_then(|()| {
            self.descriptors.count_stores(&self.config);
            // It reads the live versions into memory first.
            Maintenance::spawn(self.clone())
        });
        let maintenance = match opened {
            Ok(maintenance) => maintenance,
            Err(error) => {
                starting.abandon();
                return Err(error);
            }
        };
        match starting.serve() {
            Ok(resp) => Ok((maintenance, resp)),
            Err(error) => {
                maintenance.stop();
                Err(error)
            }
        }
    }

    /// Starts this node's participation in its cluster, if that is in etcd. Each view is sent to all cores.
    fn begin_in_cluster(self: &Arc<Self>) -> Result<Option<NodeThread>, Error> {
        let Some(membership) = &self.membership else {
            return Ok(None);
        };
        let shared = self.clone();
        let notify = move |view: Arc<View>| {
            // Before cores execute commands under this view.
            shared.stores.apply_map(&view.map);
            shared.agent.notify();
            for core in 0..shared.tables.cores() {
                shared.tables.send(core, CoreMessage::View(view.clone()));
            }
        };
        membership.begin(notify, &self.tables, self.supervisor.guard())
    }
}

fn bind(addr: &str, section: &str) -> Result<TcpListener, Error> {
    listen(addr, &format!("server.{section}"), &format!("--{section}"))
}

fn listen(addr: &str, key: &str, flag: &str) -> Result<TcpListener, Error> {
    let refused = |error: std::io::Error| {
        Error::Io(format!(
            "cannot listen on {addr} ({key}): {error}; stop what uses that port, or choose another with {flag}"
        ))
    };
    let listener = TcpListener::bind(addr).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}
