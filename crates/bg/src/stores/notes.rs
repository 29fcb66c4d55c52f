//! Notes that a data store keeps in addition to the population: the load that it holds, and the run that writes to it.
//!
//! Reads are validated against the loaded data and the writes of the current run. A run must therefore know that no
//! other run has written: otherwise a correct data store that an earlier run changed would appear wrong. Comparing some
//! members is not enough, because there are many comments and posts. Two notes in the data store provide this
//! information ([`Store::note`]).
//!
//! | note | written | contents |
//! |---|---|---|
//! | `load` | by a load, before its first row and after its last | the number of the load, its population and layout, and whether it is complete |
//! | `run-LOAD` | by the first run that writes to that load, before its first write | the run |
//!
//! ```text
//!   create: no notes ──► load, incomplete ──last row──► load, complete ──first run that writes──► run-LOAD
//!        ▲                    │  ▲ interrupted: --from                                           │
//!        └────────────────────┴──┴───────────────────── bg load, or --load ──────────────────────┘
//! ```
//!
//! Invariants:
//!
//! 1. Of two runs that write to one load, exactly one finds its own name in the note. The clients of a coordinator are
//!    one run.
//! 2. A killed run leaves its note, so no later run mistakes its data for that of the load.
//! 3. A trial during which another process starts to load or to write has no result.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_types::mix;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::model::content;
use crate::model::population::{Friendships, Population};
use crate::stores::contract::{Failure, Store};
use crate::stores::load::runtime;

const LOAD: &str = "load";

/// The time limit for reading and writing notes.
const NOTES_TIMEOUT: Duration = Duration::from_secs(30);

/// The note of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadNote {
    /// Unique among all loads.
    id: String,
    /// True if the last row has been loaded.
    #[serde(rename = "whole")]
    complete: bool,
    layout: String,
    population: PopulationNumbers,
}

/// The options that identify a population.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PopulationNumbers {
    members: u32,
    /// For a lattice; a graph has its own.
    friends: u32,
    /// A digest of all friendships of a graph.
    graph: Option<String>,
    invitations: u32,
    resources: u32,
    comments: u32,
    image_size: Option<usize>,
    #[serde(default = "attribute_size")]
    attribute_size: usize,
    #[serde(default = "comment_size")]
    comment_size: usize,
    seed: u64,
    /// The clients with these communities, and their distribution of members; `None` for a single client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clients: Option<String>,
}

/// The default for notes without this field.
fn attribute_size() -> usize {
    content::ATTRIBUTE_SIZE_DEFAULT
}

fn comment_size() -> usize {
    content::COMMENT_SIZE_DEFAULT
}

/// A run's permission to use a load, under the run's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    load: String,
    run: String,
}

/// Returns a unique name for a load or a run.
pub fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{now:x}-{:x}-{count:x}", std::process::id())
}

impl LoadNote {
    /// Creates the note of a new load.
    pub fn new(store: &dyn Store, population: &Population) -> LoadNote {
        LoadNote {
            id: unique_name(),
            complete: false,
            layout: store.layout(),
            population: PopulationNumbers::new(population),
        }
    }

    /// Reads the note of an interrupted load, to continue the load.
    ///
    /// # Errors
    ///
    /// The data store holds another population, or a run has written to it.
    pub fn resume(store: &dyn Store, population: &Population) -> Result<LoadNote, String> {
        let name = store.name();
        let advice = "omit --from to load all members";
        let fail = |why: Failure| format!("cannot continue loading {name}: {why}");
        let notes = async {
            let Some(loaded) = read_load_note(store).await? else {
                return Ok(None);
            };
            let run = store.note(&run_note(&loaded.id)).await?;
            Ok(Some((loaded, run)))
        };
        let Some((loaded, run)) = runtime()?.block_on(notes).map_err(fail)? else {
            return Err(format!(
                "--from: {name} contains no interrupted load; {advice}"
            ));
        };
        let expected = LoadNote::new(store, population);
        if let Some(difference) = loaded.difference_from(&expected) {
            return Err(format!("--from: {name} {difference}; {advice}"));
        }
        if run.is_some() {
            return Err(format!(
                "--from: a run has written to {name} since it was loaded; {advice}"
            ));
        }
        Ok(LoadNote {
            complete: false,
            ..loaded
        })
    }

    /// Marks the data store as incomplete.
    pub async fn begin(&self, store: &dyn Store) -> Result<(), Failure> {
        store.put_note(LOAD, &self.text()).await
    }

    /// Marks the data store as complete.
    pub async fn end(mut self, store: &dyn Store) -> Result<(), Failure> {
        self.complete = true;
        store.put_note(LOAD, &self.text()).await
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names are JSON")
    }

    /// Describes the difference from the expected load, as a phrase that follows the name of the data store.
    fn difference_from(&self, expected: &LoadNote) -> Option<String> {
        if self.layout != expected.layout {
            return Some(format!(
                "was loaded with the layout {}, but this run uses {}",
                self.layout, expected.layout
            ));
        }
        let (loaded, expected) = (self.population.options(), expected.population.options());
        let mut differences = String::new();
        for ((option, loaded), (_, expected)) in loaded.iter().zip(&expected) {
            if loaded != expected {
                let comma = if differences.is_empty() { "" } else { "," };
                let _ = write!(
                    differences,
                    "{comma} {option} {loaded} instead of {expected}"
                );
            }
        }
        (!differences.is_empty())
            .then(|| format!("contains a different population: it was loaded with{differences}"))
    }
}

impl PopulationNumbers {
    fn new(population: &Population) -> PopulationNumbers {
        let graph = match &population.friendships {
            Friendships::Lattice => None,
            Friendships::Graph(graph) => {
                let members = 0..population.members;
                let pairs = members.flat_map(|member| {
                    let friends = graph.friends_of(member).iter();
                    friends.map(move |friend| u64::from(member) << 32 | u64::from(*friend))
                });
                let sum = pairs.fold(0, |sum, pair| mix(sum ^ pair));
                Some(format!("{sum:016x}"))
            }
        };
        PopulationNumbers {
            members: population.members,
            friends: if graph.is_none() {
                population.friends
            } else {
                0
            },
            graph,
            invitations: population.invitations,
            resources: population.resources,
            comments: population.comments,
            image_size: population.image_size,
            attribute_size: population.attribute_size,
            comment_size: population.comment_size,
            seed: population.seed,
            clients: population.communities.as_ref().map(|communities| {
                let speeds: Vec<String> = communities.speeds().iter().map(f64::to_string).collect();
                format!("{} --draw {}", speeds.join(","), communities.distribution())
            }),
        }
    }

    fn options(&self) -> [(&'static str, String); 11] {
        let none = || "none".to_owned();
        [
            ("--members", self.members.to_string()),
            ("--friends", self.friends.to_string()),
            (
                "--edges or --friendships with checksum",
                self.graph.clone().unwrap_or_else(none),
            ),
            ("--invitations", self.invitations.to_string()),
            ("--resources", self.resources.to_string()),
            ("--comments", self.comments.to_string()),
            (
                "--image-size",
                self.image_size.map_or_else(none, |size| size.to_string()),
            ),
            ("--attribute-size", self.attribute_size.to_string()),
            ("--comment-size", self.comment_size.to_string()),
            ("--seed", self.seed.to_string()),
            (
                "--clients",
                self.clients.clone().unwrap_or_else(|| "1".to_owned()),
            ),
        ]
    }
}

impl Claim {
    /// Checks before a trial that the data store holds the population as loaded, or as this run left it. `before` is
    /// the claim of the run's previous trial.
    ///
    /// # Errors
    ///
    /// The reason why reads could not be validated, and the remedy.
    pub fn verify_load(
        store: &Arc<dyn Store>,
        population: &Population,
        run: &str,
        before: Option<&Claim>,
    ) -> Result<Claim, String> {
        let name = store.name();
        let notes = run_with_timeout(async {
            let Some(loaded) = read_load_note(&**store).await? else {
                return Ok(None);
            };
            let owner = store.note(&run_note(&loaded.id)).await?;
            Ok(Some((loaded, owner)))
        });
        let notes = notes.map_err(|why| unreachable_message(&**store, &why))?;
        let Some((loaded, owner)) = notes else {
            return Err(match before {
                None => format!("{name} contains no population that bg loaded; {LOAD_ADVICE}"),
                Some(_) => format!(
                    "{name} has lost the loaded population since the last trial: it was emptied, or restarted without its data; {LOAD_ADVICE}"
                ),
            });
        };
        if let Some(difference) = loaded.difference_from(&LoadNote::new(&**store, population)) {
            return Err(format!("{name} {difference}; {LOAD_ADVICE}"));
        }
        if !loaded.complete {
            return Err(format!(
                "the load of {name} is incomplete: it is still running, or it was interrupted and bg load --from can continue it; {LOAD_ADVICE}"
            ));
        }
        if before.is_some_and(|before| before.load != loaded.id) {
            return Err(format!(
                "another process has reloaded {name} since the last trial of this run; {LOAD_ADVICE}"
            ));
        }
        if owner.is_some_and(|owner| owner != run) {
            return Err(foreign_write_message(name));
        }
        Ok(Claim {
            load: loaded.id,
            run: run.to_owned(),
        })
    }

    /// Writes the run's name to the load, before the first write.
    ///
    /// # Errors
    ///
    /// Another run has written its name first. Includes the remedy.
    pub fn put(&self, store: &Arc<dyn Store>) -> Result<(), String> {
        let note = run_note(&self.load);
        let owner = run_with_timeout(async {
            store.put_note_if_absent(&note, &self.run).await?;
            store.note(&note).await
        });
        match owner.map_err(|why| unreachable_message(&**store, &why))? {
            Some(owner) if owner == self.run => Ok(()),
            _ => Err(foreign_write_message(store.name())),
        }
    }

    /// Checks after a trial that no other process has loaded or written meanwhile. If the data store is unavailable, or
    /// has lost its notes with all other data, validation will report it.
    ///
    /// # Errors
    ///
    /// The interfering process, and the remedy.
    pub fn check(&self, store: &Arc<dyn Store>) -> Result<(), String> {
        let notes = run_with_timeout(async {
            let loaded = read_load_note(&**store).await?;
            let owner = store.note(&run_note(&self.load)).await?;
            Ok((loaded, owner))
        });
        let Ok((Some(loaded), owner)) = notes else {
            return Ok(());
        };
        let name = store.name();
        if loaded.id != self.load || !loaded.complete {
            return Err(format!(
                "another process loaded {name} during the trial, so the trial has no result; run one process at a time, each with --load"
            ));
        }
        if owner.is_some_and(|owner| owner != self.run) {
            return Err(format!(
                "another run wrote to {name} during the trial, so the trial has no result; run one process at a time, each with --load"
            ));
        }
        Ok(())
    }
}

fn foreign_write_message(name: &str) -> String {
    format!(
        "another run has written to {name} since it was loaded, so reads cannot be validated; {LOAD_ADVICE}"
    )
}

const LOAD_ADVICE: &str =
    "load it with the options of this run: bg load, or --load with this command";

/// Returns the error message for an unavailable data store.
pub fn unreachable_message(store: &dyn Store, why: &str) -> String {
    format!(
        "cannot connect to the data store {}: {why}; check that it is running and that --at is its address",
        store.name()
    )
}

fn run_note(load: &str) -> String {
    format!("run-{load}")
}

/// A note in an unknown format counts as absent.
async fn read_load_note(store: &dyn Store) -> Result<Option<LoadNote>, Failure> {
    let note = store.note(LOAD).await?;
    Ok(note.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Runs a future to completion, within the time limit.
fn run_with_timeout<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, String> {
    runtime()?.block_on(async {
        match timeout(NOTES_TIMEOUT, work).await {
            Ok(done) => done.map_err(|why| why.to_string()),
            Err(_) => Err(format!("no answer in {} s", NOTES_TIMEOUT.as_secs())),
        }
    })
}
