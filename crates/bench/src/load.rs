//! A load generator: many pipelined connections to one or several servers, in one thread.
//!
//! Requests are encoded before the clock starts. A connection sends `depth` requests, and sends the next ones after all
//! replies have arrived, so at most `depth` are in flight on each. All replies of a run have the same size (`$100`, 100
//! bytes). They are counted by size, and the head of each is verified.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use larder_protocol::resp::client::request;
use larder_types::Random;

use crate::Result;
use crate::store::{self, VALUE_BYTES};

const VALUE_HEAD: &[u8] = b"$100\r\n";

/// Encoded requests, with the expected form of each reply.
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    reply_head: Vec<u8>,
    reply_bytes: usize,
}

impl Requests {
    /// Returns GETs of random keys.
    pub fn new(keys: u64, count: usize) -> Requests {
        let mut random = Random::new(42);
        let mut requests = Requests::for_values();
        for _ in 0..count {
            let key = store::redis_key(random.index(keys as usize) as u64);
            requests.push(&[b"GET", key.as_bytes()]);
        }
        requests
    }

    /// Returns an empty list of requests, each of which is answered with one value of the benchmark's size.
    pub fn for_values() -> Requests {
        let reply_bytes = VALUE_HEAD.len() + VALUE_BYTES + 2;
        Requests::with_reply(VALUE_HEAD, reply_bytes)
    }

    /// Returns an empty list of requests, each of which is answered with an array of values.
    pub fn for_arrays(values: usize) -> Requests {
        let array = format!("*{values}\r\n").into_bytes();
        let reply_bytes = array.len() + values * (VALUE_HEAD.len() + VALUE_BYTES + 2);
        Requests::with_reply(&[&array, VALUE_HEAD].concat(), reply_bytes)
    }

    /// Returns an empty list of requests, each of which is answered with OK.
    pub fn for_writes() -> Requests {
        Requests::with_reply(b"+OK\r\n", 5)
    }

    fn with_reply(head: &[u8], reply_bytes: usize) -> Requests {
        Requests {
            bytes: Vec::new(),
            ends: vec![0],
            reply_head: head.to_owned(),
            reply_bytes,
        }
    }

    pub fn push(&mut self, args: &[&[u8]]) {
        request(&mut self.bytes, args);
        self.ends.push(self.bytes.len());
    }

    fn slice(&self, first: usize, count: usize) -> &[u8] {
        &self.bytes[self.ends[first]..self.ends[first + count]]
    }

    fn len(&self) -> usize {
        self.ends.len() - 1
    }
}

/// Stores all records with SET, for a server without another method.
pub fn fill(address: SocketAddr, keys: u64) -> Result<()> {
    const BATCH: u64 = 256;
    let mut stream = TcpStream::connect(address)?;
    let mut out = Vec::new();
    for from in (0..keys).step_by(BATCH as usize) {
        let to = (from + BATCH).min(keys);
        out.clear();
        for i in from..to {
            let (key, value) = (store::redis_key(i), store::value(i, b'A'));
            request(&mut out, &[&b"SET"[..], key.as_bytes(), &value]);
        }
        stream.write_all(&out)?;
        let mut replies = vec![0; (to - from) as usize * 5];
        stream.read_exact(&mut replies)?;
        if !replies.chunks(5).all(|reply| reply == b"+OK\r\n") {
            return Err("the server refused a SET".into());
        }
    }
    Ok(())
}

/// Sends every request once, over one connection.
pub fn send_all(address: SocketAddr, requests: &Requests) -> Result<()> {
    const BATCH: usize = 256;
    let mut stream = TcpStream::connect(address)?;
    let mut replies = vec![0; BATCH * requests.reply_bytes];
    for first in (0..requests.len()).step_by(BATCH) {
        let count = BATCH.min(requests.len() - first);
        stream.write_all(requests.slice(first, count))?;
        let replies = &mut replies[..count * requests.reply_bytes];
        stream.read_exact(replies)?;
        let mut each = replies.chunks(requests.reply_bytes);
        if let Some(wrong) = each.find(|reply| !reply.starts_with(&requests.reply_head)) {
            let text = String::from_utf8_lossy(wrong);
            return Err(format!("an unexpected reply: {text:?}").into());
        }
    }
    Ok(())
}

struct LoadConnection<'a> {
    stream: TcpStream,
    requests: &'a Requests,
    /// The bytes of outstanding replies.
    awaited: usize,
    /// The position of the next byte in its reply.
    in_reply: usize,
    next: usize,
}

/// Drives requests for about `duration`. Returns the number of replies, and the elapsed time.
pub fn drive(
    address: SocketAddr,
    requests: &Requests,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<(u64, Duration)> {
    drive_all(&[(address, requests)], connections, depth, duration)
}

/// Like [`drive`], for several servers, each with its own connections and requests.
pub fn drive_all(
    servers: &[(SocketAddr, &Requests)],
    connections_each: usize,
    depth: usize,
    duration: Duration,
) -> Result<(u64, Duration)> {
    let poll = Poll::new()?;
    let mut random = Random::new(connections_each as u64 * 1000 + depth as u64);
    let mut all = Vec::new();
    let mine = |token: usize| servers[token % servers.len()];
    for token in 0..connections_each * servers.len() {
        let (address, requests) = mine(token);
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        poll.add(&stream, token)?;
        let next = random.index(requests.len() - depth);
        all.push(LoadConnection {
            stream,
            requests,
            awaited: 0,
            in_reply: 0,
            next,
        });
    }
    let started = Instant::now();
    for connection in &mut all {
        connection.send(depth)?;
    }
    for connection in &all {
        connection.stream.set_nonblocking(true)?;
    }
    let mut buffer = vec![0; 256 << 10];
    let mut answered = 0;
    while started.elapsed() < duration {
        for token in poll.wait()? {
            let connection = &mut all[token];
            if connection.receive(&mut buffer)? {
                answered += depth as u64;
                connection.send(depth)?;
            }
        }
    }
    Ok((answered, started.elapsed()))
}

impl LoadConnection<'_> {
    fn send(&mut self, depth: usize) -> Result<()> {
        let requests = self.requests;
        if self.next + depth > requests.len() {
            self.next = 0;
        }
        let bytes = requests.slice(self.next, depth);
        self.next += depth;
        self.awaited = depth * requests.reply_bytes;
        // A few kilobytes always fit in the socket's buffer, which is empty now.
        self.stream.write_all(bytes)?;
        Ok(())
    }

    /// Reads available bytes. Returns true if all outstanding replies have arrived.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Requests {
            reply_head,
            reply_bytes,
            ..
        } = self.requests;
        let mut at = (reply_bytes - self.in_reply) % reply_bytes;
        while at < count {
            let head = &buffer[at..count.min(at + reply_head.len())];
            if !reply_head.starts_with(head) {
                let text = String::from_utf8_lossy(&buffer[at..count.min(at + 80)]).into_owned();
                return Err(format!("an unexpected reply: {text:?}").into());
            }
            at += reply_bytes;
        }
        self.in_reply = (self.in_reply + count) % reply_bytes;
        self.awaited = self
            .awaited
            .checked_sub(count)
            .ok_or("more replies came than requests were sent")?;
        Ok(self.awaited == 0)
    }
}

/// An epoll instance for reading.
pub struct Poll(i32);

impl Poll {
    pub fn new() -> Result<Poll> {
        // SAFETY: the call takes only a number.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if poll < 0 {
            Err(std::io::Error::last_os_error().into())
        } else {
            Ok(Poll(poll))
        }
    }

    pub fn add(&self, stream: &TcpStream, token: usize) -> Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token as u64,
        };
        // SAFETY: both descriptors are open, and the event outlives the call.
        let added =
            unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event) };
        if added < 0 {
            Err(std::io::Error::last_os_error().into())
        } else {
            Ok(())
        }
    }

    pub fn wait(&self) -> Result<impl Iterator<Item = usize> + use<>> {
        const EVENTS: usize = 128;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: the array has room for this number of events.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), EVENTS as i32, 100) };
        let count = match count {
            0.. => count as usize,
            _ if std::io::Error::last_os_error().kind() == ErrorKind::Interrupted => 0,
            _ => return Err(std::io::Error::last_os_error().into()),
        };
        Ok(events
            .into_iter()
            .take(count)
            .map(|event| event.u64 as usize))
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        // SAFETY: we own the descriptor, and close it once.
        unsafe { libc::close(self.0) };
    }
}
