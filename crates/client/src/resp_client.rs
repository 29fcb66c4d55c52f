//! A connection pool for the Redis protocol.
//!
//! Invariants:
//! 1. A connection is returned to the pool only after every reply on it has been read; after any failure it is
//!    closed. A caller therefore never reads another caller's reply.
//! 2. A command is retried only if it is read-only ([`is_read_only`]). The outcome of a write without a reply is
//!    *unknown*, and the caller decides.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use larder_protocol::errors::Code;
use larder_protocol::resp::client::{ErrorReply, Replies, Reply, request};

use rustls::{ClientConnection, StreamOwned};

use crate::cluster::is_read_only;
use crate::error::Error;
use crate::tls::{self, Tls};

/// The options of a [`RespClient`].
#[derive(Debug, Clone)]
pub struct RespOptions {
    /// The timeout for connecting, and for each wait for data.
    pub timeout: Duration,
    /// Maximum number of idle connections; more may be open while in use.
    pub idle_connections_max: usize,
    /// Sent first on every connection.
    pub password: Option<String>,
    /// With it the connections use TLS, without it they are plaintext.
    pub tls: Option<Tls>,
}

impl Default for RespOptions {
    fn default() -> Self {
        RespOptions {
            timeout: Duration::from_secs(5),
            idle_connections_max: 16,
            password: None,
            tls: None,
        }
    }
}

/// A client of the Redis protocol. `Sync`: share one among threads; each call has a connection of its own.
pub struct RespClient {
    address: String,
    options: RespOptions,
    idle: Mutex<Vec<Connection>>,
}

impl RespClient {
    /// Creates a client of the server at `address` (`127.0.0.1:7379`). Connects on the first call.
    pub fn new(address: impl Into<String>) -> RespClient {
        RespClient::with_options(address, RespOptions::default())
    }

    pub fn with_options(address: impl Into<String>, options: RespOptions) -> RespClient {
        RespClient {
            address: address.into(),
            options,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Returns the value of `<store>:<key>`, or `None` if the store has no such key.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such store or its block is damaged. An absent key is never an error, and a
    /// failure is never `None`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let reply = self.command(&[b"GET", key.as_ref()])?;
        self.expect_bulk(reply)
    }

    /// Returns the values of several keys, in order, all from one version of each store.
    ///
    /// # Errors
    /// Like [`RespClient::get`]; one failing key fails the call.
    pub fn mget<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut parts: Vec<&[u8]> = vec![b"MGET"];
        parts.extend(keys.iter().map(AsRef::as_ref));
        match self.command(&parts)? {
            Reply::Array(items) if items.len() == keys.len() => items
                .into_iter()
                .map(|item| self.expect_bulk(item))
                .collect(),
            other => Err(self.unexpected(&other, "as many values as keys")),
        }
    }

    /// Sends one command, name first, and returns its reply.
    ///
    /// # Errors
    /// An error reply becomes [`Error::Refused`].
    pub fn command(&self, parts: &[&[u8]]) -> Result<Reply, Error> {
        let mut replies = self.pipeline(&[parts])?;
        match replies.pop() {
            Some(Reply::Error(error)) => Err(refused(error)),
            Some(reply) => Ok(reply),
            None => Err(self.unexpected(&Reply::Null, "one reply")),
        }
    }

    /// Sends all commands in one write and then reads their replies: one round trip. An error reply is returned in
    /// its place as [`Reply::Error`]; the others are unaffected.
    ///
    /// # Errors
    /// Only if the connection fails. If all commands are read-only, they are first retried once on a new connection.
    /// While the server loads rows after its start, and therefore executes nothing, the commands are retried for up
    /// to [`RespOptions::timeout`].
    pub fn pipeline(&self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Error> {
        let started = Instant::now();
        let mut pause = LOADING_PAUSE_MIN;
        loop {
            let replies = self.pipeline_once(commands);
            let is_loading = match &replies {
                Ok(replies) => {
                    let refused =
                        |reply: &Reply| matches!(reply, Reply::Error(error) if is_loading(error));
                    !replies.is_empty() && replies.iter().all(refused)
                }
                Err(Error::Refused { retry, .. }) => *retry,
                Err(_) => false,
            };
            if !is_loading || started.elapsed() + pause > self.options.timeout {
                return replies;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOADING_PAUSE_MAX);
        }
    }

    fn pipeline_once(&self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Error> {
        let mut bytes = Vec::new();
        for parts in commands {
            request(&mut bytes, parts);
        }
        let may_repeat = commands
            .iter()
            .all(|parts| parts.first().is_some_and(|name| is_read_only(name)));
        let first = self.take_idle().map(Ok).unwrap_or_else(|| self.connect())?;
        match self.exchange(first, &bytes, commands.len()) {
            Err(failure) if may_repeat && failure.kind() != io::ErrorKind::InvalidData => {
                let fresh = self.connect()?;
                self.exchange(fresh, &bytes, commands.len())
                    .map_err(|error| self.failed(&error))
            }
            outcome => outcome.map_err(|error| self.failed(&error)),
        }
    }

    fn exchange(
        &self,
        mut connection: Connection,
        requests: &[u8],
        replies: usize,
    ) -> io::Result<Vec<Reply>> {
        let answers = connection.exchange(requests, replies)?;
        let mut idle = self
            .idle
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if idle.len() < self.options.idle_connections_max {
            idle.push(connection);
        }
        Ok(answers)
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .pop()
    }

    fn connect(&self) -> Result<Connection, Error> {
        let bad = |detail: String| Error::BadAddress {
            address: self.address.clone(),
            detail,
        };
        let mut addresses = self
            .address
            .to_socket_addrs()
            .map_err(|error| bad(format!("{error}; write it as 127.0.0.1:7379")))?;
        let address = addresses
            .next()
            .ok_or_else(|| bad("it names no host".into()))?;
        let stream =
            TcpStream::connect_timeout(&address, self.options.timeout).map_err(|error| {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    Error::NoServer {
                        address: self.address.clone(),
                    }
                } else {
                    self.failed(&error)
                }
            })?;
        let stream = self.secured(stream)?;
        let mut connection = Connection {
            stream,
            replies: Replies::default(),
        };
        if let Some(password) = &self.options.password {
            let mut bytes = Vec::new();
            request(&mut bytes, &["AUTH", password]);
            let replies = connection.exchange(&bytes, 1);
            let mut replies = replies.map_err(|error| self.failed(&error))?;
            if let Some(Reply::Error(error)) = replies.pop() {
                return Err(refused(error));
            }
        }
        Ok(connection)
    }

    /// Returns the stream: the socket, optionally with TLS.
    fn secured(&self, stream: TcpStream) -> Result<Stream, Error> {
        let prepared = prepare(&stream, self.options.timeout);
        prepared.map_err(|error| self.failed(&error))?;
        let Some(tls) = &self.options.tls else {
            return Ok(Stream::Plain(stream));
        };
        let connection = tls.connection(&self.address);
        let connection = connection.map_err(|detail| Error::BadAddress {
            address: self.address.clone(),
            detail,
        })?;
        let mut stream = StreamOwned::new(connection, stream);
        // The handshake; if it fails, no request has been sent.
        while stream.conn.is_handshaking() {
            let shaken = stream.conn.complete_io(&mut stream.sock);
            shaken.map_err(|error| self.failed(&error))?;
        }
        Ok(Stream::Secure(Box::new(stream)))
    }

    fn expect_bulk(&self, reply: Reply) -> Result<Option<Vec<u8>>, Error> {
        match reply {
            Reply::Bulk(value) => Ok(Some(value)),
            Reply::Null => Ok(None),
            Reply::Error(error) => Err(refused(error)),
            other => Err(self.unexpected(&other, "a value")),
        }
    }

    fn unexpected(&self, reply: &Reply, expected: &str) -> Error {
        let kind = match reply {
            Reply::Null => "that there is nothing",
            Reply::Simple(_) => "a status",
            Reply::Error(_) => "an error",
            Reply::Integer(_) | Reply::Double(_) | Reply::BigNumber(_) => "a number",
            Reply::Boolean(_) => "a truth value",
            Reply::Bulk(_) | Reply::Verbatim { .. } => "a value",
            Reply::Array(_) | Reply::Set(_) | Reply::Push(_) => "an array",
            Reply::Map(_) => "a map",
        };
        Error::Protocol {
            address: self.address.clone(),
            detail: format!("expected {expected}, received {kind}"),
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        let address = self.address.clone();
        if let Some(detail) = tls::advice(error) {
            return Error::Tls { address, detail };
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::TimedOut {
                address,
                seconds: self.options.timeout.as_secs_f64(),
            },
            io::ErrorKind::InvalidData => Error::Protocol {
                address,
                detail: error.to_string(),
            },
            io::ErrorKind::UnexpectedEof => Error::Broken {
                address,
                detail: "the server closed it before answering".into(),
            },
            _ => Error::Broken {
                address,
                detail: error.to_string(),
            },
        }
    }
}

/// Bounds of the pause before a request is retried while the server loads rows.
const LOADING_PAUSE_MIN: Duration = Duration::from_millis(20);
const LOADING_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Returns whether the server is loading rows and has executed nothing.
fn is_loading(error: &ErrorReply) -> bool {
    error.code == Code::Loading.resp_prefix()
}

pub(crate) fn refused(error: ErrorReply) -> Error {
    let message = format!("{} {}", error.code, error.message);
    let retry = is_loading(&error);
    Error::Refused {
        code: error.code,
        message,
        retry,
    }
}

struct Connection {
    stream: Stream,
    replies: Replies,
}

enum Stream {
    Plain(TcpStream),
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(bytes),
            Stream::Secure(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Secure(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Secure(stream) => stream.flush(),
        }
    }
}

fn prepare(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

impl Connection {
    fn exchange(&mut self, requests: &[u8], replies: usize) -> io::Result<Vec<Reply>> {
        self.stream.write_all(requests)?;
        self.stream.flush()?;
        (0..replies).map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        loop {
            let reply = self.replies.next_reply();
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            if let Some(reply) = reply.map_err(invalid)? {
                return Ok(reply);
            }
            let input = self.replies.input();
            match self.stream.read(input.spare()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => input.commit(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
