//! The trace of a trial on disk: a self-contained folder.
//!
//! ```text
//!   DIR/population.json       the population, as `Parameters` defines it
//!   DIR/friendships.edges     pairs of little-endian u32, each friendship once; only if they are of a graph
//!   DIR/before.trace          differences between the data store and the population before the trial, as writes at 0
//!   DIR/worker-000.trace ...  the records of each worker (crates/validate/src/record.rs)
//! ```

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use larder_validate::Span;
use larder_validate::record::{Outcome, Record, RecordKind};
use serde::{Deserialize, Serialize};

use crate::model::draw::Distribution;
use crate::model::population::communities::Communities;
use crate::model::population::graph::Graph;
use crate::model::population::{Friendships, Population};
use crate::model::state::{Change, State};

pub const PARAMETERS: &str = "population.json";
pub const EDGES: &str = "friendships.edges";
pub const BEFORE: &str = "before.trace";

/// The action number of writes that stand for the state before a trial; no action has this number.
const BEFORE_ACTION: u8 = 254;

/// The parameters for validating a trace's reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    pub store: String,
    pub members: u32,
    pub friends: u32,
    /// True if the friendships are those in the file of edges.
    pub graph: bool,
    pub invitations: u32,
    pub resources: u32,
    pub comments: u32,
    pub image_size: Option<usize>,
    pub seed: u64,
    /// Number of resources of a wall that a read returns.
    pub top: u32,
    /// The communities of the clients. None for a single client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communities: Option<Division>,
}

/// The parameters that determine the communities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// A [`Distribution`] in the format of `--draw`.
    pub draw: String,
    pub speeds: Vec<f64>,
}

impl Parameters {
    pub fn new(store: &str, population: &Population, top: u32) -> Parameters {
        Parameters {
            store: store.to_owned(),
            members: population.members,
            friends: population.friends,
            graph: matches!(population.friendships, Friendships::Graph(_)),
            invitations: population.invitations,
            resources: population.resources,
            comments: population.comments,
            image_size: population.image_size,
            seed: population.seed,
            top,
            communities: population.communities.as_ref().map(|it| Division {
                draw: it.distribution().to_string(),
                speeds: it.speeds().to_vec(),
            }),
        }
    }

    /// Writes the parameters and the friendships to an existing folder.
    pub fn save(&self, folder: &Path, population: &Population) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).expect("numbers and names are JSON");
        write(&folder.join(PARAMETERS), (text + "\n").as_bytes())?;
        let Friendships::Graph(graph) = &population.friendships else {
            return Ok(());
        };
        let mut bytes = Vec::with_capacity(graph.friendships() as usize * 8);
        for member in 0..population.members {
            for friend in graph.friends_of(member).iter().filter(|it| **it > member) {
                bytes.extend_from_slice(&member.to_le_bytes());
                bytes.extend_from_slice(&friend.to_le_bytes());
            }
        }
        write(&folder.join(EDGES), &bytes)
    }

    pub fn read(folder: &Path) -> Result<(Parameters, Population), String> {
        let path = folder.join(PARAMETERS);
        let text = fs::read(&path).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => format!(
                "{} is not a trace: it has no {PARAMETERS}; bg run --trace creates a trace, and logs of the released BG need --format bg-text",
                folder.display()
            ),
            _ => format!("{}: {why}", path.display()),
        })?;
        let parameters: Parameters =
            serde_json::from_slice(&text).map_err(|why| format!("{}: {why}", path.display()))?;
        let friendships = if parameters.graph {
            let path = folder.join(EDGES);
            let bytes = fs::read(&path).map_err(|why| format!("{}: {why}", path.display()))?;
            Friendships::Graph(Arc::new(decode_graph(&path, &bytes, parameters.members)?))
        } else {
            Friendships::Lattice
        };
        let communities = match &parameters.communities {
            None => None,
            Some(division) => {
                let fail = |why: String| format!("{}: communities: {why}", path.display());
                let distribution = division.draw.parse::<Distribution>().map_err(fail)?;
                Communities::new(distribution, parameters.members, &division.speeds)
            }
        };
        let population = Population {
            members: parameters.members,
            friends: parameters.friends,
            friendships,
            communities,
            invitations: parameters.invitations,
            resources: parameters.resources,
            comments: parameters.comments,
            image_size: parameters.image_size,
            seed: parameters.seed,
            // Contents are validated when they are read, not from the trace.
            ..Population::default()
        };
        population
            .check()
            .map_err(|why| format!("{}: {why}", path.display()))?;
        Ok((parameters, population))
    }
}

fn decode_graph(path: &Path, bytes: &[u8], members: u32) -> Result<Graph, String> {
    let (pairs, rest) = bytes.as_chunks::<8>();
    let edges: Vec<(u32, u32)> = pairs
        .iter()
        .map(|pair| {
            let [a, b, c, d, e, f, g, h] = *pair;
            (
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            )
        })
        .collect();
    let beyond = edges.iter().any(|(one, other)| *one.max(other) >= members);
    if beyond || !rest.is_empty() {
        return Err(format!(
            "{}: must contain pairs of members below {members}",
            path.display()
        ));
    }
    Ok(Graph::new(members, &edges))
}

/// Makes a folder for a trace.
///
/// # Errors
///
/// The folder already contains files, or cannot be made.
pub fn make_folder(folder: &Path) -> Result<(), String> {
    let fail = |why: std::io::Error| format!("trace folder {}: {why}", folder.display());
    fs::create_dir_all(folder).map_err(fail)?;
    let mut files = fs::read_dir(folder).map_err(fail)?;
    if files.any(|file| file.is_ok_and(|file| file.path().is_file())) {
        return Err(format!(
            "trace folder {}: is not empty; choose an empty folder",
            folder.display()
        ));
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|why| format!("cannot write {}: {why}", path.display()))
}

/// Converts a change of a list to its record. Counts are the sizes of lists, so they need no records of their own.
pub fn record_kind(change: Change) -> RecordKind {
    if change.put {
        RecordKind::PutElement(change.element)
    } else {
        RecordKind::RemoveElement(change.element)
    }
}

/// Passes the differences between the data store and the population before a trial, as writes at 0, which is before
/// every call.
pub(crate) fn visit_initial_changes(state: &State, visit: &mut dyn FnMut(Record)) {
    let mut session = 0;
    state.visit_changes(&mut |change| {
        // Each change is a call of its own, because each uncertain change may have happened independently.
        session += 1;
        visit(Record {
            item: change.item,
            span: Span::new(0, 0).expect("an instant"),
            session,
            action: BEFORE_ACTION,
            outcome: if change.certain {
                Outcome::Done
            } else {
                Outcome::Unknown
            },
            what: record_kind(change),
        });
    });
}
