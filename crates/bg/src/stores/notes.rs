//! What a data store keeps about itself beside the population: which load it holds, and which run writes into it.
//!
//! Reads are judged from what was loaded and from the writes that this run knows of. So a run has to know that nobody else wrote: a right
//! data store that an earlier run changed would be called wrong. A look at some members cannot tell (comments and posts are many);
//! two notes in the data store can ([`Store::note`]).
//!
//! | note | put | says |
//! |---|---|---|
//! | `load` | by a load, before its first row and after its last | the load's number, its population and layout, and whether it is whole |
//! | `run-LOAD` | by the first run that writes into that load, before its first write | the run |
//!
//! ```text
//!   create: no notes ──► load, not whole ──last row──► load, whole ──first run that writes──► run-LOAD
//!        ▲                    │  ▲ interrupted: --from                                           │
//!        └────────────────────┴──┴───────────────────── bg load, or --load ──────────────────────┘
//! ```
//!
//! Invariants:
//!
//! 1. Of two runs that write into one load, one alone finds its own name in the note; the clients of a coordinator are one run.
//! 2. A run that was killed leaves its note, so that nobody takes what it left for what was loaded.
//! 3. A trial in which somebody else began to load or to write has no result.

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

/// How long a data store may take to tell its notes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A load, as its note says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Told from every other load by this.
    id: String,
    /// Whether its last row is in.
    whole: bool,
    layout: String,
    population: Numbers,
}

/// What tells populations apart, by the options that make them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers {
    members: u32,
    /// Of a lattice; a graph has its own.
    friends: u32,
    /// Of all friendships of a graph.
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
    /// The clients whose communities these are, and how they draw members; None for a single client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clients: Option<String>,
}

/// Of notes that do not say.
fn attribute_size() -> usize {
    content::ATTRIBUTE_SIZE_DEFAULT
}

fn comment_size() -> usize {
    content::COMMENT_SIZE_DEFAULT
}

/// What a run may go by: the load that it acts on, under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    load: String,
    run: String,
}

/// A name that nobody else gives to a load or to a run.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{now:x}-{:x}-{count:x}", std::process::id())
}

impl Loaded {
    /// A load that begins.
    pub fn new(store: &dyn Store, population: &Population) -> Loaded {
        Loaded {
            id: unique(),
            whole: false,
            layout: store.layout(),
            population: Numbers::of(population),
        }
    }

    /// One that was broken off and goes on with what it holds.
    ///
    /// # Errors
    ///
    /// What is stored is no part of this population, or somebody wrote into it.
    pub fn resumed(store: &dyn Store, population: &Population) -> Result<Loaded, String> {
        let name = store.name();
        let anew = "leave out --from to load it from the first member on";
        let fail = |why: Failure| format!("cannot go on loading into {name}: {why}");
        let notes = async {
            let Some(loaded) = read(store).await? else {
                return Ok(None);
            };
            let run = store.note(&run_note(&loaded.id)).await?;
            Ok(Some((loaded, run)))
        };
        let Some((loaded, run)) = runtime()?.block_on(notes).map_err(fail)? else {
            return Err(format!(
                "--from: there is no load in {name} to go on with; {anew}"
            ));
        };
        let wanted = Loaded::new(store, population);
        if let Some(other) = loaded.differs(&wanted) {
            return Err(format!("--from: {name} {other}; {anew}"));
        }
        if run.is_some() {
            return Err(format!(
                "--from: a run has written into {name} since it was loaded; {anew}"
            ));
        }
        Ok(Loaded {
            whole: false,
            ..loaded
        })
    }

    /// Says in the data store that rows of this load are to come.
    pub async fn begin(&self, store: &dyn Store) -> Result<(), Failure> {
        store.put_note(LOAD, &self.text()).await
    }

    /// Says in the data store that it holds all of it.
    pub async fn end(mut self, store: &dyn Store) -> Result<(), Failure> {
        self.whole = true;
        store.put_note(LOAD, &self.text()).await
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names are JSON")
    }

    /// How it is not what is wanted, in words behind the name of a data store.
    fn differs(&self, wanted: &Loaded) -> Option<String> {
        if self.layout != wanted.layout {
            return Some(format!(
                "was loaded as {}, which is not how {} reads it",
                self.layout, wanted.layout
            ));
        }
        let (loaded, wanted) = (self.population.options(), wanted.population.options());
        let mut told = String::new();
        for ((option, loaded), (_, wanted)) in loaded.iter().zip(&wanted) {
            if loaded != wanted {
                let comma = if told.is_empty() { "" } else { "," };
                let _ = write!(told, "{comma} {option} {loaded} and not {wanted}");
            }
        }
        (!told.is_empty()).then(|| format!("holds another population: it was loaded with{told}"))
    }
}

impl Numbers {
    fn of(population: &Population) -> Numbers {
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
        Numbers {
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
                "--edges or --friendships of the sum",
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
    /// Before a trial: that the data store holds the population as it was loaded, or as this run left it. `before`: what the run went by
    /// in its last trial.
    ///
    /// # Errors
    ///
    /// Why reads could not be judged, and what to do.
    pub fn look(
        store: &Arc<dyn Store>,
        population: &Population,
        run: &str,
        before: Option<&Claim>,
    ) -> Result<Claim, String> {
        let name = store.name();
        let told = within(async {
            let Some(loaded) = read(&**store).await? else {
                return Ok(None);
            };
            let owner = store.note(&run_note(&loaded.id)).await?;
            Ok(Some((loaded, owner)))
        });
        let told = told.map_err(|why| unreached(&**store, &why))?;
        let Some((loaded, owner)) = told else {
            return Err(match before {
                None => format!("{name} holds no population that this bg loaded; {LOAD_IT}"),
                Some(_) => format!(
                    "{name} has lost what was loaded since the last trial: it was emptied, or it was started again without its data; {LOAD_IT}"
                ),
            });
        };
        if let Some(other) = loaded.differs(&Loaded::new(&**store, population)) {
            return Err(format!("{name} {other}; {LOAD_IT}"));
        }
        if !loaded.whole {
            return Err(format!(
                "{name} is not loaded whole: a load was interrupted, which bg load --from goes on with where it said, or one is under way; {LOAD_IT}"
            ));
        }
        if before.is_some_and(|before| before.load != loaded.id) {
            return Err(format!(
                "{name} was loaded anew by somebody else since the last trial of this run; {LOAD_IT}"
            ));
        }
        if owner.is_some_and(|owner| owner != run) {
            return Err(used(name));
        }
        Ok(Claim {
            load: loaded.id,
            run: run.to_owned(),
        })
    }

    /// Before the first write: puts the run's name to the load.
    ///
    /// # Errors
    ///
    /// Another run was quicker, and what to do.
    pub fn put(&self, store: &Arc<dyn Store>) -> Result<(), String> {
        let note = run_note(&self.load);
        let owner = within(async {
            store.put_note_if_absent(&note, &self.run).await?;
            store.note(&note).await
        });
        match owner.map_err(|why| unreached(&**store, &why))? {
            Some(owner) if owner == self.run => Ok(()),
            _ => Err(used(store.name())),
        }
    }

    /// After a trial: that nobody else loaded or wrote meanwhile. A data store that is gone, or has lost its notes with all the rest, is
    /// for the judge of reads.
    ///
    /// # Errors
    ///
    /// Who did, and what to do.
    pub fn check(&self, store: &Arc<dyn Store>) -> Result<(), String> {
        let told = within(async {
            let loaded = read(&**store).await?;
            let owner = store.note(&run_note(&self.load)).await?;
            Ok((loaded, owner))
        });
        let Ok((Some(loaded), owner)) = told else {
            return Ok(());
        };
        let name = store.name();
        if loaded.id != self.load || !loaded.whole {
            return Err(format!(
                "somebody else loaded {name} while the trial ran, so that it has no result; run one at a time, each on what it loads (--load)"
            ));
        }
        if owner.is_some_and(|owner| owner != self.run) {
            return Err(format!(
                "another run wrote into {name} while the trial ran, so that it has no result; run one at a time, each on what it loads (--load)"
            ));
        }
        Ok(())
    }
}

fn used(name: &str) -> String {
    format!(
        "{name} is not as it was loaded: an earlier run wrote into it, or another one does now, so that nobody knows what is right to read; {LOAD_IT}"
    )
}

const LOAD_IT: &str = "load it with the options of this run: bg load, or --load with this command";

/// What to say of a data store that does not answer.
pub fn unreached(store: &dyn Store, why: &str) -> String {
    format!(
        "cannot connect to the data store {}: {why}; is it there? --at says where it is",
        store.name()
    )
}

fn run_note(load: &str) -> String {
    format!("run-{load}")
}

/// A note that is none of this bg's is none.
async fn read(store: &dyn Store) -> Result<Option<Loaded>, Failure> {
    let note = store.note(LOAD).await?;
    Ok(note.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Runs it to its end, unless it takes too long.
fn within<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, String> {
    runtime()?.block_on(async {
        match timeout(PATIENCE, work).await {
            Ok(done) => done.map_err(|why| why.to_string()),
            Err(_) => Err(format!("no answer in {} s", PATIENCE.as_secs())),
        }
    })
}
