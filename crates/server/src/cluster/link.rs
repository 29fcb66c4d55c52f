//! A connection in the form that the rest of a core uses: it sends requests and receives responses, and answers the peer's
//! requests.
//!
//! 1. An [`ResponseStream`] ends once: with its last piece, or with a [`Failure`] that states whether the requests may have been
//!    executed.
//! 2. An [`Responder`] that is dropped early notifies the peer.
//! 3. Everything that is queued wakes the writing task, which writes all that is queued when it runs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use larder_cluster::map::Incarnation;
use larder_cluster::peer::{
    Connection, ConnectionEnd, Exchange, PeerInfo, Piece, PieceStatus, Replicate, Requests,
    SendError, StreamId,
};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Maximum number of mailboxes that are kept for reuse.
const SPARE_MAX: usize = 64;

/// The reason why a response is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The requests were not executed, and will not be.
    NotDone(Rc<str>),
    /// The requests may have been executed.
    Unknown(Rc<str>),
}

impl Failure {
    pub fn into_reason(self) -> Rc<str> {
        match self {
            Failure::NotDone(why) | Failure::Unknown(why) => why,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NotDone(why) => write!(f, "not done: {why}"),
            Failure::Unknown(why) => {
                write!(f, "it is unknown whether the request was executed: {why}")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// One connection. It exists before its socket is connected; requests sent meanwhile are queued.
pub struct Link {
    connection: RefCell<Connection>,
    /// Unique within the process.
    pub id: u64,
    /// The peer opened the connection.
    is_accepted: bool,
    /// Kept after the end.
    peer: Cell<Option<PeerInfo>>,
    end_reason: RefCell<Option<Rc<str>>>,
    /// The task that owns the socket.
    driver: RefCell<Option<Waker>>,
    waiters: RefCell<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// Indexed by the place of a stream that this side requested.
    mailboxes: Vec<Option<Rc<Mailbox>>>,
    spare: Vec<Rc<Mailbox>>,
    /// Tasks that wait for room to send a request.
    requesters: Vec<Waker>,
    /// Tasks that wait for room to send a response, indexed by the place of the peer's stream.
    responders: Vec<Option<Waker>>,
}

#[derive(Default)]
struct Mailbox(RefCell<Mail>);

#[derive(Default)]
struct Mail {
    pieces: VecDeque<Piece>,
    failure: Option<Failure>,
    taker: Option<Waker>,
}

impl Link {
    pub(super) fn new(connection: Connection, is_accepted: bool) -> Rc<Link> {
        Rc::new(Link {
            id: NEXT_ID.fetch_add(1, Relaxed),
            is_accepted,
            connection: RefCell::new(connection),
            peer: Cell::new(None),
            end_reason: RefCell::new(None),
            driver: RefCell::new(None),
            waiters: RefCell::default(),
        })
    }

    pub fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// The incarnation of this node in which the connection began.
    pub fn life(&self) -> Incarnation {
        self.connection.borrow().incarnation()
    }

    /// The current or former peer; `None` before both sides have sent their greetings.
    pub fn peer(&self) -> Option<PeerInfo> {
        self.peer.get()
    }

    /// The reason why it has ended.
    pub fn end_reason(&self) -> Option<Rc<str>> {
        self.end_reason.borrow().clone()
    }

    pub fn is_ended(&self) -> bool {
        self.connection.borrow().is_ended()
    }

    /// For a reader: see [`Connection::subscribed_until_ms`], on the clock of `larder_cluster::coordination::boot_ms`.
    pub fn subscribed_until_ms(&self) -> u64 {
        self.connection.borrow().subscribed_until_ms()
    }

    /// For an owner: see [`Connection::forgotten_after_ms`]. It remains valid after the connection has ended.
    pub fn forgotten_after_ms(&self) -> u64 {
        self.connection.borrow().forgotten_after_ms()
    }

    /// Sends requests as soon as there is room.
    ///
    /// # Errors
    /// The connection has ended. Nothing was sent.
    pub async fn request(self: &Rc<Link>, requests: Requests) -> Result<ResponseStream, Failure> {
        poll_fn(|cx| self.poll_room(cx)).await?;
        self.try_request(requests).map_err(|_| self.ended_failure())
    }

    /// Sends requests if there is room now.
    ///
    /// # Errors
    /// There is no room, or the connection has ended. Nothing was sent.
    pub fn try_request(self: &Rc<Link>, requests: Requests) -> Result<ResponseStream, SendError> {
        let stream = self.connection.borrow_mut().send_requests(requests)?;
        let mailbox = self.waiters.borrow_mut().open(stream);
        self.wake();
        Ok(ResponseStream {
            link: self.clone(),
            stream,
            mailbox,
            is_done: false,
        })
    }

    /// Returns whether a request may be sent now.
    ///
    /// # Errors
    /// There is no room, or the connection has ended.
    pub fn can_request(&self) -> Result<(), SendError> {
        self.connection.borrow().check_can_request()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self.connection.borrow().check_can_request() {
            Ok(()) => Poll::Ready(Ok(())),
            Err(SendError::Closed) => Poll::Ready(Err(self.ended_failure())),
            Err(SendError::Full) => {
                self.waiters
                    .borrow_mut()
                    .requesters
                    .push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn ended_failure(&self) -> Failure {
        let why = self.end_reason.borrow().clone();
        Failure::NotDone(why.unwrap_or_else(|| "the connection has ended".into()))
    }

    /// Sends a message between engines, after everything sent before.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn exchange(&self, exchange: Exchange) -> Result<(), SendError> {
        let sent = self.connection.borrow_mut().exchange(exchange);
        self.wake();
        sent
    }

    /// Sends a message of `replication`, like [`Link::exchange`].
    ///
    /// # Errors
    /// The connection has ended.
    pub fn replicate(&self, replicate: Replicate) -> Result<(), SendError> {
        let sent = self.connection.borrow_mut().replicate(replicate);
        self.wake();
        sent
    }

    /// Ends the connection and sends the reason to the peer, for example if an owner stops waiting for a reader.
    pub fn end(&self, why: &str) {
        self.connection.borrow_mut().refuse(why);
        self.wake();
    }

    fn wake(&self) {
        if let Some(driver) = self.driver.borrow_mut().take() {
            driver.wake();
        }
    }

    // For the task that owns the socket.

    pub(super) fn connection(&self) -> std::cell::RefMut<'_, Connection> {
        self.connection.borrow_mut()
    }

    pub(super) fn set_driver(&self, cx: &Context<'_>) {
        *self.driver.borrow_mut() = Some(cx.waker().clone());
    }

    pub(super) fn set_peer(&self, peer: PeerInfo) {
        self.peer.set(Some(peer));
    }

    pub(super) fn responder(self: &Rc<Link>, stream: StreamId) -> Responder {
        Responder {
            link: self.clone(),
            stream,
            is_done: false,
        }
    }

    pub(super) fn deliver(&self, stream: StreamId, piece: Piece) {
        let mut waiters = self.waiters.borrow_mut();
        let place = stream.place as usize;
        let mailbox = match piece.status {
            PieceStatus::Partial => waiters.mailboxes[place].clone(),
            _ => waiters.mailboxes[place].take(),
        };
        drop(waiters);
        let mailbox = mailbox.expect("an open stream has a mailbox");
        let mut mail = mailbox.0.borrow_mut();
        mail.pieces.push_back(piece);
        mail.wake();
    }

    /// Wakes the task that sends a response, because there is room, or because the requester no longer waits.
    pub(super) fn wake_responder(&self, stream: StreamId) {
        let mut waiters = self.waiters.borrow_mut();
        if let Some(waker) = waiters.responders.get_mut(stream.place as usize) {
            waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes the tasks that wait for room to send a request, if there is room or never will be.
    pub(super) fn wake_requesters(&self) {
        let mut waiters = self.waiters.borrow_mut();
        if !waiters.requesters.is_empty()
            && self.connection.borrow().check_can_request() != Err(SendError::Full)
        {
            waiters.requesters.drain(..).for_each(Waker::wake);
        }
    }

    /// Wakes all tasks that wait for room, because the queue is short again or the connection has ended.
    pub(super) fn wake_all(&self) {
        self.wake_requesters();
        let mut waiters = self.waiters.borrow_mut();
        waiters
            .responders
            .iter_mut()
            .filter_map(Option::take)
            .for_each(Waker::wake);
    }

    /// Notifies all waiters of the end of the connection, and returns the reason.
    pub(super) fn notify_ended(&self, ended: &ConnectionEnd, peer_name: &str) -> Rc<str> {
        let why: Rc<str> = if ended.is_refused {
            format!("{peer_name} rejects this node: {}", ended.why).into()
        } else {
            format!("the connection to {peer_name} has ended: {}", ended.why).into()
        };
        *self.end_reason.borrow_mut() = Some(why.clone());
        let mut mailboxes = std::mem::take(&mut self.waiters.borrow_mut().mailboxes);
        let mut fail = |stream: &StreamId, failure: Failure| {
            let mailbox = mailboxes[stream.place as usize].take();
            let mailbox = mailbox.expect("an open stream has a mailbox");
            let mut mail = mailbox.0.borrow_mut();
            mail.failure = Some(failure);
            mail.wake();
        };
        for stream in &ended.unsent {
            fail(stream, Failure::NotDone(why.clone()));
        }
        for stream in &ended.unknown {
            fail(stream, Failure::Unknown(why.clone()));
        }
        self.wake_all();
        why
    }
}

impl Waiters {
    fn open(&mut self, stream: StreamId) -> Rc<Mailbox> {
        let mailbox = self.spare.pop().unwrap_or_default();
        let place = stream.place as usize;
        if self.mailboxes.len() <= place {
            self.mailboxes.resize_with(place + 1, || None);
        }
        self.mailboxes[place] = Some(mailbox.clone());
        mailbox
    }

    /// Keeps an empty mailbox for reuse if it has no other user.
    fn recycle(&mut self, mailbox: Rc<Mailbox>) {
        if self.spare.len() < SPARE_MAX && Rc::strong_count(&mailbox) == 1 {
            *mailbox.0.borrow_mut() = Mail::default();
            self.spare.push(mailbox);
        }
    }
}

impl Mail {
    fn wake(&mut self) {
        if let Some(taker) = self.taker.take() {
            taker.wake();
        }
    }
}

/// The response to requests, in pieces. Dropping it cancels the requests.
pub struct ResponseStream {
    link: Rc<Link>,
    stream: StreamId,
    mailbox: Rc<Mailbox>,
    is_done: bool,
}

impl ResponseStream {
    /// Returns the next piece; `None` after the last.
    ///
    /// # Errors
    /// The response is incomplete, and nothing follows.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`ResponseStream::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Failure>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        let mut mail = self.mailbox.0.borrow_mut();
        if let Some(piece) = mail.pieces.pop_front() {
            drop(mail);
            return Poll::Ready(self.take(piece));
        }
        if let Some(failure) = mail.failure.take() {
            self.is_done = true;
            return Poll::Ready(Err(failure));
        }
        mail.taker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn take(&mut self, piece: Piece) -> Result<Option<Piece>, Failure> {
        self.is_done = piece.status != PieceStatus::Partial;
        let why = || String::from_utf8_lossy(&piece.bytes).into();
        match piece.status {
            PieceStatus::Partial => {
                self.link
                    .connection
                    .borrow_mut()
                    .acknowledge_piece(self.stream);
                self.link.wake();
                Ok(Some(piece))
            }
            PieceStatus::Complete => Ok(Some(piece)),
            PieceStatus::NotDone => Err(Failure::NotDone(why())),
            PieceStatus::Unknown => Err(Failure::Unknown(why())),
        }
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if !self.is_done {
            self.link.connection.borrow_mut().cancel(self.stream);
            self.link.wake();
        }
        let mut waiters = self.link.waiters.borrow_mut();
        // A cancelled response is not delivered.
        if let Some(place) = waiters.mailboxes.get_mut(self.stream.place as usize)
            && place
                .as_ref()
                .is_some_and(|it| Rc::ptr_eq(it, &self.mailbox))
        {
            *place = None;
        }
        let mailbox = std::mem::take(&mut self.mailbox);
        waiters.recycle(mailbox);
    }
}

/// The sender of a response to another node's requests.
pub struct Responder {
    link: Rc<Link>,
    stream: StreamId,
    is_done: bool,
}

impl Responder {
    pub fn link(&self) -> &Rc<Link> {
        &self.link
    }

    /// Sends a piece as soon as there is room.
    ///
    /// # Errors
    /// The requester no longer waits.
    pub async fn send(&mut self, piece: Piece) -> Result<(), SendError> {
        poll_fn(|cx| self.poll_room(cx)).await?;
        self.try_send(piece)
    }

    /// Sends a piece if there is room now. A final [`Last::NotDone`] or [`Last::Unknown`] can always be sent.
    ///
    /// # Errors
    /// There is no room, or the requester no longer waits. Nothing was sent.
    pub fn try_send(&mut self, piece: Piece) -> Result<(), SendError> {
        let last = piece.status;
        let mut connection = self.link.connection.borrow_mut();
        let sent = connection.send_reply(self.stream, piece);
        drop(connection);
        self.is_done |=
            sent.is_ok() && last != PieceStatus::Partial || sent == Err(SendError::Closed);
        self.link.wake();
        sent
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        match self
            .link
            .connection
            .borrow_mut()
            .check_can_reply(self.stream)
        {
            Ok(()) => return Poll::Ready(Ok(())),
            Err(SendError::Closed) => return Poll::Ready(Err(SendError::Closed)),
            Err(SendError::Full) => {}
        }
        let mut waiters = self.link.waiters.borrow_mut();
        let place = self.stream.place as usize;
        if waiters.responders.len() <= place {
            waiters.responders.resize_with(place + 1, || None);
        }
        waiters.responders[place] = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_done {
            let ended = Piece::with_reason(
                PieceStatus::Unknown,
                "the other node ended before its response was complete",
            );
            // An error means that the requester no longer waits.
            let _ = self.try_send(ended);
        }
    }
}
