//! What is told of a query without searching: FT.EXPLAIN, and FT.CONFIG, by which search helpers ask for limits.

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_space::aggregate::Aggregation;
use larder_space::query;
use larder_space::search::Search;

use super::super::state::State;
use super::text;
use crate::spaces::change;
use crate::tables::Refusal;

/// The query is this argument.
const QUERY: usize = 2;

pub(super) fn explain(
    state: &mut State,
    command: Command<'_>,
    in_lines: bool,
) -> Result<(), Refusal> {
    let catalog = state.core.shared.tables.spaces.load_full();
    let name = text(command.arg(1))?;
    let declared = catalog.space(name).ok_or_else(|| change::unknown(name))?;
    let definition = &declared.definition;
    let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
    // Helpers send the options of a search along, or those of an aggregation.
    let predicate = match Search::parse(&arguments, definition) {
        Ok(search) => search.predicate,
        Err(refused) => match Aggregation::parse(&arguments, definition) {
            Ok(aggregation) => aggregation.predicate,
            Err(_) => return Err(super::refusal(refused, QUERY)),
        },
    };
    let explained = query::explain(&predicate, definition);
    let mut encoder = state.encoder();
    if !in_lines {
        encoder.text(&explained);
        return Ok(());
    }
    let lines: Vec<&str> = explained.split('\n').collect();
    encoder.array(lines.len());
    lines.iter().for_each(|line| encoder.text(line));
    Ok(())
}

/// Names that RediSearch has, and what they are here.
const OPTIONS: [(&str, &str); 10] = [
    ("CURSOR_MAX_IDLE", "300000"),
    ("CURSOR_READ_SIZE", "1000"),
    ("DEFAULT_DIALECT", "2"),
    ("MAXAGGREGATERESULTS", "1000000"),
    ("MAXEXPANSIONS", "unlimited"),
    ("MAXPREFIXEXPANSIONS", "unlimited"),
    ("MAXSEARCHRESULTS", "1000000"),
    ("MINPREFIX", "1"),
    ("ON_TIMEOUT", "fail"),
    ("TIMEOUT", "0"),
];

pub(super) fn config(state: &mut State, command: Command<'_>) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(command.arg(2)).to_ascii_uppercase();
    if command.arg(1).eq_ignore_ascii_case(b"SET") {
        let value = command.request.get(3).unwrap_or_default();
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        let known = OPTIONS.iter().find(|(option, _)| *option == name);
        return match known {
            Some((_, present)) if *present == value => {
                state.encoder().ok();
                Ok(())
            }
            Some((_, present)) => {
                let message = format!(
                    "Not modifiable at runtime: {name} is {present}; a search says TIMEOUT and DIALECT for itself"
                );
                Err((Code::BadRequest, message))
            }
            None => Err((Code::BadRequest, format!("Invalid option: {name}"))),
        };
    }
    let is_asked = |option: &&(&str, &str)| name == "*" || option.0 == name;
    let mut encoder = state.encoder();
    let asked: Vec<_> = OPTIONS.iter().filter(is_asked).collect();
    match encoder.proto {
        larder_protocol::resp::Proto::Resp2 => encoder.array(asked.len()),
        larder_protocol::resp::Proto::Resp3 => encoder.map(asked.len()),
    }
    for (option, value) in asked {
        if encoder.proto == larder_protocol::resp::Proto::Resp2 {
            encoder.array(2);
        }
        encoder.text(option);
        encoder.text(value);
    }
    Ok(())
}
