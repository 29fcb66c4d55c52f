//! A TCP proxy of the tests' own, between two processes on this machine: it cuts, stalls, delays, and loses replies.
//!
//! Two threads for each connection, one for each direction.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
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
    /// Connections with smaller numbers are stalled.
    stalled_below: u64,
    /// So is every connection whose last request has one of these words.
    held: Vec<String>,
    /// The last request of each connection, or its beginning.
    requests: BTreeMap<u64, Vec<u8>>,
    delay: Duration,
    /// So many of the next replies are lost, each with its connection.
    replies_to_lose: u64,
    replies_lost: u64,
    /// The number of the next connection.
    next: u64,
    open: Vec<(u64, TcpStream, TcpStream)>,
}

impl Proxy {
    /// To this host and port.
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

    /// Host and port to connect to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks all connections, and every new one at once, until [`Proxy::heal`].
    pub fn cut(&self) {
        let mut rules = self.shared.rules();
        rules.is_cut = true;
        rules.break_all();
        self.shared.changed.notify_all();
    }

    /// Breaks all connections; new ones are carried.
    pub fn break_connections(&self) {
        self.shared.rules().break_all();
    }

    /// Holds back what comes on the connections that there are, in both directions; new ones are carried.
    pub fn stall(&self) {
        let mut rules = self.shared.rules();
        rules.stalled_below = rules.next;
    }

    /// Holds back connections whose last request has one of these words, as [`Proxy::stall`] does; all others are carried.
    pub fn hold(&self, words: &[&str]) {
        self.shared.rules().held = words.iter().map(|&word| word.to_owned()).collect();
    }

    /// Everything arrives so much later.
    pub fn delay(&self, delay: Duration) {
        self.shared.rules().delay = delay;
    }

    /// Ends a cut, a stall and a delay. What was held back arrives now.
    pub fn heal(&self) {
        let mut rules = self.shared.rules();
        rules.is_cut = false;
        rules.stalled_below = 0;
        rules.held.clear();
        rules.delay = Duration::ZERO;
        self.shared.changed.notify_all();
    }

    /// Loses the next replies: requests arrive, and instead of the reply the connection breaks.
    pub fn lose_replies(&self, replies: u64) {
        self.shared.rules().replies_to_lose = replies;
    }

    /// How many were lost so far.
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
        // The thread that accepts sees it.
        let _ = TcpStream::connect(self.address);
    }
}

impl Rules {
    fn is_held(&self, number: u64) -> bool {
        let request = self.requests.get(&number).map_or(&[][..], Vec::as_slice);
        let has = |word: &String| request.windows(word.len()).any(|it| it == word.as_bytes());
        number < self.stalled_below || self.held.iter().any(has)
    }

    fn break_all(&mut self) {
        for (_, client, server) in self.open.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
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
            // Who is not there refuses: the client's connection is dropped with this.
            if let Ok(server) = TcpStream::connect(&self.target) {
                self.carry(client, server);
            }
        }
    }

    fn carry(self: &Arc<Shared>, client: TcpStream, server: TcpStream) {
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
        if rules.is_cut {
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
            && self.lets_pass(number, direction, &bytes[..length])
            && to.write_all(&bytes[..length]).is_ok()
        {}
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
        let mut rules = self.rules();
        rules.open.retain(|(open, _, _)| *open != number);
        rules.requests.remove(&number);
    }

    fn lets_pass(&self, number: u64, direction: Direction, bytes: &[u8]) -> bool {
        let mut rules = self.rules();
        if direction == Direction::Request {
            rules.requests.insert(number, bytes.to_vec());
        }
        if direction == Direction::Reply && rules.replies_to_lose > 0 {
            rules.replies_to_lose -= 1;
            rules.replies_lost += 1;
            return false;
        }
        let delay = rules.delay;
        while rules.is_held(number) && !rules.is_cut {
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
