//! The registry of clients: their open connections, for CLIENT LIST and KILL, the idle timeout and the shutdown, and the memory
//! held for each (`memory`). It does not depend on any command.
//!
//! To end a connection from outside, its socket is shut down: its own task then reads the end of the stream and cleans up.
//! Sockets are shut down under the registry's lock, and connections leave the registry before their socket closes, so that a
//! descriptor is never one that has been reused.

mod channels;
mod mailbox;
mod memory;
mod registration;
mod tracking;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use larder_protocol::commands::COMMANDS;
use rustix::net::Shutdown;

use crate::log_limit::LogLimit;
use crate::stats::ClientFigures;
use crate::unsent::unsent_bytes;

pub use channels::{CHANNEL_BYTES_MAX, Channels};
pub use mailbox::{Mailbox, Notification};
pub use memory::{Charge, Limits, SMALL_BYTES, encode_refusal};
pub use registration::Registration;
pub use tracking::{Mode, Tracker, Tracking, TrackingTable};

/// The descriptor of a client without a local connection.
const NO_SOCKET: RawFd = -1;

/// The shared state of a connection.
pub struct Client {
    pub id: u64,
    pub addr: SocketAddr,
    pub local_addr: SocketAddr,
    pub core: AtomicUsize,
    fd: RawFd,
    /// Milliseconds since the registry was created.
    opened_ms: u64,
    active_ms: AtomicU64,
    /// Index in [`COMMANDS`] plus one; 0 before the first command.
    last_command: AtomicU8,
    pub resp3: AtomicBool,
    /// The number of channels and of patterns to which it is subscribed.
    subscriptions: [AtomicU32; 2],
    /// Bytes of requests that are not executed yet, of requests queued by MULTI, and of replies that are not sent yet.
    pub input_bytes: AtomicUsize,
    pub queued_bytes: AtomicUsize,
    pub output_bytes: AtomicUsize,
    /// Bytes on other cores, and of long replies.
    pub remote_bytes: Arc<AtomicUsize>,
    /// Bytes that a command holds during its execution. They do not cause its client to be closed.
    pub executing_bytes: Arc<AtomicUsize>,
    /// The part of these bytes that is included in the total of all clients.
    counted_bytes: AtomicUsize,
    /// The time (milliseconds since the registry was created) at which its socket last accepted replies, while it accepts no
    /// more; otherwise 0.
    stalled_ms: AtomicU64,
    /// The bytes of its replies that the system held at the last check.
    unsent_bytes: AtomicUsize,
    /// Its socket was shut down because of the memory that it holds.
    is_evicted: AtomicBool,
    is_closed: AtomicBool,
    /// Messages for it.
    pub mailbox: Mailbox,
    /// Set while CLIENT TRACKING is on.
    pub tracker: ArcSwapOption<Tracker>,
    /// Bytes of the keys that it has read and is notified of.
    tracked_bytes: AtomicUsize,
    /// Bytes of its subscriptions, here and on the cores that notify it.
    pub subscription_bytes: AtomicUsize,
    names: Mutex<Option<Box<Names>>>,
}

/// Allocated separately, because few connections have names.
#[derive(Default, Clone)]
pub struct Names {
    pub name: String,
    pub lib_name: String,
    pub lib_version: String,
}

impl Client {
    pub fn names(&self) -> Names {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.as_deref().cloned().unwrap_or_default()
    }

    pub fn change_names(&self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        change(names.get_or_insert_default());
    }

    pub fn set_subscriptions(&self, (channels, patterns): (usize, usize)) {
        for (own, count) in self.subscriptions.iter().zip([channels, patterns]) {
            own.store(u32::try_from(count).unwrap_or(u32::MAX), Relaxed);
        }
    }

    /// Returns whether the client has subscriptions.
    pub fn is_subscribed(&self) -> bool {
        self.subscriptions.iter().any(|own| own.load(Relaxed) > 0)
    }

    /// Returns whether the client can receive messages: it has a subscription, or uses RESP3.
    pub fn accepts_notifications(&self) -> bool {
        self.resp3.load(Relaxed) || self.is_subscribed()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Returns whether the client received some of its replies since the last call, although its socket accepts no more. Only
    /// valid while the client is registered, because its descriptor is open then.
    fn has_read_more(&self) -> bool {
        let unsent = unsent_bytes(self.fd);
        self.unsent_bytes.swap(unsent, Relaxed) != unsent
    }

    /// The memory that the server holds for it.
    pub fn memory_bytes(&self) -> usize {
        let of = |bytes: &AtomicUsize| bytes.load(Relaxed);
        self.own_bytes()
            + of(&self.remote_bytes)
            + of(&self.executing_bytes)
            + self.notified_bytes()
    }

    /// The memory of its subscriptions and its tracked keys, and of the messages that wait for it.
    pub fn notified_bytes(&self) -> usize {
        let of = |bytes: &AtomicUsize| bytes.load(Relaxed);
        of(&self.subscription_bytes) + of(&self.tracked_bytes) + self.mailbox.bytes()
    }

    /// The part of the memory that its own connection holds.
    pub fn own_bytes(&self) -> usize {
        let of = |bytes: &AtomicUsize| bytes.load(Relaxed);
        of(&self.input_bytes) + of(&self.queued_bytes) + of(&self.output_bytes)
    }

    pub fn counted_bytes(&self) -> usize {
        self.counted_bytes.load(Relaxed)
    }

    /// Returns whether replies are queued and the client's socket accepts no more.
    pub fn has_stalled(&self) -> bool {
        self.stalled_ms.load(Relaxed) != 0
    }

    pub fn clear_stall(&self) {
        self.stalled_ms.store(0, Relaxed);
    }

    pub fn set_last_command(&self, index: usize) {
        self.last_command.store(index as u8 + 1, Relaxed);
    }

    /// The client's line of CLIENT LIST.
    fn describe(&self, now_ms: u64) -> String {
        let names = self.names();
        let command = match self.last_command.load(Relaxed) {
            0 => "NULL".to_owned(),
            index => COMMANDS[usize::from(index) - 1].name.to_ascii_lowercase(),
        };
        let mut line = String::new();
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db=0 sub={} psub={} ssub=0 multi=-1 watch=0 \
             qbuf={} multi-mem={} omem={} tot-mem={} events=r cmd={command} user=default lib-name={} lib-ver={} resp={} io-thread={}",
            self.id,
            self.addr,
            self.local_addr,
            self.fd,
            names.name,
            now_ms.saturating_sub(self.opened_ms) / 1000,
            now_ms.saturating_sub(self.active_ms.load(Relaxed)) / 1000,
            if self.is_subscribed() { 'P' } else { 'N' },
            self.subscriptions[0].load(Relaxed),
            self.subscriptions[1].load(Relaxed),
            self.input_bytes.load(Relaxed),
            self.queued_bytes.load(Relaxed),
            self.output_bytes.load(Relaxed),
            self.memory_bytes() + size_of::<Client>(),
            names.lib_name,
            names.lib_version,
            if self.resp3.load(Relaxed) { 3 } else { 2 },
            self.core.load(Relaxed),
        );
        line
    }

    fn shut_down(&self, how: Shutdown) {
        // SAFETY: the client is in the registry, whose lock the caller holds, so its socket is open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // An error means that the peer is already gone.
        let _ = rustix::net::shutdown(fd, how);
    }
}

/// All open connections of a server.
pub struct Clients {
    open: Mutex<HashMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    /// For clients without a local connection, which have separate numbers.
    next_remote_id: AtomicU64,
    epoch: Instant,
    /// HTTP requests on this port.
    pub stray_http_log: LogLimit,
    /// TLS connections on this port, which does not use TLS.
    pub stray_tls_log: LogLimit,
    pub limits: Limits,
    pub figures: Arc<ClientFigures>,
    too_large_log: LogLimit,
    evicted_log: LogLimit,
    unread_log: LogLimit,
    lost_log: LogLimit,
    /// Connections that could not be accepted.
    pub unaccepted_log: LogLimit,
}

/// The connections that CLIENT KILL selects; empty fields match all.
#[derive(Default)]
pub struct Filter {
    pub id: Option<u64>,
    pub addr: Option<String>,
    pub local_addr: Option<String>,
    pub subscribed: Option<bool>,
    /// Connected at or before this time, in milliseconds since the registry was created.
    pub opened_until_ms: Option<u64>,
}

impl Filter {
    pub fn matches(&self, client: &Client) -> bool {
        let is = |expected: &Option<String>, addr: SocketAddr| {
            expected
                .as_ref()
                .is_none_or(|expected| *expected == addr.to_string())
        };
        self.id.is_none_or(|id| id == client.id)
            && self
                .opened_until_ms
                .is_none_or(|until| client.opened_ms <= until)
            && self
                .subscribed
                .is_none_or(|is| is == client.is_subscribed())
            && is(&self.addr, client.addr)
            && is(&self.local_addr, client.local_addr)
    }
}

impl Clients {
    pub fn new(limits: Limits, figures: Arc<ClientFigures>) -> Clients {
        figures
            .memory_limit_bytes
            .store(limits.total_bytes, Relaxed);
        Clients {
            limits,
            figures,
            too_large_log: LogLimit::default(),
            evicted_log: LogLimit::default(),
            unread_log: LogLimit::default(),
            lost_log: LogLimit::default(),
            open: Mutex::default(),
            next_id: AtomicU64::new(1),
            next_remote_id: AtomicU64::new(1 << 62),
            epoch: Instant::now(),
            stray_http_log: LogLimit::default(),
            stray_tls_log: LogLimit::default(),
            unaccepted_log: LogLimit::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Client>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Registers a connection, unless there are already `max`.
    pub fn open(
        &self,
        max: usize,
        core: usize,
        fd: RawFd,
        addr: SocketAddr,
        local_addr: SocketAddr,
    ) -> Option<Arc<Client>> {
        let mut open = self.lock();
        if open.len() >= max {
            return None;
        }
        let id = self.next_id.fetch_add(1, Relaxed);
        let client = self.new_client(id, core, fd, addr, local_addr);
        open.insert(client.id, client.clone());
        Some(client)
    }

    /// A client of another node, which is not among the open connections here.
    pub fn new_remote(&self, core: usize, addr: Option<SocketAddr>) -> Arc<Client> {
        let addr = addr.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        let id = self.next_remote_id.fetch_add(1, Relaxed);
        self.new_client(id, core, NO_SOCKET, addr, addr)
    }

    fn new_client(
        &self,
        id: u64,
        core: usize,
        fd: RawFd,
        addr: SocketAddr,
        local_addr: SocketAddr,
    ) -> Arc<Client> {
        Arc::new(Client {
            id,
            addr,
            local_addr,
            core: AtomicUsize::new(core),
            fd,
            opened_ms: self.now_ms(),
            active_ms: AtomicU64::new(self.now_ms()),
            last_command: AtomicU8::new(0),
            resp3: AtomicBool::new(false),
            subscriptions: [AtomicU32::new(0), AtomicU32::new(0)],
            input_bytes: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            remote_bytes: Arc::default(),
            executing_bytes: Arc::default(),
            counted_bytes: AtomicUsize::new(0),
            stalled_ms: AtomicU64::new(0),
            unsent_bytes: AtomicUsize::new(0),
            is_evicted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            mailbox: Mailbox::new(self.limits.mailbox_bytes),
            tracker: ArcSwapOption::empty(),
            subscription_bytes: AtomicUsize::new(0),
            tracked_bytes: AtomicUsize::new(0),
            names: Mutex::new(None),
        })
    }

    /// Must be called before the socket is closed.
    pub fn close(&self, client: &Client) {
        client.is_closed.store(true, Relaxed);
        self.lock().remove(&client.id);
        self.discount(client);
    }

    /// Updates the total of all clients with one client's memory, and returns the latter.
    pub fn count(&self, client: &Client) -> usize {
        if client.is_evicted.load(Relaxed) {
            return 0;
        }
        let bytes = client.memory_bytes();
        let before = client.counted_bytes.swap(bytes, Relaxed);
        let more = bytes.wrapping_sub(before);
        self.figures.memory_bytes.fetch_add(more, Relaxed);
        bytes
    }

    fn discount(&self, client: &Client) {
        let before = client.counted_bytes.swap(0, Relaxed);
        self.figures.memory_bytes.fetch_sub(before, Relaxed);
    }

    /// Returns whether the total exceeds the limit: then [`Clients::make_room`] must be called.
    pub fn is_full(&self) -> bool {
        self.figures.memory_bytes.load(Relaxed) > self.limits.total_bytes
    }

    /// Closes the largest clients until the others are within the limit for all.
    pub fn make_room(&self) {
        let open = self.lock();
        let mut clients: Vec<(usize, &Arc<Client>)> = open
            .values()
            .map(|client| (self.count(client), client))
            .collect();
        clients.sort_unstable_by_key(|(bytes, client)| (*bytes, client.id));
        let kept = self.figures.memory_bytes.load(Relaxed);
        while self.is_full()
            && let Some((bytes, client)) = clients.pop()
            && bytes > 0
        {
            self.evict(client);
            self.figures.closed_evicted.fetch_add(1, Relaxed);
            if let Some(times) = self.evicted_log.note() {
                tracing::warn!(
                    times,
                    client = %client.addr,
                    client_bytes = bytes,
                    all_bytes = kept,
                    limit_bytes = self.limits.total_bytes,
                    "clients use more memory than server.clients_memory allows: the largest are closed"
                );
            }
        }
    }

    /// Closes a registered client, and removes it from the total.
    fn evict(&self, client: &Client) {
        client.is_evicted.store(true, Relaxed);
        self.discount(client);
        client.shut_down(Shutdown::Both);
    }

    /// Records, and logs at a limited rate, that a client is closed because it exceeds the limit for one.
    pub fn record_too_large(&self, client: &Client, bytes: usize) {
        self.figures.closed_too_large.fetch_add(1, Relaxed);
        if let Some(times) = self.too_large_log.note() {
            tracing::warn!(
                times,
                client = %client.addr,
                client_bytes = bytes,
                limit_bytes = self.limits.per_client_bytes,
                "a client uses more memory than server.client_memory allows and is closed"
            );
        }
    }

    /// Records that a client is closed because its long reply cannot be completed.
    pub fn record_lost_reply(&self, client: &Client) {
        self.figures.closed_reply_lost.fetch_add(1, Relaxed);
        if let Some(times) = self.lost_log.note() {
            tracing::warn!(
                times,
                client = %client.addr,
                "too many rows changed while a client read a long reply: the client is closed"
            );
        }
    }

    /// Records that a client's socket accepts no more of its replies.
    pub fn mark_stalled(&self, client: &Client) {
        client.stalled_ms.store(self.now_ms().max(1), Relaxed);
    }

    /// To be called once per second. Closes clients that were idle for `idle_seconds` and have no subscriptions, that read none
    /// of their replies for `unread_seconds` (0: never), or that exceed their memory limit.
    pub fn close_overdue(&self, idle_seconds: u64, unread_seconds: u64) {
        let now_ms = self.now_ms();
        let is_overdue = |since_ms: u64, seconds: u64| {
            seconds > 0 && now_ms.saturating_sub(since_ms) >= seconds.saturating_mul(1000)
        };
        for client in self.lock().values() {
            if client.is_evicted.load(Relaxed) {
                continue;
            }
            let bytes = self.count(client);
            let stalled_ms = client.stalled_ms.load(Relaxed);
            if bytes.saturating_sub(client.executing_bytes.load(Relaxed))
                > self.limits.per_client_bytes
            {
                self.evict(client);
                self.record_too_large(client, bytes);
            } else if client.mailbox.is_full() {
                self.evict(client);
            } else if stalled_ms > 0 && client.has_read_more() {
                // Unless its socket accepts data again.
                let _ =
                    client
                        .stalled_ms
                        .compare_exchange(stalled_ms, now_ms.max(1), Relaxed, Relaxed);
            } else if stalled_ms > 0 && is_overdue(stalled_ms, unread_seconds) {
                self.evict(client);
                self.figures.closed_unread.fetch_add(1, Relaxed);
                if let Some(times) = self.unread_log.note() {
                    tracing::warn!(
                        times,
                        client = %client.addr,
                        unread_bytes = client.output_bytes.load(Relaxed),
                        "a client read none of its replies for server.unread_timeout_seconds and is closed"
                    );
                }
            } else if !client.is_subscribed()
                && is_overdue(client.active_ms.load(Relaxed), idle_seconds)
            {
                client.shut_down(Shutdown::Both);
            }
        }
        if self.is_full() {
            self.make_room();
        }
    }

    /// Returns the open connection with this number.
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.lock().get(&id).cloned()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Records that the connection is not idle, with a clock value that the caller has read already.
    #[inline]
    pub fn mark_active(&self, client: &Client, now: Instant) {
        let ms = now.saturating_duration_since(self.epoch).as_millis() as u64;
        client.active_ms.store(ms, Relaxed);
    }

    /// One line per selected connection, oldest first.
    pub fn list(&self, matches: impl Fn(&Client) -> bool) -> String {
        let mut clients: Vec<Arc<Client>> = self.lock().values().cloned().collect();
        clients.retain(|client| matches(client));
        clients.sort_by_key(|client| client.id);
        let now_ms = self.now_ms();
        clients.iter().fold(String::new(), |text, client| {
            text + &client.describe(now_ms) + "\n"
        })
    }

    pub fn describe(&self, client: &Client) -> String {
        client.describe(self.now_ms())
    }

    /// The time `age` ago, in milliseconds since the registry was created; 0 if that is before it.
    pub fn timestamp_before(&self, age: Duration) -> u64 {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.now_ms().saturating_sub(age_ms)
    }

    /// Closes the connections that match `filter`, except `own`, immediately. Returns their number.
    pub fn kill(&self, filter: &Filter, own: u64) -> usize {
        let open = self.lock();
        let others = open.values().filter(|client| client.id != own);
        let doomed = others.filter(|client| filter.matches(client));
        doomed
            .inspect(|client| client.shut_down(Shutdown::Both))
            .count()
    }

    /// Shuts down the connections of `core`: with `Read`, they accept no more requests but still send pending replies; otherwise
    /// they end.
    pub fn shut_down(&self, core: usize, how: Shutdown) {
        for client in self
            .lock()
            .values()
            .filter(|client| client.core.load(Relaxed) == core)
        {
            client.shut_down(how);
        }
    }
}
