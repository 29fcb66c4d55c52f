//! Admission of coordinators by a client: which connection may be its coordinator, and after how long a silent one is closed.
//!
//! ```text
//!   accept ──► greet (a thread, a few at once) ──hello, secret──► the one place ──► serve
//!                 │ silent, or says too much                        │ taken
//!                 └► closed                                         └► told by whom, closed
//! ```
//!
//! Invariants:
//!
//! 1. A visitor who says nothing keeps nobody out: where too many have not said hello, the oldest of them is closed.
//! 2. Nobody is served who has not said hello in this protocol, with the secret if there is one, within [`PATIENCE`].
//! 3. One coordinator is served at a time; one that connects meanwhile is told so, immediately where others wait already, else unless the one who is served
//!    goes within [`ENDS_WITHIN`].

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

/// How long a visitor may take to say hello.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A coordinator that was lost, or that begins anew, may leave its place in so long.
const ENDS_WITHIN: Duration = Duration::from_secs(4);

/// Visitors who have not said hello yet, at the same time; each has a thread.
const SILENT_MAX: usize = 64;

/// Coordinators who wait for the one place, at the same time.
const WAITING_MAX: usize = 16;

/// Bytes of a hello.
const HELLO_BYTES_MAX: usize = 4096;

/// How long a coordinator may take to read what it is told.
const HEARS_WITHIN: Duration = Duration::from_secs(30);

/// When the system asks after a coordinator that has gone without a word, how often, and after how long.
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_TIMES: u32 = 3;

/// A coordinator who said hello.
pub struct Visitor {
    pub stream: TcpStream,
    pub from: SocketAddr,
}

/// Shared by those who greet and whoever serves.
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    secret: Option<String>,
    patience: Duration,
    /// Visitors who have not said hello, the oldest first.
    silent: Mutex<VecDeque<(SocketAddr, TcpStream)>>,
    waiting: AtomicUsize,
    /// Who is served.
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

    /// Accepts until told to stop, or until nobody serves; who is let in is given to `serve`.
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
                // Out of descriptors: those who are there go on.
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

    /// The one who was served has gone.
    pub fn leave(&self) {
        *self.place() = None;
        self.0.left.notify_all();
    }

    fn place(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a visitor as silent, in place of the oldest one if there are too many.
    fn receive(&self, stream: &TcpStream, from: SocketAddr) -> io::Result<()> {
        let own = stream.try_clone()?;
        let mut silent = self.silent();
        if silent.len() >= SILENT_MAX
            && let Some((_, oldest)) = silent.pop_front()
        {
            // It may be gone already; its thread ends.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        silent.push_back((from, own));
        Ok(())
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<(SocketAddr, TcpStream)>> {
        self.0.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody is served, within limits. Returns who is, if that does not come.
    fn take_place(&self, from: SocketAddr) -> Option<SocketAddr> {
        let waiting = self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let patience = match waiting < WAITING_MAX {
            true => ENDS_WITHIN,
            false => Duration::ZERO,
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

    /// None for one who was sent away.
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

    /// In time that does not depend on where the first wrong byte is.
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

/// The first line, byte by byte, so that nothing of what follows is taken.
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

/// Has the system find out when the other side is gone without a word: a machine that lost its power or its network.
fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_TIMES)?;
    Ok(())
}
