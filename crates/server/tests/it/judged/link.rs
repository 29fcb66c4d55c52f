//! A connection that may be lost, and a proxy that spoils what comes through it.

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

/// One connection.
pub struct Link {
    stream: BufReader<TcpStream>,
}

impl Link {
    pub fn connect(addr: SocketAddr) -> io::Result<Link> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        // A test that would hang fails instead.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let stream = BufReader::new(stream);
        Ok(Link { stream })
    }

    /// Sends requests and waits for nothing.
    pub fn send(&mut self, requests: &[Vec<String>]) -> io::Result<()> {
        let words = |all: &Vec<String>| {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            request(&all)
        };
        let bytes: Vec<u8> = requests.iter().flat_map(words).collect();
        self.stream.get_mut().write_all(&bytes)
    }

    /// The last reply of as many as there are requests.
    ///
    /// # Errors
    /// The connection was lost; or a node of a cluster could not be reached, and the connection goes on (`ErrorKind::Other`): see [`is_not_done`].
    pub fn ask(&mut self, requests: &[Vec<String>]) -> io::Result<Reply> {
        self.send(requests)?;
        let (mut last, mut failed) = (Reply::Null, None);
        for _ in requests {
            let bytes = frame(&mut self.stream)?;
            failed = refuse_errors(requests, &bytes).or(failed);
            last = Reply::first(&bytes).expect("a reply").expect("whole").0;
        }
        match failed {
            None => Ok(last),
            Some(why) => Err(io::Error::other(why)),
        }
    }
}

/// Whether an error says that surely nothing was done.
pub fn is_not_done(error: &io::Error) -> bool {
    let text = error.to_string();
    let is_refused = text.starts_with("CLUSTERDOWN ") || text.starts_with("LOADING ");
    error.kind() == io::ErrorKind::Other && is_refused
}

/// No request of an actor is wrong; why a node that it needs cannot be reached.
fn refuse_errors(requests: &[Vec<String>], mut reply: &[u8]) -> Option<String> {
    while let Some((token, size)) = Token::first(reply) {
        if let Token::Error(text) = token {
            let text = String::from_utf8_lossy(text).into_owned();
            // A node that has just started loads its rows.
            let is_of_cluster = [
                "UNKNOWN ",
                "CLUSTERDOWN ",
                "TRYAGAIN ",
                "EXECABORT ",
                "LOADING ",
            ];
            let is_of_space = requests[0][0].starts_with("FT.") && is_of_space(&text);
            assert!(
                is_of_space || is_of_cluster.iter().any(|it| text.starts_with(it)),
                "{requests:?}: {text}"
            );
            return Some(text);
        }
        reply = &reply[size..];
    }
    None
}

/// What may be said of a space that changes, by a node that has yet to hear of it, or that a cursor was elsewhere.
fn is_of_space(text: &str) -> bool {
    let known = [
        "no such index",
        "Cursor not found",
        "already",
        "are being filled",
        "have all their objects: send it again",
        "Duplicate field in schema",
        "is no attribute of",
    ];
    known.iter().any(|it| text.contains(it))
}

/// What a proxy does to the requests of one command.
#[derive(Clone, Copy, Debug)]
pub enum Spoil {
    /// Every fifth reply is the first one that the same request got, if it is another by now.
    Replay(&'static str),
    /// Every fifth request is answered +OK and goes no further.
    Swallow(&'static str),
}

/// Stands between clients and a server for as long as they are connected.
pub struct Proxy {
    pub addr: SocketAddr,
    spoiled: Arc<AtomicU64>,
}

impl Proxy {
    pub fn start(server: SocketAddr, spoil: Spoil) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let spoiled = Arc::new(AtomicU64::new(0));
        let counter = spoiled.clone();
        // It ends with this process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let counter = counter.clone();
                thread::spawn(move || pass_on(client, server, spoil, &counter));
            }
        });
        Proxy { addr, spoiled }
    }

    /// Replies spoiled so far.
    pub fn spoiled(&self) -> u64 {
        self.spoiled.load(Ordering::SeqCst)
    }
}

/// One connection, a request at a time, until either side is gone.
fn pass_on(
    client: TcpStream,
    server: SocketAddr,
    spoil: Spoil,
    spoiled: &AtomicU64,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut server, mut client) = (BufReader::new(server), BufReader::new(client));
    let mut first: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut seen = 0;
    loop {
        let asked = frame(&mut client)?;
        let words = Reply::first(&asked).expect("a request");
        let is = |command: &str| match &words {
            Some((Reply::Array(words), _)) => words[0] == Reply::Bulk(command.into()),
            _ => false,
        };
        let (Spoil::Replay(command) | Spoil::Swallow(command)) = spoil;
        let due = is(command) && {
            seen += 1;
            seen % 5 == 0
        };
        if let (Spoil::Swallow(_), true) = (spoil, due) {
            spoiled.fetch_add(1, Ordering::SeqCst);
            client.get_mut().write_all(b"+OK\r\n")?;
            continue;
        }
        server.get_mut().write_all(&asked)?;
        let mut reply = frame(&mut server)?;
        if let Spoil::Replay(_) = spoil {
            let old = first.entry(asked).or_insert_with(|| reply.clone());
            if due && *old != reply {
                spoiled.fetch_add(1, Ordering::SeqCst);
                reply.clone_from(old);
            }
        }
        client.get_mut().write_all(&reply)?;
    }
}
