//! Commands on queries that do not search: FT.EXPLAIN, and FT.CONFIG, from which client libraries read limits.
//!
//! For FT.EXPLAIN, the cores that would execute the search plan it, so the output reflects the current regions and
//! indexes.

use std::fmt::Write;
use std::sync::Arc;

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::query;

use super::super::state::ConnectionState;
use super::aggregate::AggregateQuery;
use super::context::{QueryContext, QueryScope, retry_on_schema_change};
use super::regions::RegionRequest;
use super::scatter_gather::{ResultDetail, execute_part, run_query};
use super::search::SearchQuery;
use super::space_query::SpaceQuery;
use crate::spaces::DeclaredSpace;
use crate::tables::Refusal;

/// Index of the query argument.
const QUERY: usize = 2;

pub(in crate::resp) async fn explain(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = &context.find_space(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let regions = context.take_region_request(&mut arguments);
        // Client libraries also send the options of a search or an aggregation.
        match SearchQuery::parse(context, declared, &arguments, QUERY) {
            Ok(search) => explain_query(context, command, regions, declared, search).await,
            Err(refused) => match AggregateQuery::parse(context, declared, &arguments, QUERY) {
                Ok(rows) => explain_query(context, command, regions, declared, rows).await,
                Err(_) => Err(refused),
            },
        }
    })
    .await
}

/// Returns the query as a tree, an empty line, the chosen route, and a line for each core.
async fn explain_query<Q: SpaceQuery>(
    context: &QueryContext,
    command: Command<'_>,
    region_request: Option<RegionRequest>,
    declared: &Arc<DeclaredSpace>,
    space_query: Q,
) -> Result<Vec<u8>, Refusal> {
    if let QueryScope::Part { .. } = context.scope {
        return execute_part(
            context,
            region_request,
            declared,
            &space_query,
            ResultDetail::PlanOnly,
        )
        .await;
    }
    let all = run_query(
        context,
        command,
        declared,
        &space_query,
        ResultDetail::PlanOnly,
    )
    .await?;
    let mut text = query::explain(space_query.predicate(), &declared.definition);
    let _ = write!(text, "\n{}\n", all.contacted.describe_choice());
    for profile in &all.part.profiles {
        let _ = writeln!(text, "{}: {}", profile.name, profile.plan);
    }
    Ok(context.encode(|encoder| {
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

pub(in crate::resp) fn config(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(request.arg(2)).to_ascii_uppercase();
    if request.arg(1).eq_ignore_ascii_case(b"SET") {
        let value = request.get(3).unwrap_or_default();
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        let found = OPTIONS.iter().find(|(option, _)| *option == name);
        return match found {
            Some((_, present)) if *present == value => {
                state.encoder().ok();
                Ok(())
            }
            Some((_, present)) => {
                let message = format!(
                    "Not modifiable at runtime: {name} is {present}; set TIMEOUT and DIALECT in each search"
                );
                Err((Code::BadRequest, message))
            }
            None => Err((Code::BadRequest, format!("Invalid option: {name}"))),
        };
    }
    let is_requested = |option: &&(&str, &str)| name == "*" || option.0 == name;
    let mut encoder = state.encoder();
    let requested: Vec<_> = OPTIONS.iter().filter(is_requested).collect();
    match encoder.proto {
        larder_protocol::resp::Proto::Resp2 => encoder.array(requested.len()),
        larder_protocol::resp::Proto::Resp3 => encoder.map(requested.len()),
    }
    for (option, value) in requested {
        if encoder.proto == larder_protocol::resp::Proto::Resp2 {
            encoder.array(2);
        }
        encoder.text(option);
        encoder.text(value);
    }
    Ok(())
}
