//! The client: one thread, one connection, many requests under way.
//!
//! A [`System`] turns an operation into requests and takes their replies; what a reply asks for (a post goes to each
//! follower that was just read) is sent like any other request. New operations start while fewer than [`WINDOW`]
//! requests are under way.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use super::workload::{Operation, Seen};
use crate::Result;

/// Requests under way before no new operation starts.
pub const WINDOW: usize = 4096;
/// Bytes not sent yet before no new operation starts.
const UNSENT_MAX: usize = 64 << 10;
const READ_BYTES: usize = 256 << 10;

/// What a reply is for.
#[derive(Clone, Copy)]
pub enum Awaited {
    /// An acknowledgement.
    Done,
    Check {
        user: u32,
        since: u64,
        until: u64,
    },
    /// Who follows the poster of a post.
    Followers {
        poster: u32,
        time: u64,
    },
    /// What the poster posted, for a user who follows them from now on.
    Posts {
        user: u32,
        poster: u32,
    },
}

/// How one data store keeps timelines. Requests go to `pipe`, in order.
pub trait System {
    /// How many bytes the reply at the start of `bytes` takes; `None` if it is not whole.
    fn reply_len(&self, bytes: &[u8], awaited: Awaited) -> Result<Option<usize>>;
    /// Who follows a user, before the clock starts.
    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]);
    /// All of them are in.
    fn loaded(&mut self, _pipe: &mut Pipe) {}
    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32);
    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64);
    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64);
    /// Takes a whole reply. Rows of a check go to `seen`.
    fn reply(
        &mut self,
        pipe: &mut Pipe,
        awaited: Awaited,
        reply: &[u8],
        seen: &mut Seen,
    ) -> Result<()>;
}

/// Requests to be sent, and what is awaited of those that were.
#[derive(Default)]
pub struct Pipe {
    pub out: Vec<u8>,
    awaited: VecDeque<Awaited>,
    copying: HashMap<u32, Copying>,
}

/// What a user's subscriptions still copy, and the checks that wait for some of it.
#[derive(Default)]
struct Copying {
    copies: usize,
    /// Each with the copies that were under way when it came, and are still.
    checks: Vec<(usize, u64, u64)>,
}

impl Pipe {
    pub fn awaits(&mut self, awaited: Awaited) {
        if let Awaited::Posts { user, .. } = awaited {
            self.copying.entry(user).or_default().copies += 1;
        }
        self.awaited.push_back(awaited);
    }

    /// Whether a check waits for copies; then it comes back when they are done.
    fn defers(&mut self, user: u32, since: u64, until: u64) -> bool {
        let Some(copying) = self.copying.get_mut(&user) else {
            return false;
        };
        copying.checks.push((copying.copies, since, until));
        true
    }

    /// The requests of a copy have been put: the checks that waited for it alone.
    fn copied(&mut self, user: u32) -> Vec<(u64, u64)> {
        let Some(copying) = self.copying.get_mut(&user) else {
            return Vec::new();
        };
        copying.copies -= 1;
        let mut due = Vec::new();
        copying.checks.retain_mut(|(copies, since, until)| {
            *copies -= 1;
            if *copies == 0 {
                due.push((*since, *until));
            }
            *copies > 0
        });
        if copying.copies == 0 {
            self.copying.remove(&user);
        }
        due
    }
}

pub struct Connection {
    stream: TcpStream,
    pipe: Pipe,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }

    /// Takes over a connection on which nothing is under way.
    pub fn over(stream: TcpStream) -> Connection {
        Connection {
            stream,
            pipe: Pipe::default(),
            sent: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
        }
    }

    /// Runs operations to their end; what their checks read.
    pub fn operate(&mut self, system: &mut dyn System, operations: &[Operation]) -> Result<Seen> {
        let mut operations = operations.iter();
        self.run(system, &mut |system, pipe| {
            let Some(operation) = operations.next() else {
                return false;
            };
            match *operation {
                Operation::Post { poster, time } => system.post(pipe, poster, time),
                Operation::Subscribe { user, poster } => system.subscribe(pipe, user, poster),
                Operation::Check { user, since, until } => {
                    if !pipe.defers(user, since, until) {
                        system.check(pipe, user, since, until);
                    }
                }
                Operation::Logout => {}
            }
            true
        })
    }

    /// Tells the system who follows whom.
    pub fn load(&mut self, system: &mut dyn System, followers: &[Vec<u32>]) -> Result<()> {
        let mut users = followers.iter().zip(0..);
        self.run(system, &mut |system, pipe| {
            users.next().is_some_and(|(followers, poster)| {
                system.load(pipe, poster, followers);
                true
            })
        })?;
        let mut loaded = false;
        self.run(system, &mut |system, pipe| {
            if !std::mem::replace(&mut loaded, true) {
                system.loaded(pipe);
                return true;
            }
            false
        })?;
        Ok(())
    }

    fn run(
        &mut self,
        system: &mut dyn System,
        next: &mut dyn FnMut(&mut dyn System, &mut Pipe) -> bool,
    ) -> Result<Seen> {
        self.stream.set_nonblocking(true)?;
        let mut seen = Seen::default();
        let mut more = true;
        while more || !self.pipe.awaited.is_empty() || self.sent < self.pipe.out.len() {
            while more
                && self.pipe.awaited.len() < WINDOW
                && self.pipe.out.len() - self.sent < UNSENT_MAX
            {
                more = next(system, &mut self.pipe);
            }
            let sent = self.send()?;
            let received = self.receive()?;
            if received {
                self.take(system, &mut seen)?;
            } else if !sent && !self.pipe.awaited.is_empty() {
                self.wait();
            }
        }
        Ok(seen)
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

    /// Takes all whole replies.
    fn take(&mut self, system: &mut dyn System, seen: &mut Seen) -> Result<()> {
        let mut at = 0;
        while at < self.filled {
            let awaited = *self
                .pipe
                .awaited
                .front()
                .ok_or("a reply that nothing awaits")?;
            let rest = &self.input[at..self.filled];
            let Some(size) = system.reply_len(rest, awaited)? else {
                break;
            };
            self.pipe.awaited.pop_front();
            system.reply(&mut self.pipe, awaited, &rest[..size], seen)?;
            if let Awaited::Posts { user, .. } = awaited {
                for (since, until) in self.pipe.copied(user) {
                    system.check(&mut self.pipe, user, since, until);
                }
            }
            at += size;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
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
    let mut left = number;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// A number of decimal digits.
pub fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
