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
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_protocol::commands::{self, Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Encoder, Proto, Request, Step};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use super::clients::Client;
use super::core::{CommandSeries, Core};
use super::dispatch::{Job, dispatch};
use super::moved::{Moved, OWNER, Registration};
use super::output::Output;
use super::reads::{Need, Refusal, get_run, is_hooked, resolve, together};
use super::tables::{self, Transaction};
use crate::catalog::{LiveStore, Snapshot};
use crate::stats::SlowEntry;
use crate::tables::{Gate, Message, Tables};

/// GETs that are answered together.
const RUN_MAX: usize = 32;
/// What Redis keeps of a slow command.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;

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
    /// Set by the command being executed: whether it failed, the store it is counted under, the
    /// keys it asked for and how many of them were absent.
    pub failed: bool,
    pub series: Option<Rc<CommandSeries>>,
    pub keys: (u64, u64),
}

impl State {
    #[inline]
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.output.encoder(self.proto)
    }

    /// The tables, on the core that owns them; commands on them are executed nowhere else.
    pub fn tables(&self) -> Rc<Tables> {
        let tables = self.core.tables.as_ref();
        tables.expect("a connection moves before").clone()
    }

    pub fn error(&mut self, code: Code, message: &str) {
        self.failed = true;
        self.encoder().error(code, message);
    }

    pub fn refuse(&mut self, (code, message): Refusal) {
        self.error(code, &message);
    }

    /// Whether more replies may be produced before some are taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.output.len() < self.core.output_bytes_max
    }

    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.resp3.store(proto == Proto::Resp3, Relaxed);
    }
}

struct Session {
    _count: Counted,
    // Before the socket, so that it is dropped first.
    registration: Registration,
    stream: TcpStream,
    state: State,
    decoder: Decoder,
    /// Bytes that have been read and not executed: part of a request, or what a full output held up.
    rest: Vec<u8>,
    /// `rest` may hold whole requests.
    held_up: bool,
    job: Option<Job>,
    /// The next request is for the core that owns the tables.
    moves: bool,
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
}

/// Serves a connection until it ends, or moves.
pub(super) async fn run(core: Rc<Core>, stream: TcpStream, client: Arc<Client>) {
    let registration = Registration {
        clients: core.clients.clone(),
        client,
        stats: core.stats.clone(),
    };
    let authenticated = core.shared.password().is_none();
    let session = Session::new(core, stream, registration, authenticated);
    session.run().await;
}

/// Serves a connection that comes from another core.
pub(super) async fn resume(core: Rc<Core>, moved: Moved) {
    let Moved {
        registration,
        stream,
        proto,
        authenticated,
        rest,
    } = moved;
    // An error means that the runtime is ending, and the connection with it.
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    let mut session = Session::new(core, stream, registration, authenticated);
    session.state.proto = proto;
    session.rest = rest;
    session.run().await;
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
        let state = State {
            core,
            client: registration.client.clone(),
            proto: Proto::Resp2,
            authenticated,
            closing: false,
            output: Output::default(),
            gate: Gate::default(),
            transaction: None,
            failed: false,
            series: None,
            keys: (0, 0),
        };
        Session {
            _count: count,
            registration,
            stream,
            state,
            decoder,
            rest: Vec::new(),
            held_up: false,
            job: None,
            moves: false,
        }
    }

    async fn run(mut self) {
        // An error means that the client has gone, and there is nobody to tell.
        if self.serve().await.is_ok() && self.moves {
            self.hand_over();
        }
    }

    /// Sends the connection to the core that owns the tables.
    fn hand_over(self) {
        let Session {
            registration,
            stream,
            state,
            rest,
            ..
        } = self;
        registration.client.core.store(OWNER, Relaxed);
        let Ok(stream) = stream.into_std() else {
            return;
        };
        state.core.shared.tables.send(Message::Connection(Moved {
            registration,
            stream,
            proto: state.proto,
            authenticated: state.authenticated,
            rest,
        }));
    }

    async fn serve(&mut self) -> io::Result<()> {
        let mut resumed = !self.rest.is_empty();
        loop {
            if std::mem::take(&mut resumed) {
                self.execute_rest();
            } else {
                match poll_fn(|cx| self.poll_event(cx)).await? {
                    Event::Read(0) => self.state.closing = true,
                    Event::Read(size) => self.execute_read(size),
                    Event::Sent if self.held_up && self.state.has_room() => self.execute_rest(),
                    Event::Sent => {}
                }
            }
            while let Some(job) = self.job.take() {
                Box::pin(self.drive(job)).await?;
                self.execute_rest();
            }
            if self.moves {
                while !self.state.output.is_empty() {
                    poll_fn(|cx| self.poll_send(cx)).await?;
                }
                return Ok(());
            }
            let pending = self.state.output.len();
            self.state
                .client
                .output_bytes
                .store(u32::try_from(pending).unwrap_or(u32::MAX), Relaxed);
            if pending == 0 {
                if self.state.closing {
                    return Ok(());
                }
                self.release();
            } else if !self.state.closing {
                tokio::task::yield_now().await;
            }
        }
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
        let mut buffer = self.state.core.read_buffer.borrow_mut();
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Event::Read(buffer.filled().len()))),
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut self.state;
        if !state.gate.is_open()
            && let Some(tables) = &state.core.tables
        {
            ready!(tables.poll_gate(&mut state.gate, cx))?;
        }
        let sent = self.state.output.poll_send(&mut self.stream, cx);
        if let Poll::Ready(Ok(size)) = &sent {
            self.state.core.stats.bytes_out.add(*size as u64);
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
        self.rest = rest;
    }

    /// Executes the requests that `input` begins with; returns how many bytes they took.
    fn execute(&mut self, input: &[u8]) -> usize {
        let Session {
            state,
            decoder,
            job,
            moves,
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
        let mut clock = Instant::now();
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
            let command = commands::find(request.arg(0));
            if let Some(Command { id: Id::Get, .. }) = command
                && request.len() == 2
                && state.authenticated
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
            if state.core.tables.is_none()
                && state.authenticated
                && let Some(command) = command
                && command.accepts(request.len())
                && tables::concerns(state, &snapshot, command, request)
            {
                *moves = true;
                return before;
            }
            let authenticated = state.authenticated;
            state.failed = false;
            state.series = None;
            state.keys = (0, 0);
            *job = dispatch(state, &snapshot, command, request);
            if let (None, Some(command)) = (&job, command) {
                finish(state, command, &mut clock, request.args());
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
            if job.is_some() {
                return at;
            }
        }
        run.answer(state, &mut clock);
        at
    }

    /// Executes a job to its end, while other connections of the core go on.
    async fn drive(&mut self, mut job: Job) -> io::Result<()> {
        let state = &mut self.state;
        state.failed = false;
        state.keys = (0, 0);
        let Some(command) = commands::COMMANDS
            .iter()
            .find(|row| row.id == job.command())
        else {
            return Ok(());
        };
        let args = job.args();
        let mut clock = job.started();
        match &mut job {
            Job::Scan(scan) => scan.run(state).await,
            Job::Room(_) => state.tables().room().await,
            Job::Range(range) => loop {
                while !self.state.has_room() {
                    poll_fn(|cx| self.poll_send(cx)).await?;
                }
                if range.advance(&mut self.state) {
                    break;
                }
                tokio::task::yield_now().await;
            },
            Job::Read(read) => loop {
                match read.advance(&mut self.state) {
                    Need::Nothing => break,
                    Need::Room => {
                        read.reply_has_left();
                        while !self.state.has_room() {
                            poll_fn(|cx| self.poll_send(cx)).await?;
                        }
                    }
                    Need::Disk => {
                        let reads = read.start_reads();
                        self.state.core.stats.disk_reads.add(reads.len() as u64);
                        // Replies that are ready need not wait for the disk.
                        read.reply_has_left();
                        while !self.state.output.is_empty() {
                            poll_fn(|cx| self.poll_send(cx)).await?;
                        }
                        for disk_read in reads {
                            let found = disk_read.await.map_err(io::Error::other)?;
                            read.deliver(&mut self.state, found);
                        }
                    }
                }
            },
        }
        let state = &mut self.state;
        finish(state, command, &mut clock, args.iter().map(Vec::as_slice));
        Ok(())
    }
}

/// Counts a command that has been executed.
fn finish<'a>(
    state: &mut State,
    command: &'static Command,
    clock: &mut Instant,
    args: impl Iterator<Item = &'a [u8]>,
) {
    let now = Instant::now();
    let took = now - std::mem::replace(clock, now);
    let core = &state.core;
    let series = match &state.series {
        Some(store) => store.of(&core.stats, command.id),
        None => core.plain_series(command),
    };
    series.record(1, took);
    series.record_keys(state.keys.0, state.keys.1);
    if state.failed {
        series.record_error();
    }
    state.client.set_last_command(command.id as usize);
    if core.shared.stats.is_slow(took) {
        record_slow(state, took, args);
    }
}

#[cold]
fn record_slow<'a>(state: &State, took: Duration, args: impl Iterator<Item = &'a [u8]>) {
    let shorten = |arg: &[u8]| match arg.get(..SLOW_ARG_BYTES_MAX) {
        None => arg.to_vec(),
        Some(kept) => {
            let more = format!("... ({} more bytes)", arg.len() - SLOW_ARG_BYTES_MAX);
            [kept, more.as_bytes()].concat()
        }
    };
    let mut shown: Vec<Vec<u8>> = args.take(SLOW_ARGS_MAX).map(shorten).collect();
    // A password is not written down anywhere.
    if shown.first().is_some_and(|name| {
        name.eq_ignore_ascii_case(b"AUTH") || name.eq_ignore_ascii_case(b"HELLO")
    }) {
        shown.truncate(1);
    }
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    state.core.shared.stats.record_slow(SlowEntry {
        id: 0,
        at,
        took,
        args: shown,
        client_addr: state.client.addr.to_string(),
        client_name: state.client.names().name,
    });
}

/// Consecutive GETs of one store that is in memory, gathered so that their lookups overlap.
struct GetRun<'s, 'i> {
    live: Option<&'s Arc<LiveStore>>,
    /// The store's name and the colon.
    prefix: &'i [u8],
    series: Option<Rc<CommandSeries>>,
    keys: [&'i [u8]; RUN_MAX],
    len: usize,
    len_max: usize,
}

impl<'s, 'i> GetRun<'s, 'i> {
    fn new() -> GetRun<'s, 'i> {
        GetRun {
            live: None,
            prefix: &[],
            series: None,
            len_max: RUN_MAX,
            keys: [&[]; RUN_MAX],
            len: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.len == self.len_max
    }

    /// Adds a key, if it belongs to the run's store or begins a run. The run must not be full.
    #[inline]
    fn take(&mut self, snapshot: &'s Snapshot, redis_key: &'i [u8]) -> bool {
        if self.live.is_some()
            && let Some(key) = redis_key.strip_prefix(self.prefix)
            && !key.is_empty()
            && !is_hooked(key)
        {
            self.keys[self.len] = key;
            self.len += 1;
            return true;
        }
        if self.len > 0 {
            return false;
        }
        self.live = None;
        let Ok((live, key)) = resolve(snapshot, redis_key) else {
            return false;
        };
        let apart = !live.version.is_resident() || live.has_large_values();
        if key.is_empty() || apart || is_hooked(key) {
            return false;
        }
        self.live = Some(live);
        self.prefix = &redis_key[..redis_key.len() - key.len()];
        self.series = None;
        self.len_max = together(live, RUN_MAX);
        self.keys[0] = key;
        self.len = 1;
        true
    }

    /// Answers what has been gathered.
    #[inline]
    fn answer(&mut self, state: &mut State, clock: &mut Instant) {
        let Some(live) = self.live else { return };
        if self.len == 0 {
            return;
        }
        let keys = &self.keys[..std::mem::take(&mut self.len)];
        let (absent, intact) = get_run(state, live, keys);
        let now = Instant::now();
        let took = now - std::mem::replace(clock, now);
        let core = &state.core;
        let store = self
            .series
            .get_or_insert_with(|| core.store_series(live.name.as_str()));
        let series = store.of(&core.stats, Id::Get);
        series.record(keys.len() as u64, took);
        series.record_keys(keys.len() as u64, absent);
        if !intact {
            series.record_error();
        }
        state.client.set_last_command(Id::Get as usize);
        if core.shared.stats.is_slow(took) {
            let redis_key = [self.prefix, keys[0]].concat();
            record_slow(state, took, [&b"GET"[..], &redis_key].into_iter());
        }
    }
}

/// The arguments as they are kept for the slow log.
pub(super) fn kept_args(request: &Request<'_>) -> Vec<Vec<u8>> {
    request
        .args()
        .take(SLOW_ARGS_MAX)
        .map(|arg| arg[..arg.len().min(SLOW_ARG_BYTES_MAX + 1)].to_vec())
        .collect()
}
