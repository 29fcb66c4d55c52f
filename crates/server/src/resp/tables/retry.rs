//! Commands that need missing data: rows of other cores or of PostgreSQL, or further steps of a computation. They wait
//! for it and are executed again.

use larder_join::{Needs, ReadOutcome};
use larder_protocol::commands::{Batch, Command};
use larder_protocol::errors::Code;
use larder_types::text_row;

use super::super::pending::Work;
use super::super::place::place_of;
use super::super::state::ConnectionState;
use super::super::subject::CommandSubject;
use super::coordinate::CoordinatedCommand;
use super::route::{Destination, concerns_every_core};
use super::{execute, transaction};
use crate::catalog::Snapshot;
use crate::tables::postgres::RangeLoad;
use crate::tables::{NoReply, Refusal, WaitCondition};

/// Maximum number of attempts. Data is evicted while the command waits for the rest only if far too little memory is
/// available.
const ATTEMPTS_MAX: u32 = 10_000;
/// Maximum number of deferrals. A computed result is evicted before it is read only if far too little memory is
/// available, or if its sources change faster than it is computed. After this many deferrals, it is computed in one
/// step.
const DEFERRALS_MAX: u32 = 16;

/// A command that waits for missing data and is then executed again.
pub(in crate::resp) struct Retry {
    blocker: Blocker,
    retried: RetriedWork,
    attempts: u32,
    /// Number of attempts that were deferred.
    deferrals: u32,
}

/// The data that the command waits for.
enum Blocker {
    Engines(WaitCondition),
    /// Rows of PostgreSQL.
    Postgres(RangeLoad),
}

/// The work to execute again.
enum RetriedWork {
    /// The command, in one step (`atomic`) or in several turns if it is long.
    Command { atomic: bool },
    /// EXEC, with the connection's transaction.
    Exec,
    /// The commands of another core's transaction.
    Transaction(Batch),
}

impl Retry {
    fn new(blocker: Blocker, retried: RetriedWork) -> Retry {
        Retry {
            blocker,
            retried,
            attempts: 0,
            deferrals: 0,
        }
    }

    pub(super) fn awaiting(awaited: WaitCondition, atomic: bool) -> Work {
        Work::Retry(Retry::new(
            Blocker::Engines(awaited),
            RetriedWork::Command { atomic },
        ))
    }

    /// Creates the job for a command that needs missing data.
    ///
    /// # Errors
    /// The data cannot be waited for.
    pub(super) fn for_needs(
        state: &ConnectionState,
        command: Command<'_>,
        mut needs: Box<Needs>,
        atomic: bool,
    ) -> Result<Work, NoReply> {
        let tables = state.tables();
        if let Some(awaited) = tables.request_needed(&mut needs) {
            return Ok(Retry::awaiting(awaited, atomic));
        }
        if command.writes() {
            return Err(NoReply::Needs(needs));
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
        let Some(load) = RangeLoad::take(&mut needs) else {
            return Err(NoReply::Needs(needs));
        };
        let retried = RetriedWork::Command { atomic };
        Ok(Work::Retry(Retry::new(Blocker::Postgres(load), retried)))
    }

    /// Creates the job for EXEC on the connection's core, which waits before it starts.
    pub(super) fn exec_awaiting(awaited: WaitCondition) -> Work {
        Work::Retry(Retry::new(Blocker::Engines(awaited), RetriedWork::Exec))
    }

    /// Loads the data that the reads of an EXEC need before it starts, because EXEC executes its commands in one step.
    pub(super) fn load_before_exec(
        state: &mut ConnectionState,
        snapshot: &Snapshot,
    ) -> Option<Work> {
        let transaction = state.transaction.take()?;
        let requests = transaction.requests().iter();
        let commands = requests.map(|queued| queued.command.command());
        let load = load_for_reads(state, snapshot, commands);
        state.transaction = Some(transaction);
        Some(Work::Retry(Retry::new(
            Blocker::Postgres(load?),
            RetriedWork::Exec,
        )))
    }

    /// Creates the job for the commands of another core's transaction, which wait before they start.
    pub(super) fn batch_awaiting(awaited: WaitCondition, batch: Batch) -> Work {
        Work::Retry(Retry::new(
            Blocker::Engines(awaited),
            RetriedWork::Transaction(batch),
        ))
    }

    /// As [`Retry::batch_awaiting`], for rows of PostgreSQL that their reads need.
    pub(super) fn batch_loading(load: RangeLoad, batch: Batch) -> Work {
        Work::Retry(Retry::new(
            Blocker::Postgres(load),
            RetriedWork::Transaction(batch),
        ))
    }

    /// Returns the memory held for further commands.
    pub fn memory_bytes(&self) -> usize {
        match &self.retried {
            RetriedWork::Command { .. } | RetriedWork::Exec => 0,
            RetriedWork::Transaction(batch) => batch.memory_bytes(),
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
    pub async fn wait(
        &self,
        state: &mut ConnectionState,
        ticket: Option<u64>,
    ) -> Result<(), Refusal> {
        let core = state.core.clone();
        let result = match &self.blocker {
            Blocker::Engines(awaited) => core.tables.wait_for(awaited, ticket).await,
            // Nothing is loaded from PostgreSQL during a pause.
            Blocker::Postgres(_) if ticket.is_some() => {
                let message = "rows of PostgreSQL that the command reads were evicted just before it started; retry the command";
                Err((Code::Source, message.to_owned()))
            }
            Blocker::Postgres(load) => {
                let postgres = core.shared.postgres.as_ref();
                load.load(postgres, &core.tables).await
            }
        };
        if result.is_err() && matches!(self.retried, RetriedWork::Exec) {
            state.transaction = None;
            state.watched_keys = None;
        }
        result
    }

    /// Executes the command again, and returns the remaining work.
    pub fn attempt(
        &mut self,
        state: &mut ConnectionState,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> Option<Work> {
        if self.attempts == ATTEMPTS_MAX {
            let message = "the rows that this command reads do not fit in memory together";
            state.error(Code::OutOfMemory, message);
            return None;
        }
        let is_deferred = matches!(self.blocker, Blocker::Engines(WaitCondition::Steps { .. }));
        self.attempts += 1;
        self.deferrals += u32::from(is_deferred);
        // The awaited data has arrived. During a load, more rows may have expired on other cores.
        let is_settled = !self.is_load();
        let mut next = match &mut self.retried {
            RetriedWork::Command { atomic } => {
                if !*atomic && state.core.nodes.is_some() {
                    match recheck_placement(state, snapshot, command) {
                        Ok(None) => {}
                        Ok(work) => return work,
                        Err(refusal) => {
                            state.refuse(refusal);
                            return None;
                        }
                    }
                }
                let atomic = *atomic || self.deferrals > DEFERRALS_MAX;
                if is_settled {
                    execute::try_settled(state, snapshot, command, atomic)
                } else {
                    execute::try_once(state, snapshot, command, atomic)
                }
            }
            RetriedWork::Exec if is_settled => transaction::exec_settled(state, snapshot),
            RetriedWork::Exec => transaction::exec(state, snapshot),
            RetriedWork::Transaction(batch) => {
                let batch = std::mem::take(batch);
                if is_settled {
                    transaction::execute_settled(state, snapshot, batch)
                } else {
                    transaction::execute_together(state, snapshot, batch)
                }
            }
        };
        if let Some(Work::Retry(next)) = &mut next {
            next.inherit_attempts(self);
        }
        next
    }

    /// Takes over the attempt counters of the previous wait, if it was of the same kind.
    fn inherit_attempts(&mut self, before: &Retry) {
        match (&mut self.blocker, &before.blocker) {
            (Blocker::Postgres(load), Blocker::Postgres(before)) => load.count_after(before),
            (Blocker::Engines(_), Blocker::Engines(_)) => {
                (self.attempts, self.deferrals) = (before.attempts, before.deferrals);
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
fn recheck_placement(
    state: &ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Result<Option<Work>, Refusal> {
    let core = &state.core;
    if state.executes_part {
        return if concerns_every_core(&core.tables, snapshot, command) {
            core.tables
                .ensure_owner_since(state.routing_epoch)
                .map(|()| None)
        } else {
            // A key that another node owns by now is rejected during execution.
            Ok(None)
        };
    }
    let is_local = place_of(core, snapshot, command) == Destination::Core(core.index);
    Ok((!is_local).then(|| Work::Coordinated(CoordinatedCommand::for_nodes())))
}

/// Returns the load of the missing rows for a transaction's reads, or `None` if nothing can be loaded. The reads are
/// executed only to find these rows.
pub(super) fn load_for_reads<'c>(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    commands: impl Iterator<Item = Command<'c>>,
) -> Option<RangeLoad> {
    state.core.shared.postgres.as_ref()?;
    let mark = state.output.mark();
    let mut needs = Needs::default();
    for command in commands {
        if command.writes() || !CommandSubject::of(snapshot, command).has_rows() {
            continue;
        }
        if let Err(NoReply::Needs(more)) = execute::execute_now(state, snapshot, command, true) {
            needs.add(*more);
        }
        state.output.rewind(mark);
    }
    RangeLoad::take(&mut needs)
}
