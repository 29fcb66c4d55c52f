//! Commands that wait for PostgreSQL: a read whose rows are not here is executed again when they are.

use std::time::Instant;

use larder_protocol::commands::{self, Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Request, Step};

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::remote::write_request;
use super::super::session::State;
use super::transaction::{self, Queued};
use crate::catalog::Snapshot;
use crate::tables::Refusal;
use crate::tables::source::{Reply, Wanted, WriteJob};

/// A read that waits for rows.
pub(in crate::resp) struct AgainJob {
    pub command: &'static Command,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
    /// Of another core's transaction, all requests.
    request: Vec<u8>,
    wanted: Wanted,
    how: How,
}

/// How it is executed again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// As it came. EXEC is one of these, and its transaction is the connection's.
    Alone,
    /// To its end.
    Whole,
    /// The requests of a transaction.
    Together,
}

impl AgainJob {
    /// If a command that was refused misses what can be loaded.
    pub(super) fn after_missing(
        state: &State,
        command: &'static Command,
        request: Request<'_>,
        whole: bool,
    ) -> Option<AgainJob> {
        let tables = state.tables();
        if matches!(command.id, Id::MGet | Id::Exists | Id::Touch) {
            // All that it misses is loaded together.
            tables.read(|engine, now| {
                for key in request.args().skip(1) {
                    let _ = tables.complete(engine.get(key, now, &mut |_| {}));
                }
            });
        }
        let wanted = Wanted::take(&tables)?;
        let mut bytes = Vec::new();
        write_request(&mut bytes, request.args());
        Some(AgainJob {
            command,
            started: Instant::now(),
            args: kept_args(&request),
            request: bytes,
            wanted,
            how: if whole { How::Whole } else { How::Alone },
        })
    }

    /// If the reads of another core's transaction miss what can be loaded. `bytes` are all its requests.
    pub(super) fn before_together(
        state: &mut State,
        snapshot: &Snapshot,
        requests: &[Queued],
        bytes: &[u8],
    ) -> Option<AgainJob> {
        state.core.shared.postgres.as_ref()?;
        try_reads(state, snapshot, requests);
        let wanted = Wanted::take(&state.tables())?;
        Some(AgainJob {
            command: commands::find(b"EXEC")?,
            started: Instant::now(),
            args: vec![b"EXEC".to_vec()],
            request: bytes.to_vec(),
            wanted,
            how: How::Together,
        })
    }

    /// Waits for the rows.
    ///
    /// # Errors
    /// Why they cannot come.
    pub async fn load(&self, state: &State) -> Result<(), Refusal> {
        let core = &state.core;
        let postgres = core.shared.postgres.as_ref();
        self.wanted.load(postgres, &core.tables).await
    }

    /// Answers why the rows cannot come.
    pub fn refuse(&self, state: &mut State, refusal: Refusal) {
        if self.command.id == Id::Exec {
            state.transaction = None;
            state.watching = None;
        }
        state.refuse(refusal);
    }

    pub fn request_bytes(&self) -> usize {
        self.request.len()
    }

    /// Executes the command again; what then is still to be done.
    pub fn again(&self, state: &mut State, snapshot: &Snapshot) -> Option<Job> {
        let mut job = match self.how {
            How::Together => transaction::execute_together(state, snapshot, &self.request),
            How::Alone | How::Whole => {
                let mut decoder = Decoder::new(state.core.limits);
                let Ok(Step::Request(_)) = decoder.decode(&self.request) else {
                    return None;
                };
                let request = decoder.request(&self.request);
                match self.how {
                    How::Whole => super::execute_whole(state, snapshot, self.command, request),
                    _ => super::execute(state, snapshot, self.command, request),
                }
            }
        };
        if let Some(Job::Again(next)) = &mut job {
            next.wanted.follows(&self.wanted);
            next.started = self.started;
        }
        job
    }

    /// What it misses went while the cores were paused for it, and is not waited for then.
    pub fn refuse_paused(&self, state: &mut State) {
        let message =
            "rows of PostgreSQL that the command reads went just before it began; send it again";
        self.refuse(state, (Code::Source, message.to_owned()));
    }
}

/// Executes a write in PostgreSQL and answers it.
pub(in crate::resp) async fn run_write(state: &mut State, write: &WriteJob) {
    let shared = state.core.shared.clone();
    let Some(postgres) = &shared.postgres else {
        return;
    };
    match write.run(postgres).await {
        Ok(Reply::Ok) => state.encoder().ok(),
        Ok(Reply::Null) => state.encoder().null(),
        Ok(Reply::Number(number)) => state.encoder().integer(number),
        Err(refusal) => state.refuse(refusal),
    }
}

/// EXEC executes all at once, so what its reads miss is loaded before.
pub(super) fn before_exec(
    state: &mut State,
    snapshot: &Snapshot,
    command: &'static Command,
    request: Request<'_>,
) -> Option<Job> {
    if command.id != Id::Exec || state.core.shared.postgres.is_none() {
        return None;
    }
    let transaction = state.transaction.take()?;
    try_reads(state, snapshot, transaction.requests());
    state.transaction = Some(transaction);
    AgainJob::after_missing(state, command, request, false).map(Job::Again)
}

/// Tries the reads of a transaction, for what they miss alone.
fn try_reads(state: &mut State, snapshot: &Snapshot, requests: &[Queued]) {
    let mark = state.output.mark();
    state.core.tables.forget_needs();
    for Queued { command, bytes, .. } in requests {
        let mut decoder = Decoder::new(state.core.limits);
        if command.has_flag("write") || !matches!(decoder.decode(bytes), Ok(Step::Request(_))) {
            continue;
        }
        let request = decoder.request(bytes);
        if !super::is_of_tables(snapshot, command, request) {
            continue;
        }
        let _ = super::at_once(state, snapshot, command, request, true);
        state.output.rewind(mark);
    }
}
