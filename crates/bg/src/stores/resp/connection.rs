//! A connection that many calls share.
//!
//! A call appends its requests to the output, and queues the receiver of its replies. The *driver*, a separate task,
//! runs after all ready calls have done so. It writes the accumulated output, reads the available input, and passes
//! each token to the call at the front of the queue.
//!
//! ```text
//!            ┌─ call ─► output ─► driver: write, read ─► receivers ─► wake the calls
//!  connected ┤                        │ lost
//!            │                        ▼
//!            └◄─ connected ── the next call ── idle: calls in progress are Unknown
//!                                     │ cannot connect
//!                                     └► waiting calls are Refused: they were never sent
//! ```
//!
//! If the server answers that it is a replica, it was the primary before a failover. The driver then connects again,
//! because the address may lead to the new primary.
//!
//! Invariants:
//!
//! 1. Replies arrive in the order of the requests, so the next reply belongs to the front of the queue. A dropped call
//!    stays in the queue.
//! 2. Nothing is sent twice: a request that was queued before a connection was lost is never sent on the next one.
//! 3. Bytes that are not a reply end the connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use larder_protocol::resp::client::{Input, Reader, Step, Token};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::Server;
use super::request::command;
use crate::stores::contract::Failure;

/// The maximum number of bytes of one read, unless a value is longer.
const INPUT_BYTES: usize = 256 << 10;
/// An empty output buffer is shrunk to this size.
const OUTPUT_BYTES: usize = 1 << 20;

/// Receives the replies of one call.
pub trait Receiver: 'static {
    /// Receives the next token. Errors are not passed: a call that gets one fails.
    fn take(&mut self, token: Token<'_>);
}

/// A connection that several calls share, used from one thread.
pub struct Connection {
    shared: Rc<ConnectionState>,
}

struct ConnectionState {
    server: Rc<Server>,
    output: RefCell<Vec<u8>>,
    queue: RefCell<VecDeque<QueuedCall>>,
    driver: RefCell<Option<Waker>>,
    /// The driver is idle and has not been woken.
    is_idle: Cell<bool>,
    /// There will be no more calls.
    is_closed: Cell<bool>,
}

struct QueuedCall {
    pending: Rc<dyn PendingCall>,
    /// The number of outstanding replies.
    replies: u32,
}

trait PendingCall {
    fn take(&self, token: Token<'_>, depth: usize);
    fn end(&self, failure: Option<Failure>);
}

/// The state shared by a call and the driver.
struct Slot<R> {
    /// `None` after the call was dropped, or has taken it.
    receiver: RefCell<Option<R>>,
    failure: RefCell<Option<Failure>>,
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A call in progress. If it is dropped, its replies are ignored.
pub struct Call<R> {
    slot: Rc<Slot<R>>,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// The connection failed; nothing was sent.
    pub async fn open(server: Rc<Server>) -> Result<Connection, Failure> {
        let stream = connect(&server).await?;
        let shared = Rc::new(ConnectionState {
            server,
            output: RefCell::default(),
            queue: RefCell::default(),
            driver: RefCell::default(),
            is_idle: Cell::new(false),
            is_closed: Cell::new(false),
        });
        tokio::task::spawn_local(drive(shared.clone(), stream));
        Ok(Connection { shared })
    }

    /// Returns the number of calls that wait for replies.
    pub fn in_flight(&self) -> usize {
        self.shared.queue.borrow().len()
    }

    /// Sends the requests that `encode` appends, which have `replies` replies, at least one.
    pub fn call<R: Receiver>(
        &self,
        replies: u32,
        receiver: R,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Call<R> {
        let slot = Rc::new(Slot {
            receiver: RefCell::new(Some(receiver)),
            failure: RefCell::new(None),
            has_ended: Cell::new(false),
            waker: RefCell::new(None),
        });
        encode(&mut self.shared.output.borrow_mut());
        self.shared.queue.borrow_mut().push_back(QueuedCall {
            pending: slot.clone(),
            replies,
        });
        self.shared.wake_driver();
        Call { slot }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.is_closed.set(true);
        self.shared.wake_driver();
    }
}

impl<R: Receiver> Future for Call<R> {
    type Output = Result<R, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = &self.slot;
        if !slot.has_ended.get() {
            let mut waker = slot.waker.borrow_mut();
            match &mut *waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(match slot.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(slot
                .receiver
                .take()
                .expect("a call is polled to its end once")),
        })
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        self.slot.receiver.take();
        self.slot.waker.take();
    }
}

impl<R: Receiver> PendingCall for Slot<R> {
    #[inline]
    fn take(&self, token: Token<'_>, depth: usize) {
        if let Token::Error(text) = token {
            return self.fail(text, depth);
        }
        if let Some(receiver) = &mut *self.receiver.borrow_mut() {
            receiver.take(token);
        }
    }

    fn end(&self, failure: Option<Failure>) {
        if failure.is_some() {
            self.failure.replace(failure);
        }
        self.has_ended.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<R> Slot<R> {
    /// Records an error reply. The server rejects a command before it changes anything, unless its disk fails. In a
    /// transaction or a script, other commands may have been executed.
    fn fail(&self, text: &[u8], depth: usize) {
        let text = String::from_utf8_lossy(text).into_owned();
        let is_refused = depth == 0 && !text.starts_with("IOERR") && !text.contains("script:");
        let mut failure = self.failure.borrow_mut();
        match (&*failure, is_refused) {
            (None, true) => *failure = Some(Failure::Refused(text)),
            (None | Some(Failure::Refused(_)), false) => *failure = Some(Failure::Unknown(text)),
            _ => {}
        }
    }
}

impl ConnectionState {
    #[inline]
    fn wake_driver(&self) {
        if self.is_idle.replace(false)
            && let Some(waker) = &*self.driver.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Records that the driver is idle.
    fn idle(&self, cx: &Context<'_>) {
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *driver = Some(cx.waker().clone()),
        }
        self.is_idle.set(true);
    }

    /// Ends all waiting calls. Their requests are not sent again.
    fn fail(&self, failure: &Failure) {
        self.output.borrow_mut().clear();
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        for queued in queue {
            queued.pending.end(Some(failure.clone()));
        }
    }
}

async fn drive(shared: Rc<ConnectionState>, first: TcpStream) {
    let mut stream = Some(first);
    while !shared.is_closed.get() {
        match stream.take() {
            Some(stream) => {
                let mut wire = Wire::new(stream);
                if let Err(error) = poll_fn(|cx| wire.poll_drive(&shared, cx)).await {
                    let why = format!(
                        "the connection to {} was lost: {error}",
                        shared.server.address
                    );
                    shared.fail(&Failure::Unknown(why));
                }
            }
            None => {
                poll_fn(|cx| {
                    if !shared.queue.borrow().is_empty() || shared.is_closed.get() {
                        return Poll::Ready(());
                    }
                    shared.idle(cx);
                    Poll::Pending
                })
                .await;
                if shared.is_closed.get() {
                    return;
                }
                match connect(&shared.server).await {
                    Ok(connected) => stream = Some(connected),
                    Err(failure) => shared.fail(&failure),
                }
            }
        }
    }
}

async fn connect(server: &Server) -> Result<TcpStream, Failure> {
    let address = &server.address;
    let refused =
        |error: io::Error| Failure::Refused(format!("cannot connect to {address}: {error}"));
    let mut stream = TcpStream::connect(address).await.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    if let Some(password) = &server.password {
        let mut request = Vec::new();
        command(&mut request, &[&"AUTH", password]);
        stream.write_all(&request).await.map_err(refused)?;
        let (mut reader, mut reply) = (Reader::default(), Vec::new());
        loop {
            reply.push(stream.read_u8().await.map_err(refused)?);
            match reader.next(&reply).map_err(io::Error::other) {
                Ok(Step::Incomplete(_)) => {}
                Ok(Step::Piece(piece)) if piece.token == Token::Simple(b"OK") => break,
                Ok(Step::Piece(_)) => {
                    let reply = String::from_utf8_lossy(&reply).trim_end().to_owned();
                    return Err(Failure::Refused(format!(
                        "{address} rejected AUTH: {reply}"
                    )));
                }
                Err(error) => return Err(refused(error)),
            }
        }
    }
    Ok(stream)
}

/// A socket, with the bytes that were read and not processed.
struct Wire {
    stream: TcpStream,
    /// The number of output bytes that were sent.
    sent: usize,
    input: Input,
    reader: Reader,
}

impl Wire {
    fn new(stream: TcpStream) -> Wire {
        Wire {
            stream,
            sent: 0,
            input: Input::new(INPUT_BYTES),
            reader: Reader::default(),
        }
    }

    /// Completes when the connection is lost or no longer needed.
    fn poll_drive(
        &mut self,
        shared: &ConnectionState,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if shared.is_closed.get() {
            return Poll::Ready(Ok(()));
        }
        // Register before reading: a call that arrives during the rest of this turn then wakes the driver again.
        shared.idle(cx);
        while let Poll::Ready(read) = self.poll_read(cx) {
            if read? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.dispatch_replies(shared)?;
        }
        self.send(shared, cx)
            .map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(self.input.spare());
        match Pin::new(&mut self.stream).poll_read(cx, &mut room) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let read = room.filled().len();
                self.input.commit(read);
                Poll::Ready(Ok(read))
            }
        }
    }

    /// Passes complete tokens to the waiting calls.
    fn dispatch_replies(&mut self, shared: &ConnectionState) -> io::Result<()> {
        let mut queue = shared.queue.borrow_mut();
        let (bytes, mut at, mut demoted) = (self.input.bytes(), 0, false);
        while let Some(front) = queue.front_mut() {
            let piece = match self.reader.next(&bytes[at..]) {
                Ok(Step::Piece(piece)) => piece,
                Ok(Step::Incomplete(_)) => break,
                Err(error) => return Err(io::Error::other(error)),
            };
            demoted |= matches!(piece.token, Token::Error(text) if text.starts_with(b"READONLY"));
            front.pending.take(piece.token, piece.depth);
            at += piece.size;
            if piece.is_last {
                front.replies -= 1;
                if front.replies == 0 {
                    let ended = queue.pop_front().expect("the queue has a front");
                    ended.pending.end(None);
                }
            }
        }
        if queue.is_empty() && at < bytes.len() {
            return Err(io::Error::other("the server sent an unexpected reply"));
        }
        self.input.consume(at);
        if demoted {
            Err(io::Error::other("the server has become a replica"))
        } else {
            Ok(())
        }
    }

    /// Sends accumulated output, as far as the socket accepts it.
    fn send(&mut self, shared: &ConnectionState, cx: &mut Context<'_>) -> Option<io::Error> {
        let mut output = shared.output.borrow_mut();
        while self.sent < output.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &output[self.sent..]) {
                Poll::Pending => return None,
                Poll::Ready(Ok(0)) => return Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => self.sent += written,
                Poll::Ready(Err(error)) => return Some(error),
            }
        }
        output.clear();
        output.shrink_to(OUTPUT_BYTES);
        self.sent = 0;
        None
    }
}

#[cfg(test)]
mod tests;
