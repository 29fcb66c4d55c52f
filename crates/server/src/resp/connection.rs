//! Commands on the connection itself: AUTH, HELLO, RESET, QUIT, PING, SELECT, CLIENT.

use std::time::Duration;

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};

use super::dispatch::{arity_refusal, integer, not_an_integer};
use super::greeting::{self, Greeting, printable};
use super::state::ConnectionState;
use super::{tables, tracking};
use crate::clients::Filter;
use crate::error::{Refusal, show};

pub(super) fn auth(state: &mut ConnectionState, request: Request<'_>) {
    match greeting::auth(&state.core.shared, &state.client, request) {
        Ok(()) => {
            state.authenticated = true;
            state.encoder().ok();
        }
        Err(refusal) => state.refuse(refusal),
    }
}

/// Returns whether a request contains a password whose check is delayed by the rate limit.
pub(super) fn is_throttled(state: &ConnectionState, command: Command<'_>) -> bool {
    greeting::is_throttled(&state.core.shared, &state.client, command.request)
}

/// Executes AUTH or HELLO after the delay of its password.
pub(super) fn authenticate_after_delay(state: &mut ConnectionState, command: Command<'_>) {
    match command.id() {
        Id::Auth => auth(state, command.request),
        _ => hello(state, command.request),
    }
}

pub(super) fn hello(state: &mut ConnectionState, request: Request<'_>) {
    let mut greeting = Greeting {
        authenticated: state.authenticated,
        proto: state.proto,
    };
    let outcome = greeting::hello(&state.core.shared, &state.client, &mut greeting, request);
    state.authenticated = greeting.authenticated;
    match outcome {
        Ok(()) => {
            state.set_proto(greeting.proto);
            let (id, mode) = (state.client.id, state.core.shared.mode());
            greeting::answer_hello(&mut state.encoder(), id, mode);
        }
        Err(refusal) => state.refuse(refusal),
    }
}

pub(super) fn reset(state: &mut ConnectionState) {
    state.set_proto(Proto::Resp2);
    state.transaction = None;
    state.watched_keys = None;
    state.subscriptions = None;
    state.client.set_subscriptions((0, 0));
    tracking::turn_off(state);
    state.authenticated = state.core.shared.password().is_none();
    // The library name and version, which the client has reported, are kept.
    state.client.change_names(|names| names.name.clear());
    state.encoder().simple("RESET");
}

pub(super) fn quit(state: &mut ConnectionState) {
    state.encoder().ok();
    state.closing = true;
}

pub(super) fn ping(state: &mut ConnectionState, request: Request<'_>) {
    match request.len() {
        1 | 2 if state.is_in_subscriber_mode() => tables::ping(state, request.arg(1)),
        1 => state.encoder().simple("PONG"),
        2 => state.encoder().bulk(request.arg(1)),
        _ => state.refuse(arity_refusal("PING")),
    }
}

pub(super) fn select(state: &mut ConnectionState, request: Request<'_>) {
    match integer(request.arg(1)) {
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

pub(super) fn client(state: &mut ConnectionState, request: Request<'_>) {
    let value = request.arg(2);
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"ID" => {
            let id = state.client.id;
            state.encoder().count(id);
        }
        b"GETNAME" => match state.client.names().name {
            name if name.is_empty() => state.encoder().null(),
            name => state.encoder().text(&name),
        },
        b"SETNAME" => match greeting::set_name(&state.client, value) {
            Ok(()) => state.encoder().ok(),
            Err(refusal) => state.refuse(refusal),
        },
        b"SETINFO" => set_info(state, value, request.arg(3)),
        b"INFO" => {
            let line = state.core.clients.describe(&state.client) + "\n";
            state.encoder().verbatim(&line);
        }
        b"LIST" => list(state, request),
        b"KILL" => kill(state, request),
        b"TRACKING" => tracking::tracking(state, request),
        b"CACHING" => tracking::caching(state, value),
        b"TRACKINGINFO" => tracking::info(state),
        b"GETREDIR" => tracking::get_redirect(state),
        b"NO-EVICT" | b"NO-TOUCH"
            if value.eq_ignore_ascii_case(b"ON") || value.eq_ignore_ascii_case(b"OFF") =>
        {
            state.encoder().ok();
        }
        b"REPLY" if value.eq_ignore_ascii_case(b"ON") => state.encoder().ok(),
        b"REPLY" => state.error(
            Code::BadRequest,
            "only CLIENT REPLY ON is supported: the server replies to every request",
        ),
        _ => state.error(Code::Syntax, "syntax error"),
    }
}

fn set_info(state: &mut ConnectionState, attribute: &[u8], value: &[u8]) {
    let Some(value) = printable(value) else {
        let shown = String::from_utf8_lossy(attribute).to_ascii_lowercase();
        let message = format!("{shown} cannot contain spaces, newlines or special characters.");
        return state.error(Code::BadRequest, &message);
    };
    match attribute.to_ascii_uppercase().as_slice() {
        b"LIB-NAME" => state.client.change_names(|names| names.lib_name = value),
        b"LIB-VER" => state.client.change_names(|names| names.lib_version = value),
        _ => {
            let shown = String::from_utf8_lossy(attribute);
            return state.error(Code::BadRequest, &format!("Unrecognized option '{shown}'"));
        }
    }
    state.encoder().ok();
}

fn list(state: &mut ConnectionState, request: Request<'_>) {
    let (mut ids, mut subscribed) = (Vec::new(), None);
    match request.get(2) {
        None => {}
        Some(option) if option.eq_ignore_ascii_case(b"ID") && request.len() > 3 => {
            for id in request.args().skip(3) {
                match integer(id).and_then(|id| u64::try_from(id).ok()) {
                    Some(id) => ids.push(id),
                    None => return state.error(Code::BadRequest, "Invalid client ID"),
                }
            }
        }
        Some(option) if option.eq_ignore_ascii_case(b"TYPE") && request.len() == 4 => {
            match client_type(request.arg(3)) {
                Err(refusal) => return state.refuse(refusal),
                Ok(Type::Normal) => subscribed = Some(false),
                Ok(Type::Subscribed) => subscribed = Some(true),
                Ok(Type::Other) => return state.encoder().verbatim(""),
            }
        }
        Some(_) => return state.error(Code::Syntax, "syntax error"),
    }
    let text = state.core.clients.list(|client| {
        (ids.is_empty() || ids.contains(&client.id))
            && subscribed.is_none_or(|is| is == client.is_subscribed())
    });
    state.encoder().verbatim(&text);
}

/// The types of connections in CLIENT LIST and CLIENT KILL.
enum Type {
    Normal,
    Subscribed,
    /// Types of which larder has no connections.
    Other,
}

fn client_type(word: &[u8]) -> Result<Type, Refusal> {
    match word.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(Type::Normal),
        b"pubsub" => Ok(Type::Subscribed),
        b"master" | b"replica" | b"slave" => Ok(Type::Other),
        _ => {
            let message = format!("Unknown client type '{}'", show(word));
            Err((Code::BadRequest, message))
        }
    }
}

fn kill(state: &mut ConnectionState, request: Request<'_>) {
    let text = |arg: &[u8]| Some(String::from_utf8_lossy(arg).into_owned());
    if request.len() == 3 {
        let filter = Filter {
            addr: text(request.arg(2)),
            ..Filter::default()
        };
        return match end_connections(state, &filter, false) {
            0 => state.error(Code::BadRequest, "No such client"),
            _ => state.encoder().ok(),
        };
    }
    let (mut filter, mut skip_self, mut may_match) = (Filter::default(), true, true);
    let mut at = 2;
    while at < request.len() {
        let value = request.arg(at + 1);
        match request.arg(at).to_ascii_uppercase().as_slice() {
            _ if at + 1 == request.len() => return state.error(Code::Syntax, "syntax error"),
            b"ID" => match integer(value).and_then(|id| u64::try_from(id).ok()) {
                Some(id) if id > 0 => filter.id = Some(id),
                _ => return state.error(Code::BadRequest, "client-id should be greater than 0"),
            },
            b"MAXAGE" => match integer(value).and_then(|age| u64::try_from(age).ok()) {
                Some(seconds) if seconds > 0 => {
                    let age = Duration::from_secs(seconds);
                    filter.opened_until_ms = Some(state.core.clients.timestamp_before(age));
                }
                _ => return state.error(Code::BadRequest, "maxage should be greater than 0"),
            },
            b"ADDR" => filter.addr = text(value),
            b"LADDR" => filter.local_addr = text(value),
            b"TYPE" => match client_type(value) {
                Err(refusal) => return state.refuse(refusal),
                Ok(Type::Normal) => filter.subscribed = Some(false),
                Ok(Type::Subscribed) => filter.subscribed = Some(true),
                Ok(Type::Other) => may_match = false,
            },
            b"USER" if value == b"default" => {}
            b"USER" => {
                let message = format!("No such user '{}'", show(value));
                return state.error(Code::BadRequest, &message);
            }
            b"SKIPME" if value.eq_ignore_ascii_case(b"NO") => skip_self = false,
            b"SKIPME" if value.eq_ignore_ascii_case(b"YES") => skip_self = true,
            _ => return state.error(Code::Syntax, "syntax error"),
        }
        at += 2;
    }
    let killed = if may_match {
        end_connections(state, &filter, skip_self)
    } else {
        0
    };
    state.encoder().count(killed as u64);
}

/// Closes the connections that match `filter`, and returns their number. The caller's own connection, if it matches, is
/// closed after its reply.
fn end_connections(state: &mut ConnectionState, filter: &Filter, skip_self: bool) -> usize {
    let clients = &state.core.clients;
    let others = clients.kill(filter, state.client.id);
    let own = !skip_self && filter.matches(&state.client);
    state.closing |= own;
    others + usize::from(own)
}
