//! FT.SEARCH.

use std::sync::Arc;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::resp::{Encoder, Proto};
use larder_space::index::{SearchRun, SpaceIndex};
use larder_space::query::Predicate;
use larder_space::schema::Definition;
use larder_space::search::content::{bulks_of_content, decode_content};
use larder_space::search::partial::{first_sort_value, print_sort_value};
use larder_space::search::{Content, Entry, Partial, Search};

use super::parts::{Depth, part, whole};
use super::question::Question;
use super::reach::{Asker, Reach, again, damaged};
use crate::spaces::Declared;
use crate::tables::Refusal;

/// The query is this argument.
const QUERY: usize = 2;

/// A search, and how many bytes its rows may have.
#[derive(Clone)]
pub(super) struct Searched {
    search: Arc<Search>,
    bytes_max: usize,
}

impl Searched {
    /// Of arguments that begin with the query, which is argument `first` of its command.
    ///
    /// # Errors
    /// They are no search of this space.
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

    fn encode(&self, found: &Partial) -> Vec<u8> {
        found.encode()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Partial, Refusal> {
        let found = Partial::decode(bytes).map_err(|_| damaged())?;
        let is_whole = found
            .contents()
            .all(|content| decode_content(content).is_ok());
        match is_whole {
            true => Ok(found),
            false => Err(damaged()),
        }
    }

    fn reply(&self, asker: &Asker, found: Partial) -> Result<Vec<u8>, Refusal> {
        reply(asker, &self.search, found)
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
        question.reply(asker, all.part.found)
    })
    .await
}

/// The rows of a search of the server's own, whose arguments begin with the query.
pub(super) async fn find(
    asker: &Asker,
    name: &str,
    arguments: &[&[u8]],
    declared: &Arc<Declared>,
) -> Result<Vec<Entry>, Refusal> {
    let question = Searched::parse(asker, declared, arguments, 0)?;
    let head = [name.as_bytes()];
    let command = OwnedCommand::of(Id::FtSearch, head.iter().chain(arguments).copied());
    again(&asker.core, asker.reach, async || {
        let command = command.command();
        let all = whole(asker, command, declared, &question, Depth::Found).await?;
        Ok(all.part.found.finish(question.search.offset))
    })
    .await
}

fn reply(asker: &Asker, search: &Search, found: Partial) -> Result<Vec<u8>, Refusal> {
    let total = found.total;
    let rows = found.finish(search.offset);
    let mut out = Vec::new();
    let mut encoder = Encoder {
        out: &mut out,
        proto: asker.proto,
    };
    match asker.proto {
        Proto::Resp2 => flat(&mut encoder, search, total, &rows)?,
        Proto::Resp3 => mapped(&mut encoder, search, total, &rows)?,
    }
    let limits = asker.core.clients.limits;
    match out.len() > limits.answer() {
        true => Err(limits.too_long()),
        false => Ok(out),
    }
}

/// How many names and values, and these as they are in a reply.
fn bulks(row: &Entry) -> Result<(usize, &[u8]), Refusal> {
    bulks_of_content(&row.content).map_err(|_| damaged())
}

fn sort_key(encoder: &mut Encoder<'_>, search: &Search, row: &Entry) {
    match first_sort_value(&row.rank, &search.order) {
        Some(value) => encoder.bulk(&print_sort_value(&value)),
        None => encoder.null(),
    }
}

/// As version 2 of the protocol has it.
fn flat(
    encoder: &mut Encoder<'_>,
    search: &Search,
    total: u64,
    rows: &[Entry],
) -> Result<(), Refusal> {
    let has_content = search.content != Content::Nothing;
    let options = [
        has_content,
        search.with_scores,
        search.with_payloads,
        search.with_sort_keys,
    ];
    let width = 1 + options.iter().filter(|is_on| **is_on).count();
    encoder.array(1 + rows.len() * width);
    encoder.count(total);
    for row in rows {
        encoder.bulk(&row.key);
        if search.with_scores {
            encoder.text("1");
        }
        if search.with_payloads {
            encoder.null();
        }
        if search.with_sort_keys {
            sort_key(encoder, search, row);
        }
        if has_content {
            let (pairs, bulks) = bulks(row)?;
            encoder.array(pairs * 2);
            encoder.out.extend_from_slice(bulks);
        }
    }
    Ok(())
}

/// As version 3 has it.
fn mapped(
    encoder: &mut Encoder<'_>,
    search: &Search,
    total: u64,
    rows: &[Entry],
) -> Result<(), Refusal> {
    let has_content = search.content != Content::Nothing;
    encoder.map(5);
    encoder.text("attributes");
    encoder.array(0);
    encoder.text("format");
    encoder.text("STRING");
    encoder.text("results");
    encoder.array(rows.len());
    for row in rows {
        let options = [
            has_content,
            search.with_scores,
            search.with_payloads,
            search.with_sort_keys,
        ];
        encoder.map(2 + options.iter().filter(|is_on| **is_on).count());
        encoder.text("id");
        encoder.bulk(&row.key);
        if search.with_scores {
            encoder.text("score");
            encoder.double(1.0);
        }
        if search.with_payloads {
            encoder.text("payload");
            encoder.null();
        }
        if search.with_sort_keys {
            encoder.text("sortkey");
            sort_key(encoder, search, row);
        }
        if has_content {
            let (pairs, bulks) = bulks(row)?;
            encoder.text("extra_attributes");
            encoder.map(pairs);
            encoder.out.extend_from_slice(bulks);
        }
        encoder.text("values");
        encoder.array(0);
    }
    encoder.text("total_results");
    encoder.count(total);
    encoder.text("warning");
    encoder.array(0);
    Ok(())
}
