//! A TCP proxy for one test, between two local processes: it breaks, stalls and delays connections, and drops
//! replies.
//!
//! Each connection has two threads, one per direction.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    rules: Mutex<Rules>,
    changed: Condvar,
}

#[derive(Default)]
struct Rules {
    is_ended: bool,
    is_cut: bool,
    /// The processes whose connections are broken.
    cut_processes: Vec<u32>,
    /// Connections with smaller numbers are stalled.
    stalled_below: u64,
    /// Connections whose last request contains one of these words are stalled, too.
    stalled_words: Vec<String>,
    /// The last request of each connection, or its start.
    requests: BTreeMap<u64, Vec<u8>>,
    delay: Duration,
    /// This number of further replies is dropped, each with its connection.
    replies_to_lose: u64,
    replies_lost: u64,
    /// The next reply to a request with this word is dropped, too.
    reply_to_lose: Option<String>,
    /// The number of the next connection.
    next: u64,
    open: Vec<(u64, TcpStream, TcpStream)>,
}

impl Proxy {
    /// Creates a proxy to this host and port.
    pub fn to(target: impl Into<String>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            target: target.into(),
            rules: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Proxy { address, shared }
    }

    /// Returns the host and port to connect to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks all connections, and every new one immediately, until [`Proxy::heal`].
    pub fn cut(&self) {
        let mut rules = self.shared.rules();
        rules.is_cut = true;
        rules.break_all();
        self.shared.changed.notify_all();
    }

    /// Breaks the connections of these processes, and every new one of theirs immediately, until [`Proxy::heal`].
    pub fn cut_from(&self, processes: &[u32]) {
        let mut rules = self.shared.rules();
        rules.cut_processes = processes.to_vec();
        let (cut, open) = rules
            .open
            .drain(..)
            .partition(|(_, client, _)| belongs_to(client, processes));
        rules.open = open;
        break_each(cut);
    }

    /// Breaks all connections; new ones are forwarded.
    pub fn break_connections(&self) {
        self.shared.rules().break_all();
    }

    /// Holds back all data on the current connections, in both directions; new ones are forwarded.
    pub fn stall(&self) {
        let mut rules = self.shared.rules();
        rules.stalled_below = rules.next;
    }

    /// Holds back connections whose last request contains one of these words, like [`Proxy::stall`]; all others are
    /// forwarded.
    pub fn stall_requests(&self, words: &[&str]) {
        self.shared.rules().stalled_words = words.iter().map(|&word| word.to_owned()).collect();
    }

    /// Delays all data by this time.
    pub fn delay(&self, delay: Duration) {
        self.shared.rules().delay = delay;
    }

    /// Ends a cut, a stall and a delay. Held data is now delivered.
    pub fn heal(&self) {
        let mut rules = self.shared.rules();
        rules.is_cut = false;
        rules.cut_processes.clear();
        rules.stalled_below = 0;
        rules.stalled_words.clear();
        rules.delay = Duration::ZERO;
        self.shared.changed.notify_all();
    }

    /// Drops the next replies: requests are delivered, and the connection breaks instead of the reply.
    pub fn lose_replies(&self, replies: u64) {
        self.shared.rules().replies_to_lose = replies;
    }

    /// Drops, in the same way, the next reply to a request that contains this word.
    pub fn lose_reply_to(&self, word: &str) {
        self.shared.rules().reply_to_lose = Some(word.to_owned());
    }

    /// Returns the number of dropped replies.
    pub fn replies_lost(&self) -> u64 {
        self.shared.rules().replies_lost
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut rules = self.shared.rules();
        rules.is_ended = true;
        rules.is_cut = true;
        rules.break_all();
        drop(rules);
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Rules {
    fn is_stalled(&self, number: u64) -> bool {
        number < self.stalled_below
            || self
                .stalled_words
                .iter()
                .any(|word| self.last_request_contains(number, word))
    }

    fn take_reply_to_lose(&mut self, number: u64) -> bool {
        let word = self.reply_to_lose.as_ref();
        if word.is_some_and(|word| self.last_request_contains(number, word)) {
            self.reply_to_lose = None;
        } else if self.replies_to_lose > 0 {
            self.replies_to_lose -= 1;
        } else {
            return false;
        }
        self.replies_lost += 1;
        true
    }

    /// Returns whether the last request of a connection contains this word.
    fn last_request_contains(&self, number: u64, word: &str) -> bool {
        let request = self.requests.get(&number).map_or(&[][..], Vec::as_slice);
        request.windows(word.len()).any(|it| it == word.as_bytes())
    }

    fn break_all(&mut self) {
        break_each(std::mem::take(&mut self.open));
    }
}

fn break_each(connections: Vec<(u64, TcpStream, TcpStream)>) {
    for (_, client, server) in connections {
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

/// Returns whether the peer's socket of a connection belongs to one of these processes.
fn belongs_to(client: &TcpStream, processes: &[u32]) -> bool {
    let Some(inode) = peer_inode(client) else {
        return false;
    };
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let owns_socket = |process: &u32| {
        let files = fs::read_dir(format!("/proc/{process}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|it| it == link))
    };
    processes.iter().any(owns_socket)
}

/// Returns the inode of the peer's socket. Both sockets are on this machine; the peer's has the addresses in reverse
/// order.
fn peer_inode(client: &TcpStream) -> Option<u64> {
    let own = format!(":{:04X}", client.peer_addr().ok()?.port());
    let other = format!(":{:04X}", client.local_addr().ok()?.port());
    let sockets = fs::read_to_string("/proc/net/tcp").ok()?;
    sockets.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let matches = fields.next()?.ends_with(&own) && fields.next()?.ends_with(&other);
        // A socket that no process has open has inode 0, which no file has.
        matches.then(|| fields.nth(6)?.parse().ok()).flatten()
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Shared>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.rules().is_ended {
                return;
            }
            let Ok(client) = client else {
                continue;
            };
            // If the target is not reachable, the client's connection is dropped here.
            if let Ok(server) = TcpStream::connect(&self.target) {
                self.forward(client, server);
            }
        }
    }

    fn forward(self: &Arc<Shared>, client: TcpStream, server: TcpStream) {
        let copies = (
            client.try_clone(),
            server.try_clone(),
            client.try_clone(),
            server.try_clone(),
        );
        let (Ok(client_too), Ok(server_too), Ok(client_kept), Ok(server_kept)) = copies else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let mut rules = self.rules();
        let is_process_cut =
            !rules.cut_processes.is_empty() && belongs_to(&client, &rules.cut_processes);
        if rules.is_cut || is_process_cut {
            return;
        }
        let number = rules.next;
        rules.next += 1;
        rules.open.push((number, client_kept, server_kept));
        drop(rules);
        let pumps = [
            (client, server, Direction::Request),
            (server_too, client_too, Direction::Reply),
        ];
        for (from, to, direction) in pumps {
            let shared = self.clone();
            std::thread::spawn(move || shared.pump(number, from, to, direction));
        }
    }

    fn pump(&self, number: u64, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(length) = from.read(&mut bytes)
            && length > 0
            && self.forward_allowed(number, direction, &bytes[..length])
            && to.write_all(&bytes[..length]).is_ok()
        {}
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
        let mut rules = self.rules();
        rules.open.retain(|(open, _, _)| *open != number);
        rules.requests.remove(&number);
    }

    fn forward_allowed(&self, number: u64, direction: Direction, bytes: &[u8]) -> bool {
        let mut rules = self.rules();
        if direction == Direction::Request {
            rules.requests.insert(number, bytes.to_vec());
        }
        if direction == Direction::Reply && rules.take_reply_to_lose(number) {
            return false;
        }
        let delay = rules.delay;
        while rules.is_stalled(number) && !rules.is_cut {
            rules = self
                .changed
                .wait(rules)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(rules);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_of_the_given_processes_are_cut() {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy::to(echo.local_addr().expect("bound").to_string());
        std::thread::spawn(move || {
            for stream in echo.incoming().flatten() {
                let copy = stream.try_clone();
                std::thread::spawn(move || std::io::copy(&mut &stream, &mut copy.expect("a copy")));
            }
        });
        let connect = || TcpStream::connect(proxy.address()).expect("it listens");
        let answers = |mut stream: &TcpStream| {
            let written = stream.write_all(b"x");
            let mut byte = [0];
            written.is_ok() && stream.read(&mut byte).is_ok_and(|length| length == 1)
        };
        let first = connect();
        assert!(answers(&first));
        proxy.cut_from(&[1]);
        assert!(
            answers(&first) && answers(&connect()),
            "process 1 is not this one"
        );
        proxy.cut_from(&[std::process::id()]);
        assert!(!answers(&first) && !answers(&connect()));
        proxy.heal();
        assert!(answers(&connect()));
    }
}
