//! Commands on queries that do not search: FT.EXPLAIN, and FT.CONFIG, from which client libraries read limits.
//!
//! For FT.EXPLAIN, the cores that would execute the search plan it, so the output reflects the current regions and
//! indexes.

use std::fmt::Write;
use std::sync::Arc;

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_space::query;

use super::super::state::State;
use super::aggregate::Aggregated;
use super::parts::{Depth, part, whole};
use super::question::Question;
use super::reach::{Asker, Reach, again};
use super::regions::Asked;
use super::search::Searched;
use crate::spaces::Declared;
use crate::tables::Refusal;

/// Index of the query argument.
const QUERY: usize = 2;

pub(super) async fn explain(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    again(&asker.core, asker.reach, async || {
        let declared = &asker.declared(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let regions = asker.take_asked(&mut arguments);
        // Client libraries also send the options of a search or an aggregation.
        match Searched::parse(asker, declared, &arguments, QUERY) {
            Ok(search) => explained(asker, command, regions, declared, search).await,
            Err(refused) => match Aggregated::parse(asker, declared, &arguments, QUERY) {
                Ok(rows) => explained(asker, command, regions, declared, rows).await,
                Err(_) => Err(refused),
            },
        }
    })
    .await
}

/// Returns the query as a tree, an empty line, the chosen route, and a line for each core.
async fn explained<Q: Question>(
    asker: &Asker,
    command: Command<'_>,
    asked: Option<Asked>,
    declared: &Arc<Declared>,
    question: Q,
) -> Result<Vec<u8>, Refusal> {
    if let Reach::Part { .. } = asker.reach {
        return part(asker, asked, declared, &question, Depth::Planned).await;
    }
    let all = whole(asker, command, declared, &question, Depth::Planned).await?;
    let mut text = query::explain(question.predicate(), &declared.definition);
    let _ = write!(text, "\n{}\n", all.contacted.describe_choice());
    for told in &all.part.told {
        let _ = writeln!(text, "{}: {}", told.name, told.plan);
    }
    Ok(asker.encoded(|encoder| {
        if command.id() == Id::FtExplain {
            return encoder.text(&text);
        }
        let lines: Vec<&str> = text.split('\n').collect();
        encoder.array(lines.len());
        lines.iter().for_each(|line| encoder.text(line));
    }))
}

/// Options of RediSearch, with larder's values.
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
