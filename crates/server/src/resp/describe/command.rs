//! COMMAND: what commands there are, from the table of commands, spelled as Redis spells it.

use larder_protocol::commands::{self, COMMANDS, Spec};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Request};

use super::super::state::State;
use super::pair;

pub(in crate::resp) fn command(state: &mut State, request: Request<'_>) {
    if request.len() > 2 + COMMANDS.len() && !request.arg(1).eq_ignore_ascii_case(b"GETKEYS") {
        let message = format!(
            "more names than there are commands, which are {}",
            COMMANDS.len()
        );
        return state.error(Code::BadRequest, &message);
    }
    let named = || request.args().skip(2).map(commands::find);
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"" => command_rows(&mut state.encoder(), COMMANDS.iter().map(Some)),
        b"COUNT" => state.encoder().count(COMMANDS.len() as u64),
        b"LIST" => {
            let mut encoder = state.encoder();
            encoder.array(COMMANDS.len());
            COMMANDS
                .iter()
                .for_each(|command| encoder.text(&command.name.to_ascii_lowercase()));
        }
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
        encoder.array(10);
        encoder.text(&command.name.to_ascii_lowercase());
        encoder.integer(i64::from(command.arity));
        let flags: Vec<&str> = command.flags.split(' ').collect();
        encoder.set(flags.len());
        flags.iter().for_each(|flag| encoder.simple(flag));
        let (first, last, step) = command.keys.redis();
        [first, last, step]
            .iter()
            .for_each(|number| encoder.integer(i64::from(*number)));
        encoder.set(1);
        encoder.simple(&format!("@{}", command.group.redis_name()));
        encoder.array(0); // tips
        encoder.array(0); // key specifications: the three numbers above say all
        encoder.array(0); // subcommands: see COMMAND DOCS
    }
}

fn command_docs(encoder: &mut Encoder<'_>, command: &Spec) {
    encoder.text(&command.name.to_ascii_lowercase());
    encoder.map(if command.subcommands.is_empty() { 4 } else { 5 });
    pair(encoder, "summary", command.summary);
    pair(encoder, "since", command.since);
    pair(encoder, "group", command.group.redis_name());
    pair(encoder, "complexity", command.complexity);
    if !command.subcommands.is_empty() {
        encoder.text("subcommands");
        encoder.map(command.subcommands.len());
        for sub in command.subcommands {
            encoder.text(&format!("{}|{}", command.name, sub.name).to_ascii_lowercase());
            encoder.map(2);
            pair(encoder, "summary", sub.summary);
            pair(encoder, "group", command.group.redis_name());
        }
    }
}

/// COMMAND GETKEYS command argument ...
fn get_keys(state: &mut State, request: Request<'_>) {
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
    let keys: Vec<&[u8]> = command
        .keys
        .positions(count)
        .filter_map(|position| request.get(position + 2))
        .collect();
    if keys.is_empty() {
        return state.error(Code::BadRequest, "The command has no key arguments");
    }
    let mut encoder = state.encoder();
    encoder.array(keys.len());
    keys.into_iter().for_each(|key| encoder.bulk(key));
}
