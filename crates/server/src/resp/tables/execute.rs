//! Executes commands on tables. [`execute_now`] selects the function of each command.
//!
//! ```text
//!  execute ─► MULTI, EXEC, DISCARD, WATCH, SUBSCRIBE: separate functions
//!     └► try_once ─► reads outputs of rows that expired on another core? it waits
//!           └► try_settled ─► needs missing data? it waits, and is executed again (`retry`)
//!                 └► execute_now ─► its function
//! ```

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;

use super::super::objects;
use super::super::pending::Work;
use super::super::spaces;
use super::super::state::ConnectionState;
use super::super::subject::is_of_table;
use super::check::check_keys;
use super::coordinate::CoordinatedCommand;
use super::retry::Retry;
use super::subscribe::{self, SubscribeJob};
use super::watch::{self, WatchJob};
use super::{
    dump, expire, joins, keys, members, parse_integer, range, rankings, reads, rows, scan, scripts,
    strings, transaction,
};
use crate::catalog::Snapshot;
use crate::tables::postgres::parse_write;
use crate::tables::{AdmitOutcome, NoReply, Refusal, WaitCondition};

/// Executes a command on tables, on the core that owns its rows.
pub(in crate::resp) fn execute(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    let done = match command.id() {
        Id::Exec => return transaction::exec(state, snapshot),
        Id::Multi => transaction::begin(state).map(|()| None),
        Id::Discard => transaction::discard(state).map(|()| None),
        Id::Watch => WatchJob::begin(state, snapshot, command.request),
        Id::Subscribe => SubscribeJob::begin(state, snapshot, command.request, false),
        Id::PSubscribe => SubscribeJob::begin(state, snapshot, command.request, true),
        _ => return try_once(state, snapshot, command, false),
    };
    match done {
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
    if spaces::is_space_command(command) {
        return match spaces::execute_on_core(state, command, atomic) {
            Some(answered) => Ok(answered.map(|()| None)?),
            None => Ok(Some(Work::Coordinated(CoordinatedCommand::default()))),
        };
    }
    let (id, request) = (command.id(), command.request);
    match id {
        Id::Range => return range::range(state, request, atomic),
        Id::RangeDel => return range::remove(state, request, atomic),
        // With several cores or nodes, these commands are coordinated from the start.
        Id::FlushDb | Id::FlushAll
            if state.core.shared.tables.cores() == 1
                && !state.executes_part
                && spaces::must_drop_spaces(&state.core) =>
        {
            return if atomic {
                range::check_flush(request)?;
                Err(spaces::flush_in_multi_refusal(command).into())
            } else {
                Ok(Some(Work::Coordinated(CoordinatedCommand::default())))
            };
        }
        Id::FlushDb | Id::FlushAll => return range::flush(state, request, atomic),
        Id::RangeCount => range::count(state, request)?,

        Id::SMembers => return members::read_all(state, request, atomic),
        Id::SCard => members::count(state, request)?,
        Id::SIsMember => members::contains(state, request, false)?,
        Id::SMIsMember => members::contains(state, request, true)?,
        _ if command.reads_ranking() => rankings::read(state, command)?,

        Id::JoinCreate | Id::JoinDrop => return Ok(joins::define(state, command, atomic)?),
        Id::JoinList => joins::list(state),
        Id::JoinInfo => joins::info(state, request)?,
        Id::JoinExplain => joins::explain(state, request)?,

        Id::Scan => scan::scan(state, request)?,
        Id::Keys => scan::keys(state, request)?,
        Id::RandomKey => scan::random_key(state)?,

        Id::Unsubscribe => subscribe::unsubscribe(state, request, false),
        Id::PUnsubscribe => subscribe::unsubscribe(state, request, true),
        Id::Unwatch => watch::unwatch(state),

        Id::Set => rows::set(state, request)?,
        Id::SetEx => strings::set_ex(state, request, "setex", b"EX")?,
        Id::PSetEx => strings::set_ex(state, request, "psetex", b"PX")?,
        Id::SetNx => rows::set_if_absent(state, request)?,
        Id::Del | Id::Unlink => rows::del(state, request)?,
        Id::DelEx => rows::del_if(state, request)?,
        Id::Incr => rows::increment(state, request.arg(1), Some(1))?,
        Id::Decr => rows::increment(state, request.arg(1), Some(-1))?,
        Id::IncrBy => rows::increment(state, request.arg(1), Some(parse_integer(request.arg(2))?))?,
        Id::DecrBy => rows::increment(
            state,
            request.arg(1),
            parse_integer(request.arg(2))?.checked_neg(),
        )?,

        Id::Expire => expire::expire(state, request, "expire", (1000, true))?,
        Id::PExpire => expire::expire(state, request, "pexpire", (1, true))?,
        Id::ExpireAt => expire::expire(state, request, "expireat", (1000, false))?,
        Id::PExpireAt => expire::expire(state, request, "pexpireat", (1, false))?,
        Id::Persist => expire::persist(state, request.arg(1))?,
        Id::Ttl => expire::ttl(state, request.arg(1), 1000)?,
        Id::PTtl => expire::ttl(state, request.arg(1), 1)?,
        Id::ExpireTime => expire::expire_time(state, request.arg(1), 1000)?,
        Id::PExpireTime => expire::expire_time(state, request.arg(1), 1)?,

        Id::Append => strings::append(state, request)?,
        Id::GetDel => strings::get_del(state, request)?,
        Id::GetEx => strings::get_ex(state, request)?,
        Id::GetSet => strings::get_set(state, request)?,
        Id::IncrByFloat => strings::increment_by_float(state, request)?,
        Id::SetRange => strings::set_range(state, request)?,

        Id::MSet | Id::MSetNx | Id::MSetEx => keys::put(state, id, request)?,
        Id::Dump => dump::dump(state, request)?,
        Id::Restore => dump::restore(state, request)?,
        Id::Eval => scripts::eval(state, request, false)?,
        Id::EvalSha => scripts::eval(state, request, true)?,
        Id::Rename | Id::RenameNx | Id::Copy => keys::copy(state, id, request)?,

        _ if objects::execute(state, command)? => {}
        // Reads of rows that are also commands on stores.
        _ => reads::read(state, command)?,
    }
    Ok(wait_for_disk(state, command, atomic))
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
