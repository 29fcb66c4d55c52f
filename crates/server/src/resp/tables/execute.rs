//! Executes commands on rows, objects, joins and spaces, with the functions of [`handlers`].
//!
//! ```text
//!  execute ─► on the connection (MULTI, EXEC, WATCH, SUBSCRIBE)? its function
//!     └► try_once ─► reads outputs of rows that expired on another core? it waits
//!           └► try_settled ─► needs missing data? it waits, and is executed again (`retry`)
//!                 └► execute_now ─► its function
//! ```

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;

use super::super::handlers::{self, Function};
use super::super::pending::Work;
use super::super::state::ConnectionState;
use super::super::subject::is_of_table;
use super::check::check_keys;
use super::reads;
use super::retry::Retry;
use crate::catalog::Snapshot;
use crate::tables::postgres::parse_write;
use crate::tables::{AdmitOutcome, NoReply, Refusal, WaitCondition};

/// Executes a command on tables, on the core that owns its rows.
pub(in crate::resp) fn execute(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    let Function::Connection(function) = handlers::find(command).function else {
        return try_once(state, snapshot, command, false);
    };
    match function(state, snapshot, command.request) {
        Ok(work) => work,
        Err(refusal) => {
            state.refuse(refusal);
            None
        }
    }
}

/// As [`execute`], for a command of a transaction over several cores: without splitting it into steps.
pub(in crate::resp) fn execute_atomically(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    try_once(state, snapshot, command, true)
}

/// Executes one command. It must wait if it needs rows of other cores, reads outputs of rows that have expired
/// elsewhere, or needs too much work for one turn.
pub(super) fn try_once(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    atomic: bool,
) -> Option<Work> {
    if !command.writes()
        && let Some(awaited) = state.tables().unreflected_expiry()
        && reads_outputs(state, command)
    {
        return Some(Retry::awaiting(awaited, atomic));
    }
    try_settled(state, snapshot, command, atomic)
}

/// Returns whether a command's reads may include rows computed from rows of other cores.
fn reads_outputs(state: &ConnectionState, command: Command<'_>) -> bool {
    let tables = state.tables();
    let mut args = command.args().skip(1);
    matches!(command.id(), Id::Scan | Id::Keys)
        || command.reads_ranking()
        || args.any(|arg| tables.is_computed(arg))
}

/// As [`try_once`], after the expired rows have been removed from the outputs.
pub(super) fn try_settled(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    atomic: bool,
) -> Option<Work> {
    let mark = state.output.mark();
    let tables = state.tables();
    let is_of_cluster = state.core.nodes.is_some();
    let changes_before = is_of_cluster.then(|| tables.numbered_changes());
    let done = if atomic {
        execute_now(state, snapshot, command, true)
    } else {
        tables.with_deferred_reads(|| execute_now(state, snapshot, command, false))
    };
    if is_of_cluster && command.writes() {
        let changed = tables.numbered_changes() - changes_before.unwrap_or(0);
        // The changes may include rows that have just expired.
        let is_unchanged = changed == 0 || changed != command.keys().len() as u64;
        if is_unchanged && reveals_rows(&done) {
            tables.wait_for_unchanged_rows(command, &mut state.gate);
        }
    } else if is_of_cluster {
        tables.wait_for_sent_changes(command, &mut state.gate);
        // The sources may have changed on other nodes that could not send the changes.
        if done.is_ok() && !tables.is_subscribed() && reads_outputs(state, command) {
            state.output.rewind(mark);
            return Some(Retry::awaiting(WaitCondition::Subscribed, atomic));
        }
    }
    match done {
        Ok(work) => work,
        Err(NoReply::Refused(refusal)) => {
            state.refuse(refusal);
            None
        }
        Err(NoReply::Needs(needs)) => match Retry::for_needs(state, command, needs, atomic) {
            Ok(work) => {
                state.output.rewind(mark);
                Some(work)
            }
            Err(why) => {
                state.refuse(why.refusal());
                None
            }
        },
    }
}

/// Returns whether the result of a write reveals the state of rows. It does not if writes are rejected altogether.
fn reveals_rows(done: &Result<Option<Work>, NoReply>) -> bool {
    use Code::{ClusterDown, DiskFull, Io, NoReplicas};
    !matches!(
        done,
        Err(NoReply::Refused((
            DiskFull | Io | ClusterDown | NoReplicas,
            _
        )))
    )
}

/// Executes one command; in a transaction (`atomic`) without splitting it into steps.
pub(super) fn execute_now(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let tables = state.tables();
    let done = tables.with_executing_command(command, state.client.id, || {
        execute_command(state, snapshot, command, atomic)
    });
    if tables.is_tracking() && done.is_ok() && !command.writes() {
        let keys = command.keys().filter(|key| is_of_table(snapshot, key));
        let is_group = command.reads_group();
        keys.for_each(|key| tables.track_read(&state.client, key, is_group));
    }
    done
}

fn execute_command(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    check_keys(snapshot, command)?;
    if command.writes()
        && let Some(postgres) = &state.core.shared.postgres
        && let Some(job) = parse_write(postgres, command, atomic)?
    {
        return Ok(Some(Work::Write(job)));
    }
    if state.core.tables.is_replicated()
        && let Some(work) = admit(state, command, atomic)?
    {
        return Ok(Some(work));
    }
    let request = command.request;
    match handlers::find(command).function {
        Function::Rows(function) | Function::StoresOrRows { rows: function, .. } => {
            function(state, request)?
        }
        Function::Query(query) => reads::read(state, query(request)?, command.keys())?,
        Function::Steps(function) => return function(state, request, atomic),
        Function::Server(_) | Function::Stores(_) | Function::Connection(_) => {
            return Err(not_executable(command).into());
        }
    }
    Ok(wait_for_disk(state, command, atomic))
}

/// Returns the error for a command that belongs to the connection or the server, where rows are expected.
pub(in crate::resp) fn not_executable(command: Command<'_>) -> Refusal {
    let message = format!("{} cannot be executed here", command.name());
    (Code::BadRequest, message)
}

fn wait_for_disk(state: &ConnectionState, command: Command<'_>, atomic: bool) -> Option<Work> {
    let is_disk_behind = command.writes() && !state.core.tables.disk_keeps_up();
    (is_disk_behind && !atomic).then_some(Work::Backpressure)
}

/// Checks whether a command on replicated rows may be executed, and returns what it must wait for first.
fn admit(
    state: &mut ConnectionState,
    command: Command<'_>,
    atomic: bool,
) -> Result<Option<Work>, Refusal> {
    let tables = state.tables();
    let progress = tables.replication_progress();
    Ok(match tables.admit(command, &mut state.gate, atomic)? {
        AdmitOutcome::Now => None,
        AdmitOutcome::Later => Some(Retry::awaiting(
            WaitCondition::Replicas { progress },
            atomic,
        )),
    })
}
