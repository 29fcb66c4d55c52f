//! A connection: reads input, executes all complete requests, and sends their replies in one write.
//!
//! ```text
//!        ┌────────────── wait: readable, or writable if replies are pending ◄─────────────┐
//!        ▼                                                                                │
//!  read the input ─► execute until the input ends, the output is full, or a job waits ─► yield once
//!                                                                            │            ▲
//!                                                                            └─► drive ───┘
//! ```
//!
//! The yield lets the core execute the input of other connections first, so that the writes of all connections follow
//! one another. This measurably reduces wake-ups on both sides.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use larder_protocol::errors::Code;
use larder_protocol::resp::Decoder;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::core::Core;
use super::drive::{ReplySink, drive};
use super::greeting::Greeting;
use super::pending::Pending;
use super::state::ConnectionState;
use super::tables::{deliver, wait_for_change};
use crate::clients::{Client, Registration, SMALL_BYTES};

/// Maximum spare capacity of the buffer for unexecuted input.
const REST_SPARE_BYTES: usize = 128 << 10;

/// Maximum time for the closing handshake of a connection.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// The byte stream of a connection: a socket, or memory in a simulation.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// The stream needs an explicit shutdown after the last reply; otherwise closing it suffices.
    const NEEDS_SHUTDOWN: bool = false;

    /// Ready once the peer has closed the connection and all its input has been read, if that can be detected.
    fn poll_closed(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Stream for TcpStream {
    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [0];
        match self.poll_peek(cx, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(1..)) | Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
        }
    }
}

pub(super) struct Session<S> {
    _count: SessionCount,
    // Declared before the socket, so that it is dropped first.
    _registration: Registration,
    stream: S,
    pub(super) state: ConnectionState,
    pub(super) decoder: Decoder,
    /// Input that has not been executed: a part of a request, or requests held back by a full output buffer.
    unexecuted: Vec<u8>,
    /// `rest` may contain complete requests.
    pub(super) has_unexecuted: bool,
    pub(super) pending: Option<Box<Pending>>,
    /// The condition that the next request waits for.
    pub(super) wait_condition: WaitCondition,
}

/// The condition that a request waits for before it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitCondition {
    None,
    /// The replies of preceding requests, which other cores execute.
    ForwardedReplies,
    /// The gate of the preceding replies: another node will read the writes of those requests.
    OpenGate,
    /// The end of a pause; see `crate::tables::PausedCores`.
    PauseEnd,
    /// A map that assigns to another node the slots that this node is giving away.
    SlotMove,
    /// The processing of the messages that other cores have sent to this core.
    CoreMessages,
}

/// Counts a session of the core while it exists.
struct SessionCount(Rc<Core>);

impl SessionCount {
    fn new(core: &Rc<Core>) -> SessionCount {
        core.sessions.set(core.sessions.get() + 1);
        SessionCount(core.clone())
    }
}

impl Drop for SessionCount {
    fn drop(&mut self) {
        self.0.sessions.set(self.0.sessions.get() - 1);
    }
}

enum Event {
    /// Number of bytes in the core's read buffer.
    Read(usize),
    Sent,
    /// The client's mailbox has messages.
    Messages,
}

/// Serves a connection until it ends.
pub(super) async fn run<S: Stream>(core: Rc<Core>, stream: S, client: Arc<Client>) {
    let greeting = Greeting::new(&core.shared);
    run_greeted(core, stream, client, greeting).await;
}

/// As [`run`], for a connection that has already executed AUTH or HELLO.
pub(super) async fn run_greeted<S: Stream>(
    core: Rc<Core>,
    stream: S,
    client: Arc<Client>,
    greeting: Greeting,
) {
    let registration = Registration {
        clients: core.clients.clone(),
        client,
        stats: core.stats.clone(),
        tracking: core.shared.tables.tracking.clone(),
    };
    let mut session = Session::new(core, stream, registration, greeting);
    // An error means that the client is gone, so there is no shutdown to perform.
    if session.serve().await.is_ok() && S::NEEDS_SHUTDOWN {
        let _ = timeout(SHUTDOWN_TIME_MAX, session.stream.shutdown()).await;
    }
}

impl<S: Stream> Session<S> {
    fn new(
        core: Rc<Core>,
        stream: S,
        registration: Registration,
        greeting: Greeting,
    ) -> Session<S> {
        let count = SessionCount::new(&core);
        let client = registration.client.clone();
        let mut state = ConnectionState::new(core, client, greeting.authenticated);
        state.set_proto(greeting.proto);
        let decoder = Decoder::new(state.request_limits());
        Session {
            _count: count,
            _registration: registration,
            stream,
            state,
            decoder,
            unexecuted: Vec::new(),
            has_unexecuted: false,
            pending: None,
            wait_condition: WaitCondition::None,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        loop {
            match poll_fn(|cx| self.poll_event(cx)).await? {
                Event::Read(0) => self.state.closing = true,
                Event::Read(size) => self.execute_read(size),
                Event::Sent if self.has_unexecuted && self.state.has_room() => self.execute_rest(),
                Event::Sent => {}
                Event::Messages => self.deliver_messages(),
            }
            self.finish_batch().await?;
            self.enforce_memory_limit()?;
            if self.state.output.is_empty() {
                if self.state.closing {
                    return Ok(());
                }
                self.release();
            } else if !self.state.closing {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Updates the client's memory statistics, and closes the connection if it exceeds the limit of one client.
    fn enforce_memory_limit(&mut self) -> io::Result<()> {
        let limits = self.state.core.clients.limits;
        if self.publish_memory() <= limits.per_client_bytes || self.state.closing {
            return Ok(());
        }
        // The memory counted by other cores may be moving to this one. It is checked once a second instead.
        let bytes = self.state.client.own_bytes();
        if bytes <= limits.per_client_bytes {
            return Ok(());
        }
        if let Some(transaction) = &mut self.state.transaction
            && bytes.saturating_sub(transaction.memory_bytes()) <= limits.per_client_bytes
        {
            // Without the transaction, the client is within its limit.
            transaction.discard_too_large();
            self.publish_memory();
            return Ok(());
        }
        let clients = self.state.core.clients.clone();
        clients.record_too_large(&self.state.client, bytes);
        if self.state.client.output_bytes.load(Relaxed) > limits.per_client_bytes {
            return Err(io::Error::other(
                "the unread replies exceed server.client_memory",
            ));
        }
        let message = format!(
            "this connection uses {bytes} bytes of memory ({}), and server.client_memory allows {}: the connection is closed",
            self.describe_largest_share(),
            limits.per_client_bytes
        );
        (self.unexecuted, self.has_unexecuted) = (Vec::new(), false);
        (self.state.transaction, self.state.watched_keys) = (None, None);
        self.state.error(Code::OutOfMemory, &message);
        self.state.closing = true;
        Ok(())
    }

    /// Returns a description of the largest share of the connection's own memory.
    fn describe_largest_share(&self) -> &'static str {
        let client = &self.state.client;
        let shares = [
            (client.queued_bytes.load(Relaxed), "mostly for WATCH"),
            (client.output_bytes.load(Relaxed), "mostly replies"),
            (
                client.input_bytes.load(Relaxed),
                "mostly incomplete requests",
            ),
        ];
        shares.into_iter().max().map_or("", |share| share.1)
    }

    /// Publishes the client's memory statistics. Returns its total, or 0 if it is small.
    fn publish_memory(&self) -> usize {
        let (state, client) = (&self.state, &self.state.client);
        let input = self.unexecuted.len() + self.decoder.memory_bytes();
        let queued = state.transaction.as_ref().map_or(0, |t| t.memory_bytes());
        let watched = state.watched_keys.as_ref().map_or(0, |w| w.memory_bytes());
        let output = state.output.memory_bytes();
        client.input_bytes.store(input, Relaxed);
        client.queued_bytes.store(queued + watched, Relaxed);
        client.output_bytes.store(output, Relaxed);
        if client.memory_bytes() < SMALL_BYTES && client.counted_bytes() < SMALL_BYTES {
            return 0;
        }
        let bytes = state.core.clients.count(client);
        if state.core.clients.is_full() {
            state.core.clients.make_room();
        }
        bytes
    }

    /// Waits for the conditions of this batch's remaining requests, and executes them.
    async fn finish_batch(&mut self) -> io::Result<()> {
        loop {
            if self.wait_condition == WaitCondition::CoreMessages {
                self.wait_condition = WaitCondition::None;
                tokio::task::yield_now().await;
                self.execute_rest();
                continue;
            }
            if self.state.forwarded.is_some() || self.pending.is_some() {
                // Requests that were executed or forwarded no longer count here.
                self.publish_memory();
            }
            if self.state.forwarded.is_some() {
                self.drain().await?;
            }
            let waits = std::mem::replace(&mut self.wait_condition, WaitCondition::None);
            if waits == WaitCondition::OpenGate {
                self.flush().await?;
                let ConnectionState { gate, core, .. } = &mut self.state;
                poll_fn(|cx| core.tables.poll_gate(gate, cx)).await?;
            }
            if waits == WaitCondition::PauseEnd {
                self.state.tables().wait_while_paused(None).await;
            }
            if waits == WaitCondition::SlotMove {
                let core = self.state.core.clone();
                wait_for_change(&core, core.tables.map_epoch()).await;
            } else {
                self.state.slots_awaited_since = None;
            }
            if let Some(pending) = self.pending.take() {
                Box::pin(self.complete(pending)).await?;
            } else if waits == WaitCondition::None {
                self.deliver_messages();
                return Ok(());
            }
            self.execute_rest();
        }
    }

    /// Completes a command that must wait.
    async fn complete(&mut self, mut pending: Box<Pending>) -> io::Result<()> {
        drive(self, &mut pending).await?;
        pending.finish(&mut self.state);
        // The command may have authenticated the client.
        self.decoder.set_limits(self.state.request_limits());
        Ok(())
    }

    /// Sends if there is output, else reads into the core's buffer. The caller must consume the input before the next
    /// await.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        if !self.state.output.is_empty()
            && let Poll::Ready(sent) = self.poll_send(cx)
        {
            return Poll::Ready(sent.map(|()| Event::Sent));
        }
        if self.state.closing || self.has_unexecuted || !self.state.has_room() {
            return Poll::Pending;
        }
        if self.state.client.accepts_notifications() {
            let mailbox = &self.state.client.mailbox;
            let is_ready = mailbox.poll_ready(cx).is_ready();
            if mailbox.is_full() {
                return Poll::Ready(Err(io::Error::other(
                    "the unread messages exceed server.client_memory",
                )));
            }
            if is_ready {
                return Poll::Ready(Ok(Event::Messages));
            }
        }
        let mut buffer = self.state.core.read_buffer.borrow_mut();
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Event::Read(buffer.filled().len()))),
        }
    }

    /// Appends the messages of the client's mailbox, as far as there is room. All executed requests have been answered,
    /// so no message precedes the reply that it may refer to.
    fn deliver_messages(&mut self) {
        let state = &mut self.state;
        if state.client.mailbox.is_empty() || state.forwarded.is_some() || self.pending.is_some() {
            return;
        }
        if state.output.tail.capacity() == 0 {
            state.output.tail = state.core.take_buffer();
        }
        while state.has_room()
            && let Some(note) = state.client.mailbox.take()
        {
            deliver(state, note);
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut self.state;
        if !state.gate.is_open() {
            ready!(state.core.tables.poll_gate(&mut state.gate, cx))?;
        }
        let sent = self.state.output.poll_send(&mut self.stream, cx);
        match &sent {
            Poll::Ready(Ok(size)) => {
                self.state.core.stats.bytes_out.add(*size as u64);
                if self.state.client.has_stalled() {
                    self.state.client.clear_stall();
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.publish_memory();
                if !self.state.client.has_stalled() {
                    self.state.core.clients.mark_stalled(&self.state.client);
                }
            }
        }
        while let Some(buffer) = self.state.output.spent.pop() {
            self.state.core.give_buffer(buffer);
        }
        sent.map_ok(|_| ())
    }

    /// Releases the buffers of an idle connection.
    fn release(&mut self) {
        let output = &mut self.state.output;
        if output.tail.capacity() > 0 {
            self.state
                .core
                .give_buffer(std::mem::take(&mut output.tail));
        }
        if self.unexecuted.is_empty() {
            self.unexecuted = Vec::new();
            self.decoder.release();
        }
    }

    fn execute_read(&mut self, size: usize) {
        let core = self.state.core.clone();
        core.stats.bytes_in.add(size as u64);
        // A client that sends a request after a change was acknowledged must receive the notification of the change
        // first.
        self.deliver_messages();
        let buffer = core.read_buffer.borrow();
        let input = &buffer[..size];
        if self.unexecuted.is_empty() {
            let done = self.execute(input);
            self.unexecuted.extend_from_slice(&input[done..]);
        } else {
            self.unexecuted.extend_from_slice(input);
            self.execute_rest();
        }
    }

    fn execute_rest(&mut self) {
        self.deliver_messages();
        let mut rest = std::mem::take(&mut self.unexecuted);
        let done = self.execute(&rest);
        rest.drain(..done);
        if rest.capacity() > rest.len() * 2 + REST_SPARE_BYTES {
            rest.shrink_to_fit();
        }
        self.unexecuted = rest;
    }
}

impl<S: Stream> ReplySink for Session<S> {
    fn state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    fn state_ref(&self) -> &ConnectionState {
        &self.state
    }

    fn poll_disconnected(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_closed(cx)
    }

    async fn wait_for_room(&mut self) -> io::Result<()> {
        while !self.state.has_room() {
            poll_fn(|cx| self.poll_send(cx)).await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.state.output.is_empty() {
            poll_fn(|cx| self.poll_send(cx)).await?;
        }
        Ok(())
    }
}
