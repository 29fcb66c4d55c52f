//! Commands that wait for PostgreSQL: a read whose rows are not here is executed again when they are.

use std::time::Instant;

use larder_protocol::commands::{Command, Id};
use larder_protocol::resp::{Decoder, Request, Step};

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::remote::write_request;
use super::super::session::State;
use crate::catalog::Snapshot;
use crate::tables::source::{Reply, Wanted, WriteJob};

/// A read that waits for rows.
pub(in crate::resp) struct AgainJob {
    pub command: &'static Command,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
    request: Vec<u8>,
    wanted: Wanted,
}

impl AgainJob {
    /// If a command that was refused misses what can be loaded.
    pub(super) fn after_missing(
        state: &State,
        command: &'static Command,
        request: Request<'_>,
    ) -> Option<AgainJob> {
        let tables = state.tables();
        if matches!(command.id, Id::MGet | Id::Exists) {
            // All that it misses is loaded together.
            tables.read(|engine, now| {
                for key in request.args().skip(1) {
                    let _ = engine.get(key, now, &mut |_| {});
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
        })
    }

    /// Waits for the rows and executes the command, until it misses nothing. A job may be left to do then.
    pub(in crate::resp) async fn run(&mut self, state: &mut State) -> Option<Job> {
        let AgainJob {
            command,
            request,
            wanted,
            ..
        } = self;
        let command = *command;
        let shared = state.core.shared.clone();
        loop {
            if let Err(refusal) = wanted.load(shared.postgres.as_ref()).await {
                if command.id == Id::Exec {
                    state.transaction = None;
                }
                state.refuse(refusal);
                return None;
            }
            let mut decoder = Decoder::new(state.core.limits);
            let Ok(Step::Request(_)) = decoder.decode(request) else {
                return None;
            };
            let snapshot = shared.catalog.load();
            let request = decoder.request(request);
            match super::execute(state, &snapshot, command, request) {
                Some(Job::Again(again)) => *wanted = again.wanted.after(wanted.rounds()),
                other => return other,
            }
        }
    }
}

/// Executes a write in PostgreSQL and answers it.
pub(in crate::resp) async fn run_write(state: &mut State, write: &WriteJob) {
    let (shared, tables) = (state.core.shared.clone(), state.tables());
    let Some(postgres) = &shared.postgres else {
        return;
    };
    match write.run(postgres, &tables, &mut state.gate).await {
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
    let mark = state.output.mark();
    for (command, bytes) in transaction.requests() {
        let mut decoder = Decoder::new(state.core.limits);
        if command.has_flag("write") || !matches!(decoder.decode(bytes), Ok(Step::Request(_))) {
            continue;
        }
        // Only what it misses matters.
        let _ = super::at_once(state, snapshot, command, decoder.request(bytes), true);
        state.output.rewind(mark);
    }
    state.transaction = Some(transaction);
    AgainJob::after_missing(state, command, request).map(Job::Again)
}
