//! Commands that wait for PostgreSQL: a read whose rows are not here is executed again when they are.

use std::time::Instant;

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::session::State;
use super::transaction;
use crate::catalog::Snapshot;
use crate::tables::Refusal;
use crate::tables::source::{Reply, Wanted, WriteJob};

/// A read that waits for rows.
pub(in crate::resp) struct AgainJob {
    pub command: Id,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
    wanted: Wanted,
    what: What,
}

/// What is executed again.
enum What {
    /// As it came. EXEC is one of these, and its transaction is the connection's.
    Alone(OwnedCommand),
    /// To its end.
    Whole(OwnedCommand),
    /// The commands of another core's transaction.
    Together(Batch),
}

impl AgainJob {
    /// If a command that was refused misses what can be loaded.
    pub(super) fn after_missing(
        state: &State,
        command: Command<'_>,
        whole: bool,
    ) -> Option<AgainJob> {
        let tables = state.tables();
        if command.spec.reads_every_key() {
            // All that it misses is loaded together.
            tables.read(|engine, now| {
                for key in command.keys() {
                    let _ = tables.complete(engine.get(key, now, &mut |_| {}));
                }
            });
        }
        let wanted = Wanted::take(&tables)?;
        Some(AgainJob {
            command: command.id(),
            started: Instant::now(),
            args: kept_args(&command.request),
            wanted,
            what: match whole {
                true => What::Whole(command.owned()),
                false => What::Alone(command.owned()),
            },
        })
    }

    /// For the commands of another core's transaction, whose reads miss what can be loaded.
    pub(super) fn before_together(batch: Batch, wanted: Wanted) -> AgainJob {
        AgainJob {
            command: Id::Exec,
            started: Instant::now(),
            args: vec![b"EXEC".to_vec()],
            wanted,
            what: What::Together(batch),
        }
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
        if self.command == Id::Exec {
            state.transaction = None;
            state.watching = None;
        }
        state.refuse(refusal);
    }

    pub fn request_bytes(&self) -> usize {
        match &self.what {
            What::Alone(command) | What::Whole(command) => command.memory_bytes(),
            What::Together(batch) => batch.memory_bytes(),
        }
    }

    /// Executes the command again; what then is still to be done.
    pub fn again(&mut self, state: &mut State, snapshot: &Snapshot) -> Option<Job> {
        let mut job = match &mut self.what {
            What::Alone(command) => super::execute(state, snapshot, command.command()),
            What::Whole(command) => super::execute_whole(state, snapshot, command.command()),
            What::Together(batch) => {
                transaction::execute_together(state, snapshot, std::mem::take(batch))
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
    command: Command<'_>,
) -> Option<Job> {
    if command.id() != Id::Exec {
        return None;
    }
    let transaction = state.transaction.take()?;
    let requests = transaction.requests().iter();
    let wanted = wanted_by_reads(
        state,
        snapshot,
        requests.map(|queued| queued.command.command()),
    );
    state.transaction = Some(transaction);
    Some(Job::Again(AgainJob {
        command: command.id(),
        started: Instant::now(),
        args: kept_args(&command.request),
        wanted: wanted?,
        what: What::Alone(command.owned()),
    }))
}

/// What the reads of a transaction miss that can be loaded. They are tried for that alone.
pub(super) fn wanted_by_reads<'c>(
    state: &mut State,
    snapshot: &Snapshot,
    commands: impl Iterator<Item = Command<'c>>,
) -> Option<Wanted> {
    state.core.shared.postgres.as_ref()?;
    let mark = state.output.mark();
    state.core.tables.forget_needs();
    for command in commands {
        if command.writes() || !super::is_of_tables(snapshot, command) {
            continue;
        }
        let _ = super::at_once(state, snapshot, command, true);
        state.output.rewind(mark);
    }
    Wanted::take(&state.core.tables)
}
