//! Selects the function that executes a command: by its subject first, then by its name for commands on the connection,
//! the server and stores. Also returns the errors for invalid requests and for commands before authentication.

use std::sync::Arc;

use larder_protocol::commands::{Command, Id, InMulti, Invalid, Spec, alternative_to};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
pub(super) use larder_types::integer;

use super::mixed_reads::MixedReadJob;
use super::pending::{Pending, Work};
use super::place::view_for_own_slots;
use super::reads::{KeyQuery, read, unreadable};
use super::scan::parse_scan;
use super::state::ConnectionState;
use super::subject::CommandSubject;
use super::{cluster, connection, describe, known_scripts, pubsub, tables, tracking};
use crate::catalog::{LiveStore, Lookup, Snapshot};
use crate::clock::unix_time;
use crate::cluster::View;
use crate::error::{Refusal, show};

pub(super) const NOT_AN_INTEGER: &str = "value is not an integer or out of range";

/// Executes one command. `None` means that its reply is complete.
pub(super) fn dispatch(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    subject: CommandSubject,
) -> Option<Box<Pending>> {
    let work = start(state, snapshot, command, subject)?;
    Some(Box::new(Pending::new(command, work)))
}

/// As [`dispatch`], but returns only the remaining work.
pub(super) fn start(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    subject: CommandSubject,
) -> Option<Work> {
    if let Some(refusal) = state_refusal(state, command.spec) {
        state.refuse(refusal);
        return None;
    }
    if state.transaction.is_some() && command.spec.in_multi != InMulti::Executed {
        tables::queue(state, snapshot, command, subject);
        return None;
    }
    match subject {
        CommandSubject::Rows => tables::execute(state, snapshot, command),
        CommandSubject::Both => Some(Work::MixedRead(MixedReadJob::new(state))),
        _ if connection::is_throttled(state, command) => Some(Work::Password),
        CommandSubject::Records => {
            tracking::note_record_reads(state, snapshot, command);
            execute_without_tables(state, snapshot, command)
        }
        CommandSubject::Server => execute_without_tables(state, snapshot, command),
    }
}

/// Returns the error for a command that the connection's state does not permit.
fn state_refusal(state: &ConnectionState, command: &Spec) -> Option<Refusal> {
    if !state.authenticated && !command.before_password {
        return Some(authentication_required());
    }
    tables::refuse_in_subscriber_mode(state, command)
}

pub(super) fn authentication_required() -> Refusal {
    (Code::NoAuth, "Authentication required.".to_owned())
}

/// Returns an error for an invalid request.
pub(super) fn refuse_invalid(state: &mut ConnectionState, invalid: Invalid, request: Request<'_>) {
    let refusal = match invalid {
        Invalid::Unknown if !state.authenticated => authentication_required(),
        Invalid::Unknown => unknown_command(request),
        Invalid::Arity(spec) => {
            if !state.authenticated && !spec.before_password {
                authentication_required()
            } else if spec.id == Id::Exec && state.transaction.take().is_some() {
                state.watched_keys = None;
                let message = "Transaction discarded because of: wrong number of arguments for 'exec' command";
                (Code::ExecAbort, message.to_owned())
            } else {
                arity_refusal(spec.name)
            }
        }
        Invalid::Subcommand(spec) => state_refusal(state, spec).unwrap_or_else(|| {
            let (shown, name) = (show(request.arg(1)), spec.name);
            let message = format!("unknown subcommand '{shown}'. Try {name} HELP.");
            (Code::UnknownCommand, message)
        }),
        Invalid::SubcommandArity(spec, sub) => state_refusal(state, spec)
            .unwrap_or_else(|| arity_refusal(&format!("{}|{}", spec.name, sub.name))),
    };
    tables::mark_refused(state);
    state.refuse(refusal);
}

/// Executes a command that concerns no table: reads of stores, and commands on the connection or the server.
pub(super) fn execute_without_tables(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Option<Work> {
    if is_help(command) {
        write_help(state, command.spec);
        return None;
    }
    let query = match KeyQuery::of(command) {
        Ok(Some(query)) => query,
        Ok(None) if command.id() == Id::Scan => {
            return parse_scan(state, snapshot, command.request).map(Work::Scan);
        }
        Ok(None) => {
            execute_immediately(state, snapshot, command);
            return None;
        }
        Err(refusal) => {
            state.refuse(refusal);
            return None;
        }
    };
    read(state, snapshot, query, command.keys()).map(Work::Read)
}

fn execute_immediately(state: &mut ConnectionState, snapshot: &Snapshot, command: Command<'_>) {
    let request = command.request;
    match command.id() {
        Id::Auth => connection::auth(state, request),
        Id::Client => connection::client(state, request),
        Id::Echo => state.encoder().bulk(request.arg(1)),
        Id::Hello => connection::hello(state, request),
        Id::Ping => ping(state, command),
        Id::Publish => pubsub::publish(state, request),
        Id::PubSub => pubsub::pubsub(state, request),
        Id::Quit => {
            state.encoder().ok();
            state.closing = true;
        }
        Id::Reset => connection::reset(state),
        Id::Select => select(state, request.arg(1)),
        Id::Time => time(state),
        Id::Cluster | Id::Asking | Id::ReadOnly | Id::ReadWrite => cluster::execute(state, command),
        Id::Command => describe::command(state, request),
        Id::Config => describe::config(state, request),
        Id::DbSize => {
            let own = view_for_own_slots(state);
            let records = |live: &Arc<LiveStore>| match &own {
                None => live.version.manifest().record_count,
                Some(view) => count_own_records(live, view),
            };
            let records: u64 = snapshot.iter().map(records).sum();
            state.core.tables.publish_stats();
            let rows = state.core.shared.tables.stats().rows;
            let records = if state.executes_part { 0 } else { records };
            state.encoder().count(records + rows);
        }
        Id::Info => describe::info(state, snapshot, request),
        Id::Latency => describe::latency(state, request),
        Id::Memory => describe::memory(state, request),
        Id::Module => describe::modules(state),
        Id::LastSave => {
            let at = unix_time().saturating_sub(state.core.shared.started_at.elapsed());
            state.encoder().count(at.as_secs());
        }
        Id::Role => {
            let mut encoder = state.encoder();
            encoder.array(3);
            encoder.text("master");
            encoder.integer(0);
            encoder.array(0);
        }
        Id::Wait => wait(state, request),
        Id::Script => known_scripts::script(state, request),
        Id::SlowLog => describe::slowlog(state, request),
        Id::StoreList => store_list(state, snapshot),
        Id::StoreInfo => with_store(state, snapshot, request.arg(1), store_info),
        Id::StoreVersion => with_store(state, snapshot, request.arg(1), |state, live| {
            state.encoder().count(live.version_id.0);
        }),
        // Commands on keys are executed by `tables`, or as reads of stores.
        _ => {}
    }
}

/// Counts the records of the store's partitions whose first slot this node owns. The number of records per partition is
/// unknown for a delta, so the owner of slot 0 counts all of its records.
fn count_own_records(live: &LiveStore, view: &View) -> u64 {
    let manifest = live.version.manifest();
    let owns = |slot: u16| view.lookup.placement(slot).owner == Some(view.me);
    if manifest.layers.is_empty() {
        let own = manifest.segments.iter().filter(|it| owns(it.slots.0));
        own.map(|it| it.record_count).sum()
    } else {
        manifest.record_count * u64::from(owns(0))
    }
}

/// Returns Redis's error for an unknown command, or a larder error that names an alternative.
fn unknown_command(request: Request<'_>) -> Refusal {
    if let Some(instead) = alternative_to(request.arg(0)) {
        let message = format!("unknown command '{}': {instead}", show(request.arg(0)));
        return (Code::UnknownCommand, message);
    }
    let mut args = String::new();
    for arg in request.args().skip(1) {
        if args.len() >= 128 {
            break;
        }
        let room = 128 - args.len();
        args.push_str(&format!(
            "'{}' ",
            String::from_utf8_lossy(&arg[..arg.len().min(room)])
        ));
    }
    let shown = show(request.arg(0));
    let message = format!("unknown command '{shown}', with args beginning with: {args}");
    (Code::UnknownCommand, message)
}

/// Returns Redis's error for a wrong number of arguments; `name` is `get` or `client|setname`.
fn arity_refusal(name: &str) -> Refusal {
    let name = name.to_ascii_lowercase();
    let message = format!("wrong number of arguments for '{name}' command");
    (Code::WrongArity, message)
}

fn is_help(command: Command<'_>) -> bool {
    !command.spec.subcommands.is_empty() && command.arg(1).eq_ignore_ascii_case(b"HELP")
}

fn write_help(state: &mut ConnectionState, command: &Spec) {
    let mut encoder = state.encoder();
    encoder.array(command.subcommands.len() + 1);
    encoder.simple(&format!(
        "{} <subcommand> [<arg> ...]. Subcommands are:",
        command.name
    ));
    for sub in command.subcommands {
        encoder.simple(&format!("{} {}: {}", sub.name, sub.syntax, sub.summary));
    }
}

pub(super) fn not_an_integer<T>(state: &mut ConnectionState) -> Option<T> {
    state.error(Code::BadRequest, NOT_AN_INTEGER);
    None
}

fn ping(state: &mut ConnectionState, command: Command<'_>) {
    match command.len() {
        1 | 2 if state.is_in_subscriber_mode() => tables::ping(state, command.arg(1)),
        1 => state.encoder().simple("PONG"),
        2 => state.encoder().bulk(command.arg(1)),
        _ => state.refuse(arity_refusal(command.name())),
    }
}

/// WAIT: returns the minimum number of in-sync replicas. A write is acknowledged only once all of them have it, so
/// every acknowledged write has that many copies.
fn wait(state: &mut ConnectionState, request: Request<'_>) {
    let (Some(_), Some(timeout)) = (integer(request.arg(1)), integer(request.arg(2))) else {
        return state.error(Code::BadRequest, NOT_AN_INTEGER);
    };
    if timeout < 0 {
        return state.error(Code::BadRequest, "timeout is negative");
    }
    let view = state.core.tables.view();
    let in_sync = view.map_or(0, |view| view.in_sync_replicas_min());
    state.encoder().count(in_sync as u64);
}

fn select(state: &mut ConnectionState, index: &[u8]) {
    match integer(index) {
        Some(0) => state.encoder().ok(),
        Some(_) if state.core.shared.membership.is_some() => {
            state.error(Code::BadRequest, "SELECT is not allowed in cluster mode");
        }
        Some(_) => state.error(Code::BadRequest, "DB index is out of range"),
        None => {
            not_an_integer::<()>(state);
        }
    }
}

fn time(state: &mut ConnectionState) {
    let now = unix_time();
    let mut encoder = state.encoder();
    encoder.array(2);
    encoder.text(&now.as_secs().to_string());
    encoder.text(&now.subsec_micros().to_string());
}

fn store_list(state: &mut ConnectionState, snapshot: &Snapshot) {
    let live = snapshot.iter().map(|live| live.name.as_str());
    let mut names: Vec<&str> = live
        .chain(snapshot.unavailable().map(|store| store.name.as_str()))
        .collect();
    names.sort_unstable();
    let mut encoder = state.encoder();
    encoder.array(names.len());
    for name in names {
        encoder.text(name);
    }
}

/// Calls `answer` with the live store, or returns the error for a store that cannot be read.
fn with_store(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    name: &[u8],
    answer: impl FnOnce(&mut ConnectionState, &Arc<LiveStore>),
) {
    match snapshot.lookup(name) {
        Lookup::Live(live) => {
            state.series = Some(state.core.store_series(live.name.as_str()));
            answer(state, live);
        }
        other => state.refuse(unreadable(&other, name)),
    }
}

fn store_info(state: &mut ConnectionState, live: &Arc<LiveStore>) {
    let (version, manifest) = (&live.version, live.version.manifest());
    let residency = version.residency();
    let counts = [
        ("version", live.version_id.0),
        ("records", manifest.record_count),
        ("size_bytes", manifest.size_bytes),
        ("key_bytes", manifest.key_bytes),
        ("value_bytes", manifest.value_bytes),
        ("partitions", u64::from(manifest.partitions)),
        ("resident_bytes", residency.resident_bytes),
        ("index_memory_bytes", version.index_memory_bytes() as u64),
    ];
    let mut encoder = state.encoder();
    encoder.map(counts.len() + 3);
    encoder.text("name");
    encoder.text(live.name.as_str());
    for (name, count) in counts {
        encoder.text(name);
        encoder.count(count);
    }
    encoder.text("compression");
    encoder.text(&manifest.compression.to_string());
    encoder.text("digest");
    encoder.text(&manifest.digest);
}
