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
use larder_space::aggregate::{Aggregation, Limits, Partial, ResultRow, finish};
use larder_space::expression::Cell;
use larder_space::index::{AggregateRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;

use super::context::{QueryContext, QueryScope, retry_on_schema_change, unreadable_part};
use super::offload::{SearchDeadline, dispose, run_offloaded};
use super::parse_name;
use super::scatter_gather::{QueryResult, ResultDetail, encode_reply, execute_part, run_query};
use super::space_query::{ReplyFormat, SpaceQuery};
use crate::spaces::DeclaredSpace;
use crate::spaces::cursors::{Cursor, Rest, UnreadRows};
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
pub(super) struct AggregateQuery {
    aggregation: Arc<Aggregation>,
    limits: Limits,
    /// Only rows after this key.
    after: Option<Vec<u8>>,
    waits_for_all: bool,
}

impl AggregateQuery {
    /// Parses the arguments from the query on, which is argument `first` of its command. The result selects all rows.
    ///
    /// # Errors
    /// They are not a valid aggregation of this space.
    pub fn parse(
        context: &QueryContext,
        declared: &DeclaredSpace,
        arguments: &[&[u8]],
        first: usize,
    ) -> Result<AggregateQuery, Refusal> {
        let parsed = Aggregation::parse(arguments, &declared.definition);
        let aggregation = parsed.map_err(|refused| super::argument_refusal(refused, first))?;
        Ok(AggregateQuery {
            aggregation: Arc::new(aggregation),
            limits: Limits {
                bytes_max: context.core.clients.limits.reply_bytes(),
                rows_max: ROWS_MAX,
                ..Limits::default()
            },
            after: None,
            waits_for_all: false,
        })
    }

    /// Limits the result to `rows` rows after a key.
    fn with_window(mut self, rows: usize, after: Option<&[u8]>) -> AggregateQuery {
        self.limits.rows_max = rows;
        self.after = after.map(<[u8]>::to_vec);
        self
    }

    /// Includes all objects, even those that existed before the space was declared.
    fn including_unindexed(mut self) -> AggregateQuery {
        self.waits_for_all = true;
        self
    }

    /// Returns the total number of rows, and the rows.
    fn rows(
        &self,
        deadline: &SearchDeadline,
        found: Partial,
    ) -> Result<(u64, Vec<ResultRow>), Refusal> {
        let ensure = || deadline.check_in_space();
        let rows = finish(&self.aggregation, found, self.limits, &ensure);
        rows.map_err(|refused| super::argument_refusal(refused, 0))
    }

    /// As [`AggregateQuery::rows`], for a reply without a cursor. Fails if there are more than [`ROWS_MAX`] rows.
    fn all_rows(
        &self,
        deadline: &SearchDeadline,
        found: Partial,
    ) -> Result<(u64, Vec<ResultRow>), Refusal> {
        if self.aggregation.is_streamed() && found.total() > ROWS_MAX as u64 {
            let message = format!(
                "the result has more than {ROWS_MAX} rows: reduce them with LIMIT, or read them with WITHCURSOR"
            );
            return Err((Code::BadRequest, message));
        }
        self.rows(deadline, found)
    }

    /// Returns the command with which another node's part is requested.
    fn command(&self, declared: &DeclaredSpace, arguments: &[&[u8]]) -> OwnedCommand {
        let rows = self.limits.rows_max.to_string();
        let head: [&[u8]; 5] = [
            if self.waits_for_all {
                PART_OF_ALL
            } else {
                PART
            },
            declared.definition.name.as_bytes(),
            rows.as_bytes(),
            if self.after.is_some() { b"1" } else { b"0" },
            self.after.as_deref().unwrap_or_default(),
        ];
        OwnedCommand::of(Id::FtCursor, head.iter().chain(arguments).copied())
    }
}

impl SpaceQuery for AggregateQuery {
    type Run = AggregateRun;
    type Output = Partial;

    fn predicate(&self) -> &Predicate {
        &self.aggregation.predicate
    }

    fn timeout_ms(&self) -> Option<u64> {
        // A change of all objects that match a query has no time limit.
        let unlimited = self.waits_for_all.then_some(0);
        self.aggregation.options.timeout_ms.or(unlimited)
    }

    fn waits_for_all(&self) -> bool {
        self.waits_for_all
    }

    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal> {
        // FT.CHANGE checks this itself.
        if self.waits_for_all {
            return Ok(());
        }
        let ensured = self.aggregation.ensure_no_full_scan(definition);
        ensured.map_err(|refused| super::argument_refusal(refused, 0))
    }

    fn begin(&self, index: &SpaceIndex) -> AggregateRun {
        index.aggregate(self.aggregation.clone(), self.limits, self.after.as_deref())
    }

    fn refusal(&self, run: &AggregateRun) -> Option<Refusal> {
        let refused = run.refusal().cloned();
        refused.map(|refused| super::argument_refusal(refused, 0))
    }

    fn finish(&self, run: AggregateRun) -> Result<Partial, Refusal> {
        let found = run.finish();
        found.map_err(|refused| super::argument_refusal(refused, 0))
    }

    fn merge(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let mut parts = parts.into_iter();
        let first = parts.next();
        let mut all = first.unwrap_or_else(|| Partial::new(&self.aggregation, self.limits));
        for part in parts {
            let merged = all.merge(&self.aggregation, part);
            merged.map_err(|refused| super::argument_refusal(refused, 0))?;
        }
        Ok(all)
    }

    fn merge_copies(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let merged = Partial::merge_copies(&self.aggregation, self.limits, parts);
        merged.map_err(|refused| super::argument_refusal(refused, 0))
    }

    fn encode(&self, found: &Partial) -> Vec<u8> {
        found.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Partial, Refusal> {
        Partial::decode(bytes, &self.aggregation, self.limits).map_err(|_| unreadable_part())
    }

    fn bytes(&self, found: &Partial) -> usize {
        found.bytes()
    }

    fn reply(
        &self,
        reply_format: ReplyFormat,
        deadline: &SearchDeadline,
        found: Partial,
    ) -> Result<Vec<u8>, Refusal> {
        let (total, rows) = self.all_rows(deadline, found)?;
        encode_rows(reply_format, total, &rows, None)
    }
}

pub(in crate::resp) async fn aggregate(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = context.find_space(command.arg(1))?;
        let space_query = AggregateQuery::parse(context, &declared, &arguments, QUERY)?;
        context.note_query(&declared, space_query.predicate(), None, 0);
        let Some(cursor) = space_query.aggregation.cursor else {
            let found = run_aggregate(context, &declared, &space_query, &arguments).await?;
            return encode_reply(context, &space_query, &found.deadline, found.part.found).await;
        };
        let cursor_state = Cursor {
            space: declared.definition.name.clone(),
            created: declared.created,
            count: usize::try_from(cursor.count).unwrap_or(usize::MAX).max(1),
            idle_ms: cursor.idle_ms_max.unwrap_or(u64::MAX),
            rest: if space_query.aggregation.is_streamed() {
                Rest::Resume {
                    arguments: arguments.iter().map(|it| it.to_vec()).collect(),
                    after: None,
                }
            } else {
                let found = run_aggregate(context, &declared, &space_query, &arguments).await?;
                let (space_query, deadline) = (space_query.clone(), found.deadline.clone());
                let partial = found.part.found;
                let bytes = space_query.bytes(&partial);
                let rows = run_offloaded(&found.deadline, bytes, move || {
                    let (_, rows) = space_query.all_rows(&deadline, partial)?;
                    Ok(UnreadRows::new(rows))
                });
                Rest::Rows(rows.await?)
            },
        };
        next_rows(context, None, cursor_state).await
    })
    .await
}

pub(in crate::resp) async fn cursor(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let request = command.request;
    let context = &*context;
    if [PART, PART_OF_ALL].contains(&command.arg(1))
        && let QueryScope::Part { .. } = context.scope
    {
        return execute_aggregate_part(context, command).await;
    }
    if command.arg(1) == super::cuts::SAMPLE
        && let QueryScope::Part { .. } = context.scope
    {
        return super::cuts::execute_sample_part(context, command).await;
    }
    let name = parse_name(command.arg(2))?;
    let bad = || (Code::BadRequest, "Bad cursor ID".to_owned());
    let id = larder_types::integer(command.arg(3)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or_else(bad)?;
    // The name may also be an alias.
    let declared = context.find_space(name.as_bytes())?;
    let space_id = (declared.definition.name.as_str(), declared.created);
    let cursors = &context.core.shared.tables.space_cursors;
    let now = context.core.tables.now();
    if command.arg(1).eq_ignore_ascii_case(b"DEL") && command.len() == 4 {
        let removed = cursors.take(id, space_id, now);
        removed.ok_or_else(|| (Code::BadRequest, "Cursor does not exist".to_owned()))?;
        return Ok(context.encode(|encoder| encoder.ok()));
    }
    if !command.arg(1).eq_ignore_ascii_case(b"READ") {
        let message = "Unknown subcommand: write READ index cursor [COUNT n] or DEL index cursor";
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
        let message = format!(
            "Cursor not found, id: {id}{}",
            cursors.unknown_cursor_hint()
        );
        (Code::BadRequest, message)
    };
    let mut cursor_state = cursors.take(id, space_id, now).ok_or_else(not_found)?;
    if let Some(count) = count {
        cursor_state.count = count;
    }
    let Rest::Resume { .. } = &cursor_state.rest else {
        return next_rows(context, Some(id), cursor_state).await;
    };
    let read = retry_on_schema_change(&context.core, context.scope, async || {
        next_rows(context, Some(id), cursor_state.without_rows()).await
    });
    let read = read.await;
    if read.is_err() {
        // Keep the cursor, so that the read can be retried. If there is no memory for it, the first error is returned.
        let bytes_max = context.core.clients.limits.reply_bytes();
        let _ = cursors.store(Some(id), cursor_state, context.core.tables.now(), bytes_max);
    }
    read
}

/// Returns the next rows of a cursor, and keeps the rest.
async fn next_rows(
    context: &QueryContext,
    id: Option<u64>,
    mut cursor: Cursor,
) -> Result<Vec<u8>, Refusal> {
    let (count, cursors) = (cursor.count, &context.core.shared.tables.space_cursors);
    let bytes_max = context.core.clients.limits.reply_bytes();
    let reply_format = ReplyFormat {
        proto: context.proto,
        limits: context.core.clients.limits,
    };
    let (total, rows, bytes, is_last) = match &mut cursor.rest {
        Rest::Rows(left) => {
            let (rows, bytes) = left.take(count);
            (rows.len() as u64, rows, bytes, left.is_empty())
        }
        Rest::Resume { arguments, after } => {
            let declared = context.find_space(cursor.space.as_bytes())?;
            if declared.created != cursor.created {
                let message = "the space was dropped, and another space with its name was declared";
                return Err((Code::BadRequest, message.to_owned()));
            }
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let space_query = AggregateQuery::parse(context, &declared, &words, QUERY)?;
            let space_query = space_query.with_window(count, after.as_deref());
            let found = run_aggregate(context, &declared, &space_query, &words).await?;
            let (partial, deadline) = (found.part.found, found.deadline.clone());
            let is_last = partial.total() <= count as u64;
            let last = partial.last_key().map(<[u8]>::to_vec);
            let is_last = is_last || last.is_none();
            *after = last;
            let bytes = space_query.bytes(&partial);
            let rows = run_offloaded(&found.deadline, bytes, move || {
                Ok(space_query.rows(&deadline, partial)?.1)
            });
            let rows = rows.await?;
            (rows.len() as u64, rows, bytes, is_last)
        }
    };
    let next = match (is_last, id) {
        (true, _) => 0,
        (false, Some(id)) => id,
        (false, None) => cursors.next_id(),
    };
    // Rows that have been found are returned without a time limit.
    let deadline = SearchDeadline::default();
    let written = run_offloaded(&deadline, bytes, move || {
        let reply = encode_rows(reply_format, total, &rows, Some(next));
        Ok((rows, reply))
    });
    let (rows, reply) = written.await?;
    if reply.is_err()
        && id.is_some()
        && let Rest::Rows(left) = &mut cursor.rest
    {
        // The client can read them in smaller parts.
        left.put_back(rows, bytes);
        let _ = cursors.store(id, cursor, context.core.tables.now(), bytes_max);
        return reply;
    }
    dispose(bytes, rows);
    // The id of a new cursor is in its first reply.
    let is_reachable = reply.is_ok() || id.is_some();
    if !is_last && is_reachable {
        cursors.store(Some(next), cursor, context.core.tables.now(), bytes_max)?;
    }
    reply
}

/// Before the objects that match a query are changed, checks that finding them needs no full scan, if full scans are
/// rejected. `query` is as for [`keys_after`].
///
/// # Errors
/// A full scan would be necessary.
pub(super) fn ensure_no_full_scan(
    context: &QueryContext,
    declared: &DeclaredSpace,
    query: &[&[u8]],
) -> Result<(), Refusal> {
    if !context.core.shared.config.spaces.refuse_full_scans {
        return Ok(());
    }
    let space_query = AggregateQuery::parse(context, declared, query, QUERY)?;
    let ensured = (space_query.aggregation).ensure_no_full_scan_for_change(&declared.definition);
    ensured.map_err(|refused| super::argument_refusal(refused, 0))
}

/// Returns the keys of up to `rows` objects that match a query, in key order after the key `after`, and whether these
/// are the last. Includes objects that existed before the space was declared. `query` is the query with its options.
pub(super) async fn keys_after(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    query: &[&[u8]],
    after: Option<&[u8]>,
    rows: usize,
) -> Result<(Vec<Vec<u8>>, bool), Refusal> {
    let load: [&[u8]; 3] = [b"LOAD", b"1", b"@__key"];
    let arguments = [query, &load].concat();
    let space_query = AggregateQuery::parse(context, declared, &arguments, QUERY)?;
    let space_query = space_query.with_window(rows, after).including_unindexed();
    let found = run_aggregate(context, declared, &space_query, &arguments).await?;
    let partial = found.part.found;
    let is_last = partial.total() <= rows as u64;
    let (_, rows) = space_query.rows(&found.deadline, partial)?;
    let keys = rows.into_iter().flatten().map(|(_, key)| key.print());
    Ok((keys.collect(), is_last))
}

/// Returns the combined result of all participants.
async fn run_aggregate(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    space_query: &AggregateQuery,
    arguments: &[&[u8]],
) -> Result<QueryResult<Partial>, Refusal> {
    let command = space_query.command(declared, arguments);
    run_query(
        context,
        command.command(),
        declared,
        space_query,
        ResultDetail::Objects,
    )
    .await
}

/// Returns this node's part for another node.
async fn execute_aggregate_part(
    context: &QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let mut arguments: Vec<&[u8]> = command.args().skip(6).collect();
    let region_request = context.take_region_request(&mut arguments);
    let rows = larder_types::integer(command.arg(3)).and_then(|rows| usize::try_from(rows).ok());
    let after = (command.arg(4) == b"1").then(|| command.arg(5));
    let declared = context.find_space(command.arg(2))?;
    let space_query = AggregateQuery::parse(context, &declared, &arguments, QUERY)?;
    let mut space_query = space_query.with_window(rows.ok_or_else(unreadable_part)?, after);
    if command.arg(1) == PART_OF_ALL {
        space_query = space_query.including_unindexed();
    }
    execute_part(
        context,
        region_request,
        &declared,
        &space_query,
        ResultDetail::Objects,
    )
    .await
}

fn encode_rows(
    ReplyFormat { proto, limits }: ReplyFormat,
    total: u64,
    rows: &[ResultRow],
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
            write_cell(&mut encoder, value);
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
    if out.len() > limits.reply_bytes() {
        Err(limits.reply_too_long())
    } else {
        Ok(out)
    }
}

fn write_cell(encoder: &mut Encoder<'_>, value: &Cell) {
    match value {
        Cell::Null => encoder.null(),
        Cell::List(cells) => {
            encoder.array(cells.len());
            cells.iter().for_each(|one| write_cell(encoder, one));
        }
        other => encoder.bulk(&other.print()),
    }
}
