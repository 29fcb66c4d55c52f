//! FT.PROFILE: executes a search or an aggregation, and describes its route and the work of each core.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::index::Profile;
use larder_types::wire::{Malformed, WireReader, put_bytes};

use super::super::tables::node_places;
use super::aggregate::AggregateQuery;
use super::context::{QueryContext, QueryScope, retry_on_schema_change};
use super::regions::{RegionRequest, RegionRoute, subspace_name};
use super::scatter_gather::{ResultDetail, encode_reply, execute_part, run_query};
use super::search::SearchQuery;
use super::space_query::SpaceQuery;
use crate::spaces::DeclaredSpace;
use crate::tables::Refusal;

/// The profile of one core.
pub(super) struct ShardProfile {
    /// The core's number on its node.
    pub core: usize,
    /// The names of the node and the core.
    pub name: String,
    pub plan: String,
    pub candidates: u64,
    pub found: u64,
    pub objects_read: u64,
    pub steps: u64,
    pub took_us: u64,
}

/// The participants of a search.
#[derive(Debug, Clone, Default)]
pub(super) struct ContactSummary {
    /// The attributes of the subspace whose regions were contacted. `None` if all owners of objects were contacted.
    pub subspace: Option<String>,
    /// A subspace whose regions were contacted first, but not all of them were complete.
    pub incomplete_subspace: Option<String>,
    pub regions: u64,
    pub regions_in_all: u64,
    pub nodes: u64,
    pub nodes_in_all: u64,
    pub cores: u64,
    pub cores_in_all: u64,
    /// All candidate routes, the cheapest first; empty without subspaces.
    pub candidates: String,
}

impl ContactSummary {
    /// Returns all owners of objects.
    pub fn all_owners(context: &QueryContext) -> ContactSummary {
        let tables = &context.core.tables;
        let nodes = match context.scope {
            QueryScope::Nodes => node_places(&context.core).map_or(1, |places| places.len() as u64),
            _ => 1,
        };
        let cores = match context.scope {
            QueryScope::Nodes => tables.shard().map_or(1, |shard| shard.owners().count()),
            _ => tables.handle().cores(),
        } as u64;
        ContactSummary {
            nodes,
            nodes_in_all: nodes,
            cores,
            cores_in_all: cores,
            ..ContactSummary::default()
        }
    }

    /// Returns these regions of a subspace, with the totals of `self`.
    pub fn with_regions(
        &self,
        declared: &DeclaredSpace,
        region_request: &RegionRoute,
    ) -> ContactSummary {
        let subspace = region_request.subspaces.subspace(region_request.subspace);
        ContactSummary {
            subspace: subspace.map(|it| subspace_name(&declared.definition, it)),
            regions: region_request.regions,
            regions_in_all: region_request.regions_in_all,
            cores: region_request.cores,
            nodes: region_request.by_node.len() as u64,
            ..self.clone()
        }
    }

    /// Describes the participants in one line, and the candidate routes, if any, in a second one.
    pub fn describe_choice(&self) -> String {
        if self.candidates.is_empty() {
            self.describe()
        } else {
            format!("{}\nconsidered: {}", self.describe(), self.candidates)
        }
    }

    /// Describes the participants in one line.
    pub fn describe(&self) -> String {
        let cores = format!(
            "{} of {} cores, {} of {} nodes",
            self.cores, self.cores_in_all, self.nodes, self.nodes_in_all
        );
        match (&self.subspace, &self.incomplete_subspace) {
            (Some(subspace), _) => format!(
                "subspace {subspace}: {} of {} regions, at {cores}",
                self.regions, self.regions_in_all
            ),
            (None, Some(subspace)) => {
                format!(
                    "all owners, because regions of subspace {subspace} are incomplete: {cores}"
                )
            }
            (None, None) => format!("all owners: {cores}"),
        }
    }
}

impl ShardProfile {
    pub fn of(core: usize, profile: &Profile, started: Instant) -> ShardProfile {
        ShardProfile {
            core,
            name: String::new(),
            plan: profile.plan.to_string(),
            candidates: profile.candidates,
            found: profile.found,
            objects_read: profile.objects_read,
            steps: profile.steps,
            took_us: started.elapsed().as_micros() as u64,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.plan.as_bytes());
        for number in self.numbers() {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn numbers(&self) -> [u64; 5] {
        [
            self.candidates,
            self.found,
            self.objects_read,
            self.steps,
            self.took_us,
        ]
    }

    pub fn decode(reader: &mut WireReader<'_>) -> Result<ShardProfile, Malformed> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(ShardProfile {
            core: 0,
            name: text(reader.bytes()?),
            plan: text(reader.bytes()?),
            candidates: reader.u64()?,
            found: reader.u64()?,
            objects_read: reader.u64()?,
            steps: reader.u64()?,
            took_us: reader.u64()?,
        })
    }
}

/// Returns whether a search is profiled (else an aggregation), and the index of the query.
fn parse_kind(command: Command<'_>) -> Result<(bool, usize), Refusal> {
    let refused = |message: &str| Err((Code::BadRequest, message.to_owned()));
    let is_search = match command.arg(2).to_ascii_uppercase().as_slice() {
        b"SEARCH" => true,
        b"AGGREGATE" => false,
        _ => return refused("No `SEARCH` or `AGGREGATE` provided"),
    };
    let limited = usize::from(command.arg(3).eq_ignore_ascii_case(b"LIMITED"));
    match command.request.get(3 + limited) {
        Some(word) if word.eq_ignore_ascii_case(b"QUERY") => Ok((is_search, 4 + limited)),
        _ => refused("The QUERY keyword is expected"),
    }
}

pub(in crate::resp) async fn profile(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    let (is_search, first) = parse_kind(command)?;
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = &context.find_space(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(first).collect();
        let regions = context.take_region_request(&mut arguments);
        if is_search {
            let space_query = SearchQuery::parse(context, declared, &arguments, first)?;
            profile_query(context, command, regions, declared, space_query).await
        } else {
            let space_query = AggregateQuery::parse(context, declared, &arguments, first)?;
            profile_query(context, command, regions, declared, space_query).await
        }
    })
    .await
}

async fn profile_query<Q: SpaceQuery>(
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
            ResultDetail::ObjectsAndProfile,
        )
        .await;
    }
    let started = Instant::now();
    let all = run_query(
        context,
        command,
        declared,
        &space_query,
        ResultDetail::ObjectsAndProfile,
    )
    .await?;
    let reply = encode_reply(context, &space_query, &all.deadline, all.part.found).await?;
    let (profiles, contacted) = (&all.part.profiles, &all.contacted);
    Ok(context.encode(|encoder| describe(encoder, &reply, profiles, contacted, started)))
}

fn describe(
    encoder: &mut Encoder<'_>,
    reply: &[u8],
    profiles: &[ShardProfile],
    contacted: &ContactSummary,
    started: Instant,
) {
    match encoder.proto {
        Proto::Resp2 => encoder.array(2),
        Proto::Resp3 => {
            encoder.map(2);
            encoder.text("Results");
        }
    }
    encoder.out.extend_from_slice(reply);
    if encoder.proto == Proto::Resp3 {
        encoder.text("Profile");
    }
    encoder.map(2);
    encoder.text("Shards");
    encoder.array(profiles.len());
    for profile in profiles {
        encoder.map(7);
        encoder.text("Shard");
        encoder.text(&profile.name);
        for (name, time) in [
            ("Total profile time", profile.took_us as f64 / 1000.0),
            ("Parsing time", 0.0),
            ("Pipeline creation time", 0.0),
        ] {
            encoder.text(name);
            encoder.double(time);
        }
        encoder.text("Warning");
        encoder.text("None");
        encoder.text("Iterators profile");
        encoder.map(6);
        encoder.text("Type");
        encoder.text(&profile.plan);
        let names = ["Candidates", "Found", "Objects read", "Steps", "Time (us)"];
        for (name, number) in names.into_iter().zip(profile.numbers()) {
            encoder.text(name);
            encoder.count(number);
        }
        encoder.text("Result processors profile");
        encoder.array(0);
    }
    encoder.text("Coordinator");
    encoder.map(9);
    encoder.text("Total Coordinator time");
    encoder.double(started.elapsed().as_secs_f64() * 1000.0);
    encoder.text("Asked");
    encoder.text(&contacted.describe());
    encoder.text("Considered");
    encoder.text(&contacted.candidates);
    for (name, number) in [
        ("Regions", contacted.regions),
        ("Regions in all", contacted.regions_in_all),
        ("Cores", contacted.cores),
        ("Cores in all", contacted.cores_in_all),
        ("Nodes", contacted.nodes),
        ("Nodes in all", contacted.nodes_in_all),
    ] {
        encoder.text(name);
        encoder.count(number);
    }
}
