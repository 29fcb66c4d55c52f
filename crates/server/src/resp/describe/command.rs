//! COMMAND: describes all commands from the command table, in the format of Redis.

use larder_protocol::commands::{self, COMMANDS, Keys, OwnedCommand, Spec};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};

use super::super::state::ConnectionState;
use super::encode_pair;
use crate::error::Refusal;
use crate::glob::Glob;

pub(in crate::resp) fn command(state: &mut ConnectionState, request: Request<'_>) {
    if request.len() > 2 + COMMANDS.len() && !request.arg(1).eq_ignore_ascii_case(b"GETKEYS") {
        let message = format!(
            "the request lists more names than the {} commands that exist",
            COMMANDS.len()
        );
        return state.error(Code::BadRequest, &message);
    }
    let named = || request.args().skip(2).map(commands::find);
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"" => command_rows(&mut state.encoder(), COMMANDS.iter().map(Some)),
        b"COUNT" => state.encoder().count(COMMANDS.len() as u64),
        b"LIST" => list(state, request),
        b"INFO" if request.len() == 2 => {
            command_rows(&mut state.encoder(), COMMANDS.iter().map(Some))
        }
        b"INFO" => {
            let rows: Vec<_> = named().collect();
            command_rows(&mut state.encoder(), rows.into_iter());
        }
        b"DOCS" => {
            let rows: Vec<&Spec> = match request.len() {
                2 => COMMANDS.iter().collect(),
                _ => named().flatten().collect(),
            };
            let mut encoder = state.encoder();
            encoder.map(rows.len());
            rows.into_iter()
                .for_each(|command| command_docs(&mut encoder, command));
        }
        _ => get_keys(state, request),
    }
}

/// The filter of COMMAND LIST, in lower case.
enum Filter {
    None,
    Module(Vec<u8>),
    AclCategory(Vec<u8>),
    Pattern(Glob),
}

impl Filter {
    fn parse(request: Request<'_>) -> Result<Filter, Refusal> {
        if request.len() == 2 {
            return Ok(Filter::None);
        }
        let is_filter = request.len() == 5 && request.arg(2).eq_ignore_ascii_case(b"FILTERBY");
        let value = request.arg(4).to_ascii_lowercase();
        match request.arg(3).to_ascii_uppercase().as_slice() {
            b"MODULE" if is_filter => Ok(Filter::Module(value)),
            b"ACLCAT" if is_filter => Ok(Filter::AclCategory(value)),
            b"PATTERN" if is_filter => Ok(Filter::Pattern(Glob::parse(&value)?)),
            _ => Err((Code::Syntax, "syntax error".to_owned())),
        }
    }

    fn admits(&self, spec: &Spec, name: &str) -> bool {
        match self {
            Filter::None => true,
            Filter::Pattern(pattern) => pattern.matches(name.as_bytes()),
            Filter::Module(module) => module_of(name).is_some_and(|it| it.as_bytes() == module),
            Filter::AclCategory(category) => {
                let flag: &[u8] = match &category[..] {
                    b"read" => b"readonly",
                    other => other,
                };
                let mut flags = spec.flags.split(' ');
                flags.any(|it| it.as_bytes() == flag)
                    || spec.group.redis_name().as_bytes() == category
            }
        }
    }
}

/// Returns the Redis module that has a command, both in lower case; `None` for core commands of Redis.
fn module_of(name: &str) -> Option<&str> {
    Some(match name.split_once('.')?.0 {
        "ft" => "search",
        "json" => "rejson",
        own => own,
    })
}

/// COMMAND LIST: returns the names of the commands and subcommands that match a filter.
fn list(state: &mut ConnectionState, request: Request<'_>) {
    let filter = match Filter::parse(request) {
        Ok(filter) => filter,
        Err(refusal) => return state.refuse(refusal),
    };
    let mut names = Vec::new();
    for command in COMMANDS {
        let name = command.name.to_ascii_lowercase();
        let subcommands = command.subcommands.iter();
        let full = subcommands.map(|sub| format!("{name}|{}", sub.name.to_ascii_lowercase()));
        let all = std::iter::once(name.clone()).chain(full);
        names.extend(all.filter(|name| filter.admits(command, name)));
    }
    let mut encoder = state.encoder();
    encoder.array(names.len());
    names.iter().for_each(|name| encoder.text(name));
}

fn command_rows(
    encoder: &mut Encoder<'_>,
    rows: impl ExactSizeIterator<Item = Option<&'static Spec>>,
) {
    encoder.array(rows.len());
    for row in rows {
        let Some(command) = row else {
            encoder.null_array();
            continue;
        };
        command_row(
            encoder,
            command,
            command.name,
            command.arity,
            command.keys.redis(),
        );
        encoder.array(command.subcommands.len());
        for sub in command.subcommands {
            let name = format!("{}|{}", command.name, sub.name);
            let positions = match command.keys {
                Keys::Second if sub.arity.unsigned_abs() > 2 => command.keys.redis(),
                _ => (0, 0, 0),
            };
            command_row(encoder, command, &name, sub.arity, positions);
            encoder.array(0);
        }
    }
}

/// Appends the COMMAND INFO entry of a command or subcommand, up to its subcommands.
fn command_row(
    encoder: &mut Encoder<'_>,
    command: &Spec,
    name: &str,
    arity: i32,
    (first, last, step): (i32, i32, i32),
) {
    encoder.array(10);
    encoder.text(&name.to_ascii_lowercase());
    encoder.integer(i64::from(arity));
    let flags: Vec<&str> = command.flags.split(' ').collect();
    encoder.set(flags.len());
    flags.iter().for_each(|flag| encoder.simple(flag));
    for number in [first, last, step] {
        encoder.integer(i64::from(number));
    }
    encoder.set(1);
    encoder.simple(&format!("@{}", command.group.redis_name()));
    encoder.array(0); // tips
    encoder.array(0); // key specifications: the three numbers above suffice
}

fn command_docs(encoder: &mut Encoder<'_>, command: &Spec) {
    encoder.text(&command.name.to_ascii_lowercase());
    encoder.map(if command.subcommands.is_empty() { 4 } else { 5 });
    encode_pair(encoder, "summary", command.summary);
    encode_pair(encoder, "since", command.since);
    encode_pair(encoder, "group", command.group.redis_name());
    encode_pair(encoder, "complexity", command.complexity);
    if !command.subcommands.is_empty() {
        encoder.text("subcommands");
        encoder.map(command.subcommands.len());
        for sub in command.subcommands {
            encoder.text(&format!("{}|{}", command.name, sub.name).to_ascii_lowercase());
            encoder.map(2);
            encode_pair(encoder, "summary", sub.summary);
            encode_pair(encoder, "group", command.group.redis_name());
        }
    }
}

/// Executes `COMMAND GETKEYS command argument ...`.
fn get_keys(state: &mut ConnectionState, request: Request<'_>) {
    let Some(command) = commands::find(request.arg(2)) else {
        return state.error(Code::BadRequest, "Invalid command specified");
    };
    let count = request.len() - 2;
    if !command.accepts(count) {
        return state.error(
            Code::BadRequest,
            "Invalid number of arguments specified for command",
        );
    }
    let words = OwnedCommand::of(command.id, request.args().skip(3));
    let keys: Vec<&[u8]> = words.command().keys().collect();
    if keys.is_empty() {
        return state.error(Code::BadRequest, "The command has no key arguments");
    }
    let mut encoder = state.encoder();
    encoder.array(keys.len());
    keys.into_iter().for_each(|key| encoder.bulk(key));
}
