//! FT.PROFILE: executes a search or an aggregation, and describes its route and the work of each core.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::index::Profile;
use larder_types::wire::{Malformed, WireReader, put_bytes};

use super::super::tables::places_of_nodes;
use super::aggregate::Aggregated;
use super::parts::{Depth, part, replied, whole};
use super::question::Question;
use super::reach::{Asker, Reach, again};
use super::regions::{Asked, ByRegions, subspace_name};
use super::search::Searched;
use crate::spaces::Declared;
use crate::tables::Refusal;

/// The profile of one core.
pub(super) struct Told {
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
pub(super) struct Contacted {
    /// The attributes of the subspace whose regions were contacted. `None` if all owners of objects were contacted.
    pub subspace: Option<String>,
    /// A subspace whose regions were contacted first, but not all of them were complete.
    pub not_ready: Option<String>,
    pub regions: u64,
    pub regions_in_all: u64,
    pub nodes: u64,
    pub nodes_in_all: u64,
    pub cores: u64,
    pub cores_in_all: u64,
    /// All candidate routes, the cheapest first; empty without subspaces.
    pub considered: String,
}

impl Contacted {
    /// Returns all owners of objects.
    pub fn owners(asker: &Asker) -> Contacted {
        let tables = &asker.core.tables;
        let nodes = match asker.reach {
            Reach::Nodes => places_of_nodes(&asker.core).map_or(1, |places| places.len() as u64),
            _ => 1,
        };
        let cores = match asker.reach {
            Reach::Nodes => tables.shard().map_or(1, |shard| shard.owners().count()),
            _ => tables.handle().cores(),
        } as u64;
        Contacted {
            nodes,
            nodes_in_all: nodes,
            cores,
            cores_in_all: cores,
            ..Contacted::default()
        }
    }

    /// Returns these regions of a subspace, with the totals of `self`.
    pub fn regions(&self, declared: &Declared, asked: &ByRegions) -> Contacted {
        let subspace = asked.subspaces.subspace(asked.subspace);
        Contacted {
            subspace: subspace.map(|it| subspace_name(&declared.definition, it)),
            regions: asked.regions,
            regions_in_all: asked.regions_in_all,
            cores: asked.cores,
            nodes: asked.by_node.len() as u64,
            ..self.clone()
        }
    }

    /// Describes the participants in one line, and the candidate routes, if any, in a second one.
    pub fn describe_choice(&self) -> String {
        if self.considered.is_empty() {
            self.describe()
        } else {
            format!("{}\nconsidered: {}", self.describe(), self.considered)
        }
    }

    /// Describes the participants in one line.
    pub fn describe(&self) -> String {
        let cores = format!(
            "{} of {} cores, {} of {} nodes",
            self.cores, self.cores_in_all, self.nodes, self.nodes_in_all
        );
        match (&self.subspace, &self.not_ready) {
            (Some(subspace), _) => format!(
                "subspace {subspace}: {} of {} regions, at {cores}",
                self.regions, self.regions_in_all
            ),
            (None, Some(subspace)) => {
                format!(
                    "all owners, since regions of subspace {subspace} are being filled: {cores}"
                )
            }
            (None, None) => format!("all owners: {cores}"),
        }
    }
}

impl Told {
    pub fn of(core: usize, profile: &Profile, begun: Instant) -> Told {
        Told {
            core,
            name: String::new(),
            plan: profile.plan.to_string(),
            candidates: profile.candidates,
            found: profile.found,
            objects_read: profile.objects_read,
            steps: profile.steps,
            took_us: begun.elapsed().as_micros() as u64,
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

    pub fn decode(reader: &mut WireReader<'_>) -> Result<Told, Malformed> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Told {
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
fn asked(command: Command<'_>) -> Result<(bool, usize), Refusal> {
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

pub(super) async fn profile(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let (is_search, first) = asked(command)?;
    again(&asker.core, asker.reach, async || {
        let declared = &asker.declared(command.arg(1))?;
        let mut arguments: Vec<&[u8]> = command.args().skip(first).collect();
        let regions = asker.take_asked(&mut arguments);
        if is_search {
            let question = Searched::parse(asker, declared, &arguments, first)?;
            profiled(asker, command, regions, declared, question).await
        } else {
            let question = Aggregated::parse(asker, declared, &arguments, first)?;
            profiled(asker, command, regions, declared, question).await
        }
    })
    .await
}

async fn profiled<Q: Question>(
    asker: &Asker,
    command: Command<'_>,
    asked: Option<Asked>,
    declared: &Arc<Declared>,
    question: Q,
) -> Result<Vec<u8>, Refusal> {
    if let Reach::Part { .. } = asker.reach {
        return part(asker, asked, declared, &question, Depth::Profiled).await;
    }
    let begun = Instant::now();
    let all = whole(asker, command, declared, &question, Depth::Profiled).await?;
    let reply = replied(asker, &question, &all.patience, all.part.found).await?;
    let (told, contacted) = (&all.part.told, &all.contacted);
    Ok(asker.encoded(|encoder| describe(encoder, &reply, told, contacted, begun)))
}

fn describe(
    encoder: &mut Encoder<'_>,
    reply: &[u8],
    told: &[Told],
    contacted: &Contacted,
    begun: Instant,
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
    encoder.array(told.len());
    for one in told {
        encoder.map(7);
        encoder.text("Shard");
        encoder.text(&one.name);
        for (name, time) in [
            ("Total profile time", one.took_us as f64 / 1000.0),
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
        encoder.text(&one.plan);
        let names = ["Candidates", "Found", "Objects read", "Steps", "Time (us)"];
        for (name, number) in names.into_iter().zip(one.numbers()) {
            encoder.text(name);
            encoder.count(number);
        }
        encoder.text("Result processors profile");
        encoder.array(0);
    }
    encoder.text("Coordinator");
    encoder.map(9);
    encoder.text("Total Coordinator time");
    encoder.double(begun.elapsed().as_secs_f64() * 1000.0);
    encoder.text("Asked");
    encoder.text(&contacted.describe());
    encoder.text("Considered");
    encoder.text(&contacted.considered);
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
