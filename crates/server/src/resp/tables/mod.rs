//! The commands on tables and join outputs.
//!
//! `mod` says which requests are of tables. `rows` has those on single keys, and hands on what edits a value to `strings` (`decimal`: sums)
//! and what concerns several keys to `keys`. `range` has those on ranges (`head`: how their answers begin), `joins` the `JOIN.*`, `scan`
//! SCAN and KEYS, `transaction` MULTI and EXEC (`stores`: what is read of stores there; `watch`: WATCH), `subscribe` SUBSCRIBE. Where
//! there are several cores, `route` says which one executes a command, and `many` and `merge` what several do; `retry` has commands that
//! need rows of other cores or of PostgreSQL, or time.

mod decimal;
mod head;
mod joins;
mod keys;
mod many;
mod merge;
mod range;
mod retry;
mod route;
mod rows;
mod scan;
mod stores;
mod strings;
mod subscribe;
mod transaction;
mod watch;

use larder_protocol::commands::{Command, Id, Keys, Spec, Subject};
use larder_protocol::errors::Code;
use larder_types::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::dispatch::integer;
use super::pending::Work;
use super::reads::show;
use super::session::State;
use crate::catalog::{Lookup, Snapshot};
use crate::tables::Refusal;
use crate::tables::source::take_write;

pub(super) use head::RowCounts;
pub(super) use joins::DropJob;
pub(super) use many::SeveralCores;
pub(crate) use many::define_everywhere;
pub(super) use merge::Merge;
pub(super) use range::{RangeJob, header, one_row};
pub(super) use retry::Retry;
pub(super) use route::{To, route};
pub use scan::Cursors;
pub(super) use stores::StoresJob;
pub(super) use subscribe::{SubscribeJob, Subscribed, hand_on, ping, refuse_others};
pub(super) use transaction::{Transaction, execute_together, spoil};
pub(super) use watch::{WatchJob, Watching};

/// Whether a key is of a table, or of nothing there is: its name is no store's.
#[inline]
pub(super) fn is_of_table(snapshot: &Snapshot, key: &[u8]) -> bool {
    match key.iter().position(|&byte| byte == b':' || byte == b'|') {
        None => false,
        Some(end) => key[end] == b'|' || matches!(snapshot.lookup(&key[..end]), Lookup::Absent),
    }
}

/// Whether a request must be executed where the tables are, or waits for EXEC.
pub(super) fn concerns(state: &State, snapshot: &Snapshot, command: Command<'_>) -> bool {
    let waits = state.transaction.is_some() && !matches!(command.id(), Id::Quit | Id::Reset);
    waits || is_of_tables(snapshot, command)
}

/// Whether a request reads or changes tables, joins or a transaction.
fn is_of_tables(snapshot: &Snapshot, command: Command<'_>) -> bool {
    match (command.spec.subject, command.spec.keys) {
        (Subject::Server, _) => false,
        (Subject::Tables, _) => true,
        (Subject::Keys, Keys::None) => scan::is_of_tables(snapshot, command.request),
        (Subject::Keys, _) => command.keys().any(|key| is_of_table(snapshot, key)),
    }
}

/// Executes a request that [`concerns`] tables, on the core that has its rows.
pub(super) fn execute(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    if transaction::takes(state, snapshot, command) {
        return None;
    }
    if command.id() == Id::Exec
        && state.transaction.is_some()
        && let Some(lacking) = state.tables().to_settle()
    {
        return Some(Retry::exec_lacking(lacking));
    }
    execute_settled(state, snapshot, command)
}

/// As [`execute`], but for EXEC when what had expired is settled.
fn execute_settled(state: &mut State, snapshot: &Snapshot, command: Command<'_>) -> Option<Work> {
    if command.id() == Id::Exec
        && let Some(job) = StoresJob::before_exec(state, snapshot)
    {
        return Some(Work::Stores(job));
    }
    if command.id() == Id::Exec
        && let Some(work) = Retry::before_exec(state, snapshot)
    {
        return Some(work);
    }
    let done = match command.id() {
        Id::Multi | Id::Exec | Id::Discard => transaction::execute(state, snapshot, command),
        Id::Watch => WatchJob::begin(state, snapshot, command.request),
        Id::Subscribe => SubscribeJob::begin(snapshot, command.request, false),
        Id::PSubscribe => SubscribeJob::begin(snapshot, command.request, true),
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

/// As [`execute`], for a command of a transaction over several cores: to its end.
pub(super) fn execute_whole(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    try_once(state, snapshot, command, true)
}

/// Executes one command. If it lacks rows of other cores, reads outputs of rows that have expired elsewhere, or would take too
/// long at once, it waits.
fn try_once(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Option<Work> {
    if !command.writes()
        && let Some(lacking) = state.tables().to_settle()
        && reads_outputs(state, command)
    {
        return Some(Retry::lacking(lacking, whole));
    }
    try_settled(state, snapshot, command, whole)
}

/// Whether what a command reads may be computed from rows of other cores.
fn reads_outputs(state: &State, command: Command<'_>) -> bool {
    let tables = state.tables();
    let mut args = command.args().skip(1);
    matches!(command.id(), Id::Scan | Id::Keys) || args.any(|arg| tables.is_computed(arg))
}

/// As [`try_once`], when what had expired is settled.
fn try_settled(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Option<Work> {
    let mark = state.output.mark();
    let tables = state.tables();
    tables.forget_needs();
    let done = match whole {
        true => at_once(state, snapshot, command, true),
        false => tables.in_steps(|| at_once(state, snapshot, command, false)),
    };
    match done {
        Ok(work) => work,
        Err(refusal) => {
            if let Some(lacking) = tables.lacking() {
                state.output.rewind(mark);
                return Some(Retry::lacking(lacking, whole));
            }
            if !command.writes()
                && let Some(work) = Retry::after_missing(state, command, whole)
            {
                state.output.rewind(mark);
                return Some(work);
            }
            state.refuse(refusal);
            None
        }
    }
}

/// Executes one command; in a transaction (`whole`) to its end.
fn at_once(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    whole: bool,
) -> Result<Option<Work>, Refusal> {
    check_keys(snapshot, command)?;
    if command.writes()
        && let Some(postgres) = &state.core.shared.postgres
        && let Some(job) = take_write(postgres, command, whole)?
    {
        return Ok(Some(Work::Write(job)));
    }
    let (id, request) = (command.id(), command.request);
    match id {
        Id::Range => return range::range(state, request, whole),
        Id::RangeDel => return range::remove(state, request, whole),
        Id::RangeCount => range::count(state, request)?,
        Id::JoinDrop if !whole => return joins::drop_in_steps(state, request),
        Id::Scan => scan::scan(state, request)?,
        Id::Keys => scan::keys(state, request)?,
        Id::Unsubscribe => subscribe::leave(state, request, false),
        Id::PUnsubscribe => subscribe::leave(state, request, true),
        Id::Unwatch => {
            state.watching = None;
            state.encoder().ok();
        }
        Id::JoinCreate | Id::JoinDrop | Id::JoinList | Id::JoinInfo | Id::JoinExplain => {
            joins::execute(state, id, request)?;
        }
        Id::FlushDb | Id::FlushAll => {
            return range::flush(state, request, whole);
        }
        _ => rows::execute(state, id, request)?,
    }
    let pressed = command.writes() && !state.tables().has_room();
    Ok((pressed && !whole).then_some(Work::Room))
}

/// Every key must be of a table, and of a size that can be kept.
fn check_keys(snapshot: &Snapshot, command: Command<'_>) -> Result<(), Refusal> {
    match (command.id(), command.spec.keys) {
        (_, Keys::Range) => check_key(snapshot, command.spec, command.arg(1))?,
        // What is watched may be of stores too.
        (Id::Watch, _) => {}
        (Id::Keys, _) => scan::refuse_store(snapshot, command.arg(1))?,
        _ => command
            .keys()
            .try_for_each(|key| check_key(snapshot, command.spec, key))?,
    }
    if command.writes()
        && command
            .args()
            .any(|value| value.len() as u64 > VALUE_BYTES_MAX)
    {
        let message =
            format!("the value has more than the {VALUE_BYTES_MAX} bytes that are allowed");
        return Err((Code::BadRequest, message));
    }
    Ok(())
}

fn check_key(snapshot: &Snapshot, command: &Spec, key: &[u8]) -> Result<(), Refusal> {
    if !key.contains(&b'|') && !key.contains(&b':') {
        let message = format!(
            "key '{}' names no store; write store:key, such as pymk:42, or table|key",
            show(key)
        );
        return Err((Code::BadRequest, message));
    }
    if !is_of_table(snapshot, key) {
        return Err(of_store(command, key));
    }
    if command.writes && key.len() > KEY_BYTES_MAX {
        let message = format!(
            "the key has {} bytes; {KEY_BYTES_MAX} are allowed",
            key.len()
        );
        return Err((Code::BadRequest, message));
    }
    Ok(())
}

fn of_store(command: &Spec, key: &[u8]) -> Refusal {
    let store = show(key.split(|byte| *byte == b':').next().unwrap_or_default());
    let name = command.name;
    if command.writes {
        return read_only(name, &store);
    }
    let message = match command.id {
        Id::Range | Id::RangeCount => {
            format!(
                "{store} is a store, which has no order of keys; {name} reads tables and join outputs"
            )
        }
        _ => format!("{store} is a store; ask {name} for keys of stores and keys of tables apart"),
    };
    (Code::BadRequest, message)
}

/// How a write to a store is refused.
pub(super) fn read_only(command: &str, store: &str) -> Refusal {
    let message = format!(
        "stores are read-only, {command} is refused; build a version and push it: larder push FILE --store {store}"
    );
    (Code::ReadOnly, message)
}

fn number(text: &[u8]) -> Result<i64, Refusal> {
    integer(text).ok_or_else(|| {
        (
            Code::BadRequest,
            "value is not an integer or out of range".to_owned(),
        )
    })
}

fn syntax() -> Refusal {
    (Code::Syntax, "syntax error".to_owned())
}
