//! Executes a command, by its subject and the function that [`super::handlers`] has for it. Also returns the errors for
//! invalid requests and for commands before authentication.

use larder_protocol::commands::{Command, Id, InMulti, Invalid, Spec, alternative_to};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
pub(super) use larder_types::integer;

use super::handlers::{self, Function};
use super::mixed_reads::MixedReadJob;
use super::pending::{Pending, Work};
use super::reads::read;
use super::state::ConnectionState;
use super::subject::CommandSubject;
use super::{connection, tables, tracking};
use crate::catalog::Snapshot;
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
    let request = command.request;
    match handlers::find(command).function {
        Function::Query(query) => match query(request) {
            Ok(query) => return read(state, snapshot, query, command.keys()).map(Work::Read),
            Err(refusal) => state.refuse(refusal),
        },
        Function::StoresOrRows { stores, .. } => return stores(state, snapshot, request),
        Function::Server(function) => function(state, request),
        Function::Stores(function) => function(state, snapshot, request),
        // The subject of these commands is never the server or a store.
        Function::Connection(_) | Function::Rows(_) | Function::Steps(_) => {
            state.refuse(tables::not_executable(command))
        }
    }
    None
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
pub(super) fn arity_refusal(name: &str) -> Refusal {
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
