//! The open connections, for CLIENT LIST and KILL, the idle timeout and the stop.
//!
//! A connection is ended from outside by shutting its socket down: its own task then reads the end
//! of the stream and cleans up. Sockets are shut down under the registry's lock and connections leave
//! the registry before their socket closes, so a descriptor is never one that has been used anew.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_protocol::commands::COMMANDS;
use rustix::net::Shutdown;

/// What others may know of a connection.
pub(super) struct Client {
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
    pub output_bytes: AtomicU32,
    /// Channels and patterns that it is subscribed to.
    subscriptions: [AtomicU32; 2],
    names: Mutex<Option<Box<Names>>>,
}

/// Few connections have any, so they are allocated apart.
#[derive(Default, Clone)]
pub(super) struct Names {
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
             omem={} events=r cmd={command} user=default lib-name={} lib-ver={} resp={} io-thread={}",
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
            self.output_bytes.load(Relaxed),
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
pub(super) struct Clients {
    open: Mutex<HashMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    epoch: Instant,
}

/// Which connections CLIENT KILL means; empty fields match all.
#[derive(Default)]
pub(super) struct Filter {
    pub id: Option<u64>,
    pub addr: Option<String>,
    pub local_addr: Option<String>,
    pub subscribed: Option<bool>,
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
                .subscribed
                .is_none_or(|is| is == client.is_subscribed())
            && is(&self.addr, client.addr)
            && is(&self.local_addr, client.local_addr)
    }
}

impl Clients {
    pub fn new() -> Clients {
        Clients {
            open: Mutex::default(),
            next_id: AtomicU64::new(1),
            epoch: Instant::now(),
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
        let now_ms = self.now_ms();
        let mut open = self.lock();
        if open.len() >= max {
            return None;
        }
        let client = Arc::new(Client {
            id: self.next_id.fetch_add(1, Relaxed),
            addr,
            local_addr,
            core: AtomicUsize::new(core),
            fd,
            opened_ms: now_ms,
            active_ms: AtomicU64::new(now_ms),
            last_command: AtomicU8::new(0),
            resp3: AtomicBool::new(false),
            output_bytes: AtomicU32::new(0),
            subscriptions: [AtomicU32::new(0), AtomicU32::new(0)],
            names: Mutex::new(None),
        });
        open.insert(client.id, client.clone());
        Some(client)
    }

    /// To be called before the socket is closed.
    pub fn close(&self, client: &Client) {
        self.lock().remove(&client.id);
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

    /// Ends the connections that `filter` means but that of `own`, at once; returns how many.
    pub fn kill(&self, filter: &Filter, own: u64) -> usize {
        let open = self.lock();
        let others = open.values().filter(|client| client.id != own);
        let doomed = others.filter(|client| filter.means(client));
        doomed
            .inspect(|client| client.shut_down(Shutdown::Both))
            .count()
    }

    /// Ends the connections of `core` that have been silent for `seconds`, but those that wait to be told of changes.
    pub fn close_idle(&self, core: usize, seconds: u64) {
        let now_ms = self.now_ms();
        for client in self
            .lock()
            .values()
            .filter(|client| client.core.load(Relaxed) == core && !client.is_subscribed())
        {
            if now_ms.saturating_sub(client.active_ms.load(Relaxed)) >= seconds.saturating_mul(1000)
            {
                client.shut_down(Shutdown::Both);
            }
        }
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
