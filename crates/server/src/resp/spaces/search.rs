//! FT.SEARCH.

use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_space::index::{SearchRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;
use larder_space::search::content::{bulks_of_content, decode_content};
use larder_space::search::partial::first_sort_value;
use larder_space::search::{Partial, Search};

use super::aside::{Patience, ROWS_BETWEEN_CHECKS};
use super::parts::{Depth, part, replied, whole};
use super::question::{Question, Replying};
use super::reach::{Asker, Reach, again, damaged};
use super::reply::Reply;
use crate::spaces::Declared;
use crate::tables::Refusal;

/// Index of the query argument.
pub(super) const QUERY: usize = 2;

/// A search, and the maximum size of its rows.
#[derive(Clone)]
pub(super) struct Searched {
    search: Arc<Search>,
    bytes_max: usize,
}

impl Searched {
    /// Parses the arguments from the query on, which is argument `first` of its command.
    ///
    /// # Errors
    /// They are not a valid search of this space.
    pub fn parse(
        asker: &Asker,
        declared: &Declared,
        arguments: &[&[u8]],
        first: usize,
    ) -> Result<Searched, Refusal> {
        let parsed = Search::parse(arguments, &declared.definition);
        let search = parsed.map_err(|refused| super::refusal(refused, first))?;
        Ok(Searched {
            search: Arc::new(search),
            bytes_max: asker.core.clients.limits.answer(),
        })
    }
}

impl Question for Searched {
    type Run = SearchRun;
    type Found = Partial;

    fn predicate(&self) -> &Predicate {
        &self.search.predicate
    }

    fn timeout_ms(&self) -> Option<u64> {
        self.search.options.timeout_ms
    }

    fn ensure_no_full_scan(&self, definition: &Definition) -> Result<(), Refusal> {
        let ensured = self.search.ensure_no_full_scan(definition);
        ensured.map_err(|refused| super::refusal(refused, 0))
    }

    fn begin(&self, index: &SpaceIndex) -> SearchRun {
        index.search(self.search.clone(), self.bytes_max)
    }

    fn refusal(&self, run: &SearchRun) -> Option<Refusal> {
        let refused = run.refusal().cloned();
        refused.map(|refused| super::refusal(refused, 0))
    }

    fn finish(&self, run: SearchRun) -> Result<Partial, Refusal> {
        let found = run.finish();
        found.map_err(|refused| super::refusal(refused, 0))
    }

    fn merge(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        let mut parts = parts.into_iter();
        let first = parts.next();
        let mut all = first.unwrap_or_else(|| Partial::new(self.search.keep()));
        parts.for_each(|part| all.merge(part));
        Ok(all)
    }

    fn merge_copies(&self, parts: Vec<Partial>) -> Result<Partial, Refusal> {
        Ok(Partial::of_copies(self.search.keep(), parts))
    }

    fn encode(&self, found: &Partial) -> Vec<u8> {
        found.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Partial, Refusal> {
        let found = Partial::decode(bytes).map_err(|_| damaged())?;
        let is_whole = found
            .contents()
            .all(|content| decode_content(content).is_ok());
        if is_whole { Ok(found) } else { Err(damaged()) }
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
        reply(replying, patience, &self.search, found)
    }
}

pub(super) async fn search(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let asked = asker.take_asked(&mut arguments);
        let question = Searched::parse(asker, &declared, &arguments, QUERY)?;
        if let Reach::Part { .. } = asker.reach {
            return part(asker, asked, &declared, &question, Depth::Found).await;
        }
        let all = whole(asker, command, &declared, &question, Depth::Found).await?;
        let (search, total) = (&question.search, all.part.found.total);
        let answered = total
            .min(search.keep() as u64)
            .saturating_sub(search.offset);
        asker.note_query(&declared, &search.predicate, Some(total), answered);
        replied(asker, &question, &all.patience, all.part.found).await
    })
    .await
}

fn reply(
    Replying { proto, limits }: Replying,
    patience: &Patience,
    search: &Search,
    found: Partial,
) -> Result<Vec<u8>, Refusal> {
    let total = found.total;
    let rows = found.finish(search.offset);
    // The headers of keys and values take about as much as the ranks do.
    let mut out = Vec::with_capacity(rows.bytes() + 16 * rows.len() + 32);
    let mut reply = Reply::begin(&mut out, proto, search, total, rows.len());
    for (at, row) in rows.iter().enumerate() {
        if at % ROWS_BETWEEN_CHECKS == 0 {
            patience.ensure()?;
        }
        let sorted_by = || first_sort_value(row.rank, &search.order);
        reply.row(row.key, sorted_by, |out, head| {
            let (pairs, bulks) = bulks_of_content(row.content).map_err(|_| damaged())?;
            head(out, pairs);
            out.extend_from_slice(bulks);
            Ok(())
        })?;
    }
    reply.end(total);
    if out.len() > limits.answer() {
        Err(limits.too_long())
    } else {
        Ok(out)
    }
}
