//! Admits coordinators to a client: decides which connection is served and when a silent one is closed.
//!
//! ```text
//!   accept ──► handshake (a thread each, limited) ──hello, secret──► the only place ──► serve
//!                 │ silent, or sends too much                       │ taken
//!                 └► closed                                         └► notified who holds it, closed
//! ```
//!
//! Invariants:
//!
//! 1. Silent connections keep no coordinator out: if too many have not sent hello, the oldest of them is closed.
//! 2. A coordinator is served only if it sent hello in this protocol, with the secret if there is one, within
//!    [`HELLO_TIMEOUT`].
//! 3. One coordinator is served at a time. Another one is rejected with a message: immediately if
//!    [`WAITING_MAX`] are waiting already, otherwise if the current one does not leave within [`RELEASE_TIMEOUT`].

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::protocol::{self, ClientMessage, CoordinatorMessage, PROTOCOL};

/// The time within which a connection must send hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The time within which a coordinator that was lost, or that restarts, may leave its place.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum number of connections that have not sent hello. Each has a thread.
const SILENT_MAX: usize = 64;

/// Maximum number of coordinators waiting for the place.
const WAITING_MAX: usize = 16;

/// Maximum size of a hello message in bytes.
const HELLO_BYTES_MAX: usize = 4096;

/// The write timeout: the maximum time that a coordinator may take to receive a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// TCP keep-alive: idle time and interval of the probes. [`KEEPALIVE_PROBES`] is their number.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// A coordinator that sent hello.
pub struct AdmittedCoordinator {
    pub stream: TcpStream,
    pub from: SocketAddr,
}

/// The state shared by the threads that perform handshakes and the thread that serves.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    secret: Option<String>,
    hello_timeout: Duration,
    /// The connections that have not sent hello, the oldest first.
    silent: Mutex<VecDeque<(SocketAddr, TcpStream)>>,
    waiting: AtomicUsize,
    /// The address of the coordinator that is being served.
    active: Mutex<Option<SocketAddr>>,
    released: Condvar,
}

impl Admission {
    pub fn new(secret: Option<String>, hello_timeout: Duration) -> Admission {
        Admission(Arc::new(Inner {
            secret,
            hello_timeout,
            silent: Mutex::default(),
            waiting: AtomicUsize::new(0),
            active: Mutex::new(None),
            released: Condvar::new(),
        }))
    }

    /// Accepts connections until `stopped` or until the receiver of `serve` is dropped. Sends admitted coordinators to
    /// `serve`.
    pub fn accept_until(
        &self,
        listener: &TcpListener,
        stopped: &dyn Fn() -> bool,
        serve: &Sender<AdmittedCoordinator>,
    ) {
        loop {
            let accepted = listener.accept();
            if stopped() {
                return;
            }
            let Ok((stream, from)) = accepted else {
                // Out of file descriptors: existing connections continue.
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if self.register(&stream, from).is_err() {
                continue;
            }
            let (admission, serve) = (self.clone(), serve.clone());
            thread::spawn(move || {
                if let Ok(Some(stream)) = admission.handshake(stream, from)
                    && serve.send(AdmittedCoordinator { stream, from }).is_err()
                {
                    admission.release();
                }
            });
        }
    }

    /// Frees the place of the coordinator that was served.
    pub fn release(&self) {
        *self.active() = None;
        self.0.released.notify_all();
    }

    fn active(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.0.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection as silent. If there are too many, closes the oldest.
    fn register(&self, stream: &TcpStream, from: SocketAddr) -> io::Result<()> {
        let own = stream.try_clone()?;
        let mut silent = self.silent();
        if silent.len() >= SILENT_MAX
            && let Some((_, oldest)) = silent.pop_front()
        {
            // It may be closed already; its thread ends.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        silent.push_back((from, own));
        Ok(())
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<(SocketAddr, TcpStream)>> {
        self.0.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, within limits, until no coordinator is served. Returns the address of the current one if it does not
    /// leave.
    fn acquire(&self, from: SocketAddr) -> Option<SocketAddr> {
        let waiting = self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let patience = if waiting < WAITING_MAX {
            RELEASE_TIMEOUT
        } else {
            Duration::ZERO
        };
        let is_taken = |active: &mut Option<SocketAddr>| active.is_some();
        let released = &self.0.released;
        let waited = released.wait_timeout_while(self.active(), patience, is_taken);
        let (mut active, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        match *active {
            Some(other) => Some(other),
            None => {
                *active = Some(from);
                None
            }
        }
    }

    /// Reads hello. Returns None if the coordinator is rejected.
    fn handshake(&self, mut stream: TcpStream, from: SocketAddr) -> io::Result<Option<TcpStream>> {
        let hello = read_hello(&mut stream, self.0.hello_timeout);
        self.silent().retain(|(silent, _)| *silent != from);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let rejection = match hello {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => Some(why.to_string()),
            Err(why) => return Err(why),
            Ok((protocol, _)) if protocol != PROTOCOL => Some(format!(
                "the client uses protocol {PROTOCOL} and the coordinator protocol {protocol}; use the same version of bg everywhere"
            )),
            Ok((_, secret)) if !self.accepts_secret(secret.as_deref()) => Some(
                "the secret does not match; set BG_SECRET to the same value for the coordinator and all clients"
                    .to_owned(),
            ),
            Ok(_) => self
                .acquire(from)
                .map(|other| format!("the client is already in use by the coordinator at {other}")),
        };
        if let Some(why) = rejection {
            protocol::write(&mut stream, &ClientMessage::Failed { why })?;
            return Ok(None);
        }
        let welcome = || {
            stream.set_read_timeout(None)?;
            enable_keepalive(&stream)?;
            protocol::write(&mut &stream, &ClientMessage::Hello { protocol: PROTOCOL })
        };
        if let Err(why) = welcome() {
            self.release();
            return Err(why);
        }
        Ok(Some(stream))
    }

    /// Compares in constant time: the duration does not depend on the position of the first wrong byte.
    fn accepts_secret(&self, offered: Option<&str>) -> bool {
        let Some(secret) = &self.0.secret else {
            return true;
        };
        let offered = offered.unwrap_or_default();
        let differ = secret.bytes().zip(offered.bytes());
        let differ = differ.fold(0, |differ, (one, other)| differ | (one ^ other));
        differ == 0 && secret.len() == offered.len()
    }
}

/// Reads the first line byte by byte, so that no byte after it is consumed.
fn read_hello(
    stream: &mut TcpStream,
    hello_timeout: Duration,
) -> io::Result<(u32, Option<String>)> {
    let began = Instant::now();
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        let remaining = hello_timeout.saturating_sub(began.elapsed());
        if remaining.is_zero() || line.len() >= HELLO_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(remaining))?;
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    match protocol::read::<CoordinatorMessage>(&mut &line[..])? {
        CoordinatorMessage::Hello { protocol, secret } => Ok((protocol, secret)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the first message of a coordinator must be hello",
        )),
    }
}

/// Enables TCP keep-alive, so that the kernel detects a peer that disappeared without closing the connection, for
/// instance after a power or network failure.
fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
