//! The client: one thread with one connection to each server and many requests in flight.
//!
//! A [`Store`] turns an operation into requests and processes their replies. Requests that follow from a reply (a post
//! is sent to each follower that was just read) are sent like any other. New operations start while fewer than
//! [`WINDOW`] requests are in flight.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use super::workload::ReadChecksum;
use crate::Result;
use crate::keys::put_digits;

/// The number of requests in flight above which no new operation starts.
pub const WINDOW: usize = 4096;
/// The number of unsent bytes above which no new operation starts.
const UNSENT_MAX: usize = 64 << 10;
const READ_BYTES: usize = 256 << 10;

/// The implementation of an application on one data store.
pub trait Store {
    type Operation;
    /// The context of an outstanding reply.
    type Context: Copy;
    fn start(&mut self, pipe: &mut Pipe<Self::Context>, operation: Self::Operation);
    /// Returns the number of started operations whose requests wait for replies to others.
    fn deferred(&self) -> usize {
        0
    }
    /// Returns the size of the reply at the start of `bytes`, or `None` if it is incomplete.
    fn reply_len(&mut self, bytes: &[u8], awaited: Self::Context) -> Result<Option<usize>>;
    /// Processes a complete reply. Rows that were read are added to `seen`.
    fn reply(
        &mut self,
        pipe: &mut Pipe<Self::Context>,
        awaited: Self::Context,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()>;
}

/// The requests to send, and the contexts of outstanding replies.
pub struct Pipe<A> {
    pub out: Vec<u8>,
    contexts: VecDeque<A>,
}

impl<A> Pipe<A> {
    pub fn push_context(&mut self, awaited: A) {
        self.contexts.push_back(awaited);
    }
}

pub struct StoreConnection<A> {
    stream: TcpStream,
    pipe: Pipe<A>,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
}

impl<A: Copy> StoreConnection<A> {
    pub fn open(address: SocketAddr) -> Result<StoreConnection<A>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(StoreConnection::with_stream(stream))
    }

    /// Uses an idle connection.
    pub fn with_stream(stream: TcpStream) -> StoreConnection<A> {
        StoreConnection {
            stream,
            pipe: Pipe {
                out: Vec::new(),
                contexts: VecDeque::new(),
            },
            sent: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
        }
    }

    /// Runs operations to completion. Returns the rows they read.
    pub fn run<S: Store<Context = A>>(
        &mut self,
        store: &mut S,
        operations: impl IntoIterator<Item = S::Operation>,
    ) -> Result<ReadChecksum> {
        let mut lines = [Line {
            store,
            connection: self,
        }];
        run_over(
            &mut lines,
            WINDOW,
            operations.into_iter().map(|one| (0, one)),
        )
    }

    /// Sends and receives as much as possible. Returns whether there was anything.
    fn turn<S: Store<Context = A>>(
        &mut self,
        store: &mut S,
        seen: &mut ReadChecksum,
    ) -> Result<bool> {
        if self.is_idle() {
            return Ok(false);
        }
        let sent = self.send()?;
        let received = self.receive()?;
        if received {
            self.take(store, seen)?;
        }
        Ok(sent || received)
    }

    /// Returns whether nothing is unsent or outstanding.
    fn is_idle(&self) -> bool {
        self.pipe.contexts.is_empty() && self.unsent() == 0
    }

    fn unsent(&self) -> usize {
        self.pipe.out.len() - self.sent
    }

    /// Processes all complete replies.
    fn take<S: Store<Context = A>>(
        &mut self,
        store: &mut S,
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.filled {
            let awaited = *self
                .pipe
                .contexts
                .front()
                .ok_or("a reply that nothing awaits")?;
            let rest = &self.input[at..self.filled];
            let Some(size) = store.reply_len(rest, awaited)? else {
                break;
            };
            self.pipe.contexts.pop_front();
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
            // A reply is larger than the buffer.
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

    fn poll_entry(&self) -> libc::pollfd {
        let unsent = self.unsent() > 0;
        libc::pollfd {
            fd: self.stream.as_raw_fd(),
            events: libc::POLLIN | if unsent { libc::POLLOUT } else { 0 },
            revents: 0,
        }
    }
}

/// A connection, and the store at its other end.
pub struct Line<'a, S: Store> {
    pub store: &'a mut S,
    pub connection: &'a mut StoreConnection<S::Context>,
}

/// Runs operations to completion, each on the line with its number. Returns the rows they read. No new operation starts
/// while `window` requests are in flight on all lines together.
pub fn run_over<S: Store>(
    lines: &mut [Line<S>],
    window: usize,
    operations: impl IntoIterator<Item = (usize, S::Operation)>,
) -> Result<ReadChecksum> {
    for line in &mut *lines {
        line.connection.stream.set_nonblocking(true)?;
    }
    let mut operations = operations.into_iter();
    let mut seen = ReadChecksum::default();
    let mut more = true;
    while more || lines.iter().any(|line| !line.connection.is_idle()) {
        let in_flight =
            |line: &Line<S>| line.connection.pipe.contexts.len() + line.store.deferred();
        while more
            && lines.iter().map(in_flight).sum::<usize>() < window
            && lines
                .iter()
                .map(|line| line.connection.unsent())
                .sum::<usize>()
                < UNSENT_MAX * lines.len()
        {
            match operations.next() {
                Some((at, operation)) => {
                    let Line { store, connection } = &mut lines[at];
                    store.start(&mut connection.pipe, operation);
                }
                None => more = false,
            }
        }
        let mut is_going = false;
        for Line { store, connection } in &mut *lines {
            is_going |= connection.turn(*store, &mut seen)?;
        }
        if !is_going {
            wait(lines);
        }
    }
    Ok(seen)
}

/// Waits until a busy connection is ready.
fn wait<S: Store>(lines: &[Line<S>]) {
    let busy = lines.iter().filter(|line| !line.connection.is_idle());
    let mut polls: Vec<libc::pollfd> = busy.map(|line| line.connection.poll_entry()).collect();
    if !polls.is_empty() {
        // SAFETY: the length is that of the list, which outlives the call.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
    }
}

/// Appends a number with this many decimal digits.
pub fn digits(out: &mut Vec<u8>, number: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    put_digits(&mut out[start..], number);
}

/// Parses decimal digits.
pub fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
