//! FT.SEARCH.

use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_space::index::{SearchRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;
use larder_space::search::content::{bulks_of_content, decode_content};
use larder_space::search::partial::first_sort_value;
use larder_space::search::{Partial, Search};

use super::context::{QueryContext, QueryScope, retry_on_schema_change, unreadable_part};
use super::offload::{ROWS_BETWEEN_CHECKS, SearchDeadline};
use super::reply::SearchReply;
use super::scatter_gather::{ResultDetail, encode_reply, execute_part, run_query};
use super::space_query::{ReplyFormat, SpaceQuery};
use crate::spaces::DeclaredSpace;
use crate::tables::Refusal;

/// Index of the query argument.
pub(super) const QUERY: usize = 2;

/// A search, and the maximum size of its rows.
#[derive(Clone)]
pub(super) struct SearchQuery {
    search: Arc<Search>,
    bytes_max: usize,
}

impl SearchQuery {
    /// Parses the arguments from the query on, which is argument `first` of its command.
    ///
    /// # Errors
    /// They are not a valid search of this space.
    pub fn parse(
        context: &QueryContext,
        declared: &DeclaredSpace,
        arguments: &[&[u8]],
        first: usize,
    ) -> Result<SearchQuery, Refusal> {
        let parsed = Search::parse(arguments, &declared.definition);
        let search = parsed.map_err(|refused| super::argument_refusal(refused, first))?;
        Ok(SearchQuery {
            search: Arc::new(search),
            bytes_max: context.core.clients.limits.reply_bytes(),
        })
    }
}

impl SpaceQuery for SearchQuery {
    type Run = SearchRun;
    type Output = Partial;

    fn predicate(&self) -> &Predicate {
        &self.search.predicate
    }

    fn timeout_ms(&self) -> Option<u64> {
        self.search.options.timeout_ms
    }

    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal> {
        let ensured = self.search.ensure_no_full_scan(definition);
        ensured.map_err(|refused| super::argument_refusal(refused, 0))
    }

    fn begin(&self, index: &SpaceIndex) -> SearchRun {
        index.search(self.search.clone(), self.bytes_max)
    }

    fn refusal(&self, run: &SearchRun) -> Option<Refusal> {
        let refused = run.refusal().cloned();
        refused.map(|refused| super::argument_refusal(refused, 0))
    }

    fn finish(&self, run: SearchRun) -> Result<Partial, Refusal> {
        let found = run.finish();
        found.map_err(|refused| super::argument_refusal(refused, 0))
    }

    fn merge(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let mut parts = parts.into_iter();
        let first = parts.next();
        let mut all = first.unwrap_or_else(|| Partial::new(self.search.keep()));
        parts.for_each(|part| all.merge(part));
        Ok(all)
    }

    fn merge_copies(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        Ok(Partial::merge_copies(self.search.keep(), parts))
    }

    fn encode(&self, found: &Partial) -> Vec<u8> {
        found.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Partial, Refusal> {
        let found = Partial::decode(bytes).map_err(|_| unreadable_part())?;
        let is_valid = found
            .contents()
            .all(|content| decode_content(content).is_ok());
        if is_valid {
            Ok(found)
        } else {
            Err(unreadable_part())
        }
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
        reply(reply_format, deadline, &self.search, found)
    }
}

pub(in crate::resp) async fn search(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = context.find_space(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let region_request = context.take_region_request(&mut arguments);
        let space_query = SearchQuery::parse(context, &declared, &arguments, QUERY)?;
        if let QueryScope::Part { .. } = context.scope {
            return execute_part(
                context,
                region_request,
                &declared,
                &space_query,
                ResultDetail::Objects,
            )
            .await;
        }
        let all = run_query(
            context,
            command,
            &declared,
            &space_query,
            ResultDetail::Objects,
        )
        .await?;
        let (search, total) = (&space_query.search, all.part.found.total);
        let answered = total
            .min(search.keep() as u64)
            .saturating_sub(search.offset);
        context.note_query(&declared, &search.predicate, Some(total), answered);
        encode_reply(context, &space_query, &all.deadline, all.part.found).await
    })
    .await
}

fn reply(
    ReplyFormat { proto, limits }: ReplyFormat,
    deadline: &SearchDeadline,
    search: &Search,
    found: Partial,
) -> Result<Vec<u8>, Refusal> {
    let total = found.total;
    let rows = found.finish(search.offset);
    // The headers of keys and values take about as much as the ranks do.
    let mut out = Vec::with_capacity(rows.bytes() + 16 * rows.len() + 32);
    let mut reply = SearchReply::start(&mut out, proto, search, total, rows.len());
    for (at, row) in rows.iter().enumerate() {
        if at % ROWS_BETWEEN_CHECKS == 0 {
            deadline.check()?;
        }
        let sorted_by = || first_sort_value(row.rank, &search.order);
        reply.push_row(row.key, sorted_by, |out, head| {
            let (pairs, bulks) = bulks_of_content(row.content).map_err(|_| unreadable_part())?;
            head(out, pairs);
            out.extend_from_slice(bulks);
            Ok(())
        })?;
    }
    reply.finish(total);
    if out.len() > limits.reply_bytes() {
        Err(limits.reply_too_long())
    } else {
        Ok(out)
    }
}
