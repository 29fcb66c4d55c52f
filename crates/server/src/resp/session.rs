//! One connection: reads what has come, executes every complete request of it, writes all replies at once.
//!
//! ```text
//!        ┌────────────── wait: readable, or writable if replies are pending ◄─────────────┐
//!        ▼                                                                                │
//!  take what came ─► execute until the input ends, the output is full, or a job waits ─► yield once
//!                                                                            │            ▲
//!                                                                            └─► drive ───┘
//! ```
//!
//! The yield lets the core execute what other connections have sent, so that the writes of all come
//! one after another: measurably fewer wake-ups on both sides.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use larder_protocol::commands::{Command, Id, Invalid};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Encoder, Proto, Step};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use super::clients::Client;
use super::core::{CommandSeries, Core};
use super::dispatch::{dispatch, refuse_invalid};
use super::drive::{Replies, drive};
use super::finish::finish;
use super::foreign;
use super::get_run::GetRun;
use super::memory::SMALL_BYTES;
use super::output::Output;
use super::pending::Pending;
use super::placed::{Placed, place};
use super::reads::Refusal;
use super::registration::Registration;
use super::remote::{Gathered, Sent};
use super::tables::{Subscribed, Transaction, Watching, hand_on};
use crate::tables::{Gate, Note, Tables};

/// One connection executes so long before others have their turn.
pub(super) const TURN: Duration = Duration::from_millis(5);

/// What came and is not executed yet may have so much room to grow, beside what it has.
const REST_SPARE_BYTES: usize = 128 << 10;

/// What a command may see and change of its connection.
pub(super) struct State {
    pub core: Rc<Core>,
    pub client: Arc<Client>,
    pub proto: Proto,
    pub authenticated: bool,
    /// Answer no more requests and close when all has been sent.
    pub closing: bool,
    pub output: Output,
    /// What the output waits for before it is sent.
    pub gate: Gate,
    pub transaction: Option<Box<Transaction>>,
    /// What WATCH was told.
    pub watching: Option<Box<Watching>>,
    pub subscribed: Option<Box<Subscribed>>,
    /// Requests of this batch for other cores.
    pub gathered: Option<Box<Gathered>>,
    /// Set by the command being executed: whether it failed, the store it is counted under, the
    /// keys it asked for and how many of them were absent.
    pub failed: bool,
    pub series: Option<Rc<CommandSeries>>,
    pub keys: (u64, u64),
}

impl State {
    pub fn new(core: Rc<Core>, client: Arc<Client>, authenticated: bool) -> State {
        State {
            core,
            client,
            proto: Proto::Resp2,
            authenticated,
            closing: false,
            output: Output::default(),
            gate: Gate::default(),
            transaction: None,
            watching: None,
            subscribed: None,
            gathered: None,
            failed: false,
            series: None,
            keys: (0, 0),
        }
    }

    #[inline]
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.output.encoder(self.proto)
    }

    /// This core's part of the tables.
    pub fn tables(&self) -> Rc<Tables> {
        self.core.tables.clone()
    }

    pub fn error(&mut self, code: Code, message: &str) {
        self.failed = true;
        self.core.stats.error_replies.add(code);
        self.encoder().error(code, message);
    }

    pub fn refuse(&mut self, (code, message): Refusal) {
        self.error(code, &message);
    }

    /// Refuses an answer that would be longer than what one client may have.
    pub fn bound_answer(&self) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        match self.output.len() > limits.answer() {
            true => Err(limits.too_long()),
            false => Ok(()),
        }
    }

    /// Whether more replies may be produced before some are taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.output.len() < self.core.output_bytes_max
    }

    /// Whether the connection is subscribed to something and speaks version 2 of the protocol, in which what it is told looks
    /// like a reply.
    pub fn is_told_only(&self) -> bool {
        self.subscribed.is_some() && self.proto == Proto::Resp2
    }

    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.resp3.store(proto == Proto::Resp3, Relaxed);
    }
}

pub(super) struct Session {
    _count: Counted,
    // Before the socket, so that it is dropped first.
    _registration: Registration,
    pub(super) stream: TcpStream,
    pub(super) state: State,
    decoder: Decoder,
    /// Bytes that have been read and not executed: part of a request, or what a full output held up.
    rest: Vec<u8>,
    /// `rest` may hold whole requests.
    held_up: bool,
    pending: Option<Pending>,
    /// The next request waits.
    waits: Waits,
}

/// What a request waits for before it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    No,
    /// Those before it, which other cores execute.
    Gathered,
    /// Until the core is no longer paused.
    Paused,
    /// What other cores have asked of this one: they wait.
    Others,
}

/// One of the core's sessions.
struct Counted(Rc<Core>);

impl Counted {
    fn new(core: &Rc<Core>) -> Counted {
        core.sessions.set(core.sessions.get() + 1);
        Counted(core.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.set(self.0.sessions.get() - 1);
    }
}

enum Event {
    /// So many bytes lie in the core's read buffer.
    Read(usize),
    Sent,
    /// A row changed that the connection wants to be told of.
    Told(Note),
}

/// Serves a connection until it ends.
pub(super) async fn run(core: Rc<Core>, stream: TcpStream, client: Arc<Client>) {
    let registration = Registration {
        clients: core.clients.clone(),
        client,
        stats: core.stats.clone(),
    };
    let authenticated = core.shared.password().is_none();
    let mut session = Session::new(core, stream, registration, authenticated);
    // An error means that the client has gone, and there is nobody to tell.
    let _ = session.serve().await;
}

impl Session {
    fn new(
        core: Rc<Core>,
        stream: TcpStream,
        registration: Registration,
        authenticated: bool,
    ) -> Session {
        let limits = core.limits;
        let decoder = Decoder::new(if authenticated {
            limits
        } else {
            limits.before_password()
        });
        let count = Counted::new(&core);
        let state = State::new(core, registration.client.clone(), authenticated);
        Session {
            _count: count,
            _registration: registration,
            stream,
            state,
            decoder,
            rest: Vec::new(),
            held_up: false,
            pending: None,
            waits: Waits::No,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        loop {
            match poll_fn(|cx| self.poll_event(cx)).await? {
                Event::Read(0) => self.state.closing = true,
                Event::Read(size) => self.execute_read(size),
                Event::Sent if self.held_up && self.state.has_room() => self.execute_rest(),
                Event::Sent => {}
                Event::Told(note) => self.hand_on(note),
            }
            self.end_what_waits().await?;
            self.bound_memory()?;
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

    /// Notes what is kept for the client; ends the connection if that is more than one may have.
    fn bound_memory(&mut self) -> io::Result<()> {
        let bytes = self.note_memory();
        let limits = self.state.core.clients.limits;
        if bytes <= limits.each || self.state.closing {
            return Ok(());
        }
        if let Some(transaction) = &mut self.state.transaction
            && bytes.saturating_sub(transaction.memory_bytes()) <= limits.each
        {
            // Without it the rest is not too much.
            transaction.give_up();
            self.note_memory();
            return Ok(());
        }
        let clients = self.state.core.clients.clone();
        clients.note_too_large(&self.state.client, bytes);
        if self.state.client.output_bytes.load(Relaxed) > limits.each / 2 {
            return Err(io::Error::other("replies that were not taken are too many"));
        }
        (self.rest, self.state.transaction, self.held_up) = (Vec::new(), None, false);
        let message = format!(
            "requests that have not come whole take {bytes} bytes, and server.client_memory allows {}: the connection is closed",
            limits.each
        );
        self.state.error(Code::OutOfMemory, &message);
        self.state.closing = true;
        Ok(())
    }

    /// Notes what is kept for the client, for others to see; says how much that is, if it is not little.
    fn note_memory(&self) -> usize {
        let (state, client) = (&self.state, &self.state.client);
        let input = self.rest.len() + self.decoder.memory_bytes();
        let queued = state.transaction.as_ref().map_or(0, |t| t.memory_bytes());
        let watched = state.watching.as_ref().map_or(0, |w| w.memory_bytes());
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

    /// Waits for what this batch needs before the rest of it can be executed, and executes the rest.
    async fn end_what_waits(&mut self) -> io::Result<()> {
        loop {
            if self.waits == Waits::Others {
                self.waits = Waits::No;
                tokio::task::yield_now().await;
                self.execute_rest();
                continue;
            }
            if self.state.gathered.is_some() {
                self.drain().await?;
            }
            let waits = std::mem::replace(&mut self.waits, Waits::No);
            if waits == Waits::Paused {
                self.state.tables().resumed(None).await;
            }
            if let Some(pending) = self.pending.take() {
                Box::pin(self.end(pending)).await?;
            } else if waits == Waits::No {
                return Ok(());
            }
            self.execute_rest();
        }
    }

    /// Executes a command that waits to its end.
    async fn end(&mut self, mut pending: Pending) -> io::Result<()> {
        let authenticated = self.state.authenticated;
        drive(self, &mut pending).await?;
        pending.finish(&mut self.state);
        if self.state.authenticated != authenticated {
            self.set_limits();
        }
        Ok(())
    }

    /// Sends if there is something to send, else reads into the core's buffer. What was read must
    /// be taken before the next await.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        if !self.state.output.is_empty()
            && let Poll::Ready(sent) = self.poll_send(cx)
        {
            return Poll::Ready(sent.map(|()| Event::Sent));
        }
        if self.state.closing || self.held_up || !self.state.has_room() {
            return Poll::Pending;
        }
        if let Some(subscribed) = &mut self.state.subscribed
            && let Poll::Ready(Some(note)) = subscribed.notes.poll_recv(cx)
        {
            return Poll::Ready(Ok(Event::Told(note)));
        }
        let mut buffer = self.state.core.read_buffer.borrow_mut();
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Event::Read(buffer.filled().len()))),
        }
    }

    /// Tells the client of a change, and of those behind it that it has room for.
    fn hand_on(&mut self, note: Note) {
        let state = &mut self.state;
        if state.output.tail.capacity() == 0 {
            state.output.tail = state.core.take_buffer();
        }
        hand_on(state, &note);
        while state.has_room()
            && let Some(subscribed) = &mut state.subscribed
            && let Ok(note) = subscribed.notes.try_recv()
        {
            hand_on(state, &note);
        }
    }

    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut self.state;
        if !state.gate.is_open() {
            ready!(state.core.tables.poll_gate(&mut state.gate, cx))?;
        }
        let sent = self.state.output.poll_send(&mut self.stream, cx);
        match &sent {
            Poll::Ready(Ok(size)) => {
                self.state.core.stats.bytes_out.add(*size as u64);
                if self.state.client.has_stalled() {
                    self.state.client.goes_on();
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.note_memory();
                if !self.state.client.has_stalled() {
                    self.state.core.clients.stalled(&self.state.client);
                }
            }
        }
        while let Some(buffer) = self.state.output.spent.pop() {
            self.state.core.give_buffer(buffer);
        }
        sent.map_ok(|_| ())
    }

    /// Gives back what a connection without work does not need.
    fn release(&mut self) {
        let output = &mut self.state.output;
        if output.tail.capacity() > 0 {
            self.state
                .core
                .give_buffer(std::mem::take(&mut output.tail));
        }
        if self.rest.is_empty() {
            self.rest = Vec::new();
            self.decoder.release();
        }
    }

    /// Bounds requests as befits a client that has given the password, or has not.
    fn set_limits(&mut self) {
        let limits = self.state.core.limits;
        self.decoder.set_limits(match self.state.authenticated {
            true => limits,
            false => limits.before_password(),
        });
    }

    fn execute_read(&mut self, size: usize) {
        let core = self.state.core.clone();
        core.stats.bytes_in.add(size as u64);
        let buffer = core.read_buffer.borrow();
        let input = &buffer[..size];
        if self.rest.is_empty() {
            let done = self.execute(input);
            self.rest.extend_from_slice(&input[done..]);
        } else {
            self.rest.extend_from_slice(input);
            self.execute_rest();
        }
    }

    fn execute_rest(&mut self) {
        let mut rest = std::mem::take(&mut self.rest);
        let done = self.execute(&rest);
        rest.drain(..done);
        if rest.capacity() > rest.len() * 2 + REST_SPARE_BYTES {
            rest.shrink_to_fit();
        }
        self.rest = rest;
    }

    /// Executes the requests that `input` begins with; returns how many bytes they took.
    fn execute(&mut self, input: &[u8]) -> usize {
        let Session {
            state,
            decoder,
            pending,
            waits,
            ..
        } = self;
        if state.closing || input.is_empty() {
            self.held_up = false;
            return input.len();
        }
        if state.output.tail.capacity() == 0 {
            state.output.tail = state.core.take_buffer();
        }
        let core = state.core.clone();
        let snapshot = core.shared.catalog.load();
        let begun = Instant::now();
        let mut clock = begun;
        core.clients.active(&state.client, clock);
        let mut run = GetRun::new();
        let mut at = 0;
        self.held_up = false;
        loop {
            if !state.has_room() {
                self.held_up = at < input.len();
                break;
            }
            let (left, before) = (&input[at..], at);
            let request = match decoder.decode(left) {
                Ok(Step::Incomplete(_)) => break,
                Ok(Step::Skip(size)) => {
                    at += size;
                    continue;
                }
                Ok(Step::Request(size)) => {
                    at += size;
                    decoder.request(left)
                }
                Err(error) => {
                    run.answer(state, &mut clock);
                    core.stats.protocol_errors.add(1);
                    state.error(Code::BadRequest, &error.to_string());
                    state.closing = true;
                    return input.len();
                }
            };
            let command = Command::parse(request);
            if let Err(Invalid::Unknown | Invalid::Arity(_)) = command
                && foreign::is_http(request, decoder.argument_in(left, 0).is_none())
            {
                run.answer(state, &mut clock);
                foreign::end(state);
                return input.len();
            }
            if command.is_ok_and(|command| command.id() == Id::Get)
                && state.authenticated
                && state.transaction.is_none()
                && state.subscribed.is_none()
                && let Some(key) = decoder.argument_in(left, 1)
            {
                let mut taken = run.take(&snapshot, key);
                if !taken && run.len > 0 {
                    run.answer(state, &mut clock);
                    taken = run.take(&snapshot, key);
                }
                if taken {
                    if run.is_full() {
                        run.answer(state, &mut clock);
                    }
                    continue;
                }
            } else {
                run.answer(state, &mut clock);
            }
            if core.tables.shard().is_some()
                && let Ok(command) = command
            {
                match place(state, &snapshot, command) {
                    Placed::Here => {}
                    Placed::Gathered => continue,
                    Placed::Pending(several) => {
                        *pending = Some(several);
                        return at;
                    }
                    Placed::Waits(why) => {
                        *waits = why;
                        return before;
                    }
                }
            }
            let authenticated = state.authenticated;
            state.failed = false;
            state.series = None;
            state.keys = (0, 0);
            let parts = match (&mut state.gathered, command) {
                (Some(gathered), Ok(command)) if command.writes() => {
                    gathered.parts_with_here(&core.tables)
                }
                _ => None,
            };
            let spec = match command {
                Ok(command) => {
                    *pending = core
                        .tables
                        .in_parts(parts, || dispatch(state, &snapshot, command));
                    Some(command.spec)
                }
                Err(invalid) => {
                    refuse_invalid(state, invalid, request);
                    invalid.spec()
                }
            };
            if let (None, Some(spec)) = (&pending, spec) {
                finish(state, spec, &mut clock, request.args());
                if clock.duration_since(begun) > TURN {
                    // Each command is short, but there are many: others are to have their turn.
                    self.held_up = at < input.len();
                    break;
                }
            }
            if state.authenticated != authenticated {
                let limits = core.limits;
                decoder.set_limits(if state.authenticated {
                    limits
                } else {
                    limits.before_password()
                });
            }
            if state.closing {
                return input.len();
            }
            if pending.is_some() {
                return at;
            }
            if core.tables.shard().is_some() && at < input.len() && core.is_called() {
                *waits = Waits::Others;
                break;
            }
        }
        run.answer(state, &mut clock);
        at
    }

    /// Sends what the batch has for other cores, and puts their replies where they belong.
    async fn drain(&mut self) -> io::Result<()> {
        let Some(gathered) = self.state.gathered.take() else {
            return Ok(());
        };
        self.state.output.has_holes = false;
        let Sent {
            mut incoming,
            holes,
            writes,
            parts,
        } = gathered.send(&self.state);
        let Some(&(first, _)) = holes.first() else {
            return Ok(());
        };
        let late = self.state.output.tail.split_off(first);
        let mut at = first;
        let limits = self.state.core.clients.limits;
        let (mut is_too_long, mut dropped) = (false, Vec::new());
        for (hole, core) in holes {
            let tail = &mut self.state.output.tail;
            tail.extend_from_slice(&late[at - first..hole - first]);
            at = hole;
            let gone = || io::Error::other("a core does not answer");
            let incoming = incoming[core].as_mut().ok_or_else(gone)?;
            loop {
                let tail = &mut self.state.output.tail;
                is_too_long |= tail.len() > limits.each;
                let out = if is_too_long { &mut dropped } else { tail };
                let ended = incoming.next(out).await.ok_or_else(gone)?;
                dropped.clear();
                // Writes are not to wait for their client to take replies.
                if !writes {
                    self.room().await?;
                }
                if ended {
                    break;
                }
            }
        }
        let State {
            output, gate, core, ..
        } = &mut self.state;
        output.tail.extend_from_slice(&late[at - first..]);
        if let Some(parts) = parts {
            core.tables.keep_parts(parts, gate);
        }
        match is_too_long {
            true => Err(io::Error::other("the replies are too long")),
            false => Ok(()),
        }
    }
}

impl Replies for Session {
    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    async fn room(&mut self) -> io::Result<()> {
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
