//! One connection between a core of this node and another node, as a sans-IO state machine: bytes and time in, events and bytes
//! out.
//!
//! ```text
//!   connect ── Hello ──► Greeting ◄─────────────── accept
//!                           │ ConnectionEvent::Hello ► admit, refuse │ handle_welcome
//!                           ▼
//!                         Ready    send_requests, send_reply, acknowledge_piece, cancel, exchange, replicate; pings both ways
//!                           │ refuse, record_failure, tick (silence), next_event (invalid bytes)
//!                           ▼
//!                         Ended    reported once, with the outcome of the requests: ConnectionEvent::Ended
//! ```
//!
//! 1. Every requested stream ends once for the requester: with its last piece, or in one of the two lists of [`ConnectionEnd`]. A
//!    cancelled stream reports nothing.
//! 2. Requests whose last byte was not given to the socket are not sent, and never will be: the rest is discarded.
//! 3. Each side receives the other's frames in the order in which they were sent, across all streams and kinds.
//! 4. At most `pieces_max` pieces of a response are in flight, and at most `streams_max` streams are open. A peer that exceeds
//!    these limits is disconnected.
//! 5. Either side may send requests. The host provides sockets, TLS, request timeouts and reconnection.
//!
//! The host, in this order: writes the bytes of [`Connection::slices`]; reads into [`Connection::buffer`] and calls
//! [`Connection::record_received`]; takes events until there are none; calls [`Connection::tick`] at [`Connection::next_tick_ms`].

use std::fmt;
use std::io::IoSlice;
use std::rc::Rc;

use bytes::BytesMut;

use super::frame::{
    Exchange, FRAME_BYTES_MAX, Frame, FrameDecoder, GREETING_BYTES_MAX, Piece, PieceStatus,
    Replicate, Requests, StreamId,
};
use super::greeting::{
    FORMAT, Hello, PeerInfo, Welcome, check_format, check_hello, check_incarnation,
};
use super::lease::SubscriptionLease;
use super::outbox::Outbox;
use super::streams::{IncomingStreams, OutgoingStreams};
use crate::map::{Epoch, Incarnation, NodeId};

/// The number of streams that every node accepts, and that may be opened before the peer's greeting.
pub const STREAMS_MIN: u32 = 1 << 10;

/// A node's description of itself, and its timeouts.
#[derive(Debug, Clone)]
pub struct Options {
    pub cluster: String,
    pub local: PeerInfo,
    /// The interval between pings; several per lease.
    pub ping_every_ms: u64,
    /// The margin by which an owner waits longer than a reader trusts its rows, because clocks may run at different speeds.
    pub margin_ms: u64,
    /// A connection that receives nothing for this time is closed.
    pub silence_ms: u64,
    /// The timeout for the other side's greeting.
    pub greeting_ms: u64,
    /// While this many bytes are queued for writing, no request and no response is added.
    pub queued_bytes_max: usize,
}

/// A peer is disconnected when this multiple of `queued_bytes_max` is queued for it, because it does not keep up.
const QUEUED_TIMES_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A node of this cluster has connected. The host must call [`Connection::admit`] or [`Connection::refuse`] before anything
    /// else happens.
    Hello(Hello),
    /// Both sides have sent their greetings.
    Ready(PeerInfo),
    /// To be answered with [`Connection::send_reply`].
    Requests(StreamId, Requests),
    /// To be acknowledged with [`Connection::acknowledge_piece`], unless it is the last piece.
    Reply(StreamId, Piece),
    /// The requester no longer waits for this response.
    Cancelled(StreamId),
    /// Another piece may be sent, after the limit had been reached.
    Writable(StreamId),
    Exchange(Exchange),
    Replicate(Replicate),
    Ended(ConnectionEnd),
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionEnd {
    pub why: String,
    /// The peer rejected this node.
    pub is_refused: bool,
    /// These requests were never sent, so they were not executed.
    pub unsent: Vec<StreamId>,
    /// These requests were sent, and their responses are incomplete. They may or may not have been executed.
    pub unknown: Vec<StreamId>,
}

/// The reason why something was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// Too much is in flight; retry later.
    Full,
    /// The connection or the stream has ended.
    Closed,
}

#[derive(Debug)]
enum ConnectionState {
    /// Waiting for this node's welcome.
    AwaitingWelcome {
        from: NodeId,
        known: Incarnation,
    },
    /// Waiting for a hello.
    AwaitingHello,
    /// Waiting for the host to admit or refuse this node.
    AwaitingAdmission(PeerInfo),
    Ready(PeerInfo),
    Ended,
}

/// The time until which this side certainly may serve its slots.
struct ServeDeadline(Option<Rc<dyn Fn() -> u64>>);

impl fmt::Debug for ServeDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServeDeadline")
    }
}

#[derive(Debug)]
pub struct Connection {
    options: Options,
    acts_until: ServeDeadline,
    state: ConnectionState,
    decoder: FrameDecoder,
    inbox: BytesMut,
    outbox: Outbox,
    lease: SubscriptionLease,
    outgoing: OutgoingStreams,
    incoming: IncomingStreams,
    ended: Option<ConnectionEnd>,
    /// True if the last frame is complete, so that the peer would understand a further frame.
    is_between_frames: bool,
    started_ms: u64,
    last_received_ms: u64,
    /// The time of the last tick.
    ticked_ms: u64,
}

impl Connection {
    /// Connects to the node `to`, whose incarnation was last known to be `known`. Requests may be sent immediately.
    pub fn connect(options: Options, to: NodeId, known: Incarnation, now_ms: u64) -> Connection {
        let hello = Hello {
            format: FORMAT,
            cluster: options.cluster.clone(),
            receiver: to,
            from: options.local,
        };
        let mut connection = Connection::new(
            options,
            ConnectionState::AwaitingWelcome { from: to, known },
            now_ms,
        );
        connection.outbox.push(&Frame::Hello(hello));
        connection.outbox.hold();
        connection
    }

    /// Accepts a connection from a node that is not identified yet.
    pub fn accept(options: Options, now_ms: u64) -> Connection {
        Connection::new(options, ConnectionState::AwaitingHello, now_ms)
    }

    fn new(options: Options, state: ConnectionState, now_ms: u64) -> Connection {
        let lease = SubscriptionLease::new(
            options.local.lease_ms,
            options.ping_every_ms,
            options.margin_ms,
        );
        Connection {
            options,
            acts_until: ServeDeadline(None),
            state,
            decoder: FrameDecoder::new(GREETING_BYTES_MAX),
            inbox: BytesMut::new(),
            outbox: Outbox::default(),
            lease,
            outgoing: OutgoingStreams::default(),
            incoming: IncomingStreams::default(),
            ended: None,
            is_between_frames: true,
            started_ms: now_ms,
            last_received_ms: now_ms,
            ticked_ms: now_ms,
        }
    }

    /// Sets a function that returns the time until which this side certainly may serve its slots, in the incarnation in which the
    /// connection began. It is called for each ping, and limits how long the peer trusts what this side has sent. Without it,
    /// there is no limit.
    pub fn set_serve_deadline(&mut self, until_ms: Rc<dyn Fn() -> u64>) {
        self.acts_until = ServeDeadline(Some(until_ms));
    }

    /// The incarnation of this node when the connection began.
    pub fn incarnation(&self) -> Incarnation {
        self.options.local.incarnation
    }

    /// The peer, once both sides have sent their greetings.
    pub fn peer(&self) -> Option<&PeerInfo> {
        match &self.state {
            ConnectionState::Ready(peer) => Some(peer),
            _ => None,
        }
    }

    /// An ended connection may still have bytes to write that state the reason.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, ConnectionState::Ended)
    }

    /// For a reader of the peer's rows: the time (exclusive) until which all rows received over this connection are certainly
    /// kept fresh.
    pub fn subscribed_until_ms(&self) -> u64 {
        self.lease.subscribed_until_ms()
    }

    /// For an owner: the time from which the peer certainly trusts nothing that it received over this connection.
    pub fn forgotten_after_ms(&self) -> u64 {
        self.lease.forgotten_after_ms()
    }

    // Socket.

    /// Fills `out` with the bytes to write, in order, and returns the number of slices.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.outbox.slices(out)
    }

    /// Records that the socket accepted this many of these bytes.
    pub fn record_written(&mut self, size: usize) {
        self.outbox.wrote(size);
    }

    /// The number of bytes queued for writing.
    pub fn queued_bytes(&self) -> usize {
        self.outbox.queued_bytes()
    }

    /// The buffer to which received bytes are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Records that bytes were received.
    pub fn record_received(&mut self, now_ms: u64) {
        self.last_received_ms = now_ms;
    }

    /// Records that the host does not read for now, so that silence is not attributed to the peer.
    pub fn record_read_pause(&mut self, now_ms: u64) {
        self.last_received_ms = now_ms;
    }

    /// Reports that the socket was closed or failed, or could not be opened.
    pub fn record_failure(&mut self, why: &str) {
        self.end(why.to_owned(), false);
    }

    /// The time of the next call of `tick` if nothing is received.
    pub fn next_tick_ms(&self) -> u64 {
        match self.state {
            ConnectionState::Ended => u64::MAX,
            ConnectionState::Ready(_) => {
                let silent_ms = self
                    .last_received_ms
                    .saturating_add(self.options.silence_ms);
                silent_ms.min(self.lease.next_ping_ms())
            }
            _ => self.started_ms.saturating_add(self.options.greeting_ms),
        }
    }

    /// Handles the passage of time. Bytes already received must be passed in first. After a stall, the process may not have read
    /// them yet, so of a long interval between two ticks, at most half of the timeout counts as silence.
    pub fn tick(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.ticked_ms);
        self.ticked_ms = self.ticked_ms.max(now_ms);
        let stalled_ms = |of_ms: u64| passed.saturating_sub(of_ms / 2);
        let (silence_ms, greeting_ms) = (self.options.silence_ms, self.options.greeting_ms);
        self.last_received_ms =
            (self.last_received_ms + stalled_ms(silence_ms)).min(now_ms.max(self.last_received_ms));
        self.started_ms =
            (self.started_ms + stalled_ms(greeting_ms)).min(now_ms.max(self.started_ms));
        if now_ms < self.next_tick_ms() {
            return;
        }
        if !matches!(self.state, ConnectionState::Ready(_)) {
            let why = format!(
                "the peer sent no greeting within {} ms",
                self.options.greeting_ms
            );
            return self.end(why, false);
        }
        if now_ms
            >= self
                .last_received_ms
                .saturating_add(self.options.silence_ms)
        {
            let why = format!("the peer sent nothing for {} ms", self.options.silence_ms);
            return self.end(why, false);
        }
        if let Some(time) = self.lease.ping(now_ms) {
            self.outbox.push(&Frame::Ping(time));
        }
    }

    /// Returns the next event. There is none after [`ConnectionEvent::Ended`].
    pub fn next_event(&mut self, now_ms: u64) -> Option<ConnectionEvent> {
        loop {
            if let Some(ended) = self.ended.take() {
                return Some(ConnectionEvent::Ended(ended));
            }
            if matches!(
                self.state,
                ConnectionState::AwaitingAdmission(_) | ConnectionState::Ended
            ) {
                return None;
            }
            match self.decoder.next(&mut self.inbox) {
                Ok(None) => return None,
                Ok(Some(frame)) => match self.handle_frame(frame, now_ms) {
                    Ok(Some(event)) => return Some(event),
                    Ok(None) => {}
                    Err(why) => self.refuse(&why),
                },
                Err(error) => self.refuse(&error.to_string()),
            }
        }
    }

    // Greeting.

    /// Admits the node that sent a hello, unless the map does not contain it or contains a later incarnation.
    pub fn admit(&mut self, known: Option<Incarnation>, epoch: Epoch, now_ms: u64) {
        let ConnectionState::AwaitingAdmission(peer) = self.state else {
            return;
        };
        if let Err(why) = check_incarnation(&peer, known, epoch) {
            return self.refuse(&why);
        }
        let welcome = Welcome {
            format: FORMAT,
            from: self.options.local,
        };
        self.outbox.push(&Frame::Welcome(welcome));
        self.begin(peer, now_ms);
    }

    /// Ends the connection, and sends the reason to the peer if possible.
    pub fn refuse(&mut self, why: &str) {
        if !self.is_ended() {
            self.end(why.to_owned(), false);
            self.queue_refusal(why);
        }
    }

    fn begin(&mut self, peer: PeerInfo, now_ms: u64) {
        self.state = ConnectionState::Ready(peer);
        self.decoder.set_frame_bytes_max(FRAME_BYTES_MAX);
        self.outbox.release();
        self.lease.begin(now_ms, peer.lease_ms);
        self.tick(now_ms);
    }

    // Requests.

    /// Checks that a request may be sent now.
    pub fn check_can_request(&self) -> Result<(), SendError> {
        let streams_max = match &self.state {
            ConnectionState::Ready(peer) => peer.streams_max,
            ConnectionState::AwaitingWelcome { .. } => STREAMS_MIN,
            _ => return Err(SendError::Closed),
        };
        if self.outgoing.len() < streams_max as usize && self.has_room() {
            Ok(())
        } else {
            Err(SendError::Full)
        }
    }

    /// Returns whether fewer bytes than the limit are queued for writing.
    pub fn has_room(&self) -> bool {
        self.outbox.queued_bytes() < self.options.queued_bytes_max
    }

    /// Sends requests to the peer.
    ///
    /// # Errors
    /// The connection has ended, or too much is in flight. Nothing was sent.
    pub fn send_requests(&mut self, requests: Requests) -> Result<StreamId, SendError> {
        self.check_can_request()?;
        let id = self.outgoing.open();
        let end = self.outbox.push(&Frame::Requests(id, requests));
        self.outgoing.set_end(id, end);
        Ok(id)
    }

    /// Acknowledges a piece of a response, so that the peer may send another.
    pub fn acknowledge_piece(&mut self, id: StreamId) {
        if self.outgoing.acknowledge_piece(id) {
            self.outbox.push(&Frame::PieceAck(id));
        }
    }

    /// Cancels a request. No further events of it are reported.
    pub fn cancel(&mut self, id: StreamId) {
        if self.outgoing.cancel(id) {
            self.outbox.push(&Frame::Cancel(id));
        }
    }

    // Responses.

    /// Checks that another piece may be sent.
    pub fn check_can_reply(&mut self, id: StreamId) -> Result<(), SendError> {
        let ConnectionState::Ready(peer) = self.state else {
            return Err(SendError::Closed);
        };
        match self.incoming.room(id, peer.pieces_max) {
            None => Err(SendError::Closed),
            Some(0) => Err(SendError::Full),
            Some(_) if !self.has_room() => Err(SendError::Full),
            Some(_) => Ok(()),
        }
    }

    /// Sends a piece of a response. A final [`PieceStatus::NotDone`] or [`PieceStatus::Unknown`] can always be sent.
    ///
    /// # Errors
    /// The requester no longer waits for it, or too much is in flight. Nothing was sent.
    pub fn send_reply(&mut self, id: StreamId, piece: Piece) -> Result<(), SendError> {
        match (self.check_can_reply(id), piece.status) {
            (Err(SendError::Full), PieceStatus::NotDone | PieceStatus::Unknown) | (Ok(()), _) => {}
            (Err(why), _) => return Err(why),
        }
        self.incoming.send(id, piece.status);
        self.outbox.push(&Frame::Reply(id, piece));
        Ok(())
    }

    // One-way messages.

    /// Sends a message between engines, after everything sent before.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn exchange(&mut self, exchange: Exchange) -> Result<(), SendError> {
        self.send(&Frame::Exchange(exchange))
    }

    /// Sends a message of `replication`, like [`Connection::exchange`].
    ///
    /// # Errors
    /// The connection has ended.
    pub fn replicate(&mut self, replicate: Replicate) -> Result<(), SendError> {
        self.send(&Frame::Replicate(replicate))
    }

    fn send(&mut self, frame: &Frame) -> Result<(), SendError> {
        if !matches!(
            self.state,
            ConnectionState::Ready(_) | ConnectionState::AwaitingWelcome { .. }
        ) {
            return Err(SendError::Closed);
        }
        let queued = self.outbox.queued_bytes();
        if queued / QUEUED_TIMES_MAX >= self.options.queued_bytes_max {
            self.end(
                format!("the peer does not read: {queued} bytes are queued"),
                false,
            );
            return Err(SendError::Closed);
        }
        self.outbox.push(frame);
        Ok(())
    }

    // Received frames.

    fn handle_frame(
        &mut self,
        frame: Frame,
        now_ms: u64,
    ) -> Result<Option<ConnectionEvent>, String> {
        match (&self.state, frame) {
            (
                ConnectionState::Ready(_) | ConnectionState::AwaitingWelcome { .. },
                Frame::Refused(why),
            ) => {
                self.end(why, true);
                Ok(None)
            }
            (ConnectionState::AwaitingHello, Frame::Hello(hello)) => {
                check_hello(&hello, &self.options.cluster, self.options.local.node)?;
                self.state = ConnectionState::AwaitingAdmission(hello.from);
                Ok(Some(ConnectionEvent::Hello(hello)))
            }
            (&ConnectionState::AwaitingWelcome { from: by, known }, Frame::Welcome(welcome)) => {
                self.handle_welcome(&welcome, by, known, now_ms)
            }
            (ConnectionState::Ready(_), frame) => self
                .handle_ready(frame, now_ms)
                .map_err(|error| format!("the received bytes violate the peer protocol: {error}")),
            _ => Err("a connection must begin with a hello, which a welcome answers".to_owned()),
        }
    }

    fn handle_welcome(
        &mut self,
        welcome: &Welcome,
        by: NodeId,
        known: Incarnation,
        now_ms: u64,
    ) -> Result<Option<ConnectionEvent>, String> {
        check_format(welcome.format)?;
        let peer = welcome.from;
        if peer.node != by {
            return Err(format!(
                "this connection is to node {by}, but the peer is node {}",
                peer.node
            ));
        }
        check_incarnation(&peer, Some(known), self.options.local.epoch)?;
        self.begin(peer, now_ms);
        Ok(Some(ConnectionEvent::Ready(peer)))
    }

    fn handle_ready(
        &mut self,
        frame: Frame,
        now_ms: u64,
    ) -> Result<Option<ConnectionEvent>, larder_types::wire::Malformed> {
        let ConnectionState::Ready(peer) = self.state else {
            return Ok(None);
        };
        let mine = self.options.local;
        Ok(match frame {
            Frame::Requests(id, requests) => {
                self.incoming.open(id, mine.streams_max)?;
                Some(ConnectionEvent::Requests(id, requests))
            }
            Frame::Reply(id, piece) => {
                let is_wanted = self
                    .outgoing
                    .receive_piece(id, piece.status, mine.pieces_max)?;
                is_wanted.then_some(ConnectionEvent::Reply(id, piece))
            }
            Frame::PieceAck(id) => {
                let was_full = self.incoming.acknowledge_piece(id, peer.pieces_max)?;
                was_full.then_some(ConnectionEvent::Writable(id))
            }
            Frame::Cancel(id) => self.incoming.close(id).then(|| {
                let ended = Piece::with_reason(PieceStatus::Unknown, "cancelled");
                self.outbox.push(&Frame::Reply(id, ended));
                ConnectionEvent::Cancelled(id)
            }),
            Frame::Exchange(exchange) => Some(ConnectionEvent::Exchange(exchange)),
            Frame::Replicate(replicate) => Some(ConnectionEvent::Replicate(replicate)),
            Frame::Ping(time) => {
                self.lease.record_ping(now_ms);
                let acts_until = &self.acts_until.0;
                let acts_for_ms = match acts_until {
                    None => u64::MAX,
                    Some(until_ms) => until_ms().saturating_sub(now_ms),
                };
                self.outbox.push(&Frame::Pong(time, acts_for_ms));
                None
            }
            Frame::Pong(time, acts_for_ms) => {
                self.lease.record_pong(time, acts_for_ms)?;
                None
            }
            Frame::Hello(_) | Frame::Welcome(_) | Frame::Refused(_) => {
                return Err(larder_types::wire::Malformed(
                    "a second greeting was received",
                ));
            }
        })
    }

    // End.

    fn end(&mut self, why: String, is_refused: bool) {
        if self.is_ended() {
            return;
        }
        let was_accepting = matches!(
            self.state,
            ConnectionState::AwaitingHello | ConnectionState::AwaitingAdmission(_)
        );
        self.state = ConnectionState::Ended;
        self.lease.end();
        let (unsent, unknown) = self.outgoing.end(self.outbox.written());
        self.incoming.clear();
        self.is_between_frames = self.outbox.clear() || was_accepting;
        self.ended = Some(ConnectionEnd {
            why,
            is_refused,
            unsent,
            unknown,
        });
    }

    /// Sends the reason, unless a frame was written only in part.
    fn queue_refusal(&mut self, why: &str) {
        if self.is_between_frames {
            self.outbox.push(&Frame::Refused(why.to_owned()));
        }
    }
}
