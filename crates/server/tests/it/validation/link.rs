//! A client connection that may be lost, and a proxy that injects faults into replies.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use larder_protocol::resp::client::{Reply, Token};

use crate::resp::request;
use crate::wire::frame;

/// A client connection.
pub struct Link {
    stream: BufReader<TcpStream>,
}

impl Link {
    pub fn connect(addr: SocketAddr) -> io::Result<Link> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        // Makes the test fail instead of hang.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let stream = BufReader::new(stream);
        Ok(Link { stream })
    }

    /// Sends requests without waiting for their replies.
    pub fn send(&mut self, requests: &[Vec<String>]) -> io::Result<()> {
        let words = |all: &Vec<String>| {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            request(&all)
        };
        let bytes: Vec<u8> = requests.iter().flat_map(words).collect();
        self.stream.get_mut().write_all(&bytes)
    }

    /// Sends requests, reads one reply to each, and returns the last one.
    ///
    /// # Errors
    ///
    /// The connection was lost, or a node of the cluster could not be reached. In the second case the error's kind is
    /// `ErrorKind::Other`, and the connection remains usable; see [`had_no_effect`].
    pub fn call(&mut self, requests: &[Vec<String>]) -> io::Result<Reply> {
        self.send(requests)?;
        let (mut last, mut failed) = (Reply::Null, None);
        for _ in requests {
            let bytes = frame(&mut self.stream)?;
            failed = refuse_errors(requests, &bytes).or(failed);
            last = Reply::first(&bytes)
                .expect("a reply")
                .expect("a complete reply")
                .0;
        }
        match failed {
            None => Ok(last),
            Some(why) => Err(io::Error::other(why)),
        }
    }
}

/// Returns whether the error guarantees that the request had no effect.
pub fn had_no_effect(error: &io::Error) -> bool {
    let text = error.to_string();
    let is_refused = text.starts_with("CLUSTERDOWN ") || text.starts_with("LOADING ");
    error.kind() == io::ErrorKind::Other && is_refused
}

/// Returns the error of a reply if it means that a required node cannot be reached. Panics on any other error,
/// because an actor's requests are valid.
fn refuse_errors(requests: &[Vec<String>], mut reply: &[u8]) -> Option<String> {
    while let Some((token, size)) = Token::first(reply) {
        if let Token::Error(text) = token {
            let text = String::from_utf8_lossy(text).into_owned();
            // `LOADING`: a node that has just started reads its rows.
            let is_of_cluster = [
                "UNKNOWN ",
                "CLUSTERDOWN ",
                "TRYAGAIN ",
                "EXECABORT ",
                "LOADING ",
            ];
            let is_expected_space_error =
                requests[0][0].starts_with("FT.") && is_expected_space_error(&text);
            assert!(
                is_expected_space_error || is_of_cluster.iter().any(|it| text.starts_with(it)),
                "{requests:?}: {text}"
            );
            return Some(text);
        }
        reply = &reply[size..];
    }
    None
}

/// Returns whether the error is expected while a space changes: from a node that has not received the change yet, or
/// for a cursor of another node.
fn is_expected_space_error(text: &str) -> bool {
    let known = [
        "no such index",
        "Cursor not found",
        "already",
        "are being filled",
        "regions are complete: send the command again",
        "Duplicate field in schema",
        "is not an attribute of",
    ];
    known.iter().any(|it| text.contains(it))
}

/// The fault that a proxy applies to the requests of one command.
#[derive(Clone, Copy, Debug)]
pub enum ProxyFault {
    /// Replaces every fifth reply by the first reply to the same request, if the two differ.
    Replay(&'static str),
    /// Answers every fifth request with +OK instead of forwarding it.
    Swallow(&'static str),
}

/// A proxy between clients and a server.
pub struct Proxy {
    pub addr: SocketAddr,
    faulty: Arc<AtomicU64>,
}

impl Proxy {
    pub fn start(server: SocketAddr, fault: ProxyFault) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let faulty = Arc::new(AtomicU64::new(0));
        let counter = faulty.clone();
        // The thread runs until this process ends.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let counter = counter.clone();
                thread::spawn(move || forward(client, server, fault, &counter));
            }
        });
        Proxy { addr, faulty }
    }

    /// Returns the number of replies that were faulty so far.
    pub fn faulty(&self) -> u64 {
        self.faulty.load(Ordering::SeqCst)
    }
}

/// Forwards the requests of one connection, one at a time, until either side closes.
fn forward(
    client: TcpStream,
    server: SocketAddr,
    fault: ProxyFault,
    faulty: &AtomicU64,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut server, mut client) = (BufReader::new(server), BufReader::new(client));
    let mut first: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut seen = 0;
    loop {
        let request = frame(&mut client)?;
        let words = Reply::first(&request).expect("a request");
        let is = |command: &str| match &words {
            Some((Reply::Array(words), _)) => words[0] == Reply::Bulk(command.into()),
            _ => false,
        };
        let (ProxyFault::Replay(command) | ProxyFault::Swallow(command)) = fault;
        let due = is(command) && {
            seen += 1;
            seen % 5 == 0
        };
        if let (ProxyFault::Swallow(_), true) = (fault, due) {
            faulty.fetch_add(1, Ordering::SeqCst);
            client.get_mut().write_all(b"+OK\r\n")?;
            continue;
        }
        server.get_mut().write_all(&request)?;
        let mut reply = frame(&mut server)?;
        if let ProxyFault::Replay(_) = fault {
            let old = first.entry(request).or_insert_with(|| reply.clone());
            if due && *old != reply {
                faulty.fetch_add(1, Ordering::SeqCst);
                reply.clone_from(old);
            }
        }
        client.get_mut().write_all(&reply)?;
    }
}
