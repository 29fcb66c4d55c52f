//! The task that owns a connection's socket: it writes queued bytes, reads, dispatches events, and handles timeouts.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use larder_cluster::map::Incarnation;
use larder_cluster::peer::{ConnectionEnd, ConnectionEvent, Hello};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::incoming::Incoming;
use super::link::Link;
use super::{Core, tls};

/// Maximum number of buffers in one vectored write.
const SLICES: usize = 64;
/// Minimum free space for a read, and the amount that is reserved when there is less.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES: usize = 64 << 10;
/// Maximum number of reads before the core's other tasks run.
const READS_PER_TURN: usize = 16;
/// The timeout for writing a final reason.
const FINAL_WRITE_MAX: Duration = Duration::from_secs(1);

/// Returns the known incarnation of a node that sent a hello, or the reason why it is rejected.
pub(super) type HelloCheck<'a> = &'a dyn Fn(&Hello) -> Result<Option<Incarnation>, String>;

/// Runs a connection to its end.
pub(super) async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    core: &Core,
    link: &Rc<Link>,
    mut socket: S,
    peer_name: &str,
    check_hello: HelloCheck<'_>,
) {
    let mut driver = Driver {
        core,
        link,
        socket: &mut socket,
        check_hello,
        sleep: Box::pin(sleep(Duration::ZERO)),
        armed_ms: 0,
        was_full: false,
    };
    let ended = poll_fn(|cx| driver.poll(cx)).await;
    finish(core, link, &ended, peer_name);
    // An error means that the peer is gone.
    let _ = timeout(FINAL_WRITE_MAX, flush_and_close(link, &mut socket)).await;
}

/// Notifies all waiters of the end of a connection.
pub(super) fn finish(core: &Core, link: &Rc<Link>, ended: &ConnectionEnd, peer_name: &str) {
    let why = link.notify_ended(ended, peer_name);
    tracing::debug!(%why, "a connection to another node has ended");
    if link.peer().is_some() {
        core.arrivals.push(Incoming::Ended(link.clone(), why));
    }
}

async fn flush_and_close<S: AsyncWrite + Unpin>(link: &Rc<Link>, socket: &mut S) -> io::Result<()> {
    poll_fn(|cx| poll_write(link, socket, cx)).await?;
    socket.flush().await?;
    socket.shutdown().await
}

struct Driver<'a, S> {
    core: &'a Core,
    link: &'a Rc<Link>,
    socket: &'a mut S,
    check_hello: HelloCheck<'a>,
    sleep: Pin<Box<Sleep>>,
    /// The time at which `sleep` ends.
    armed_ms: u64,
    /// Requests and responses are waiting for room.
    was_full: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        self.link.set_driver(cx);
        // Bytes received before a timeout take precedence.
        let read = self.poll_read(cx);
        match read {
            Poll::Ready(Ok(ended)) => return Poll::Ready(ended),
            Poll::Ready(Err(error)) => self.link.connection().record_failure(&tls::explain(&error)),
            Poll::Pending => {}
        }
        let now_ms = self.core.now_ms();
        self.link.connection().tick(now_ms);
        let written = poll_write(self.link, self.socket, cx);
        if let Poll::Ready(Err(error)) = written {
            // Bytes received before the error are processed, because they may contain the peer's reason.
            if let Poll::Ready(Ok(ended)) = self.poll_read(cx) {
                return Poll::Ready(ended);
            }
            self.link.connection().record_failure(&tls::explain(&error));
        }
        let is_full = !self.link.connection().has_room();
        if std::mem::replace(&mut self.was_full, is_full) && !is_full {
            self.link.wake_all();
        }
        if let Some(ended) = self.take_events(cx) {
            return Poll::Ready(ended);
        }
        self.link.wake_requesters();
        self.poll_timer(cx);
        Poll::Pending
    }

    /// Reads and dispatches events until no bytes are available. Ready at the end of the connection, or with an error of the
    /// socket.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ConnectionEnd>> {
        for _ in 0..READS_PER_TURN {
            if let Some(ended) = self.take_events(cx) {
                return Poll::Ready(Ok(ended));
            }
            if !self.core.arrivals.has_room(cx) {
                self.link.connection().record_read_pause(self.core.now_ms());
                return Poll::Pending;
            }
            let mut connection = self.link.connection();
            let buffer = connection.buffer();
            if buffer.capacity() - buffer.len() < READ_BYTES_MIN {
                buffer.reserve(READ_BYTES);
            }
            let read = pin!(self.socket.read_buf(buffer)).poll(cx);
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    let closed = "the other side closed it";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed)));
                }
                Poll::Ready(Ok(_)) => connection.record_received(self.core.now_ms()),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_events(&mut self, cx: &mut Context<'_>) -> Option<ConnectionEnd> {
        let now_ms = self.core.now_ms();
        while self.core.arrivals.has_room(cx) || self.link.is_ended() {
            let event = self.link.connection().next_event(now_ms)?;
            let arrivals = &self.core.arrivals;
            let link = self.link;
            match event {
                ConnectionEvent::Hello(hello) => self.handle_hello(&hello, now_ms),
                ConnectionEvent::Ready(peer) => {
                    self.core.members.record_contact(peer.node, Ok(()));
                    link.set_peer(peer);
                    arrivals.push(Incoming::Connected(link.clone(), peer));
                    link.wake_all();
                }
                ConnectionEvent::Requests(stream, requests) => {
                    arrivals.push(Incoming::Requests(requests, link.responder(stream)));
                }
                ConnectionEvent::Reply(stream, piece) => link.deliver(stream, piece),
                ConnectionEvent::Cancelled(stream) | ConnectionEvent::Writable(stream) => {
                    link.wake_responder(stream)
                }
                ConnectionEvent::Exchange(exchange) => {
                    arrivals.push(Incoming::Exchange(link.clone(), exchange));
                }
                ConnectionEvent::Replicate(replicate) => {
                    arrivals.push(Incoming::Replicate(link.clone(), replicate));
                }
                ConnectionEvent::Ended(ended) => return Some(ended),
            }
        }
        None
    }

    fn handle_hello(&mut self, hello: &Hello, now_ms: u64) {
        let checked = (self.check_hello)(hello);
        let mut connection = self.link.connection();
        match checked {
            Ok(identity) => connection.admit(identity, self.core.members.epoch(), now_ms),
            Err(why) => connection.refuse(&why),
        }
        let peer = connection.peer().copied();
        drop(connection);
        if let Some(peer) = peer {
            self.link.set_peer(peer);
            let connected = Incoming::Connected(self.link.clone(), peer);
            self.core.arrivals.push(connected);
        }
    }

    /// Schedules the next timeout.
    fn poll_timer(&mut self, cx: &mut Context<'_>) {
        loop {
            let next_ms = self.link.connection().next_tick_ms();
            let now_ms = self.core.now_ms();
            // The timer may fire too early; it is then set again.
            if self.armed_ms > next_ms || self.armed_ms <= now_ms {
                self.armed_ms = next_ms.max(now_ms + 1);
                let after = Duration::from_millis((self.armed_ms - now_ms).min(60_000));
                self.sleep.as_mut().reset(Instant::now() + after);
            }
            match self.sleep.as_mut().poll(cx) {
                Poll::Pending => return,
                Poll::Ready(()) => {
                    self.link.connection().tick(self.core.now_ms());
                    self.armed_ms = 0;
                    cx.waker().wake_by_ref();
                }
            }
        }
    }
}

/// Writes all queued bytes. Ready when the socket has accepted them.
fn poll_write<S: AsyncWrite + Unpin>(
    link: &Link,
    socket: &mut S,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let mut connection = link.connection();
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = connection.slices(&mut slices);
        if count == 0 {
            break;
        }
        let written = Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..count]);
        match std::task::ready!(written) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(size) => connection.record_written(size),
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    // TLS may still buffer some of it.
    Pin::new(socket).poll_flush(cx)
}
