//! FT.INFO, FT._LIST and FT.ALIASLIST.
//!
//! The fields have the order of RediSearch, because clients read them by position. Fields that larder adds come last.

use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};
use larder_space::copies::Regions;
use larder_space::index::Failure;
use larder_space::mapping::{Region, Subspace};
use larder_space::object::ObjectKind;
use larder_space::query::Predicate;
use larder_space::schema::{Attribute, AttributeId, AttributeKind, Definition, Filling};
use larder_space::search::Search;
use larder_space::search::regions::contacts;

use super::super::state::ConnectionState;
use super::context::{QueryContext, QueryScope, retry_on_schema_change};
use super::layout::{self, FillProgress};
use super::parse_name;
use super::regions::subspace_name;
use super::stats::{CopyDetails, SpaceStats, gather_stats};
use crate::spaces::cursors::CURSORS_MAX;
use crate::spaces::{DeclaredSpace, change};
use crate::tables::{NoReply, Refusal};

pub(in crate::resp) async fn info(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = context.find_space(command.arg(1));
        let declared = declared.map_err(|_| change::unknown_name())?;
        let regions_clause = parse_regions_clause(command, &declared)?;
        let all = gather_stats(context, command, &declared, regions_clause.is_some()).await?;
        if let QueryScope::Part { .. } = context.scope {
            return Ok(context.encode_part(&declared, &all.encode()));
        }
        let tables = &context.core.shared.tables;
        let cursors = tables.space_cursors.count(context.core.tables.now()) as u64;
        let (regions, has_single_place) = (
            context.core.tables.spaces().regions(&declared),
            layout::has_single_place(context),
        );
        let details = regions_clause
            .zip(regions)
            .map(|(query, regions)| RegionDetails { query, regions });
        Ok(context.encode(|encoder| {
            describe(
                encoder,
                &declared,
                &all,
                cursors,
                has_single_place,
                details.as_ref(),
            );
        }))
    })
    .await
}

/// The data for FT.INFO ... REGIONS.
struct RegionDetails {
    /// The query whose regions are shown.
    query: Option<Predicate>,
    regions: Arc<Regions>,
}

/// Returns whether regions are requested, and for which query.
fn parse_regions_clause(
    command: Command<'_>,
    declared: &DeclaredSpace,
) -> Result<Option<Option<Predicate>>, Refusal> {
    const QUERY: usize = 3;
    let Some(word) = command.request.get(2) else {
        return Ok(None);
    };
    if !word.eq_ignore_ascii_case(b"REGIONS") || command.len() > QUERY + 1 {
        let message = "write FT.INFO index [REGIONS [query]]";
        return Err((Code::BadRequest, message.to_owned()));
    }
    let query = command.request.get(QUERY).map(|query| {
        let search = Search::parse(&[query], &declared.definition);
        search.map(|search| search.predicate)
    });
    let query = query.transpose();
    query
        .map(Some)
        .map_err(|refused| super::argument_refusal(refused, QUERY))
}

pub(in crate::resp) fn list(state: &mut ConnectionState) {
    let catalog = state.core.shared.tables.spaces.load_full();
    let mut encoder = state.encoder();
    encoder.set(catalog.spaces().count());
    for (name, _) in catalog.spaces() {
        encoder.text(name);
    }
}

pub(in crate::resp) fn aliases(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let catalog = state.core.shared.tables.spaces.load_full();
    let declared = catalog.space(parse_name(request.arg(1))?);
    let declared = declared.ok_or_else(change::unknown_name)?;
    let name = &declared.definition.name;
    let mut encoder = state.encoder();
    encoder.set(catalog.aliases(name).count());
    for alias in catalog.aliases(name) {
        encoder.text(alias);
    }
    Ok(())
}

/// Floating-point fields between RediSearch's counts that have no meaning in larder.
const UNUSED_SIZES: [&str; 8] = [
    "offset_vectors_sz_mb",
    "doc_table_size_mb",
    "sortable_values_size_mb",
    "key_table_size_mb",
    "tag_overhead_sz_mb",
    "text_overhead_sz_mb",
    "total_index_memory_sz_mb",
    "geoshapes_sz_mb",
];

fn describe(
    encoder: &mut Encoder<'_>,
    declared: &DeclaredSpace,
    all: &SpaceStats,
    cursors: u64,
    has_single_place: bool,
    details: Option<&RegionDetails>,
) {
    let definition = &declared.definition;
    let megabytes = all.memory_bytes as f64 / f64::from(1 << 20);
    let double = |encoder: &mut Encoder<'_>, name: &str, value: f64| {
        encoder.text(name);
        encoder.double(value);
    };
    let count = |encoder: &mut Encoder<'_>, name: &str, value: u64| {
        encoder.text(name);
        encoder.count(value);
    };
    let has_stopwords = definition.stopwords.is_some();
    let subspaces = definition.subspace_texts();
    let filling = definition.layout.filling.as_ref();
    let has_subspaces = !subspaces.is_empty() || filling.is_some();
    let more = [has_stopwords, details.is_some(), filling.is_some()];
    let more = more.iter().filter(|is_present| **is_present).count();
    encoder.map(38 + more + 4 * usize::from(has_subspaces));
    encoder.text("index_name");
    encoder.text(&definition.name);
    encoder.text("index_options");
    let options = definition.without_effect.iter();
    let shown = [
        &b"MAXTEXTFIELDS"[..],
        b"NOOFFSETS",
        b"NOHL",
        b"NOFIELDS",
        b"NOFREQS",
    ];
    let options: Vec<_> = options.filter(|it| shown.contains(&&it[..])).collect();
    encoder.array(options.len());
    options.iter().for_each(|option| encoder.bulk(option));
    encoder.text("index_definition");
    describe_rule(encoder, definition);
    encoder.text("attributes");
    encoder.array(definition.attributes.len());
    for attribute in &definition.attributes {
        describe_attribute(encoder, attribute);
    }
    count(encoder, "num_docs", all.objects);
    count(encoder, "max_doc_id", all.objects);
    count(encoder, "num_terms", 0);
    count(encoder, "num_records", all.objects);
    double(encoder, "inverted_sz_mb", megabytes);
    double(encoder, "vector_index_sz_mb", 0.0);
    count(encoder, "total_inverted_index_blocks", 0);
    for name in UNUSED_SIZES {
        let value = if name == "total_index_memory_sz_mb" {
            megabytes
        } else {
            0.0
        };
        double(encoder, name, value);
    }
    for name in [
        "records_per_doc_avg",
        "bytes_per_record_avg",
        "offsets_per_term_avg",
        "offset_bits_per_record_avg",
    ] {
        let per_object = match (name, all.objects) {
            ("records_per_doc_avg", 1..) => 1.0,
            ("bytes_per_record_avg", objects @ 1..) => all.memory_bytes as f64 / objects as f64,
            _ => 0.0,
        };
        double(encoder, name, per_object);
    }
    count(encoder, "hash_indexing_failures", all.failures.count);
    double(encoder, "total_indexing_time", 0.0);
    count(encoder, "indexing", u64::from(all.is_scanning));
    let part = match (all.is_scanning, all.to_scan) {
        (true, of @ 1..) => all.scanned as f64 / of as f64,
        (true, 0) => 0.0,
        (false, _) => 1.0,
    };
    double(encoder, "percent_indexed", part);
    count(encoder, "number_of_uses", 0);
    count(encoder, "cleaning", 0);
    encoder.text("gc_stats");
    encoder.map(7);
    for name in [
        "bytes_collected",
        "total_ms_run",
        "total_cycles",
        "average_cycle_time_ms",
        "last_run_time_ms",
        "gc_numeric_trees_missed",
        "gc_blocks_denied",
    ] {
        double(encoder, name, 0.0);
    }
    encoder.text("cursor_stats");
    encoder.map(4);
    for (name, value) in [
        ("global_idle", cursors),
        ("global_total", cursors),
        ("index_capacity", CURSORS_MAX as u64),
        ("index_total", cursors),
    ] {
        count(encoder, name, value);
    }
    if let Some(stopwords) = &definition.stopwords {
        encoder.text("stopwords_list");
        encoder.array(stopwords.len());
        stopwords.iter().for_each(|word| encoder.bulk(word));
    }
    encoder.text("dialect_stats");
    encoder.map(4);
    for name in ["dialect_1", "dialect_2", "dialect_3", "dialect_4"] {
        count(encoder, name, 0);
    }
    encoder.text("Index Errors");
    let newest = all.failures.newest.as_ref();
    describe_failures(encoder, all.failures.count, newest);
    encoder.text("field statistics");
    encoder.array(definition.attributes.len());
    for attribute in &definition.attributes {
        let failures = all.failures.by_attribute.get(&attribute.id);
        encoder.map(3);
        encoder.text("identifier");
        encoder.text(&attribute.identifier);
        encoder.text("attribute");
        encoder.text(&attribute.name);
        encoder.text("Index Errors");
        let (count, newest) = match failures {
            Some((count, newest)) => (*count, Some(newest)),
            None => (0, None),
        };
        describe_failures(encoder, count, newest);
    }
    count(encoder, "memory_bytes", all.memory_bytes);
    encoder.text("subspaces");
    encoder.array(subspaces.len());
    subspaces.iter().for_each(|subspace| encoder.text(subspace));
    count(encoder, "regions", definition.layout.regions.into());
    encoder.text("definition");
    let arguments = definition.to_arguments();
    encoder.array(arguments.len());
    arguments.iter().for_each(|argument| encoder.bulk(argument));
    if has_subspaces {
        count(encoder, "copies", all.copies);
        count(encoder, "region_answers", all.region_answers);
        let cuts = declared.regions.as_ref().map_or(0, |cuts| cuts.version);
        count(encoder, "cuts", cuts);
        encoder.text("balance");
        describe_balance(encoder, declared, all);
    }
    if let Some(filling) = filling {
        encoder.text("filling");
        describe_filling(
            encoder,
            declared,
            filling,
            FillProgress::of(declared, all, has_single_place),
        );
    }
    if let Some(details) = details {
        describe_regions(encoder, definition, all, details);
    }
}

/// Describes how evenly regions are filled. Regions have 0 objects until the number is known for all objects.
fn describe_balance(encoder: &mut Encoder<'_>, declared: &DeclaredSpace, all: &SpaceStats) {
    let subspaces = &declared.definition.layout.subspaces;
    encoder.array(subspaces.len());
    for number in 0..subspaces.len() {
        let filled = all.filled().and_then(|filled| filled.get(number));
        let filled = filled.map(Vec::as_slice).unwrap_or_default();
        let regions = declared.regions.as_ref();
        let regions = regions.and_then(|regions| regions.subspace(number));
        let count = regions.map_or(0, |subspace| subspace.regions());
        let sum: u64 = filled.iter().sum();
        encoder.map(4);
        encoder.text("attributes");
        let name = regions.map(|it| subspace_name(&declared.definition, it));
        encoder.text(&name.unwrap_or_default());
        encoder.text("regions");
        encoder.count(count.into());
        encoder.text("fullest");
        encoder.count(filled.iter().copied().max().unwrap_or_default());
        encoder.text("mean");
        encoder.double(sum as f64 / f64::from(count.max(1)));
    }
}

/// Describes the subspaces that the space will have, and the progress of filling them.
fn describe_filling(
    encoder: &mut Encoder<'_>,
    declared: &DeclaredSpace,
    filling: &Filling,
    progress: FillProgress,
) {
    let subspaces = declared.definition.texts_of(&filling.subspaces);
    encoder.map(6);
    encoder.text("subspaces");
    encoder.array(subspaces.len());
    subspaces.iter().for_each(|subspace| encoder.text(subspace));
    for (name, value) in [
        ("regions", filling.regions.into()),
        ("copies", progress.copies),
        ("of", progress.copies_in_all),
        ("regions filled", progress.regions),
        ("regions in all", progress.regions_in_all),
    ] {
        encoder.text(name);
        encoder.count(value);
    }
}

/// Describes each subspace: its attributes, the number of cells of each, the number of objects in each region, the
/// regions that a query would contact, and the copies that have arrived.
fn describe_regions(
    encoder: &mut Encoder<'_>,
    definition: &Definition,
    all: &SpaceStats,
    details: &RegionDetails,
) {
    let regions = &details.regions;
    let subspaces: Vec<&Subspace> = (0..regions.count())
        .filter_map(|number| regions.subspace(number))
        .collect();
    let empty = CopyDetails::default();
    encoder.text("subspace regions");
    encoder.array(subspaces.len());
    for (number, subspace) in subspaces.into_iter().enumerate() {
        let held = all.copy_details.get(number).unwrap_or(&empty);
        encoder.map(5 + usize::from(details.query.is_some()));
        encoder.text("serves");
        encoder.count(u64::from(number < regions.serving()));
        encoder.text("attributes");
        encoder.array(subspace.dimensions().len());
        for dimension in subspace.dimensions() {
            let attribute = definition.attribute(AttributeId(dimension.attribute.0));
            encoder.map(3);
            encoder.text("attribute");
            encoder.text(attribute.map_or("", |it| &it.name));
            encoder.text("cells");
            encoder.count(dimension.cut.cells().into());
            encoder.text("cut");
            encoder.text(if dimension.cut.is_by_hash() {
                "hash"
            } else {
                "quantiles"
            });
        }
        encoder.text("copies");
        encoder.array(subspace.regions() as usize);
        for region in 0..subspace.regions() {
            let count = held.copies.get(&(region as u16));
            encoder.count(count.copied().unwrap_or(0));
        }
        encoder.text("filled");
        encoder.count(held.filled.0);
        encoder.text("of");
        encoder.count(held.filled.1);
        if let Some(query) = &details.query {
            let contacts = contacts(subspace, query, definition);
            let contacted = (0..subspace.regions()).map(|region| Region(region as u16));
            let contacted: Vec<Region> = contacted
                .filter(|region| contacts.contains(*region))
                .collect();
            encoder.text("asked");
            encoder.array(contacted.len());
            contacted
                .iter()
                .for_each(|region| encoder.count(region.0.into()));
        }
    }
}

fn describe_failures(encoder: &mut Encoder<'_>, count: u64, newest: Option<&Failure>) {
    encoder.map(3);
    encoder.text("indexing failures");
    encoder.count(count);
    encoder.text("last indexing error");
    encoder.text(newest.map_or("N/A", |failure| &failure.message));
    encoder.text("last indexing error key");
    encoder.bulk(newest.map_or(b"N/A", |failure| &failure.key[..]));
}

fn describe_rule(encoder: &mut Encoder<'_>, definition: &Definition) {
    let filter = definition.filter.as_ref();
    encoder.map(4 + usize::from(filter.is_some()));
    encoder.text("key_type");
    encoder.text(match definition.on {
        ObjectKind::Hash => "HASH",
        ObjectKind::Json => "JSON",
    });
    encoder.text("prefixes");
    encoder.array(definition.prefixes.len().max(1));
    definition
        .prefixes
        .iter()
        .for_each(|prefix| encoder.bulk(prefix));
    if definition.prefixes.is_empty() {
        encoder.text("");
    }
    encoder.text("default_score");
    encoder.text("1");
    if let Some(filter) = filter {
        encoder.text("filter");
        encoder.text(&filter.text);
    }
    encoder.text("indexes_all");
    encoder.text("false");
}

fn describe_attribute(encoder: &mut Encoder<'_>, attribute: &Attribute) {
    let options = &attribute.options;
    let mut pairs: Vec<(&str, Vec<u8>)> = vec![
        ("identifier", attribute.identifier.clone().into_bytes()),
        ("attribute", attribute.name.clone().into_bytes()),
        ("type", attribute.kind.name().into()),
    ];
    let mut flags = Vec::new();
    match &attribute.kind {
        AttributeKind::Text { weight, no_stem } => {
            pairs.push(("WEIGHT", weight.to_string().into_bytes()));
            if *no_stem {
                flags.push("NOSTEM");
            }
        }
        AttributeKind::Tag {
            separator,
            is_case_sensitive,
        } => {
            if let Some(separator) = separator {
                pairs.push(("SEPARATOR", vec![*separator]));
            }
            if *is_case_sensitive {
                flags.push("CASESENSITIVE");
            }
        }
        AttributeKind::Numeric
        | AttributeKind::Geo
        | AttributeKind::Timestamp
        | AttributeKind::Boolean => {}
    }
    for (is_set, flag) in [
        (options.sortable, "SORTABLE"),
        (
            options.unf || (options.sortable && attribute.kind == AttributeKind::Numeric),
            "UNF",
        ),
        (options.no_index, "NOINDEX"),
        (options.suffix_trie, "WITHSUFFIXTRIE"),
        (options.index_empty, "INDEXEMPTY"),
        (options.index_missing, "INDEXMISSING"),
    ] {
        if is_set {
            flags.push(flag);
        }
    }
    match encoder.proto {
        Proto::Resp2 => encoder.array(pairs.len() * 2 + flags.len()),
        Proto::Resp3 => encoder.map(pairs.len() + 1),
    }
    for (name, value) in &pairs {
        encoder.text(name);
        encoder.bulk(value);
    }
    if encoder.proto == Proto::Resp3 {
        encoder.text("flags");
        encoder.array(flags.len());
    }
    flags.iter().for_each(|flag| encoder.text(flag));
}
