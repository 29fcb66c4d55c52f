//! FT.SEARCH.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::resp::{Encoder, Proto};
use larder_space::index::{SearchRun, SpaceIndex};
use larder_space::search::content::decode_content;
use larder_space::search::partial::{first_sort_value, print_sort_value};
use larder_space::search::{Content, Entry, Partial, Search};

use super::profile::Told;
use super::reach::{Asker, Reach, again, damaged};
use super::regions::{Asked, by_regions, not_held, of_held};
use super::run::{Order, run};
use crate::spaces::Declared;
use crate::tables::Refusal;

/// The query is this argument.
const QUERY: usize = 2;

pub(super) async fn search(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(1))?;
        if let Reach::Part { .. } = asker.reach {
            let partial = part(asker, command, &declared).await?;
            return Ok(asker.part(&declared, &partial.encode()));
        }
        let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let search = parse(&arguments, QUERY, &declared)?;
        let found = found(asker, command, &declared, &search).await?;
        reply(asker, &search, found)
    })
    .await
}

/// What this node finds, for the node that asks.
async fn part(
    asker: &Asker,
    command: Command<'_>,
    declared: &Arc<Declared>,
) -> Result<Partial, Refusal> {
    let Some((asked, bare)) = Asked::of(command) else {
        let arguments: Vec<&[u8]> = command.args().skip(QUERY).collect();
        let search = parse(&arguments, QUERY, declared)?;
        return Ok(of_cores(asker, declared, &search).await?.1);
    };
    let arguments: Vec<&[u8]> = bare.command().args().skip(QUERY).collect();
    let search = parse(&arguments, QUERY, declared)?;
    let order = asker.order(declared, search.options.timeout_ms);
    let begin = beginning(asker, &search);
    let parts = of_held(asker, &order, &asked, &search.predicate, begin, finish).await?;
    Ok(merged(&search, parts.ok_or_else(not_held)?))
}

/// How a core begins a search.
fn beginning(
    asker: &Asker,
    search: &Arc<Search>,
) -> impl Fn(&SpaceIndex) -> Result<SearchRun, Refusal> + Clone + Send + 'static {
    let (own, bytes_max) = (search.clone(), asker.core.clients.limits.answer());
    move |index: &SpaceIndex| Ok(index.search(own.clone(), bytes_max))
}

/// What a core has found.
fn finish(done: SearchRun) -> Result<Partial, Refusal> {
    let found = done.finish();
    found.map_err(|refused| super::refusal(refused, 0))
}

/// What all find that take part.
async fn found(
    asker: &Asker,
    command: Command<'_>,
    declared: &Arc<Declared>,
    search: &Arc<Search>,
) -> Result<Partial, Refusal> {
    let order = asker.order(declared, search.options.timeout_ms);
    let begin = beginning(asker, search);
    let predicate = &search.predicate;
    let parts = by_regions(asker, command, &order, predicate, begin, finish, decoded).await?;
    if let Some(parts) = parts {
        return Ok(merged(search, parts));
    }
    if asker.reach != Reach::Nodes {
        return Ok(of_cores(asker, declared, search).await?.1);
    }
    merged_parts(search, &asker.parts_of_nodes(command, declared).await?)
}

fn merged(search: &Search, parts: Vec<Partial>) -> Partial {
    let mut all = Partial::new(search.keep());
    parts.into_iter().for_each(|part| all.merge(part));
    all
}

fn decoded(part: &[u8]) -> Result<Partial, Refusal> {
    Partial::decode(part).map_err(|_| damaged())
}

/// As [`merged`], of parts as nodes send them.
fn merged_parts(search: &Search, parts: &[Vec<u8>]) -> Result<Partial, Refusal> {
    let parts = parts
        .iter()
        .map(|part| decoded(part))
        .collect::<Result<_, _>>()?;
    Ok(merged(search, parts))
}

/// What the cores of this node did for a search, and what they found, as bytes.
pub(super) async fn profiled(
    asker: &Asker,
    declared: &Arc<Declared>,
    arguments: &[&[u8]],
    first: usize,
) -> Result<(Vec<Told>, Vec<u8>), Refusal> {
    let search = parse(arguments, first, declared)?;
    let (told, found) = of_cores(asker, declared, &search).await?;
    Ok((told, found.encode()))
}

/// The reply to a search, of what all parts found.
pub(super) fn reply_of(
    asker: &Asker,
    declared: &Declared,
    arguments: &[&[u8]],
    first: usize,
    parts: &[Vec<u8>],
) -> Result<Vec<u8>, Refusal> {
    let search = parse(arguments, first, declared)?;
    reply(asker, &search, merged_parts(&search, parts)?)
}

/// The rows of a search of the server's own, whose arguments begin with the query.
pub(super) async fn find(
    asker: &Asker,
    name: &str,
    arguments: &[&[u8]],
    declared: &Arc<Declared>,
) -> Result<Vec<Entry>, Refusal> {
    let search = parse(arguments, 0, declared)?;
    let head = [name.as_bytes()];
    let command = OwnedCommand::of(Id::FtSearch, head.iter().chain(arguments).copied());
    again(&asker.core, asker.reach, async || {
        let found = found(asker, command.command(), declared, &search).await?;
        Ok(found.finish(search.offset))
    })
    .await
}

pub(super) fn parse(
    arguments: &[&[u8]],
    first: usize,
    declared: &Declared,
) -> Result<Arc<Search>, Refusal> {
    let parsed = Search::parse(arguments, &declared.definition);
    parsed
        .map(Arc::new)
        .map_err(|refused| super::refusal(refused, first))
}

/// What the cores of this node find, and what they did for it.
async fn of_cores(
    asker: &Asker,
    declared: &Arc<Declared>,
    search: &Arc<Search>,
) -> Result<(Vec<Told>, Partial), Refusal> {
    let order = asker.order(declared, search.options.timeout_ms);
    let begin = beginning(asker, search);
    let parts = asker.on_cores(move |tables| async move {
        let (begun, core) = (Instant::now(), tables.index);
        let done = run(tables, order, begin).await?;
        let told = Told::of(core, done.profile(), begun);
        Ok((told, finish(done)?))
    });
    let (told, parts) = parts.await?.into_iter().unzip();
    Ok((told, merged(search, parts)))
}

impl Asker {
    pub(super) fn order(&self, declared: &Arc<Declared>, timeout_ms: Option<u64>) -> Order {
        let until = timeout_ms.filter(|ms| *ms > 0);
        Order {
            declared: declared.clone(),
            epoch: self.epoch(),
            until: until.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms))),
        }
    }
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

/// Names and values.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

fn pairs(row: &Entry) -> Result<Pairs<'_>, Refusal> {
    decode_content(&row.content).map_err(|_| damaged())
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
            let pairs = pairs(row)?;
            encoder.array(pairs.len() * 2);
            for (name, value) in pairs {
                encoder.bulk(name);
                encoder.bulk(value);
            }
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
            let pairs = pairs(row)?;
            encoder.text("extra_attributes");
            encoder.map(pairs.len());
            for (name, value) in pairs {
                encoder.bulk(name);
                encoder.bulk(value);
            }
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
