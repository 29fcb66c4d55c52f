//! A non-blocking connection: requests are queued, bytes are transferred when the socket is ready, and replies are
//! decoded.
//!
//! Invariants:
//! 1. Nothing is sent before the connection is established, so a failed connection attempt has no effect on the
//!    server.
//! 2. A connection from the pool has no pending reply to an earlier request.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;

use larder_protocol::resp::client::{ErrorReply, Replies, Reply, request};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::ClusterOptions;
use super::transport::Transport;

pub(crate) struct Connection {
    transport: Transport,
    is_connected: bool,
    out: Vec<u8>,
    written: usize,
    replies: Replies,
    /// Pending replies to the initial commands of a connection.
    greetings_left: usize,
    /// It has received replies before.
    pub is_reused: bool,
    /// Bytes of a request were written to the socket since it was taken from the pool.
    pub has_sent: bool,
}

impl Connection {
    /// Starts to connect to `host:port`. Resolves the host first, which may block.
    ///
    /// # Errors
    /// If the address is invalid, or the connection is refused immediately.
    pub fn begin(address: &str, options: &ClusterOptions) -> io::Result<Connection> {
        let found = address.to_socket_addrs()?.next();
        let found = found.ok_or_else(|| io::Error::other("the address names no host"))?;
        let stream = begin_connecting(found)?;
        stream.set_nodelay(true)?;
        let tls = options.tls.as_ref().map(|tls| tls.connection(address));
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let tls = tls.transpose().map_err(invalid)?;
        let mut out = Vec::new();
        if let Some(password) = &options.password {
            request(&mut out, &["AUTH", password]);
        }
        // Replicas of a Redis Cluster serve reads only after this; a server without clusters rejects it, which is
        // harmless.
        request(&mut out, &["READONLY"]);
        Ok(Connection {
            transport: Transport::new(stream, tls),
            is_connected: false,
            out,
            written: 0,
            replies: Replies::default(),
            greetings_left: 1 + usize::from(options.password.is_some()),
            is_reused: false,
            has_sent: false,
        })
    }

    /// Queues requests for sending.
    pub fn send(&mut self, requests: &[u8]) {
        self.out.extend_from_slice(requests);
    }

    /// Returns the events to wait for.
    pub fn poll_events(&self) -> PollFlags {
        self.transport.poll_events(self.written < self.out.len())
    }

    /// Transfers as many bytes as possible, and appends complete replies to `got`, up to `expected` of them.
    ///
    /// # Errors
    /// If the connection is no longer usable.
    pub fn advance(&mut self, got: &mut Vec<Reply>, expected: usize) -> io::Result<()> {
        if !self.is_connected {
            if let Some(error) = self.transport.socket.take_error()? {
                return Err(error);
            }
            match self.transport.socket.peer_addr() {
                Ok(_) => self.is_connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.flush()?;
        loop {
            while got.len() < expected {
                let reply = self.replies.next_reply();
                let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                match reply.map_err(invalid)? {
                    None => break,
                    Some(Reply::Push(_)) => {}
                    Some(reply) if self.greetings_left > 0 => self.handle_greeting(reply)?,
                    Some(reply) => got.push(reply),
                }
            }
            if got.len() == expected {
                return Ok(());
            }
            let input = self.replies.input();
            match self.transport.read(input.spare()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => input.commit(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes requests to the socket until it blocks. Only for an established connection.
    ///
    /// # Errors
    /// Like [`Connection::advance`].
    pub fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.transport.write(&self.out[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    self.has_sent = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        match self.transport.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }

    /// Handles an initial reply. The last one is that to READONLY, whose result does not matter.
    fn handle_greeting(&mut self, reply: Reply) -> io::Result<()> {
        self.greetings_left -= 1;
        match reply {
            Reply::Error(ErrorReply { code, message }) if self.greetings_left > 0 => {
                let text = format!("{code} {message}");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the connection can be reused: the server has neither closed it nor sent unexpected data.
    pub fn is_idle(&mut self) -> bool {
        let is_complete = self.out.is_empty() && self.replies.input().bytes().is_empty();
        self.is_reused = true;
        self.has_sent = false;
        is_complete && self.transport.has_no_input()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.transport.fd()
    }
}

fn begin_connecting(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
