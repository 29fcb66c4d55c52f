//! FT.AGGREGATE and FT.CURSOR.
//!
//! ```text
//!  FT.AGGREGATE .. WITHCURSOR ─► ungrouped, unsorted rows? ─ yes ─► the first COUNT by key; the cursor has the last key
//!                                        └ no: grouped or sorted ─────► all rows in one step; the cursor has the rest
//! ```
//!
//! Nodes request parts from each other with FT.CURSOR PART, which clients cannot send. Its arguments are the maximum
//! number of rows, the key after which they start, and the aggregation.

use std::sync::Arc;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::aggregate::{Aggregation, Limits, OutRow, Partial, finish};
use larder_space::expression::Cell;
use larder_space::index::{AggregateRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;

use super::aside::{Patience, aside, dispose};
use super::parts::{Depth, Whole, part, replied, whole};
use super::question::{Question, Replying};
use super::reach::{Asker, Reach, again, damaged};
use super::text;
use crate::spaces::Declared;
use crate::spaces::cursors::{Cursor, Left, RowsLeft};
use crate::tables::Refusal;

/// Index of the query among the arguments of FT.AGGREGATE.
const QUERY: usize = 2;
/// The subcommand of FT.CURSOR with which a node requests another node's part.
const PART: &[u8] = b"PART";
/// As [`PART`], but including objects that existed before the space was declared or altered.
const PART_OF_ALL: &[u8] = b"PARTOFALL";
/// Maximum number of rows if the aggregation specifies none.
const ROWS_MAX: usize = 1_000_000;

/// An aggregation, the window of rows to return, and their limits.
#[derive(Clone)]
pub(super) struct Aggregated {
    aggregation: Arc<Aggregation>,
    limits: Limits,
    /// Only rows after this key.
    after: Option<Vec<u8>>,
    is_of_all: bool,
}

impl Aggregated {
    /// Parses the arguments from the query on, which is argument `first` of its command. The result selects all rows.
    ///
    /// # Errors
    /// They are not a valid aggregation of this space.
    pub fn parse(
        asker: &Asker,
        declared: &Declared,
        arguments: &[&[u8]],
        first: usize,
    ) -> Result<Aggregated, Refusal> {
        let parsed = Aggregation::parse(arguments, &declared.definition);
        let aggregation = parsed.map_err(|refused| super::refusal(refused, first))?;
        Ok(Aggregated {
            aggregation: Arc::new(aggregation),
            limits: Limits {
                bytes_max: asker.core.clients.limits.answer(),
                rows_max: ROWS_MAX,
                ..Limits::default()
            },
            after: None,
            is_of_all: false,
        })
    }

    /// Limits the result to `rows` rows after a key.
    fn window(mut self, rows: usize, after: Option<&[u8]>) -> Aggregated {
        self.limits.rows_max = rows;
        self.after = after.map(<[u8]>::to_vec);
        self
    }

    /// Includes all objects, even those that existed before the space was declared.
    fn of_all(mut self) -> Aggregated {
        self.is_of_all = true;
        self
    }

    /// Returns the total number of rows, and the rows.
    fn rows(&self, patience: &Patience, found: Partial) -> Result<(u64, Vec<OutRow>), Refusal> {
        let ensure = || patience.ensure_in_space();
        let rows = finish(&self.aggregation, found, self.limits, &ensure);
        rows.map_err(|refused| super::refusal(refused, 0))
    }

    /// As [`Aggregated::rows`], for a reply without a cursor. Fails if there are more than [`ROWS_MAX`] rows.
    fn all_rows(&self, patience: &Patience, found: Partial) -> Result<(u64, Vec<OutRow>), Refusal> {
        if self.aggregation.is_streamed() && found.total() > ROWS_MAX as u64 {
            let message = format!(
                "there are more than {ROWS_MAX} rows: ask for fewer with LIMIT, or read them with WITHCURSOR"
            );
            return Err((Code::BadRequest, message));
        }
        self.rows(patience, found)
    }

    /// Returns the command with which another node's part is requested.
    fn command(&self, declared: &Declared, arguments: &[&[u8]]) -> OwnedCommand {
        let rows = self.limits.rows_max.to_string();
        let head: [&[u8]; 5] = [
            if self.is_of_all { PART_OF_ALL } else { PART },
            declared.definition.name.as_bytes(),
            rows.as_bytes(),
            if self.after.is_some() { b"1" } else { b"0" },
            self.after.as_deref().unwrap_or_default(),
        ];
        OwnedCommand::of(Id::FtCursor, head.iter().chain(arguments).copied())
    }
}

impl Question for Aggregated {
    type Run = AggregateRun;
    type Found = Partial;

    fn predicate(&self) -> &Predicate {
        &self.aggregation.predicate
    }

    fn timeout_ms(&self) -> Option<u64> {
        // A change of all objects that match a query has no time limit.
        let unlimited = self.is_of_all.then_some(0);
        self.aggregation.options.timeout_ms.or(unlimited)
    }

    fn is_of_all(&self) -> bool {
        self.is_of_all
    }

    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal> {
        // FT.CHANGE checks this itself.
        if self.is_of_all {
            return Ok(());
        }
        let ensured = self.aggregation.ensure_no_full_scan(definition);
        ensured.map_err(|refused| super::refusal(refused, 0))
    }

    fn begin(&self, index: &SpaceIndex) -> AggregateRun {
        index.aggregate(self.aggregation.clone(), self.limits, self.after.as_deref())
    }

    fn refusal(&self, run: &AggregateRun) -> Option<Refusal> {
        let refused = run.refusal().cloned();
        refused.map(|refused| super::refusal(refused, 0))
    }

    fn finish(&self, run: AggregateRun) -> Result<Partial, Refusal> {
        let found = run.finish();
        found.map_err(|refused| super::refusal(refused, 0))
    }

    fn merge(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let mut parts = parts.into_iter();
        let first = parts.next();
        let mut all = first.unwrap_or_else(|| Partial::new(&self.aggregation, self.limits));
        for part in parts {
            let merged = all.merge(&self.aggregation, part);
            merged.map_err(|refused| super::refusal(refused, 0))?;
        }
        Ok(all)
    }

    fn merge_copies(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let merged = Partial::of_copies(&self.aggregation, self.limits, parts);
        merged.map_err(|refused| super::refusal(refused, 0))
    }

    fn encode(&self, found: &Partial) -> Vec<u8> {
        found.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Partial, Refusal> {
        Partial::decode(bytes, &self.aggregation, self.limits).map_err(|_| damaged())
    }

    fn bytes(&self, found: &Partial) -> usize {
        found.bytes()
    }

    fn reply(
        &self,
        replying: Replying,
        patience: &Patience,
        found: Partial,
    ) -> Result<Vec<u8>, Refusal> {
        let (total, rows) = self.all_rows(patience, found)?;
        reply(replying, total, &rows, None)
    }
}

pub(super) async fn aggregate(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(1))?;
        let question = Aggregated::parse(asker, &declared, &arguments, QUERY)?;
        asker.note_query(&declared, question.predicate(), None, 0);
        let Some(cursor) = question.aggregation.cursor else {
            let found = found(asker, &declared, &question, &arguments).await?;
            return replied(asker, &question, &found.patience, found.part.found).await;
        };
        let opened = Cursor {
            space: declared.definition.name.clone(),
            created: declared.created,
            count: usize::try_from(cursor.count).unwrap_or(usize::MAX).max(1),
            idle_ms: cursor.idle_ms_max.unwrap_or(u64::MAX),
            left: if question.aggregation.is_streamed() {
                Left::Behind {
                    arguments: arguments.iter().map(|it| it.to_vec()).collect(),
                    after: None,
                }
            } else {
                let found = found(asker, &declared, &question, &arguments).await?;
                let (question, patience) = (question.clone(), found.patience.clone());
                let partial = found.part.found;
                let bytes = question.bytes(&partial);
                let rows = aside(&found.patience, bytes, move || {
                    let (_, rows) = question.all_rows(&patience, partial)?;
                    Ok(RowsLeft::new(rows))
                });
                Left::Rows(rows.await?)
            },
        };
        next_rows(asker, None, opened).await
    })
    .await
}

pub(super) async fn cursor(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let request = command.request;
    let asker = &*asker;
    if [PART, PART_OF_ALL].contains(&command.arg(1))
        && let Reach::Part { .. } = asker.reach
    {
        return part_of(asker, command).await;
    }
    if command.arg(1) == super::cuts::SAMPLE
        && let Reach::Part { .. } = asker.reach
    {
        return super::cuts::part(asker, command).await;
    }
    let name = text(command.arg(2))?;
    let bad = || (Code::BadRequest, "Bad cursor ID".to_owned());
    let id = larder_types::integer(command.arg(3)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or_else(bad)?;
    // The name may also be an alias.
    let declared = asker.declared(name.as_bytes())?;
    let of = (declared.definition.name.as_str(), declared.created);
    let cursors = &asker.core.shared.tables.space_cursors;
    let now = asker.core.tables.now();
    if command.arg(1).eq_ignore_ascii_case(b"DEL") && command.len() == 4 {
        let taken = cursors.take(id, of, now);
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
    let mut opened = cursors.take(id, of, now).ok_or_else(not_found)?;
    if let Some(count) = count {
        opened.count = count;
    }
    let Left::Behind { .. } = &opened.left else {
        return next_rows(asker, Some(id), opened).await;
    };
    let read = again(&asker.core, asker.reach, async || {
        next_rows(asker, Some(id), opened.again()).await
    });
    let read = read.await;
    if read.is_err() {
        // Keep the cursor, so that the read can be retried. If there is no memory for it, the first error is returned.
        let bytes_max = asker.core.clients.limits.answer();
        let _ = cursors.keep(Some(id), opened, asker.core.tables.now(), bytes_max);
    }
    read
}

/// Returns the next rows of a cursor, and keeps the rest.
async fn next_rows(asker: &Asker, id: Option<u64>, mut cursor: Cursor) -> Result<Vec<u8>, Refusal> {
    let (count, cursors) = (cursor.count, &asker.core.shared.tables.space_cursors);
    let bytes_max = asker.core.clients.limits.answer();
    let replying = Replying {
        proto: asker.proto,
        limits: asker.core.clients.limits,
    };
    let (total, rows, bytes, is_over) = match &mut cursor.left {
        Left::Rows(left) => {
            let (rows, bytes) = left.take(count);
            (rows.len() as u64, rows, bytes, left.is_empty())
        }
        Left::Behind { arguments, after } => {
            let declared = asker.declared(cursor.space.as_bytes())?;
            if declared.created != cursor.created {
                let message = "the space was dropped, and another of its name is declared";
                return Err((Code::BadRequest, message.to_owned()));
            }
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let question = Aggregated::parse(asker, &declared, &words, QUERY)?;
            let question = question.window(count, after.as_deref());
            let found = found(asker, &declared, &question, &words).await?;
            let (partial, patience) = (found.part.found, found.patience.clone());
            let is_over = partial.total() <= count as u64;
            let last = partial.last_key().map(<[u8]>::to_vec);
            let is_over = is_over || last.is_none();
            *after = last;
            let bytes = question.bytes(&partial);
            let rows = aside(&found.patience, bytes, move || {
                Ok(question.rows(&patience, partial)?.1)
            });
            let rows = rows.await?;
            (rows.len() as u64, rows, bytes, is_over)
        }
    };
    let next = match (is_over, id) {
        (true, _) => 0,
        (false, Some(id)) => id,
        (false, None) => cursors.next_id(),
    };
    // Rows that have been found are returned without a time limit.
    let patience = Patience::default();
    let written = aside(&patience, bytes, move || {
        let reply = reply(replying, total, &rows, Some(next));
        Ok((rows, reply))
    });
    let (rows, reply) = written.await?;
    if reply.is_err()
        && id.is_some()
        && let Left::Rows(left) = &mut cursor.left
    {
        // The client can read them in smaller parts.
        left.put_back(rows, bytes);
        let _ = cursors.keep(id, cursor, asker.core.tables.now(), bytes_max);
        return reply;
    }
    dispose(bytes, rows);
    // The id of a new cursor is in its first reply.
    let is_reachable = reply.is_ok() || id.is_some();
    if !is_over && is_reachable {
        cursors.keep(Some(next), cursor, asker.core.tables.now(), bytes_max)?;
    }
    reply
}

/// Before the objects that match a query are changed, checks that finding them needs no full scan, if full scans are
/// rejected. `query` is as for [`keys_behind`].
///
/// # Errors
/// A full scan would be necessary.
pub(super) fn ensure_no_full_scan(
    asker: &Asker,
    declared: &Declared,
    query: &[&[u8]],
) -> Result<(), Refusal> {
    if !asker.core.shared.config.spaces.refuse_full_scans {
        return Ok(());
    }
    let question = Aggregated::parse(asker, declared, query, QUERY)?;
    let ensured = (question.aggregation).ensure_no_full_scan_for_change(&declared.definition);
    ensured.map_err(|refused| super::refusal(refused, 0))
}

/// Returns the keys of up to `rows` objects that match a query, in key order after the key `after`, and whether these
/// are the last. Includes objects that existed before the space was declared. `query` is the query with its options.
pub(super) async fn keys_behind(
    asker: &Asker,
    declared: &Arc<Declared>,
    query: &[&[u8]],
    after: Option<&[u8]>,
    rows: usize,
) -> Result<(Vec<Vec<u8>>, bool), Refusal> {
    let load: [&[u8]; 3] = [b"LOAD", b"1", b"@__key"];
    let arguments = [query, &load].concat();
    let question = Aggregated::parse(asker, declared, &arguments, QUERY)?;
    let question = question.window(rows, after).of_all();
    let found = found(asker, declared, &question, &arguments).await?;
    let partial = found.part.found;
    let is_over = partial.total() <= rows as u64;
    let (_, rows) = question.rows(&found.patience, partial)?;
    let keys = rows.into_iter().flatten().map(|(_, key)| key.print());
    Ok((keys.collect(), is_over))
}

/// Returns the combined result of all participants.
async fn found(
    asker: &Asker,
    declared: &Arc<Declared>,
    question: &Aggregated,
    arguments: &[&[u8]],
) -> Result<Whole<Partial>, Refusal> {
    let command = question.command(declared, arguments);
    whole(asker, command.command(), declared, question, Depth::Found).await
}

/// Returns this node's part for another node.
async fn part_of(asker: &Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let mut arguments: Vec<&[u8]> = command.args().skip(6).collect();
    let asked = asker.take_asked(&mut arguments);
    let rows = larder_types::integer(command.arg(3)).and_then(|rows| usize::try_from(rows).ok());
    let after = (command.arg(4) == b"1").then(|| command.arg(5));
    let declared = asker.declared(command.arg(2))?;
    let question = Aggregated::parse(asker, &declared, &arguments, QUERY)?;
    let mut question = question.window(rows.ok_or_else(damaged)?, after);
    if command.arg(1) == PART_OF_ALL {
        question = question.of_all();
    }
    part(asker, asked, &declared, &question, Depth::Found).await
}

fn reply(
    Replying { proto, limits }: Replying,
    total: u64,
    rows: &[OutRow],
    cursor: Option<u64>,
) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::new();
    let mut encoder = Encoder {
        out: &mut out,
        proto,
    };
    if cursor.is_some() {
        encoder.array(2);
    }
    match proto {
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
        if proto == Proto::Resp3 {
            encoder.map(2);
            encoder.text("extra_attributes");
        }
        encoder.map(row.len());
        for (name, value) in row {
            encoder.bulk(name);
            cell(&mut encoder, value);
        }
        if proto == Proto::Resp3 {
            encoder.text("values");
            encoder.array(0);
        }
    }
    if proto == Proto::Resp3 {
        encoder.text("total_results");
        encoder.count(total);
        encoder.text("warning");
        encoder.array(0);
    }
    if let Some(cursor) = cursor {
        encoder.count(cursor);
    }
    if out.len() > limits.answer() {
        Err(limits.too_long())
    } else {
        Ok(out)
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
