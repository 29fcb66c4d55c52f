//! Commands that need missing data: rows of other cores or of PostgreSQL, or further steps of a computation. They wait
//! for it and are executed again.

use larder_join::{Needs, ReadOutcome};
use larder_protocol::commands::{Batch, Command};
use larder_protocol::errors::Code;
use larder_types::text_row;

use super::super::pending::Work;
use super::super::place::place_of;
use super::super::state::State;
use super::super::subject::About;
use super::coordinate::SeveralCores;
use super::route::{To, is_of_every_core};
use super::{execute, transaction};
use crate::catalog::Snapshot;
use crate::tables::postgres::RangeLoad;
use crate::tables::{Awaited, Refusal, Unanswered};

/// Maximum number of attempts. Data is evicted while the command waits for the rest only if far too little memory is
/// available.
const TRIES_MAX: u32 = 10_000;
/// Maximum number of deferrals. A computed result is evicted before it is read only if far too little memory is
/// available, or if its sources change faster than it is computed. After this many deferrals, it is computed in one
/// step.
const DEFERRALS_MAX: u32 = 16;

/// A command that waits for missing data and is then executed again.
pub(in crate::resp) struct Retry {
    blocker: Blocker,
    retried: Retried,
    tries: u32,
    /// Number of attempts that were deferred.
    deferrals: u32,
}

/// The data that the command waits for.
enum Blocker {
    Engines(Awaited),
    /// Rows of PostgreSQL.
    Postgres(RangeLoad),
}

/// The work to execute again.
enum Retried {
    /// The command, in one step (`whole`) or in several turns if it is long.
    Command { whole: bool },
    /// EXEC, with the connection's transaction.
    Exec,
    /// The commands of another core's transaction.
    Transaction(Batch),
}

impl Retry {
    fn new(blocker: Blocker, retried: Retried) -> Retry {
        Retry {
            blocker,
            retried,
            tries: 0,
            deferrals: 0,
        }
    }

    pub(super) fn awaiting(awaited: Awaited, whole: bool) -> Work {
        Work::Retry(Retry::new(
            Blocker::Engines(awaited),
            Retried::Command { whole },
        ))
    }

    /// Creates the job for a command that needs missing data.
    ///
    /// # Errors
    /// The data cannot be waited for.
    pub(super) fn for_needs(
        state: &State,
        command: Command<'_>,
        mut needs: Box<Needs>,
        whole: bool,
    ) -> Result<Work, Unanswered> {
        let tables = state.tables();
        if let Some(awaited) = tables.request_needed(&mut needs) {
            return Ok(Retry::awaiting(awaited, whole));
        }
        if command.writes() {
            return Err(Unanswered::Needs(needs));
        }
        if command.spec.reads_every_key() {
            // Everything that the command needs is loaded together.
            tables.read(|engine, now| {
                for key in command.keys() {
                    if let Ok(ReadOutcome::Needs(more)) =
                        engine.get(&text_row(key), now, &mut |_| {})
                    {
                        needs.add(*more);
                    }
                }
            });
        }
        let Some(wanted) = RangeLoad::of(&mut needs) else {
            return Err(Unanswered::Needs(needs));
        };
        let retried = Retried::Command { whole };
        Ok(Work::Retry(Retry::new(Blocker::Postgres(wanted), retried)))
    }

    /// Creates the job for EXEC on the connection's core, which waits before it starts.
    pub(super) fn exec_awaiting(awaited: Awaited) -> Work {
        Work::Retry(Retry::new(Blocker::Engines(awaited), Retried::Exec))
    }

    /// Loads the data that the reads of an EXEC need before it starts, because EXEC executes its commands in one step.
    pub(super) fn before_exec(state: &mut State, snapshot: &Snapshot) -> Option<Work> {
        let transaction = state.transaction.take()?;
        let requests = transaction.requests().iter();
        let commands = requests.map(|queued| queued.command.command());
        let wanted = load_for_reads(state, snapshot, commands);
        state.transaction = Some(transaction);
        Some(Work::Retry(Retry::new(
            Blocker::Postgres(wanted?),
            Retried::Exec,
        )))
    }

    /// Creates the job for the commands of another core's transaction, which wait before they start.
    pub(super) fn batch_awaiting(awaited: Awaited, batch: Batch) -> Work {
        Work::Retry(Retry::new(
            Blocker::Engines(awaited),
            Retried::Transaction(batch),
        ))
    }

    /// As [`Retry::batch_awaiting`], for rows of PostgreSQL that their reads need.
    pub(super) fn batch_loading(wanted: RangeLoad, batch: Batch) -> Work {
        Work::Retry(Retry::new(
            Blocker::Postgres(wanted),
            Retried::Transaction(batch),
        ))
    }

    /// Returns the memory held for further commands.
    pub fn memory_bytes(&self) -> usize {
        match &self.retried {
            Retried::Command { .. } | Retried::Exec => 0,
            Retried::Transaction(batch) => batch.memory_bytes(),
        }
    }

    /// Returns whether the job waits for PostgreSQL, which may take long.
    pub fn is_load(&self) -> bool {
        matches!(self.blocker, Blocker::Postgres(_))
    }

    /// Waits for the data. `ticket`: that of the pause in which the command is executed.
    ///
    /// # Errors
    /// The data is unavailable.
    pub async fn wait(&self, state: &mut State, ticket: Option<u64>) -> Result<(), Refusal> {
        let core = state.core.clone();
        let had = match &self.blocker {
            Blocker::Engines(awaited) => core.tables.wait_for(awaited, ticket).await,
            // Nothing is loaded from PostgreSQL during a pause.
            Blocker::Postgres(_) if ticket.is_some() => {
                let message = "rows of PostgreSQL that the command reads went just before it began; send it again";
                Err((Code::Source, message.to_owned()))
            }
            Blocker::Postgres(wanted) => {
                let postgres = core.shared.postgres.as_ref();
                wanted.load(postgres, &core.tables).await
            }
        };
        if had.is_err() && matches!(self.retried, Retried::Exec) {
            state.transaction = None;
            state.watching = None;
        }
        had
    }

    /// Executes the command again, and returns the remaining work.
    pub fn again(
        &mut self,
        state: &mut State,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> Option<Work> {
        if self.tries == TRIES_MAX {
            let message = "the rows that this command reads do not fit in memory together";
            state.error(Code::OutOfMemory, message);
            return None;
        }
        let is_deferred = matches!(self.blocker, Blocker::Engines(Awaited::Steps { .. }));
        self.tries += 1;
        self.deferrals += u32::from(is_deferred);
        // The awaited data has arrived. During a load, more rows may have expired on other cores.
        let is_settled = !self.is_load();
        let mut next = match &mut self.retried {
            Retried::Command { whole } => {
                if !*whole && state.core.nodes.is_some() {
                    match placed_again(state, snapshot, command) {
                        Ok(None) => {}
                        Ok(work) => return work,
                        Err(refusal) => {
                            state.refuse(refusal);
                            return None;
                        }
                    }
                }
                let whole = *whole || self.deferrals > DEFERRALS_MAX;
                if is_settled {
                    execute::try_settled(state, snapshot, command, whole)
                } else {
                    execute::try_once(state, snapshot, command, whole)
                }
            }
            Retried::Exec if is_settled => transaction::exec_settled(state, snapshot),
            Retried::Exec => transaction::exec(state, snapshot),
            Retried::Transaction(batch) => {
                let batch = std::mem::take(batch);
                if is_settled {
                    transaction::execute_settled(state, snapshot, batch)
                } else {
                    transaction::execute_together(state, snapshot, batch)
                }
            }
        };
        if let Some(Work::Retry(next)) = &mut next {
            next.follows(self);
        }
        next
    }

    /// Takes over the attempt counters of the previous wait, if it was of the same kind.
    fn follows(&mut self, before: &Retry) {
        match (&mut self.blocker, &before.blocker) {
            (Blocker::Postgres(wanted), Blocker::Postgres(before)) => wanted.follows(before),
            (Blocker::Engines(_), Blocker::Engines(_)) => {
                (self.tries, self.deferrals) = (before.tries, before.deferrals);
            }
            _ => {}
        }
    }
}

/// Checks in a cluster whether this core still owns the rows of a command that has waited, because slots may have
/// moved. Returns other work if the command must not be executed on this core.
///
/// # Errors
/// The command is a part of one over several cores or nodes, and this core no longer has the ownership by which the
/// parts were divided.
fn placed_again(
    state: &State,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Result<Option<Work>, Refusal> {
    let core = &state.core;
    if state.is_of_node {
        return if is_of_every_core(&core.tables, snapshot, command) {
            core.tables
                .ensure_owner_since(state.asked_at)
                .map(|()| None)
        } else {
            // A key that another node owns by now is rejected during execution.
            Ok(None)
        };
    }
    let is_here = place_of(core, snapshot, command) == To::Core(core.index);
    Ok((!is_here).then(|| Work::SeveralCores(SeveralCores::of_nodes())))
}

/// Returns the load of the missing rows for a transaction's reads, or `None` if nothing can be loaded. The reads are
/// executed only to find these rows.
pub(super) fn load_for_reads<'c>(
    state: &mut State,
    snapshot: &Snapshot,
    commands: impl Iterator<Item = Command<'c>>,
) -> Option<RangeLoad> {
    state.core.shared.postgres.as_ref()?;
    let mark = state.output.mark();
    let mut needs = Needs::default();
    for command in commands {
        if command.writes() || !About::of(snapshot, command).has_rows() {
            continue;
        }
        if let Err(Unanswered::Needs(more)) = execute::execute_now(state, snapshot, command, true) {
            needs.add(*more);
        }
        state.output.rewind(mark);
    }
    RangeLoad::of(&mut needs)
}
