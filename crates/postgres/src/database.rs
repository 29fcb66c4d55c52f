//! The database from the viewpoint of the server: a thread that maintains a connection to PostgreSQL for the lifetime
//! of the server.
//!
//! ```text
//!            ┌─────────────── back off ◄─────── error ───────────────┐
//!            ▼                                                       │
//!  connect: check the database, create the slot, start the stream ───┴─► session: stream, loads, writes
//!            ▲                                                                    │
//!            └──────────────────── the connection was lost ◄──────────────────────┘
//! ```
//!
//! 1. Events are emitted in one order, and the receiver applies them in that order. The rows here are therefore the
//!    state of PostgreSQL at one position of its log (see `merge`).
//! 2. Without the slot that sent the changes since, rows cannot be kept. They are discarded before the next stream
//!    starts, and before they are older than `stale` allows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use larder_types::KeyRange;

use crate::changes::Change;
use crate::connect::{Address, Pool};
use crate::error::Error;
use crate::mapping::Mapping;
use crate::merge::Row;
use crate::session::{End, Session};
use crate::snapshot::Lsn;
use crate::sql::Write;
use crate::stats::{Credit, Stats};
use crate::verify::Verified;
use crate::work::Written;

/// Maximum time that requests wait for the stream after the start, or after a stream was abandoned for a new one. Later
/// requests are rejected.
const CONNECT_GRACE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The configuration of the thread.
#[derive(Debug, Clone)]
pub struct Options {
    pub address: Address,
    pub publication: String,
    /// The name of a slot that outlives a lost connection.
    pub permanent_slot: Option<String>,
    pub connections: u32,
    pub load_rows_max: u64,
    /// A transaction of at most this many changes is passed on in one [`Event::Apply`].
    pub atomic_changes_max: u64,
    pub silence_timeout: Duration,
    pub stale: Duration,
    pub mappings: Vec<Mapping>,
}

/// The channel on which a caller waits for its result.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// An action for the holder of the rows. Actions must be performed in order.
pub enum Event {
    /// Supply all rows of these ranges to the core that requested them, then notify `done`.
    Supply {
        core: usize,
        ranges: Vec<KeyRange>,
        rows: Vec<Row>,
        done: Vec<Reply<()>>,
    },
    /// Apply all changes of one transaction, or a part of them if it has more than `atomic_changes_max`. Drop the
    /// credit once they are applied.
    Apply {
        changes: Vec<Change>,
        credit: Credit,
    },
    /// A write and everything before it has been applied: notify its writer.
    WriteVisible {
        written: Written,
        done: Reply<Written>,
    },
    /// Discard these ranges, because their rows may be outdated.
    Forget { ranges: Vec<KeyRange> },
}

pub type Sink = Box<dyn Fn(Event) + Send>;

pub(crate) enum Request {
    Load {
        core: usize,
        ranges: Vec<KeyRange>,
        done: Reply<()>,
    },
    Write {
        write: Write,
        done: Reply<Written>,
    },
}

impl Request {
    pub(crate) fn fail(self, error: &Error) {
        // The requester may have stopped waiting.
        match self {
            Request::Load { done, .. } => drop(done.send(Err(error.clone()))),
            Request::Write { done, .. } => drop(done.send(Err(error.clone()))),
        }
    }
}

/// A handle to the running thread, for loads and writes.
pub struct Database {
    requests: mpsc::UnboundedSender<Request>,
    stopping: tokio::sync::watch::Sender<bool>,
    stats: Arc<Stats>,
}

impl Database {
    /// Starts the thread, which calls `sink`.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn spawn(
        options: Options,
        sink: Sink,
    ) -> std::io::Result<(Database, std::thread::JoinHandle<()>)> {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (stopping, stop) = tokio::sync::watch::channel(false);
        let stats = Arc::new(Stats::default());
        stats.set_state("connecting", false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let driver = Driver {
            pool: Arc::new(Pool::new(options.address.clone(), options.connections)),
            options: Arc::new(options),
            sink,
            stats: stats.clone(),
            requests: receiver,
            resume_point: None,
            pending: Vec::new(),
            grace_until: Instant::now() + CONNECT_GRACE,
            lost_at: None,
            failure: None,
        };
        let thread = std::thread::Builder::new().name("postgres".to_owned());
        let thread = thread.spawn(move || runtime.block_on(driver.run(stop)))?;
        let database = Database {
            requests,
            stopping,
            stats,
        };
        Ok((database, thread))
    }

    /// Loads ranges of mapped tables for one core. Returns once they have been supplied.
    ///
    /// # Errors
    /// The reason why they were not supplied.
    pub async fn load(&self, core: usize, ranges: Vec<KeyRange>) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let request = Request::Load { core, ranges, done };
        self.submit(request, answer).await
    }

    /// Writes to PostgreSQL. Returns once the change has arrived through the stream.
    ///
    /// # Errors
    /// The write was not executed, or its outcome is unknown.
    pub async fn write(&self, write: Write) -> Result<Written, Error> {
        let (done, answer) = oneshot::channel();
        self.submit(Request::Write { write, done }, answer).await
    }

    async fn submit<T>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let stopping = || Error::Unreachable("larder is stopping".to_owned());
        self.requests.send(request).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Stops the thread.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

/// The position of a permanent slot's stream when its connection was lost, with the database and the result of its
/// check at that time.
#[derive(Debug, Clone)]
pub(crate) struct ResumePoint {
    pub system: (String, u32),
    pub position: Lsn,
    pub verified: Verified,
}

struct Driver {
    options: Arc<Options>,
    pool: Arc<Pool>,
    sink: Sink,
    stats: Arc<Stats>,
    requests: mpsc::UnboundedReceiver<Request>,
    resume_point: Option<ResumePoint>,
    /// Requests that wait for the stream, until `grace_until`.
    pending: Vec<Request>,
    grace_until: Instant,
    /// The time since which the rows in memory are no longer kept up to date.
    lost_at: Option<Instant>,
    failure: Option<Error>,
}

impl Driver {
    async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) {
        tokio::select! {
            () = self.run_sessions() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        if let Some(slot) = self.stats.creating() {
            let ending = crate::slot::end_creation(&self.pool, &slot);
            let _ = tokio::time::timeout(Duration::from_secs(2), ending).await;
        }
        // The streamed changes are useless after a restart, and the slot would make PostgreSQL retain them.
        if let Some(slot) = &self.options.permanent_slot {
            let dropping = async {
                // The connection that was just closed may still hold the slot for a moment.
                while crate::slot::drop_own(&self.pool, slot).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            if tokio::time::timeout(Duration::from_secs(2), dropping)
                .await
                .is_err()
            {
                tracing::warn!(
                    slot,
                    "the replication slot could not be dropped; PostgreSQL retains its log until the slot is dropped"
                );
            }
        }
        self.stats.set_state("stopped", false);
    }

    async fn run_sessions(&mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            match self.connect().await {
                Err(error) => {
                    if self.failure.as_ref() != Some(&error) {
                        tracing::error!(%error, "tables of PostgreSQL cannot be loaded or followed");
                        self.stats.set_state(error.message(), false);
                    }
                    for request in self.pending.drain(..) {
                        request.fail(&error);
                    }
                    // Waiting is useless here: the next read returns the error with the required correction.
                    if matches!(error, Error::Setup(_)) && self.lost_at.is_some() {
                        self.invalidate_all();
                    }
                    self.failure = Some(error);
                    self.wait(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
                Ok(session) => {
                    backoff = BACKOFF_MIN;
                    self.serve(session).await;
                }
            }
        }
    }

    /// Opens a connection, and answers requests meanwhile.
    async fn connect(&mut self) -> Result<Session, Error> {
        let connecting = Session::connect(
            self.options.clone(),
            self.pool.clone(),
            self.stats.clone(),
            self.resume_point.clone(),
        );
        let mut connecting = std::pin::pin!(connecting);
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                Some(request) = self.requests.recv() => self.enqueue(request),
                _ = tick.tick() => self.check_deadlines(),
            }
        }
    }

    async fn wait(&mut self, time: Duration) {
        let mut waiting = std::pin::pin!(tokio::time::sleep(time));
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                () = &mut waiting => return,
                Some(request) = self.requests.recv() => self.enqueue(request),
                _ = tick.tick() => self.check_deadlines(),
            }
        }
    }

    /// Handles a request while there is no stream.
    fn enqueue(&mut self, request: Request) {
        match &self.failure {
            Some(failure) => request.fail(failure),
            None if Instant::now() < self.grace_until => self.pending.push(request),
            None => request.fail(&self.not_connected_error()),
        }
    }

    fn not_connected_error(&self) -> Error {
        Error::Unreachable(format!(
            "PostgreSQL is not followed yet: {}",
            self.stats.state()
        ))
    }

    fn check_deadlines(&mut self) {
        if self
            .lost_at
            .is_some_and(|at| at.elapsed() >= self.options.stale)
        {
            tracing::warn!("rows of PostgreSQL's tables are outdated and are no longer served");
            self.invalidate_all();
        }
        if Instant::now() >= self.grace_until {
            let error = self.not_connected_error();
            self.pending
                .drain(..)
                .for_each(|request| request.fail(&error));
        }
    }

    /// Discards all rows (invariant 2).
    fn invalidate_all(&mut self) {
        self.lost_at = None;
        self.resume_point = None;
        Stats::add(&self.stats.forgotten, 1);
        let mappings = self.options.mappings.iter();
        let ranges = mappings.map(|mapping| KeyRange::prefix(&mapping.prefix));
        (self.sink)(Event::Forget {
            ranges: ranges.collect(),
        });
    }

    async fn serve(&mut self, mut session: Session) {
        if !session.is_resumed() {
            if self.lost_at.is_some() {
                self.invalidate_all();
            }
            Stats::set(&self.stats.settling, 0);
        }
        self.lost_at = None;
        if self.failure.take().is_some() {
            tracing::info!("tables of PostgreSQL are followed again");
        }
        self.stats.set_state("streaming", true);
        for request in self.pending.drain(..) {
            session.request(request);
        }
        let End {
            error,
            resume_point,
            needs_new_stream,
        } = session.run(&mut self.requests, &*self.sink).await;
        self.stats.set_state(error.message(), false);
        self.lost_at = Some(Instant::now());
        self.resume_point = resume_point;
        if matches!(error, Error::Setup(_)) {
            self.invalidate_all();
        }
        if needs_new_stream {
            tracing::info!(reason = %error, "a new stream of changes from PostgreSQL begins");
            self.grace_until = Instant::now() + CONNECT_GRACE;
            return;
        }
        tracing::warn!(%error, "the stream of changes from PostgreSQL has ended; it is restarted");
        Stats::add(&self.stats.connections_lost, 1);
        self.pool.clear();
        self.failure = Some(error);
        self.check_deadlines();
    }
}
