//! Listeners and serving threads, one of each per core: startup, accepting connections, and shutdown.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_protocol::config::ServerConfig;
use rustix::net::Shutdown;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::core::Core;
use super::loading::{LoadingConnection, Responder};
use super::nodes::{self, Nodes, keep_connected, receive_arrivals};
use super::remote;
use super::session;
use super::spaces::offload;
use super::tables::{execute_on_owners, follow_definitions};
use super::tls_connection;
use crate::clients::{Client, Clients, Limits};
use crate::cluster::{self, Tls};
use crate::descriptors::Purpose;
use crate::membership::Membership;
use crate::stats::thread_count;
use crate::tables::{self, CoreMessage, OpenError, OpeningChannels, Tables};
use crate::{Error, Shared};

const BACKLOG: i32 = 4096;
/// Maximum number of messages of other cores processed per turn of a core's loop.
const MESSAGES_PER_TURN: usize = 16;
/// The error for a connection above the limit, in Redis's words.
pub(super) const TOO_MANY_CLIENTS: &[u8] = b"-ERR max number of clients reached\r\n";

/// Bound sockets, one per thread, that do not accept connections yet.
pub struct RespListeners {
    listeners: Vec<TcpListener>,
    addr: SocketAddr,
}

impl RespListeners {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Binds `server.resp` once per thread.
///
/// # Errors
/// [`Error::Io`], with the address and a correction.
pub fn bind(config: &ServerConfig) -> Result<RespListeners, Error> {
    let address = &config.server.resp;
    let bind_error = |error: io::Error| {
        Error::Io(format!(
            "cannot listen on {address} (server.resp): {error}; stop what uses that port, or choose another with --resp"
        ))
    };
    let addr = address.to_socket_addrs().map_err(bind_error)?.next();
    let addr = addr.ok_or_else(|| bind_error(io::Error::other("the name has no address")))?;
    if addr.port() != 0 {
        // With SO_REUSEPORT, a second server would silently share the port. Binding it exclusively first detects that.
        drop(listen(addr, false).map_err(bind_error)?);
    }
    let mut listeners = vec![listen(addr, true).map_err(bind_error)?];
    let addr = listeners[0].local_addr().map_err(bind_error)?;
    for _ in 1..thread_count(config) {
        listeners.push(listen(addr, true).map_err(bind_error)?);
    }
    Ok(RespListeners { listeners, addr })
}

fn listen(addr: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if share {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    if share {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

/// The running threads.
pub struct RespThreads {
    stopping: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// One channel per thread. Sending starts the thread's service, beginning with these connections; dropping the
    /// channel ends a thread that does not serve yet.
    start_senders: Vec<Sender<Vec<LoadingConnection>>>,
}

/// The result of opening a core's part of the tables, with the core's index.
type OpenResult = (usize, Result<(), OpenError>);

/// A server that answers LOADING and does not serve yet.
pub struct Starting {
    shared: Arc<Shared>,
    listeners: RespListeners,
    clients: Arc<Clients>,
    responder: Responder,
}

/// Starts to answer clients with LOADING.
///
/// # Errors
/// [`Error::Io`] if the system cannot create a thread.
pub fn start_loading(shared: Arc<Shared>, listeners: RespListeners) -> Result<Starting, Error> {
    let clients = Arc::new(Clients::new(
        Limits::from_config(&shared.config),
        shared.stats.clients.clone(),
    ));
    let responder = Responder::spawn(&shared, &clients, listeners.listeners.iter());
    Ok(Starting {
        responder: responder.map_err(thread_error)?,
        shared,
        listeners,
        clients,
    })
}

impl Starting {
    /// Stops without serving.
    pub fn abandon(self) {
        self.responder.finish();
    }

    /// Starts a thread per listener. Returns once all threads have opened their part of the tables and serve.
    ///
    /// # Errors
    /// The reason why a thread cannot open its part; [`Error::Io`] if the system cannot create a thread or a runtime.
    /// All threads have then ended.
    pub fn serve(self) -> Result<RespThreads, Error> {
        let Starting {
            shared,
            listeners,
            clients,
            responder,
        } = self;
        let cores = listeners.listeners.len();
        let tls = nodes::tls(&shared.config)?;
        let peers = shared
            .membership
            .as_ref()
            .and_then(Membership::take_peer_listener);
        let (stopping, stop) = watch::channel(false);
        let mut started = RespThreads {
            stopping,
            threads: Vec::new(),
            start_senders: Vec::new(),
        };
        let (opened, open_results) = channel();
        let parts = listeners
            .listeners
            .into_iter()
            .zip(OpeningChannels::for_cores(cores));
        for (index, (listener, opening)) in parts.enumerate() {
            let (start_sender, start_signal) = channel();
            let peers = peers.as_ref().map(TcpListener::try_clone).transpose();
            let seat = CoreThread {
                index,
                shared: shared.clone(),
                clients: clients.clone(),
                listener,
                // Each core accepts connections of any core, and forwards those for other cores.
                peer_access: (tls.clone(), peers.map_err(thread_error)?),
                stop: stop.clone(),
            };
            let opened = opened.clone();
            let run = move || seat.run(opening, opened, &start_signal);
            let supervisor = &shared.supervisor;
            let thread = supervisor.spawn(&format!("resp-{index}"), run);
            started.threads.push(thread.map_err(thread_error)?);
            started.start_senders.push(start_sender);
        }
        drop(opened);
        let all_opened = wait_until_opened(&open_results, cores);
        let mut waiting = responder.finish();
        if let Err(error) = all_opened {
            started.start_senders.clear();
            started.join();
            // A panic message is more informative than the end of a thread.
            return Err(shared.supervisor.failure().map_or(error, Error::Io));
        }
        for (index, start_sender) in started.start_senders.drain(..).enumerate() {
            let share = waiting.len() / (cores - index);
            // An error means that the thread has failed, which the supervisor reports.
            let _ = start_sender.send(waiting.split_off(waiting.len() - share));
        }
        // Only now, because a failed start must never have been ready.
        shared.loading.end();
        Ok(started)
    }
}

fn thread_error(error: io::Error) -> Error {
    Error::Io(format!("cannot start a thread for server.resp: {error}"))
}

/// Waits until every core has opened its part, or has ended.
fn wait_until_opened(open_results: &Receiver<OpenResult>, cores: usize) -> Result<(), Error> {
    let mut results: Vec<OpenResult> = open_results.iter().collect();
    results.sort_by_key(|(index, _)| *index);
    let is_complete = results.len() == cores;
    let mut failed = results.into_iter().filter_map(|(_, result)| result.err());
    let reason = failed.find_map(|error| match error {
        OpenError::Failed(error) => Some(error),
        OpenError::Abandoned => None,
    });
    match reason {
        Some(error) => Err(error),
        None if is_complete => Ok(()),
        None => Err(Error::Io(
            "a serving thread ended while it opened the tables; see the log".to_owned(),
        )),
    }
}

impl RespThreads {
    /// Stops accepting connections, sends pending replies for up to `server.stop_timeout_seconds`, and closes the
    /// connections.
    pub fn begin_stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for the end of the shutdown that [`RespThreads::begin_stop`] started.
    pub fn join(self) {
        for thread in self.threads {
            // The supervisor catches panics and reports them.
            let _ = thread.join();
        }
    }
}

/// The initial state of a serving thread.
struct CoreThread {
    index: usize,
    shared: Arc<Shared>,
    clients: Arc<Clients>,
    listener: TcpListener,
    peer_access: (Option<Tls>, Option<TcpListener>),
    stop: watch::Receiver<bool>,
}

impl CoreThread {
    /// Runs a serving thread: opens its part of the tables, waits until the other threads have opened theirs, serves,
    /// and closes its part when all its sessions have ended.
    fn run(
        self,
        opening: OpeningChannels,
        opened: Sender<OpenResult>,
        start_signal: &Receiver<Vec<LoadingConnection>>,
    ) -> Result<(), Error> {
        let CoreThread {
            index,
            shared,
            clients,
            listener,
            peer_access: (tls, peers),
            stop,
        } = self;
        shared.supervisor.watch_this_thread();
        shared.pulls.throttle.add_serving_thread();
        let tables = tables::open(&shared, index, opening);
        let (tables, result) = match tables {
            Ok(tables) => (Some(Rc::new(tables)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // The starting thread waits for the result.
        let _ = opened.send((index, result));
        drop(opened);
        // Without a message, the server does not start.
        let (Some(tables), Ok(waiting)) = (tables, start_signal.recv()) else {
            return Ok(());
        };
        let disk_threads = shared.config.server.disk_threads as usize;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Threads for large search results, in addition to those that read from disk.
            .max_blocking_threads(
                disk_threads.div_ceil(shared.tables.cores()) + offload::OFFLOAD_THREADS,
            )
            .thread_name(format!("disk-{index}"))
            .build_local(LocalOptions::default())
            .map_err(thread_error)?;
        let nodes = Nodes::of(&shared, index, tls);
        let core = Core::new(index, shared, clients, tables.clone(), nodes);
        runtime.block_on(serve(core, listener, waiting, peers, stop))?;
        tables.commit();
        drop(runtime);
        Rc::into_inner(tables).map_or(Ok(()), Tables::close)
    }
}

/// Starts a core's work on the tables besides commands: maintenance, timers, and messages of other cores.
pub(super) fn start_table_tasks(core: &Rc<Core>, mut messages: UnboundedReceiver<CoreMessage>) {
    let tables = &core.tables;
    let limits = core.clients.limits;
    tables.set_held_limits(
        limits.per_client_bytes,
        limits.total_bytes / core.shared.tables.cores(),
    );
    tokio::task::spawn_local(tables.clone().run_maintenance());
    tokio::task::spawn_local(tables.clone().run_every_second());
    if tables.is_replicated() {
        tokio::task::spawn_local(tables.clone().run_replication());
    }
    if tables.shard().is_some() {
        tokio::task::spawn_local(tables.clone().run_expiry());
    }
    let limit = core.shared.config.tables.memory.0;
    if limit > 0 {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        tokio::task::spawn_local(tables.clone().share_memory(limit));
    }
    let core = core.clone();
    tokio::task::spawn_local(async move {
        let mut handled = 0;
        while let Some(message) = messages.recv().await {
            core.shared.tables.record_received(core.index);
            let is_large = matches!(&message, CoreMessage::Postgres(update) if update.is_large());
            handle_message(&core, message);
            handled += 1;
            if is_large || handled % MESSAGES_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
}

/// Starts a core's work for and with other nodes.
///
/// # Errors
/// [`Error::Io`]: the listener for other nodes is unusable.
fn start_node_tasks(
    core: &Rc<Core>,
    nodes: Rc<Nodes>,
    peers: Option<TcpListener>,
) -> Result<(), Error> {
    let tables = &core.tables;
    tables.set_peers(nodes.peers.clone());
    tables.set_replication_peers(nodes.peers.clone());
    tokio::task::spawn_local(tables.clone().watch_conversations());
    if core.index == 0 {
        tokio::task::spawn_local(follow_definitions(tables.clone()));
        tokio::task::spawn_local(keep_connected(core.shared.clone(), nodes.peers.clone()));
    }
    let listener = peers.map(|peers| {
        peers.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(peers)
    });
    let failed =
        |error: io::Error| Error::Io(format!("cannot use the listener of cluster.peer: {error}"));
    if let Some(listener) = listener.transpose().map_err(failed)? {
        tokio::task::spawn_local(cluster::accept(nodes.net.clone(), listener));
    }
    tokio::task::spawn_local(receive_arrivals(core.clone(), nodes));
    Ok(())
}

fn handle_message(core: &Rc<Core>, message: CoreMessage) {
    let tables = &core.tables;
    match message {
        CoreMessage::Exchange { from, messages } => tables.receive(from, messages),
        CoreMessage::Requests(requests) => remote::execute(core, requests),
        CoreMessage::Execute { command, answer } => {
            let core = core.clone();
            tokio::task::spawn_local(async move {
                let client = core.clients.new_remote(core.index, None);
                let reply = execute_on_owners(&core, &client, command).await;
                // An error means that the receiver is gone.
                let _ = answer.send(reply);
            });
        }
        CoreMessage::Task(task) => {
            tokio::task::spawn_local(task(tables.clone()));
        }
        CoreMessage::Pause { ticket, granted } => tables.pause(ticket, granted),
        CoreMessage::Release {
            ticket,
            is_abandoned,
        } => tables.release(ticket, is_abandoned),
        CoreMessage::Postgres(update) => tables.receive_postgres_update(update),
        CoreMessage::View(view) => tables.receive_view(view),
        CoreMessage::FromReader(from) => tables.receive_from_reader(from),
        CoreMessage::ToReader { link, exchange } => tables.send_over(link, exchange),
        CoreMessage::ReaderDisconnected {
            via,
            forgotten_after_ms,
        } => tables.record_readers_disconnected(via, forgotten_after_ms),
        CoreMessage::FromOwner(from) => tables.receive_from_owner(&from),
        CoreMessage::ToOwner { link, replicate } => tables.send_answer_over(link, replicate),
        CoreMessage::OwnerDisconnected { node, link } => {
            tables.replication_owner_disconnected(node, link)
        }
        CoreMessage::EndLink { link, why } => tables.end_accepted(link, why),
        CoreMessage::OwnerLost { from, upto } => tables.owner_lost(from, upto),
        CoreMessage::Settlement { from, settlement } => tables.receive_settlement(from, settlement),
    }
}

/// Serves the connections in `waiting` and new ones, until `stop` is set.
///
/// # Errors
/// [`Error::Io`]: a listener is unusable.
async fn serve(
    core: Core,
    listener: TcpListener,
    waiting: Vec<LoadingConnection>,
    peers: Option<TcpListener>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let failed =
        |error: io::Error| Error::Io(format!("cannot use the listener of server.resp: {error}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let core = Rc::new(core);
    let turns = core.clone();
    tokio::task::spawn_local(async move { turns.shared.turns.run_heartbeat(turns.index).await });
    if let Some(messages) = core.shared.tables.take_receiver(core.index) {
        start_table_tasks(&core, messages);
        tokio::task::spawn_local(super::spaces::recut_on_drift(core.clone()));
    }
    if let Some(nodes) = core.nodes.clone() {
        start_node_tasks(&core, nodes, peers)?;
    }
    if core.index == 0 {
        tokio::task::spawn_local(close_overdue_clients(core.clone()));
    }
    for waiting in waiting {
        adopt(&core, waiting);
    }
    tokio::select! {
        () = accept(&core, &listener) => {}
        // An error means that the handle was dropped, so the core also stops.
        _ = stop.wait_for(|stop| *stop) => {}
    }
    drop(listener);
    core.clients.shut_down(core.index, Shutdown::Read);
    let deadline =
        Instant::now() + Duration::from_secs(core.shared.config.server.stop_timeout_seconds);
    while core.sessions.get() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    core.clients.shut_down(core.index, Shutdown::Both);
    // Other cores' sessions may still need this core.
    let serving = &core.shared.tables.serving;
    serving.fetch_sub(1, Relaxed);
    while serving.load(Relaxed) > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

async fn accept(core: &Rc<Core>, listener: &tokio::net::TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, addr)) => admit(core, stream, addr),
            Err(error) => {
                // No descriptors or memory are left: open connections continue, and new ones wait in the backlog.
                if let Some(times) = core.clients.unaccepted_log.note() {
                    tracing::warn!(%error, times, "cannot accept a connection; the server retries 20 times per second");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn admit(core: &Rc<Core>, stream: TcpStream, addr: SocketAddr) {
    core.stats.connections_accepted.add(1);
    // Best effort: without it, small replies are delayed until the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    if let Some(tls) = &core.shared.client_tls
        && core.shared.descriptors.allow(Purpose::Resp, &stream)
    {
        let (core, tls) = (core.clone(), tls.clone());
        tokio::task::spawn_local(
            async move { tls_connection::run(core, &tls, stream, addr).await },
        );
        return;
    }
    match open(core, &stream, addr) {
        Some(client) => {
            tokio::task::spawn_local(session::run(core.clone(), stream, client));
        }
        None => {
            // The socket's buffer is empty, so this does not block. It fails only if the client is gone.
            let _ = stream.try_write(TOO_MANY_CLIENTS);
        }
    }
}

/// Serves a connection that was previously answered with LOADING.
fn adopt(core: &Rc<Core>, waiting: LoadingConnection) {
    let LoadingConnection {
        stream,
        client,
        greeting,
    } = waiting;
    core.stats.connections_accepted.add(1);
    client.core.store(core.index, Relaxed);
    match TcpStream::from_std(stream) {
        Ok(stream) => {
            // As in `admit`.
            let _ = stream.set_nodelay(true);
            let session = session::run_greeted(core.clone(), stream, client, greeting);
            tokio::task::spawn_local(session);
        }
        // The client is gone.
        Err(_) => {
            core.clients.close(&client);
            core.stats.connections_closed.add(1);
        }
    }
}

/// Registers a connection, unless the limit is reached.
pub(super) fn open(core: &Core, stream: &TcpStream, addr: SocketAddr) -> Option<Arc<Client>> {
    use std::os::fd::AsRawFd;

    let descriptors = &core.shared.descriptors;
    let max = descriptors.resp_connections() as usize;
    let local_addr = stream.local_addr().unwrap_or(addr);
    let opened = descriptors
        .allow(Purpose::Resp, stream)
        .then(|| {
            let fd = stream.as_raw_fd();
            core.clients.open(max, core.index, fd, addr, local_addr)
        })
        .flatten();
    if opened.is_none() {
        core.stats.connections_rejected.add(1);
        core.stats.connections_closed.add(1);
    }
    opened
}

/// Once a second, on the first core for all cores: closes connections that are idle, do not read their replies, or use
/// too much memory.
async fn close_overdue_clients(core: Rc<Core>) {
    let server = &core.shared.config.server;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (idle, unread) = (server.idle_timeout_seconds, server.unread_timeout_seconds);
        core.clients.close_overdue(idle, unread);
    }
}
