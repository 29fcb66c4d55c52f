//! One connection between a core of one node and another node, as a value: bytes and time in, events and bytes out.
//!
//! ```text
//!   connect ── Hello ──► Greeting ◄─────────────── accept
//!                           │ Event::Hello ► admit, refuse │ take_welcome
//!                           ▼
//!                         Ready    ask, answer, taken, cancel, exchange, replicate; pings both ways
//!                           │ refuse, broken, tick (silence), next_event (bytes that are wrong)
//!                           ▼
//!                         Ended    told once, with what became of the requests: Event::Ended
//! ```
//!
//! 1. Every stream that was asked ends once for the asker: by its last piece, or by standing in one of the two lists of
//!    [`Ended`]. Only who cancelled it hears nothing.
//! 2. Requests of which the last byte was not given to the socket are not sent, and never will be: what is left is thrown away.
//! 3. What one side sends is heard in its order, across all streams and kinds.
//! 4. At most `pieces_max` pieces of an answer are on their way, and `streams_max` streams are open: who sends more is cut off.
//! 5. Either side may ask. Sockets, TLS, time-outs of requests and connecting anew are the host's.
//!
//! The host's part, in this order: write what [`Connection::slices`] gives; read into [`Connection::buffer`] and call
//! [`Connection::received`]; take events until there is none; [`Connection::tick`] when [`Connection::next_tick_ms`] has come.

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

/// What every node takes, and what may be asked before the other has greeted.
pub const STREAMS_MIN: u32 = 1 << 10;

/// What a node says of itself, and for how long it waits.
#[derive(Debug, Clone)]
pub struct Options {
    pub cluster: String,
    pub me: Peer,
    /// The other is pinged so often; some times within its lease.
    pub ping_every_ms: u64,
    /// An owner waits so much longer than a reader trusts: clocks may have another pace.
    pub margin_ms: u64,
    /// A connection over which nothing comes for so long is ended.
    pub silence_ms: u64,
    /// So long each side may take to greet.
    pub greeting_ms: u64,
    /// Nothing more is asked or answered while so many bytes wait to be written.
    pub queued_bytes_max: usize,
}

/// A node that cannot take what is exchanged with it is cut off when so many times the bytes wait that may.
const QUEUED_TIMES_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node of this cluster has connected: [`Connection::admit`] or [`Connection::refuse`] it. Nothing happens before.
    Hello(Hello),
    /// Both have greeted.
    Ready(Peer),
    /// To be answered by [`Connection::answer`].
    Requests(StreamId, Requests),
    /// To be taken by [`Connection::taken`], unless it is the last.
    Answer(StreamId, Piece),
    /// Nobody waits for this answer any more.
    Cancelled(StreamId),
    /// There is room for another piece, where there was none.
    Room(StreamId),
    Exchange(Exchange),
    Replicate(Replicate),
    Ended(Ended),
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub why: String,
    /// The other said that it does not want us.
    pub is_refused: bool,
    /// These requests were never sent: they are not done.
    pub unsent: Vec<StreamId>,
    /// These were sent, and not answered to the end: whether they are done is unknown.
    pub unknown: Vec<StreamId>,
}

/// Why something is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// Later: too much is on its way.
    Full,
    /// Never: the connection has ended, or the stream has.
    Gone,
}

#[derive(Debug)]
enum State {
    /// Waiting for a welcome from this node.
    Welcomed {
        by: NodeId,
        known: Incarnation,
    },
    /// Waiting for a hello.
    Greeted,
    /// The host is to say what it thinks of this one.
    Judged(Peer),
    Ready(Peer),
    Ended,
}

/// Until when this side surely may act for its slots.
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
    /// Whether the other would understand a frame after the end.
    is_between_frames: bool,
    begun_ms: u64,
    heard_ms: u64,
    /// When the time was last looked at.
    ticked_ms: u64,
}

impl Connection {
    /// To the node `to`, of which the life `known` is known. Requests may be asked at once.
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

    /// From a node that is to say which.
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

    /// Until when this side surely may act for its slots, in the life in which the connection began: asked at each ping, so that the other trusts
    /// what it is told no longer. Without it: for ever.
    pub fn set_acts_until(&mut self, until_ms: Rc<dyn Fn() -> u64>) {
        self.acts_until = ActsUntil(Some(until_ms));
    }

    /// The life of this side's node in which the connection began.
    pub fn life(&self) -> Incarnation {
        self.options.me.incarnation
    }

    /// Who is at the other end, once both have greeted.
    pub fn peer(&self) -> Option<&Peer> {
        match &self.state {
            State::Ready(peer) => Some(peer),
            _ => None,
        }
    }

    /// It may have bytes to be written that say why.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// For a reader of the other's rows: before this, and not at it, all that came over this connection is surely still kept fresh.
    pub fn subscribed_until_ms(&self) -> u64 {
        self.lease.subscribed_until_ms()
    }

    /// For an owner: from this on the other surely trusts nothing that came over this connection, whatever it knows.
    pub fn forgotten_after_ms(&self) -> u64 {
        self.lease.forgotten_after_ms()
    }

    // The socket's side.

    /// What is to be written, in its order; says how many there are.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.outbox.slices(out)
    }

    /// So many bytes of these were given to the socket.
    pub fn wrote(&mut self, size: usize) {
        self.outbox.wrote(size);
    }

    /// Bytes that wait to be written.
    pub fn queued_bytes(&self) -> usize {
        self.outbox.queued_bytes()
    }

    /// Where bytes that come are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Bytes came.
    pub fn received(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// What may have come is not read for now: then silence is not the other's.
    pub fn unread(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// The socket is closed or broken; or cannot be opened.
    pub fn broken(&mut self, why: &str) {
        self.end(why.to_owned(), false);
    }

    /// When something is to be done if nothing comes.
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

    /// Time passed. What came before is to be received first; a process that stood still may not know of it yet, so of a long time between two
    /// looks only a part counts as silence.
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

    /// The next thing that happened. After [`Event::Ended`] there is none.
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

    /// Whoever said hello is welcome, unless the map has no such node, or knows a later life of it.
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

    /// Ends the connection, and tells the other why if that can be.
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

    // Asking.

    /// Whether something may be asked now.
    pub fn can_ask(&self) -> Result<(), NotSent> {
        let streams_max = match &self.state {
            State::Ready(peer) => peer.streams_max,
            State::Welcomed { .. } => STREAMS_MIN,
            _ => return Err(NotSent::Gone),
        };
        match self.asked.len() < streams_max as usize && self.has_room() {
            true => Ok(()),
            false => Err(NotSent::Full),
        }
    }

    /// Whether few bytes wait to be written.
    pub fn has_room(&self) -> bool {
        self.outbox.queued_bytes() < self.options.queued_bytes_max
    }

    /// Asks the other side.
    ///
    /// # Errors
    /// The connection has ended, or too much is on its way: nothing was sent.
    pub fn ask(&mut self, requests: Requests) -> Result<StreamId, NotSent> {
        self.can_ask()?;
        let id = self.asked.open();
        let end = self.outbox.push(&Frame::Requests(id, requests));
        self.asked.set_end(id, end);
        Ok(id)
    }

    /// A piece of an answer was taken: another may come.
    pub fn taken(&mut self, id: StreamId) {
        if self.asked.taken(id) {
            self.outbox.push(&Frame::Taken(id));
        }
    }

    /// Nobody waits for this answer any more; nothing more is told of it.
    pub fn cancel(&mut self, id: StreamId) {
        if self.asked.cancel(id) {
            self.outbox.push(&Frame::Cancel(id));
        }
    }

    // Answering.

    /// Whether another piece may be sent.
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

    /// Sends a piece of an answer. That nothing, or nothing more, will be answered can always be sent.
    ///
    /// # Errors
    /// Nobody waits for it, or too much is on its way: nothing was sent.
    pub fn answer(&mut self, id: StreamId, piece: Piece) -> Result<(), NotSent> {
        match (self.can_answer(id), piece.last) {
            (Err(NotSent::Full), Last::NotDone | Last::Unknown) | (Ok(()), _) => {}
            (Err(why), _) => return Err(why),
        }
        self.answered.send(id, piece.last);
        self.outbox.push(&Frame::Answer(id, piece));
        Ok(())
    }

    // What goes one way.

    /// Sends a message between engines, after all that was sent before.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn exchange(&mut self, exchange: Exchange) -> Result<(), NotSent> {
        self.send(&Frame::Exchange(exchange))
    }

    /// As [`Connection::exchange`], a message of `replication`.
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

    // What comes.

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

    // The end.

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

    /// Half of a frame is not finished with words.
    fn outbox_words(&mut self, why: &str) {
        if self.is_between_frames {
            self.outbox.push(&Frame::Refused(why.to_owned()));
        }
    }
}
