//! Admits coordinators to a client: decides which connection is served and when a silent one is closed.
//!
//! ```text
//!   accept ──► greet (a thread each, limited) ──hello, secret──► the only place ──► serve
//!                 │ silent, or sends too much                       │ taken
//!                 └► closed                                         └► notified who holds it, closed
//! ```
//!
//! Invariants:
//!
//! 1. Silent connections keep no coordinator out: if too many have not sent hello, the oldest of them is closed.
//! 2. A coordinator is served only if it sent hello in this protocol, with the secret if there is one, within
//!    [`PATIENCE`].
//! 3. One coordinator is served at a time. Another one is rejected with a message: immediately if
//!    [`WAITING_MAX`] are waiting already, otherwise if the current one does not leave within [`ENDS_WITHIN`].

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::protocol::{self, Order, PROTOCOL, Tell};

/// The time within which a connection must send hello.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The time within which a coordinator that was lost, or that restarts, may leave its place.
const ENDS_WITHIN: Duration = Duration::from_secs(4);

/// Maximum number of connections that have not sent hello. Each has a thread.
const SILENT_MAX: usize = 64;

/// Maximum number of coordinators waiting for the place.
const WAITING_MAX: usize = 16;

/// Maximum size of a hello message in bytes.
const HELLO_BYTES_MAX: usize = 4096;

/// The write timeout: the maximum time that a coordinator may take to receive a message.
const HEARS_WITHIN: Duration = Duration::from_secs(30);

/// TCP keep-alive: idle time and interval of the probes. [`ASKED_TIMES`] is their number.
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_TIMES: u32 = 3;

/// A coordinator that sent hello.
pub struct Visitor {
    pub stream: TcpStream,
    pub from: SocketAddr,
}

/// The state shared by the threads that greet and the thread that serves.
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    secret: Option<String>,
    patience: Duration,
    /// The connections that have not sent hello, the oldest first.
    silent: Mutex<VecDeque<(SocketAddr, TcpStream)>>,
    waiting: AtomicUsize,
    /// The address of the coordinator that is being served.
    place: Mutex<Option<SocketAddr>>,
    left: Condvar,
}

impl Door {
    pub fn new(secret: Option<String>, patience: Duration) -> Door {
        Door(Arc::new(Inner {
            secret,
            patience,
            silent: Mutex::default(),
            waiting: AtomicUsize::new(0),
            place: Mutex::new(None),
            left: Condvar::new(),
        }))
    }

    /// Accepts connections until `stopped` or until the receiver of `serve` is dropped. Sends admitted coordinators to
    /// `serve`.
    pub fn keep(
        &self,
        listener: &TcpListener,
        stopped: &dyn Fn() -> bool,
        serve: &Sender<Visitor>,
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
            if self.receive(&stream, from).is_err() {
                continue;
            }
            let (door, serve) = (self.clone(), serve.clone());
            thread::spawn(move || {
                if let Ok(Some(stream)) = door.greet(stream, from)
                    && serve.send(Visitor { stream, from }).is_err()
                {
                    door.leave();
                }
            });
        }
    }

    /// Frees the place of the coordinator that was served.
    pub fn leave(&self) {
        *self.place() = None;
        self.0.left.notify_all();
    }

    fn place(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection as silent. If there are too many, closes the oldest.
    fn receive(&self, stream: &TcpStream, from: SocketAddr) -> io::Result<()> {
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
    fn take_place(&self, from: SocketAddr) -> Option<SocketAddr> {
        let waiting = self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let patience = if waiting < WAITING_MAX {
            ENDS_WITHIN
        } else {
            Duration::ZERO
        };
        let is_taken = |place: &mut Option<SocketAddr>| place.is_some();
        let left = &self.0.left;
        let waited = left.wait_timeout_while(self.place(), patience, is_taken);
        let (mut place, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        match *place {
            Some(other) => Some(other),
            None => {
                *place = Some(from);
                None
            }
        }
    }

    /// Reads hello. Returns None if the coordinator is rejected.
    fn greet(&self, mut stream: TcpStream, from: SocketAddr) -> io::Result<Option<TcpStream>> {
        let said = hello(&mut stream, self.0.patience);
        self.silent().retain(|(silent, _)| *silent != from);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(HEARS_WITHIN))?;
        let refused = match said {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => Some(why.to_string()),
            Err(why) => return Err(why),
            Ok((protocol, _)) if protocol != PROTOCOL => Some(format!(
                "it speaks protocol {PROTOCOL}, the coordinator {protocol}: take the same bg for all"
            )),
            Ok((_, said)) if !self.is_secret(said.as_deref()) => Some(
                "the secret is not that of this client: set BG_SECRET to the same for all"
                    .to_owned(),
            ),
            Ok(_) => self
                .take_place(from)
                .map(|other| format!("it acts for the coordinator at {other} already")),
        };
        if let Some(why) = refused {
            protocol::write(&mut stream, &Tell::Failed { why })?;
            return Ok(None);
        }
        let welcome = || {
            stream.set_read_timeout(None)?;
            watch(&stream)?;
            protocol::write(&mut &stream, &Tell::Hello { protocol: PROTOCOL })
        };
        if let Err(why) = welcome() {
            self.leave();
            return Err(why);
        }
        Ok(Some(stream))
    }

    /// Compares in constant time: the duration does not depend on the position of the first wrong byte.
    fn is_secret(&self, said: Option<&str>) -> bool {
        let Some(secret) = &self.0.secret else {
            return true;
        };
        let said = said.unwrap_or_default();
        let differ = secret.bytes().zip(said.bytes());
        let differ = differ.fold(0, |differ, (one, other)| differ | (one ^ other));
        differ == 0 && secret.len() == said.len()
    }
}

/// Reads the first line byte by byte, so that no byte after it is consumed.
fn hello(stream: &mut TcpStream, patience: Duration) -> io::Result<(u32, Option<String>)> {
    let began = Instant::now();
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() || line.len() >= HELLO_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    match protocol::read::<Order>(&mut &line[..])? {
        Order::Hello { protocol, secret } => Ok((protocol, secret)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the first word of a coordinator is hello",
        )),
    }
}

/// Enables TCP keep-alive, so that the kernel detects a peer that disappeared without closing the connection, for
/// instance after a power or network failure.
fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_TIMES)?;
    Ok(())
}
