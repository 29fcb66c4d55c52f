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
use super::super::state::State;
use super::super::subject::is_of_table;
use super::check::check_keys;
use super::coordinate::SeveralCores;
use super::retry::Retry;
use super::subscribe::{self, SubscribeJob};
use super::watch::{self, WatchJob};
use super::{
    dump, expire, joins, keys, members, number, range, rankings, reads, rows, scan, scripts,
    strings, transaction,
};
use crate::catalog::Snapshot;
use crate::tables::postgres::take_write;
use crate::tables::{Admitted, Awaited, Refusal, Unanswered};

/// Executes a command on tables, on the core that owns its rows.
pub(in crate::resp) fn execute(
    state: &mut State,
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
pub(in crate::resp) fn execute_whole(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    try_once(state, snapshot, command, true)
}

/// Executes one command. It must wait if it needs rows of other cores, reads outputs of rows that have expired
/// elsewhere, or needs too much work for one turn.
pub(super) fn try_once(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Option<Work> {
    if !command.writes()
        && let Some(awaited) = state.tables().expired_elsewhere()
        && reads_outputs(state, command)
    {
        return Some(Retry::awaiting(awaited, whole));
    }
    try_settled(state, snapshot, command, whole)
}

/// Returns whether a command's reads may include rows computed from rows of other cores.
fn reads_outputs(state: &State, command: Command<'_>) -> bool {
    let tables = state.tables();
    let mut args = command.args().skip(1);
    matches!(command.id(), Id::Scan | Id::Keys)
        || command.reads_ranking()
        || args.any(|arg| tables.is_computed(arg))
}

/// As [`try_once`], after the expired rows have been removed from the outputs.
pub(super) fn try_settled(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Option<Work> {
    let mark = state.output.mark();
    let tables = state.tables();
    let is_of_cluster = state.core.nodes.is_some();
    let numbered = is_of_cluster.then(|| tables.numbered_changes());
    let done = if whole {
        execute_now(state, snapshot, command, true)
    } else {
        tables.with_deferred_reads(|| execute_now(state, snapshot, command, false))
    };
    if is_of_cluster && command.writes() {
        let changed = tables.numbered_changes() - numbered.unwrap_or(0);
        // The changes may include rows that have just expired.
        let is_as_it_was = changed == 0 || changed != command.keys().len() as u64;
        if is_as_it_was && has_seen(&done) {
            tables.wait_for_seen(command, &mut state.gate);
        }
    } else if is_of_cluster {
        tables.wait_for_told(command, &mut state.gate);
        // The sources may have changed on other nodes that could not send the changes.
        if done.is_ok() && !tables.is_subscribed() && reads_outputs(state, command) {
            state.output.rewind(mark);
            return Some(Retry::awaiting(Awaited::Subscribed, whole));
        }
    }
    match done {
        Ok(work) => work,
        Err(Unanswered::Refused(refusal)) => {
            state.refuse(refusal);
            None
        }
        Err(Unanswered::Needs(needs)) => match Retry::for_needs(state, command, needs, whole) {
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
fn has_seen(done: &Result<Option<Work>, Unanswered>) -> bool {
    use Code::{ClusterDown, DiskFull, Io, NoReplicas};
    !matches!(
        done,
        Err(Unanswered::Refused((
            DiskFull | Io | ClusterDown | NoReplicas,
            _
        )))
    )
}

/// Executes one command; in a transaction (`whole`) without splitting it into steps.
pub(super) fn execute_now(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    let tables = state.tables();
    let done = tables.executing(command, state.client.id, || {
        execute_command(state, snapshot, command, whole)
    });
    if tables.is_tracking() && done.is_ok() && !command.writes() {
        let keys = command.keys().filter(|key| is_of_table(snapshot, key));
        let is_group = command.reads_group();
        keys.for_each(|key| tables.track_read(&state.client, key, is_group));
    }
    done
}

fn execute_command(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    check_keys(snapshot, command)?;
    if command.writes()
        && let Some(postgres) = &state.core.shared.postgres
        && let Some(job) = take_write(postgres, command, whole)?
    {
        return Ok(Some(Work::Write(job)));
    }
    if state.core.tables.is_replicated()
        && let Some(work) = admit(state, command, whole)?
    {
        return Ok(Some(work));
    }
    if spaces::is_of_spaces(command) {
        return match spaces::answer_here(state, command, whole) {
            Some(answered) => Ok(answered.map(|()| None)?),
            None => Ok(Some(Work::SeveralCores(SeveralCores::default()))),
        };
    }
    let (id, request) = (command.id(), command.request);
    match id {
        Id::Range => return range::range(state, request, whole),
        Id::RangeDel => return range::remove(state, request, whole),
        // With several cores or nodes, these commands are coordinated from the start.
        Id::FlushDb | Id::FlushAll
            if state.core.shared.tables.cores() == 1
                && !state.is_of_node
                && spaces::flush_drops_any(&state.core) =>
        {
            return if whole {
                range::check_flush(request)?;
                Err(spaces::no_flush_in_multi(command).into())
            } else {
                Ok(Some(Work::SeveralCores(SeveralCores::default())))
            };
        }
        Id::FlushDb | Id::FlushAll => return range::flush(state, request, whole),
        Id::RangeCount => range::count(state, request)?,

        Id::SMembers => return members::all(state, request, whole),
        Id::SCard => members::count(state, request)?,
        Id::SIsMember => members::contains(state, request, false)?,
        Id::SMIsMember => members::contains(state, request, true)?,
        _ if command.reads_ranking() => rankings::read(state, command)?,

        Id::JoinCreate | Id::JoinDrop => return Ok(joins::define(state, command, whole)?),
        Id::JoinList => joins::list(state),
        Id::JoinInfo => joins::info(state, request)?,
        Id::JoinExplain => joins::explain(state, request)?,

        Id::Scan => scan::scan(state, request)?,
        Id::Keys => scan::keys(state, request)?,
        Id::RandomKey => scan::random_key(state)?,

        Id::Unsubscribe => subscribe::leave(state, request, false),
        Id::PUnsubscribe => subscribe::leave(state, request, true),
        Id::Unwatch => watch::forget(state),

        Id::Set => rows::set(state, request)?,
        Id::SetEx => strings::set_ex(state, request, "setex", b"EX")?,
        Id::PSetEx => strings::set_ex(state, request, "psetex", b"PX")?,
        Id::SetNx => rows::set_if_absent(state, request)?,
        Id::Del | Id::Unlink => rows::del(state, request)?,
        Id::DelEx => rows::del_if(state, request)?,
        Id::Incr => rows::increment(state, request.arg(1), Some(1))?,
        Id::Decr => rows::increment(state, request.arg(1), Some(-1))?,
        Id::IncrBy => rows::increment(state, request.arg(1), Some(number(request.arg(2))?))?,
        Id::DecrBy => {
            rows::increment(state, request.arg(1), number(request.arg(2))?.checked_neg())?
        }

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
    Ok(wait_for_room(state, command, whole))
}

fn wait_for_room(state: &State, command: Command<'_>, whole: bool) -> Option<Work> {
    let pressed = command.writes() && !state.core.tables.disk_keeps_up();
    (pressed && !whole).then_some(Work::Room)
}

/// Checks whether a command on replicated rows may be executed, and returns what it must wait for first.
fn admit(state: &mut State, command: Command<'_>, whole: bool) -> Result<Option<Work>, Refusal> {
    let tables = state.tables();
    let progress = tables.replication_progress();
    Ok(match tables.admit(command, &mut state.gate, whole)? {
        Admitted::Now => None,
        Admitted::Later => Some(Retry::awaiting(Awaited::Replicas { progress }, whole)),
    })
}
