//! The clients: their open connections, for CLIENT LIST and KILL, the idle timeout and the stop, and what is kept for each (`memory`).
//! Nothing here knows a command.
//!
//! A connection is ended from outside by shutting its socket down: its own task then reads the end
//! of the stream and cleans up. Sockets are shut down under the registry's lock and connections leave
//! the registry before their socket closes, so a descriptor is never one that has been used anew.

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

pub use channels::Channels;
pub use mailbox::{Mailbox, Note};
pub use memory::{Charge, Limits, SMALL_BYTES, as_reply};
pub use registration::Registration;
pub use tracking::{Mode, Table, Tracker, Tracking};

/// The descriptor of a client that has none here.
const NO_SOCKET: RawFd = -1;

/// What others may know of a connection.
pub struct Client {
    pub id: u64,
    pub addr: SocketAddr,
    pub local_addr: SocketAddr,
    pub core: AtomicUsize,
    fd: RawFd,
    /// Milliseconds since the registry was made.
    opened_ms: u64,
    active_ms: AtomicU64,
    /// Index in [`COMMANDS`] and one; 0 before the first command.
    last_command: AtomicU8,
    pub resp3: AtomicBool,
    /// Channels and patterns that it is subscribed to.
    subscriptions: [AtomicU32; 2],
    /// Bytes of what came and was not executed yet, of what MULTI has queued, and of replies that were not taken.
    pub input_bytes: AtomicUsize,
    pub queued_bytes: AtomicUsize,
    pub output_bytes: AtomicUsize,
    /// Bytes of what is on other cores, and of long answers.
    pub elsewhere: Arc<AtomicUsize>,
    /// Bytes that a command keeps while it is executed: its client is not closed for them.
    pub executing: Arc<AtomicUsize>,
    /// What of all that is in the sum over all clients.
    counted_bytes: AtomicUsize,
    /// Milliseconds since the registry was made when its socket last took replies, while it takes no more of them; else 0.
    stalled_ms: AtomicU64,
    /// What the system held of its replies when last looked.
    unsent_bytes: AtomicUsize,
    /// Its socket was shut down for what it keeps.
    is_doomed: AtomicBool,
    is_closed: AtomicBool,
    /// What others have for it.
    pub mailbox: Mailbox,
    /// Set while CLIENT TRACKING is on.
    pub tracker: ArcSwapOption<Tracker>,
    /// Bytes of its subscriptions, here and on the cores that notify it.
    pub subscription_bytes: AtomicUsize,
    names: Mutex<Option<Box<Names>>>,
}

/// Few connections have any, so they are allocated apart.
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

    /// Whether it waits to be told of changes.
    pub fn is_subscribed(&self) -> bool {
        self.subscriptions.iter().any(|own| own.load(Relaxed) > 0)
    }

    /// Whether messages reach it: it is subscribed to something, or speaks version 3 of the protocol.
    pub fn takes_notes(&self) -> bool {
        self.resp3.load(Relaxed) || self.is_subscribed()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Whether it took some of its replies since this was asked last, though its socket takes no more. Only while the
    /// client is registered: its descriptor is open then.
    fn has_taken_some(&self) -> bool {
        let unsent = unsent_bytes(self.fd);
        self.unsent_bytes.swap(unsent, Relaxed) != unsent
    }

    /// What the server keeps for it.
    pub fn memory_bytes(&self) -> usize {
        let of = |bytes: &AtomicUsize| bytes.load(Relaxed);
        self.own_bytes() + of(&self.elsewhere) + of(&self.executing) + self.notified_bytes()
    }

    /// What is kept so that it is notified of changes, and the messages that wait for it.
    pub fn notified_bytes(&self) -> usize {
        let tracker = self.tracker.load();
        let tracked = tracker.as_ref().map_or(0, |tracker| tracker.memory_bytes());
        self.subscription_bytes.load(Relaxed) + self.mailbox.bytes() + tracked
    }

    /// What of that its own connection keeps.
    pub fn own_bytes(&self) -> usize {
        let of = |bytes: &AtomicUsize| bytes.load(Relaxed);
        of(&self.input_bytes) + of(&self.queued_bytes) + of(&self.output_bytes)
    }

    pub fn counted_bytes(&self) -> usize {
        self.counted_bytes.load(Relaxed)
    }

    /// Replies wait, and its socket takes no more of them.
    pub fn has_stalled(&self) -> bool {
        self.stalled_ms.load(Relaxed) != 0
    }

    pub fn goes_on(&self) {
        self.stalled_ms.store(0, Relaxed);
    }

    pub fn set_last_command(&self, index: usize) {
        self.last_command.store(index as u8 + 1, Relaxed);
    }

    /// The line of CLIENT LIST.
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
        // An error means that the other side has gone already.
        let _ = rustix::net::shutdown(fd, how);
    }
}

/// All open connections of a server.
pub struct Clients {
    open: Mutex<HashMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    /// Of those without a connection here: it takes no number from connections.
    next_id_elsewhere: AtomicU64,
    epoch: Instant,
    /// HTTP on this port.
    pub stray_http: LogLimit,
    /// TLS on this port, which has none.
    pub stray_tls: LogLimit,
    pub limits: Limits,
    pub figures: Arc<ClientFigures>,
    too_large: LogLimit,
    for_others: LogLimit,
    unread: LogLimit,
    lost: LogLimit,
    /// Connections that could not be accepted.
    pub unaccepted: LogLimit,
}

/// Which connections CLIENT KILL means; empty fields match all.
#[derive(Default)]
pub struct Filter {
    pub id: Option<u64>,
    pub addr: Option<String>,
    pub local_addr: Option<String>,
    pub subscribed: Option<bool>,
    /// Connected then or before, in milliseconds since the registry was made.
    pub opened_until_ms: Option<u64>,
}

impl Filter {
    pub fn means(&self, client: &Client) -> bool {
        let is = |wanted: &Option<String>, addr: SocketAddr| {
            wanted
                .as_ref()
                .is_none_or(|wanted| *wanted == addr.to_string())
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
        figures.memory_limit_bytes.store(limits.all, Relaxed);
        Clients {
            limits,
            figures,
            too_large: LogLimit::default(),
            for_others: LogLimit::default(),
            unread: LogLimit::default(),
            lost: LogLimit::default(),
            open: Mutex::default(),
            next_id: AtomicU64::new(1),
            next_id_elsewhere: AtomicU64::new(1 << 62),
            epoch: Instant::now(),
            stray_http: LogLimit::default(),
            stray_tls: LogLimit::default(),
            unaccepted: LogLimit::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Client>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Registers a connection, unless there are `max` already.
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
        let client = self.client(id, core, fd, addr, local_addr);
        open.insert(client.id, client.clone());
        Some(client)
    }

    /// A client of another node, which is not among those that are open here.
    pub fn of_other_node(&self, core: usize, addr: Option<SocketAddr>) -> Arc<Client> {
        let addr = addr.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        let id = self.next_id_elsewhere.fetch_add(1, Relaxed);
        self.client(id, core, NO_SOCKET, addr, addr)
    }

    fn client(
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
            elsewhere: Arc::default(),
            executing: Arc::default(),
            counted_bytes: AtomicUsize::new(0),
            stalled_ms: AtomicU64::new(0),
            unsent_bytes: AtomicUsize::new(0),
            is_doomed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            mailbox: Mailbox::new(self.limits.notes),
            tracker: ArcSwapOption::empty(),
            subscription_bytes: AtomicUsize::new(0),
            names: Mutex::new(None),
        })
    }

    /// To be called before the socket is closed.
    pub fn close(&self, client: &Client) {
        client.is_closed.store(true, Relaxed);
        self.lock().remove(&client.id);
        self.discount(client);
    }

    /// Brings the sum over all clients up to date with what one has; says what that is.
    pub fn count(&self, client: &Client) -> usize {
        if client.is_doomed.load(Relaxed) {
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

    /// Whether all have more than all may have: then [`Clients::make_room`] is to be called.
    pub fn is_full(&self) -> bool {
        self.figures.memory_bytes.load(Relaxed) > self.limits.all
    }

    /// Ends the largest clients, until the others have no more than all may have.
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
            self.doom(client);
            self.figures.closed_for_others.fetch_add(1, Relaxed);
            if let Some(times) = self.for_others.note() {
                tracing::warn!(
                    times,
                    client = %client.addr,
                    client_bytes = bytes,
                    all_bytes = kept,
                    limit_bytes = self.limits.all,
                    "clients keep more memory than server.clients_memory allows: the largest are closed"
                );
            }
        }
    }

    /// Ends a client, which is in the registry, and counts it no more.
    fn doom(&self, client: &Client) {
        client.is_doomed.store(true, Relaxed);
        self.discount(client);
        client.shut_down(Shutdown::Both);
    }

    /// Notes, and logs once in a while, that a client is closed that has more than one may have.
    pub fn note_too_large(&self, client: &Client, bytes: usize) {
        self.figures.closed_too_large.fetch_add(1, Relaxed);
        if let Some(times) = self.too_large.note() {
            tracing::warn!(
                times,
                client = %client.addr,
                client_bytes = bytes,
                limit_bytes = self.limits.each,
                "a client keeps more memory than server.client_memory allows and is closed"
            );
        }
    }

    /// Notes that a client is closed since its long answer cannot be ended.
    pub fn note_lost(&self, client: &Client) {
        self.figures.closed_answer_lost.fetch_add(1, Relaxed);
        if let Some(times) = self.lost.note() {
            tracing::warn!(
                times,
                client = %client.addr,
                "more rows changed while a long answer was read than may be kept for it: its client is closed"
            );
        }
    }

    /// Notes that a client's socket takes no more of its replies.
    pub fn stalled(&self, client: &Client) {
        client.stalled_ms.store(self.now_ms().max(1), Relaxed);
    }

    /// Once a second: ends those that were silent for `idle_seconds` and do not wait to be told of changes, that did not take their replies for `unread_seconds` (0
    /// is never), and that have more than they may have.
    pub fn close_overdue(&self, idle_seconds: u64, unread_seconds: u64) {
        let now_ms = self.now_ms();
        let is_over = |since_ms: u64, seconds: u64| {
            seconds > 0 && now_ms.saturating_sub(since_ms) >= seconds.saturating_mul(1000)
        };
        for client in self.lock().values() {
            if client.is_doomed.load(Relaxed) {
                continue;
            }
            let bytes = self.count(client);
            let stalled_ms = client.stalled_ms.load(Relaxed);
            if bytes.saturating_sub(client.executing.load(Relaxed)) > self.limits.each {
                self.doom(client);
                self.note_too_large(client, bytes);
            } else if client.mailbox.is_full() {
                self.doom(client);
            } else if stalled_ms > 0 && client.has_taken_some() {
                // Unless its socket takes more again.
                let _ =
                    client
                        .stalled_ms
                        .compare_exchange(stalled_ms, now_ms.max(1), Relaxed, Relaxed);
            } else if stalled_ms > 0 && is_over(stalled_ms, unread_seconds) {
                self.doom(client);
                self.figures.closed_unread.fetch_add(1, Relaxed);
                if let Some(times) = self.unread.note() {
                    tracing::warn!(
                        times,
                        client = %client.addr,
                        unread_bytes = client.output_bytes.load(Relaxed),
                        "a client took nothing of its replies for server.unread_timeout_seconds and is closed"
                    );
                }
            } else if !client.is_subscribed()
                && is_over(client.active_ms.load(Relaxed), idle_seconds)
            {
                client.shut_down(Shutdown::Both);
            }
        }
        if self.is_full() {
            self.make_room();
        }
    }

    /// The open connection of a number.
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.lock().get(&id).cloned()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Notes that the connection is not idle, given a clock that was read anyway.
    #[inline]
    pub fn active(&self, client: &Client, now: Instant) {
        let ms = now.saturating_duration_since(self.epoch).as_millis() as u64;
        client.active_ms.store(ms, Relaxed);
    }

    /// One line per connection that is meant, oldest first.
    pub fn list(&self, is_meant: impl Fn(&Client) -> bool) -> String {
        let mut clients: Vec<Arc<Client>> = self.lock().values().cloned().collect();
        clients.retain(|client| is_meant(client));
        clients.sort_by_key(|client| client.id);
        let now_ms = self.now_ms();
        clients.iter().fold(String::new(), |text, client| {
            text + &client.describe(now_ms) + "\n"
        })
    }

    pub fn describe(&self, client: &Client) -> String {
        client.describe(self.now_ms())
    }

    /// The time so long ago, in milliseconds since the registry was made; 0 if that is before.
    pub fn ms_before(&self, age: Duration) -> u64 {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.now_ms().saturating_sub(age_ms)
    }

    /// Ends the connections that `filter` means but that of `own`, at once; returns how many.
    pub fn kill(&self, filter: &Filter, own: u64) -> usize {
        let open = self.lock();
        let others = open.values().filter(|client| client.id != own);
        let doomed = others.filter(|client| filter.means(client));
        doomed
            .inspect(|client| client.shut_down(Shutdown::Both))
            .count()
    }

    /// Lets no connection of `core` send more (`Read`: replies in hand still go out), or ends them.
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
