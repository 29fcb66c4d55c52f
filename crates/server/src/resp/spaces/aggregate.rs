//! FT.AGGREGATE and FT.CURSOR.
//!
//! ```text
//!  FT.AGGREGATE .. WITHCURSOR ─► rows that stand for themselves? ─ yes ─► the first COUNT by key; a cursor remembers the last key
//!                                        └ no: grouped, sorted ────────► all at once; a cursor keeps the rest
//! ```
//!
//! Other nodes are asked for their parts by FT.CURSOR PART, which clients cannot send: how many rows at most, behind which key, and the aggregation.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::aggregate::{Aggregation, Limits, OutRow, Partial, finish};
use larder_space::expression::Cell;

use super::profile::Told;
use super::reach::{Asker, Reach, again, damaged};
use super::run::run;
use super::text;
use crate::spaces::Declared;
use crate::spaces::cursors::{Cursor, Left};
use crate::tables::Refusal;

/// The query is this argument of FT.AGGREGATE.
const QUERY: usize = 2;
/// The subcommand of FT.CURSOR by which a node asks another for its part.
const PART: &[u8] = b"PART";
/// Rows of an aggregation that says of no number.
const ROWS_MAX: usize = 1_000_000;

/// Where an aggregation's rows begin, and how many are wanted if it does not say itself.
struct Window<'a> {
    rows: usize,
    after: Option<&'a [u8]>,
}

pub(super) async fn aggregate(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(1))?;
        let aggregation = parse(&arguments, QUERY, &declared)?;
        let Some(cursor) = aggregation.cursor else {
            let (total, rows) = all_rows(asker, &declared, &aggregation, &arguments).await?;
            return reply(asker, total, &rows, None);
        };
        let opened = Cursor {
            space: declared.definition.name.clone(),
            count: usize::try_from(cursor.count).unwrap_or(usize::MAX).max(1),
            idle_ms: cursor.idle_ms_max.unwrap_or(u64::MAX),
            left: match aggregation.is_streamed() {
                true => Left::Behind {
                    arguments: arguments.iter().map(|it| it.to_vec()).collect(),
                    after: None,
                },
                false => {
                    let (_, rows) = all_rows(asker, &declared, &aggregation, &arguments).await?;
                    Left::Rows(rows.into())
                }
            },
        };
        next_rows(asker, None, opened).await
    })
    .await
}

pub(super) async fn cursor(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let request = command.request;
    let asker = &*asker;
    if command.arg(1) == PART
        && let Reach::Part { .. } = asker.reach
    {
        return part(asker, command).await;
    }
    let name = text(command.arg(2))?;
    let bad = || (Code::BadRequest, "Bad cursor ID".to_owned());
    let id = larder_types::integer(command.arg(3)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or_else(bad)?;
    // An alias, too.
    let name = asker.declared(name.as_bytes())?.definition.name.clone();
    let cursors = &asker.core.shared.tables.space_cursors;
    let now = asker.core.tables.now();
    if command.arg(1).eq_ignore_ascii_case(b"DEL") && command.len() == 4 {
        let taken = cursors.take(id, &name, now);
        taken.ok_or_else(|| (Code::BadRequest, "Cursor does not exist".to_owned()))?;
        return Ok(asker.encoded(|encoder| encoder.ok()));
    }
    if !command.arg(1).eq_ignore_ascii_case(b"READ") {
        let message = "Unknown subcommand: it is READ index cursor [COUNT n] or DEL index cursor";
        return Err((Code::Syntax, message.to_owned()));
    }
    let mut count = None;
    let mut at = 4;
    while let Some(option) = request.get(at) {
        let number = request.get(at + 1).and_then(larder_types::integer);
        match (option.to_ascii_uppercase().as_slice(), number) {
            (b"COUNT", Some(rows @ 1..)) => count = usize::try_from(rows).ok(),
            (b"MAXIDLE", _) => {}
            _ => {
                let message = "FT.CURSOR READ takes COUNT and a number of rows";
                return Err((Code::Syntax, message.to_owned()));
            }
        }
        at += 2;
    }
    let not_found = || {
        let message = format!("Cursor not found, id: {id}{}", cursors.advice());
        (Code::BadRequest, message)
    };
    let mut opened = cursors.take(id, &name, now).ok_or_else(not_found)?;
    if let Some(count) = count {
        opened.count = count;
    }
    again(&asker.core, asker.reach, async || {
        next_rows(asker, Some(id), opened.clone()).await
    })
    .await
}

/// Answers the next rows of a cursor, and keeps what is left.
async fn next_rows(asker: &Asker, id: Option<u64>, mut cursor: Cursor) -> Result<Vec<u8>, Refusal> {
    let (total, rows, is_over) = match &mut cursor.left {
        Left::Rows(left) => {
            let rows: Vec<OutRow> = left.drain(..cursor.count.min(left.len())).collect();
            (rows.len() as u64, rows, left.is_empty())
        }
        Left::Behind { arguments, after } => {
            let declared = asker.declared(cursor.space.as_bytes())?;
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let aggregation = parse(&words, QUERY, &declared)?;
            let window = Window {
                rows: cursor.count,
                after: after.as_deref(),
            };
            let partial = found(asker, &declared, &aggregation, &words, &window).await?;
            let is_over = partial.total() <= cursor.count as u64;
            let last = partial.last_key().map(<[u8]>::to_vec);
            let limits = limits(asker, cursor.count);
            let (_, rows) = finished(&aggregation, partial, limits)?;
            let is_over = is_over || last.is_none();
            *after = last;
            (rows.len() as u64, rows, is_over)
        }
    };
    let cursors = &asker.core.shared.tables.space_cursors;
    let next = match is_over {
        true => 0,
        false => {
            let bytes_max = asker.core.clients.limits.answer();
            cursors.keep(id, cursor, asker.core.tables.now(), bytes_max)?
        }
    };
    reply(asker, total, &rows, Some(next))
}

pub(super) fn parse(
    arguments: &[&[u8]],
    first: usize,
    declared: &Declared,
) -> Result<Arc<Aggregation>, Refusal> {
    let parsed = Aggregation::parse(arguments, &declared.definition);
    parsed
        .map(Arc::new)
        .map_err(|refused| super::refusal(refused, first))
}

fn limits(asker: &Asker, rows: usize) -> Limits {
    Limits {
        bytes_max: asker.core.clients.limits.answer(),
        rows_max: rows,
        ..Limits::default()
    }
}

fn finished(
    aggregation: &Aggregation,
    partial: Partial,
    limits: Limits,
) -> Result<(u64, Vec<OutRow>), Refusal> {
    finish(aggregation, partial, limits).map_err(|refused| super::refusal(refused, 0))
}

async fn all_rows(
    asker: &Asker,
    declared: &Arc<Declared>,
    aggregation: &Arc<Aggregation>,
    arguments: &[&[u8]],
) -> Result<(u64, Vec<OutRow>), Refusal> {
    let partial = found(asker, declared, aggregation, arguments, &WHOLE).await?;
    if aggregation.is_streamed() && partial.total() > ROWS_MAX as u64 {
        let message = format!(
            "there are more than {ROWS_MAX} rows: ask for fewer with LIMIT, or read them with WITHCURSOR"
        );
        return Err((Code::BadRequest, message));
    }
    finished(aggregation, partial, limits(asker, ROWS_MAX))
}

/// What all find that take part.
async fn found(
    asker: &Asker,
    declared: &Arc<Declared>,
    aggregation: &Arc<Aggregation>,
    arguments: &[&[u8]],
    window: &Window<'_>,
) -> Result<Partial, Refusal> {
    if asker.reach != Reach::Nodes {
        return Ok(of_cores(asker, declared, aggregation, window).await?.1);
    }
    let rows = window.rows.to_string();
    let head: [&[u8]; 5] = [
        PART,
        declared.definition.name.as_bytes(),
        rows.as_bytes(),
        if window.after.is_some() { b"1" } else { b"0" },
        window.after.unwrap_or_default(),
    ];
    let command = OwnedCommand::of(Id::FtCursor, head.iter().chain(arguments).copied());
    let parts = asker.parts_of_nodes(command.command(), declared).await?;
    merged(aggregation, &parts, limits(asker, window.rows))
}

fn merged(
    aggregation: &Aggregation,
    parts: &[Vec<u8>],
    limits: Limits,
) -> Result<Partial, Refusal> {
    let mut all = Partial::new(aggregation, limits);
    for part in parts {
        let part = Partial::decode(part, aggregation, limits).map_err(|_| damaged())?;
        let merged = all.merge(aggregation, part);
        merged.map_err(|refused| super::refusal(refused, 0))?;
    }
    Ok(all)
}

const WHOLE: Window<'static> = Window {
    rows: ROWS_MAX,
    after: None,
};

/// What the cores of this node did for an aggregation, and what they found, as bytes.
pub(super) async fn profiled(
    asker: &Asker,
    declared: &Arc<Declared>,
    arguments: &[&[u8]],
    first: usize,
) -> Result<(Vec<Told>, Vec<u8>), Refusal> {
    let aggregation = parse(arguments, first, declared)?;
    let (told, found) = of_cores(asker, declared, &aggregation, &WHOLE).await?;
    Ok((told, found.encode()))
}

/// The reply to an aggregation, of what all parts found.
pub(super) fn reply_of(
    asker: &Asker,
    declared: &Declared,
    arguments: &[&[u8]],
    first: usize,
    parts: &[Vec<u8>],
) -> Result<Vec<u8>, Refusal> {
    let aggregation = parse(arguments, first, declared)?;
    let limits = limits(asker, ROWS_MAX);
    let (total, rows) = finished(&aggregation, merged(&aggregation, parts, limits)?, limits)?;
    reply(asker, total, &rows, None)
}

/// This node's part, for another one.
async fn part(asker: &Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let arguments: Vec<&[u8]> = command.args().skip(6).collect();
    let rows = larder_types::integer(command.arg(3)).and_then(|rows| usize::try_from(rows).ok());
    let window = Window {
        rows: rows.ok_or_else(damaged)?,
        after: (command.arg(4) == b"1").then(|| command.arg(5)),
    };
    let declared = asker.declared(command.arg(2))?;
    let aggregation = parse(&arguments, QUERY, &declared)?;
    let (_, partial) = of_cores(asker, &declared, &aggregation, &window).await?;
    Ok(asker.part(&declared, &partial.encode()))
}

/// What the cores of this node find, and what they did for it.
async fn of_cores(
    asker: &Asker,
    declared: &Arc<Declared>,
    aggregation: &Arc<Aggregation>,
    window: &Window<'_>,
) -> Result<(Vec<Told>, Partial), Refusal> {
    let order = asker.order(declared, aggregation.options.timeout_ms);
    let limits = limits(asker, window.rows);
    let (own, after) = (aggregation.clone(), window.after.map(<[u8]>::to_vec));
    let parts = asker.on_cores(move |tables| async move {
        let begin = |index: &larder_space::index::SpaceIndex| {
            Ok(index.aggregate(own, limits, after.as_deref()))
        };
        let (begun, core) = (Instant::now(), tables.index);
        let done = run(tables, order, begin).await?;
        let told = Told::of(core, done.profile(), begun);
        let found = done.finish();
        Ok((told, found.map_err(|refused| super::refusal(refused, 0))?))
    });
    let (mut all_told, mut all) = (Vec::new(), Partial::new(aggregation, limits));
    for (told, part) in parts.await? {
        all_told.push(told);
        let merged = all.merge(aggregation, part);
        merged.map_err(|refused| super::refusal(refused, 0))?;
    }
    Ok((all_told, all))
}

fn reply(
    asker: &Asker,
    total: u64,
    rows: &[OutRow],
    cursor: Option<u64>,
) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::new();
    let mut encoder = Encoder {
        out: &mut out,
        proto: asker.proto,
    };
    if cursor.is_some() {
        encoder.array(2);
    }
    match asker.proto {
        Proto::Resp2 => {
            encoder.array(1 + rows.len());
            encoder.count(total);
        }
        Proto::Resp3 => {
            encoder.map(5);
            encoder.text("attributes");
            encoder.array(0);
            encoder.text("format");
            encoder.text("STRING");
            encoder.text("results");
            encoder.array(rows.len());
        }
    }
    for row in rows {
        if asker.proto == Proto::Resp3 {
            encoder.map(2);
            encoder.text("extra_attributes");
        }
        encoder.map(row.len());
        for (name, value) in row {
            encoder.bulk(name);
            cell(&mut encoder, value);
        }
        if asker.proto == Proto::Resp3 {
            encoder.text("values");
            encoder.array(0);
        }
    }
    if asker.proto == Proto::Resp3 {
        encoder.text("total_results");
        encoder.count(total);
        encoder.text("warning");
        encoder.array(0);
    }
    if let Some(cursor) = cursor {
        encoder.count(cursor);
    }
    let limits = asker.core.clients.limits;
    match out.len() > limits.answer() {
        true => Err(limits.too_long()),
        false => Ok(out),
    }
}

fn cell(encoder: &mut Encoder<'_>, value: &Cell) {
    match value {
        Cell::Null => encoder.null(),
        Cell::List(cells) => {
            encoder.array(cells.len());
            cells.iter().for_each(|one| cell(encoder, one));
        }
        other => encoder.bulk(&other.print()),
    }
}
