//! One connection between a core of this node and another node, as a sans-IO state machine: bytes and time in, events and bytes
//! out.
//!
//! ```text
//!   connect ── Hello ──► Greeting ◄─────────────── accept
//!                           │ Event::Hello ► admit, refuse │ take_welcome
//!                           ▼
//!                         Ready    ask, answer, taken, cancel, exchange, replicate; pings both ways
//!                           │ refuse, broken, tick (silence), next_event (invalid bytes)
//!                           ▼
//!                         Ended    reported once, with the outcome of the requests: Event::Ended
//! ```
//!
//! 1. Every requested stream ends once for the requester: with its last piece, or in one of the two lists of [`Ended`]. A
//!    cancelled stream reports nothing.
//! 2. Requests whose last byte was not given to the socket are not sent, and never will be: the rest is discarded.
//! 3. Each side receives the other's frames in the order in which they were sent, across all streams and kinds.
//! 4. At most `pieces_max` pieces of a response are in flight, and at most `streams_max` streams are open. A peer that exceeds
//!    these limits is disconnected.
//! 5. Either side may send requests. The host provides sockets, TLS, request timeouts and reconnection.
//!
//! The host, in this order: writes the bytes of [`Connection::slices`]; reads into [`Connection::buffer`] and calls
//! [`Connection::received`]; takes events until there are none; calls [`Connection::tick`] at [`Connection::next_tick_ms`].

use std::fmt;
use std::io::IoSlice;
use std::rc::Rc;

use bytes::BytesMut;

use super::frame::{
    Exchange, FRAME_BYTES_MAX, Frame, FrameDecoder, GREETING_BYTES_MAX, Last, Piece, Replicate,
    Requests, StreamId,
};
use super::greeting::{FORMAT, Hello, Peer, Welcome, check_format, check_hello, check_life};
use super::lease::SubscriptionLease;
use super::outbox::Outbox;
use super::streams::{Answered, Asked};
use crate::map::{Epoch, Incarnation, NodeId};

/// The number of streams that every node accepts, and that may be opened before the peer's greeting.
pub const STREAMS_MIN: u32 = 1 << 10;

/// A node's description of itself, and its timeouts.
#[derive(Debug, Clone)]
pub struct Options {
    pub cluster: String,
    pub me: Peer,
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
pub enum Event {
    /// A node of this cluster has connected. The host must call [`Connection::admit`] or [`Connection::refuse`] before anything
    /// else happens.
    Hello(Hello),
    /// Both sides have sent their greetings.
    Ready(Peer),
    /// To be answered with [`Connection::answer`].
    Requests(StreamId, Requests),
    /// To be acknowledged with [`Connection::taken`], unless it is the last piece.
    Answer(StreamId, Piece),
    /// The requester no longer waits for this response.
    Cancelled(StreamId),
    /// Another piece may be sent, after the limit had been reached.
    Room(StreamId),
    Exchange(Exchange),
    Replicate(Replicate),
    Ended(Ended),
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
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
pub enum NotSent {
    /// Too much is in flight; retry later.
    Full,
    /// The connection or the stream has ended.
    Gone,
}

#[derive(Debug)]
enum State {
    /// Waiting for this node's welcome.
    Welcomed {
        by: NodeId,
        known: Incarnation,
    },
    /// Waiting for a hello.
    Greeted,
    /// Waiting for the host to admit or refuse this node.
    Judged(Peer),
    Ready(Peer),
    Ended,
}

/// The time until which this side certainly may serve its slots.
struct ActsUntil(Option<Rc<dyn Fn() -> u64>>);

impl fmt::Debug for ActsUntil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ActsUntil")
    }
}

#[derive(Debug)]
pub struct Connection {
    options: Options,
    acts_until: ActsUntil,
    state: State,
    decoder: FrameDecoder,
    inbox: BytesMut,
    outbox: Outbox,
    lease: SubscriptionLease,
    asked: Asked,
    answered: Answered,
    ended: Option<Ended>,
    /// True if the last frame is complete, so that the peer would understand a further frame.
    is_between_frames: bool,
    begun_ms: u64,
    heard_ms: u64,
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
            from: options.me,
        };
        let mut connection = Connection::new(options, State::Welcomed { by: to, known }, now_ms);
        connection.outbox.push(&Frame::Hello(hello));
        connection.outbox.hold();
        connection
    }

    /// Accepts a connection from a node that is not identified yet.
    pub fn accept(options: Options, now_ms: u64) -> Connection {
        Connection::new(options, State::Greeted, now_ms)
    }

    fn new(options: Options, state: State, now_ms: u64) -> Connection {
        let lease = SubscriptionLease::new(
            options.me.lease_ms,
            options.ping_every_ms,
            options.margin_ms,
        );
        Connection {
            options,
            acts_until: ActsUntil(None),
            state,
            decoder: FrameDecoder::new(GREETING_BYTES_MAX),
            inbox: BytesMut::new(),
            outbox: Outbox::default(),
            lease,
            asked: Asked::default(),
            answered: Answered::default(),
            ended: None,
            is_between_frames: true,
            begun_ms: now_ms,
            heard_ms: now_ms,
            ticked_ms: now_ms,
        }
    }

    /// Sets a function that returns the time until which this side certainly may serve its slots, in the incarnation in which the
    /// connection began. It is called for each ping, and limits how long the peer trusts what this side has sent. Without it,
    /// there is no limit.
    pub fn set_acts_until(&mut self, until_ms: Rc<dyn Fn() -> u64>) {
        self.acts_until = ActsUntil(Some(until_ms));
    }

    /// The incarnation of this node when the connection began.
    pub fn life(&self) -> Incarnation {
        self.options.me.incarnation
    }

    /// The peer, once both sides have sent their greetings.
    pub fn peer(&self) -> Option<&Peer> {
        match &self.state {
            State::Ready(peer) => Some(peer),
            _ => None,
        }
    }

    /// An ended connection may still have bytes to write that state the reason.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
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
    pub fn wrote(&mut self, size: usize) {
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
    pub fn received(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Records that the host does not read for now, so that silence is not attributed to the peer.
    pub fn unread(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Reports that the socket was closed or failed, or could not be opened.
    pub fn broken(&mut self, why: &str) {
        self.end(why.to_owned(), false);
    }

    /// The time of the next call of `tick` if nothing is received.
    pub fn next_tick_ms(&self) -> u64 {
        match self.state {
            State::Ended => u64::MAX,
            State::Ready(_) => {
                let silent_ms = self.heard_ms.saturating_add(self.options.silence_ms);
                silent_ms.min(self.lease.next_ping_ms())
            }
            _ => self.begun_ms.saturating_add(self.options.greeting_ms),
        }
    }

    /// Handles the passage of time. Bytes already received must be passed in first. After a stall, the process may not have read
    /// them yet, so of a long interval between two ticks, at most half of the timeout counts as silence.
    pub fn tick(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.ticked_ms);
        self.ticked_ms = self.ticked_ms.max(now_ms);
        let stood_still = |of_ms: u64| passed.saturating_sub(of_ms / 2);
        let (silence_ms, greeting_ms) = (self.options.silence_ms, self.options.greeting_ms);
        self.heard_ms = (self.heard_ms + stood_still(silence_ms)).min(now_ms.max(self.heard_ms));
        self.begun_ms = (self.begun_ms + stood_still(greeting_ms)).min(now_ms.max(self.begun_ms));
        if now_ms < self.next_tick_ms() {
            return;
        }
        if !matches!(self.state, State::Ready(_)) {
            let why = format!("it did not greet within {} ms", self.options.greeting_ms);
            return self.end(why, false);
        }
        if now_ms >= self.heard_ms.saturating_add(self.options.silence_ms) {
            let why = format!("nothing came for {} ms", self.options.silence_ms);
            return self.end(why, false);
        }
        if let Some(time) = self.lease.ping(now_ms) {
            self.outbox.push(&Frame::Ping(time));
        }
    }

    /// Returns the next event. There is none after [`Event::Ended`].
    pub fn next_event(&mut self, now_ms: u64) -> Option<Event> {
        loop {
            if let Some(ended) = self.ended.take() {
                return Some(Event::Ended(ended));
            }
            if matches!(self.state, State::Judged(_) | State::Ended) {
                return None;
            }
            match self.decoder.next(&mut self.inbox) {
                Ok(None) => return None,
                Ok(Some(frame)) => match self.take(frame, now_ms) {
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
        let State::Judged(peer) = self.state else {
            return;
        };
        if let Err(why) = check_life(&peer, known, epoch) {
            return self.refuse(&why);
        }
        let welcome = Welcome {
            format: FORMAT,
            from: self.options.me,
        };
        self.outbox.push(&Frame::Welcome(welcome));
        self.begin(peer, now_ms);
    }

    /// Ends the connection, and sends the reason to the peer if possible.
    pub fn refuse(&mut self, why: &str) {
        if !self.is_ended() {
            self.end(why.to_owned(), false);
            self.outbox_words(why);
        }
    }

    fn begin(&mut self, peer: Peer, now_ms: u64) {
        self.state = State::Ready(peer);
        self.decoder.set_frame_bytes_max(FRAME_BYTES_MAX);
        self.outbox.release();
        self.lease.begin(now_ms, peer.lease_ms);
        self.tick(now_ms);
    }

    // Requests.

    /// Checks that a request may be sent now.
    pub fn can_ask(&self) -> Result<(), NotSent> {
        let streams_max = match &self.state {
            State::Ready(peer) => peer.streams_max,
            State::Welcomed { .. } => STREAMS_MIN,
            _ => return Err(NotSent::Gone),
        };
        if self.asked.len() < streams_max as usize && self.has_room() {
            Ok(())
        } else {
            Err(NotSent::Full)
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
    pub fn ask(&mut self, requests: Requests) -> Result<StreamId, NotSent> {
        self.can_ask()?;
        let id = self.asked.open();
        let end = self.outbox.push(&Frame::Requests(id, requests));
        self.asked.set_end(id, end);
        Ok(id)
    }

    /// Acknowledges a piece of a response, so that the peer may send another.
    pub fn taken(&mut self, id: StreamId) {
        if self.asked.taken(id) {
            self.outbox.push(&Frame::Taken(id));
        }
    }

    /// Cancels a request. No further events of it are reported.
    pub fn cancel(&mut self, id: StreamId) {
        if self.asked.cancel(id) {
            self.outbox.push(&Frame::Cancel(id));
        }
    }

    // Responses.

    /// Checks that another piece may be sent.
    pub fn can_answer(&mut self, id: StreamId) -> Result<(), NotSent> {
        let State::Ready(peer) = self.state else {
            return Err(NotSent::Gone);
        };
        match self.answered.room(id, peer.pieces_max) {
            None => Err(NotSent::Gone),
            Some(0) => Err(NotSent::Full),
            Some(_) if !self.has_room() => Err(NotSent::Full),
            Some(_) => Ok(()),
        }
    }

    /// Sends a piece of a response. A final [`Last::NotDone`] or [`Last::Unknown`] can always be sent.
    ///
    /// # Errors
    /// The requester no longer waits for it, or too much is in flight. Nothing was sent.
    pub fn answer(&mut self, id: StreamId, piece: Piece) -> Result<(), NotSent> {
        match (self.can_answer(id), piece.last) {
            (Err(NotSent::Full), Last::NotDone | Last::Unknown) | (Ok(()), _) => {}
            (Err(why), _) => return Err(why),
        }
        self.answered.send(id, piece.last);
        self.outbox.push(&Frame::Answer(id, piece));
        Ok(())
    }

    // One-way messages.

    /// Sends a message between engines, after everything sent before.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn exchange(&mut self, exchange: Exchange) -> Result<(), NotSent> {
        self.send(&Frame::Exchange(exchange))
    }

    /// Sends a message of `replication`, like [`Connection::exchange`].
    ///
    /// # Errors
    /// The connection has ended.
    pub fn replicate(&mut self, replicate: Replicate) -> Result<(), NotSent> {
        self.send(&Frame::Replicate(replicate))
    }

    fn send(&mut self, frame: &Frame) -> Result<(), NotSent> {
        if !matches!(self.state, State::Ready(_) | State::Welcomed { .. }) {
            return Err(NotSent::Gone);
        }
        let queued = self.outbox.queued_bytes();
        if queued / QUEUED_TIMES_MAX >= self.options.queued_bytes_max {
            self.end(format!("{queued} bytes wait, and it takes none"), false);
            return Err(NotSent::Gone);
        }
        self.outbox.push(frame);
        Ok(())
    }

    // Received frames.

    fn take(&mut self, frame: Frame, now_ms: u64) -> Result<Option<Event>, String> {
        match (&self.state, frame) {
            (State::Ready(_) | State::Welcomed { .. }, Frame::Refused(why)) => {
                self.end(why, true);
                Ok(None)
            }
            (State::Greeted, Frame::Hello(hello)) => {
                check_hello(&hello, &self.options.cluster, self.options.me.node)?;
                self.state = State::Judged(hello.from);
                Ok(Some(Event::Hello(hello)))
            }
            (&State::Welcomed { by, known }, Frame::Welcome(welcome)) => {
                self.take_welcome(&welcome, by, known, now_ms)
            }
            (State::Ready(_), frame) => self.take_ready(frame, now_ms).map_err(|error| {
                format!("what you sent is against the rules of peer connections: {error}")
            }),
            _ => Err("a connection begins with a hello, and its answer is a welcome".to_owned()),
        }
    }

    fn take_welcome(
        &mut self,
        welcome: &Welcome,
        by: NodeId,
        known: Incarnation,
        now_ms: u64,
    ) -> Result<Option<Event>, String> {
        check_format(welcome.format)?;
        let peer = welcome.from;
        if peer.node != by {
            return Err(format!(
                "I look for node {by}, and you are node {}",
                peer.node
            ));
        }
        check_life(&peer, Some(known), self.options.me.epoch)?;
        self.begin(peer, now_ms);
        Ok(Some(Event::Ready(peer)))
    }

    fn take_ready(
        &mut self,
        frame: Frame,
        now_ms: u64,
    ) -> Result<Option<Event>, larder_types::wire::Malformed> {
        let State::Ready(peer) = self.state else {
            return Ok(None);
        };
        let mine = self.options.me;
        Ok(match frame {
            Frame::Requests(id, requests) => {
                self.answered.open(id, mine.streams_max)?;
                Some(Event::Requests(id, requests))
            }
            Frame::Answer(id, piece) => {
                let is_wanted = self.asked.heard(id, piece.last, mine.pieces_max)?;
                is_wanted.then_some(Event::Answer(id, piece))
            }
            Frame::Taken(id) => {
                let was_full = self.answered.taken(id, peer.pieces_max)?;
                was_full.then_some(Event::Room(id))
            }
            Frame::Cancel(id) => self.answered.close(id).then(|| {
                let ended = Piece::told(Last::Unknown, "cancelled");
                self.outbox.push(&Frame::Answer(id, ended));
                Event::Cancelled(id)
            }),
            Frame::Exchange(exchange) => Some(Event::Exchange(exchange)),
            Frame::Replicate(replicate) => Some(Event::Replicate(replicate)),
            Frame::Ping(time) => {
                self.lease.heard_ping(now_ms);
                let acts_until = &self.acts_until.0;
                let acts_for_ms = match acts_until {
                    None => u64::MAX,
                    Some(until_ms) => until_ms().saturating_sub(now_ms),
                };
                self.outbox.push(&Frame::Pong(time, acts_for_ms));
                None
            }
            Frame::Pong(time, acts_for_ms) => {
                self.lease.heard_pong(time, acts_for_ms)?;
                None
            }
            Frame::Hello(_) | Frame::Welcome(_) | Frame::Refused(_) => {
                return Err(larder_types::wire::Malformed("a greeting comes once"));
            }
        })
    }

    // End.

    fn end(&mut self, why: String, is_refused: bool) {
        if self.is_ended() {
            return;
        }
        let was_accepting = matches!(self.state, State::Greeted | State::Judged(_));
        self.state = State::Ended;
        self.lease.end();
        let (unsent, unknown) = self.asked.end(self.outbox.written());
        self.answered.clear();
        self.is_between_frames = self.outbox.clear() || was_accepting;
        self.ended = Some(Ended {
            why,
            is_refused,
            unsent,
            unknown,
        });
    }

    /// Sends the reason, unless a frame was written only in part.
    fn outbox_words(&mut self, why: &str) {
        if self.is_between_frames {
            self.outbox.push(&Frame::Refused(why.to_owned()));
        }
    }
}
