//! The client: one thread, one connection, many requests under way.
//!
//! A [`Store`] turns an operation into requests and takes their replies; what a reply asks for (a post goes to each
//! follower that was just read) is sent like any other request. New operations start while fewer than [`WINDOW`]
//! requests are under way.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use super::workload::Seen;
use crate::Result;
use crate::keys::put_digits;

/// Requests under way before no new operation starts.
pub const WINDOW: usize = 4096;
/// Bytes not sent yet before no new operation starts.
const UNSENT_MAX: usize = 64 << 10;
const READ_BYTES: usize = 256 << 10;

/// How an application is kept in one data store.
pub trait Store {
    type Operation;
    /// What a reply is for.
    type Awaited: Copy;
    fn start(&mut self, pipe: &mut Pipe<Self::Awaited>, operation: Self::Operation);
    /// Operations that have started, and whose requests wait for replies to others.
    fn deferred(&self) -> usize {
        0
    }
    /// How many bytes the reply at the start of `bytes` takes; `None` if it is not whole.
    fn reply_len(&mut self, bytes: &[u8], awaited: Self::Awaited) -> Result<Option<usize>>;
    /// Takes a whole reply. What was read goes to `seen`.
    fn reply(
        &mut self,
        pipe: &mut Pipe<Self::Awaited>,
        awaited: Self::Awaited,
        reply: &[u8],
        seen: &mut Seen,
    ) -> Result<()>;
}

/// Requests to be sent, and what is awaited of those that were.
pub struct Pipe<A> {
    pub out: Vec<u8>,
    awaited: VecDeque<A>,
}

impl<A> Pipe<A> {
    pub fn awaits(&mut self, awaited: A) {
        self.awaited.push_back(awaited);
    }
}

pub struct Connection<A> {
    stream: TcpStream,
    pipe: Pipe<A>,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
}

impl<A: Copy> Connection<A> {
    pub fn open(address: SocketAddr) -> Result<Connection<A>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }

    /// Takes over a connection on which nothing is under way.
    pub fn over(stream: TcpStream) -> Connection<A> {
        Connection {
            stream,
            pipe: Pipe {
                out: Vec::new(),
                awaited: VecDeque::new(),
            },
            sent: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
        }
    }

    /// Runs operations to their end; what they read.
    pub fn run<S: Store<Awaited = A>>(
        &mut self,
        store: &mut S,
        operations: impl IntoIterator<Item = S::Operation>,
    ) -> Result<Seen> {
        self.stream.set_nonblocking(true)?;
        let mut operations = operations.into_iter();
        let mut seen = Seen::default();
        let mut more = true;
        while more || !self.pipe.awaited.is_empty() || self.sent < self.pipe.out.len() {
            while more
                && self.pipe.awaited.len() + store.deferred() < WINDOW
                && self.pipe.out.len() - self.sent < UNSENT_MAX
            {
                match operations.next() {
                    Some(operation) => store.start(&mut self.pipe, operation),
                    None => more = false,
                }
            }
            let sent = self.send()?;
            let received = self.receive()?;
            if received {
                self.take(store, &mut seen)?;
            } else if !sent && !self.pipe.awaited.is_empty() {
                self.wait();
            }
        }
        Ok(seen)
    }

    /// Takes all whole replies.
    fn take<S: Store<Awaited = A>>(&mut self, store: &mut S, seen: &mut Seen) -> Result<()> {
        let mut at = 0;
        while at < self.filled {
            let awaited = *self
                .pipe
                .awaited
                .front()
                .ok_or("a reply that nothing awaits")?;
            let rest = &self.input[at..self.filled];
            let Some(size) = store.reply_len(rest, awaited)? else {
                break;
            };
            self.pipe.awaited.pop_front();
            store.reply(&mut self.pipe, awaited, &rest[..size], seen)?;
            at += size;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        if self.sent == self.pipe.out.len() {
            return Ok(false);
        }
        match self.stream.write(&self.pipe.out[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if self.sent == self.pipe.out.len() {
            self.pipe.out.clear();
            self.sent = 0;
        }
        Ok(true)
    }

    fn receive(&mut self) -> Result<bool> {
        if self.filled == self.input.len() {
            // A reply that is longer than the buffer.
            self.input.resize(self.filled * 2, 0);
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(count) => {
                self.filled += count;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn wait(&self) {
        let unsent = self.sent < self.pipe.out.len();
        let mut poll = libc::pollfd {
            fd: self.stream.as_raw_fd(),
            events: libc::POLLIN | if unsent { libc::POLLOUT } else { 0 },
            revents: 0,
        };
        // SAFETY: one descriptor, which lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }
}

/// Appends a number in so many decimal digits.
pub fn digits(out: &mut Vec<u8>, number: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    put_digits(&mut out[start..], number);
}

/// A number of decimal digits.
pub fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
