//! Options that several commands take: which data store, which population, how members behave; and what a trial is.
//!
//! `run`, `deck` and `rate` have [`SetupOptions`], `run` and `deck` [`TrialOptions`] as well, so that what they have in common is spelled and explained once.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::folder::{self, Folder};
use super::memory;
use crate::model::content;
use crate::model::draw::{self, Distribution, Drawing};
use crate::model::duration::duration;
use crate::model::mix::{self, Mix};
use crate::model::population::communities::Communities;
use crate::model::population::graph::Graph;
use crate::model::population::{Friendships, Population, edges, zipfian};
use crate::run::{Conduct, Setup, Tracing};
use crate::stores;
use crate::stores::contract::Store;
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Load, Trial};

/// What bg knows of a member whom nobody has acted for: the state, the draws, the posts.
const MEMBER_BYTES: u64 = 200;

/// Of a trial that no count bounds.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// More threads of the machine than any has processors.
const WORKERS_MAX: usize = 1024;

/// Unanswered invitations of each member, so that mixes that answer as many as they send have some to begin with.
const INVITATIONS_DEFAULT: u32 = 10;

/// Connections of a worker: more are a mistake.
const CONNECTIONS_MAX: usize = 10_000;

/// Of every command that acts on a data store.
#[derive(Args, Clone, Debug)]
pub struct SetupOptions {
    #[command(flatten)]
    pub store: StoreOptions,
    #[command(flatten)]
    pub population: PopulationOptions,
    #[command(flatten)]
    pub conduct: ConductOptions,
    /// Empty the data store and load it first
    #[arg(long)]
    pub load: bool,
}

/// Of commands whose trials are all of one load.
#[derive(Args, Clone, Debug)]
pub struct TrialOptions {
    /// Closed loop: so many emulated threads, each with one action at a time; a deck changes them
    #[arg(long, default_value_t = 1, conflicts_with = "rate")]
    threads: u32,
    /// Open loop: so many actions a second, whatever the data store does
    #[arg(long)]
    rate: Option<f64>,
    /// How long a trial is measured [default: 10s; with --actions until they are done]
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// End the trial after so many actions, skipped ones included
    #[arg(long)]
    actions: Option<u64>,
    /// Warm-up before the trial, not measured
    #[arg(long, default_value = "0s", value_parser = duration)]
    warmup: Duration,
    /// Warm-up of so many actions, not measured
    #[arg(long, conflicts_with = "warmup")]
    warmup_actions: Option<u64>,
    /// Say whether the trial keeps this agreement; reads are judged if it has a clause about them
    #[arg(long, value_name = "AGREEMENT")]
    pub sla: Option<Sla>,
}

/// Of commands that judge reads unless they are told not to.
#[derive(Args, Clone, Copy, Debug)]
pub struct JudgeOption {
    /// Judge no reads: less work for this machine, but wrong answers are not found
    #[arg(long)]
    pub untraced: bool,
}

/// Which data store.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Data store")]
pub struct StoreOptions {
    /// Name of the data store, as `bg stores` lists it; faulty:NAME puts faults into another one's answers
    #[arg(long, value_name = "NAME")]
    pub store: String,
    /// Address of the data store; its usual one if not given
    #[arg(long = "at", value_name = "ADDRESS")]
    pub address: Option<String>,
    /// Connections of each worker, where the data store lets one choose
    #[arg(long)]
    pub connections: Option<usize>,
    /// A setting of this data store; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
    /// Threads of this machine that act, each with its own client [default: one a processor]
    #[arg(long)]
    pub workers: Option<usize>,
}

/// Whom and what there is.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Population (the same for load and run)")]
pub struct PopulationOptions {
    /// [default: 10000, or those of the edges]
    #[arg(long)]
    pub members: Option<u32>,
    /// Confirmed friends of each member, even; in the mean with zipf
    #[arg(long, default_value_t = 100)]
    pub friends: u32,
    /// The report's ring of neighbours, or 80 % of the friendships on 20 % of the members
    #[arg(long, value_enum, default_value_t = Shape::Lattice)]
    pub friendships: Shape,
    /// Friendships of a real graph: two numbers a line, may be gzip
    #[arg(long, value_name = "FILE", conflicts_with_all = ["friendships", "friends"])]
    pub edges: Option<PathBuf>,
    /// Invitations that each member has not answered [default: 10, fewer where a member has fewer than 40 strangers]
    #[arg(long)]
    pub invitations: Option<u32>,
    /// Resources that each member created
    #[arg(long, default_value_t = 100)]
    pub resources: u32,
    /// Comments on each resource
    #[arg(long, default_value_t = 0)]
    pub comments: u32,
    /// Bytes of a profile image (12K); without it there are neither images nor thumbnails
    #[arg(long, value_parser = size)]
    pub image_size: Option<usize>,
    /// Letters of each of a profile's ten attributes
    #[arg(long, default_value_t = content::ATTRIBUTE_SIZE_DEFAULT, value_name = "LETTERS", value_parser = size)]
    pub attribute_size: usize,
    /// Letters of a comment
    #[arg(long, default_value_t = content::COMMENT_SIZE_DEFAULT, value_name = "LETTERS", value_parser = size)]
    pub comment_size: usize,
    /// Seed of the population: its friendships and all contents
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Who is whose friend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    Lattice,
    Zipf,
}

/// How members are drawn and behave.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Members' behaviour")]
pub struct ConductOptions {
    /// A name that `bg mixes` lists, a mix written out (`view-profile 80, list-friends 20`), or a file
    #[arg(long, default_value = mix::DEFAULT, value_name = "NAME|MIX|FILE")]
    pub mix: String,
    /// uniform, zipf:theta=0.27 (as BG spells it), zipf:exponent=0.73, zipf:80/20, latest
    #[arg(long, default_value_t = draw::DEFAULT, value_name = "DISTRIBUTION")]
    pub draw: Distribution,
    /// Time between the actions of a session
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub think: Duration,
    /// Time before each session, or each single action
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub between: Duration,
    /// Give up waiting for an answer after this time; its outcome is unknown then
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub timeout: Duration,
    /// How many resources of a wall, or posts of a feed, are looked at
    #[arg(long, default_value_t = 5)]
    pub top: u32,
    /// Let one member look around for several threads at once
    #[arg(long)]
    pub shared_reads: bool,
    /// How many members to draw, at most, for an action that the first one cannot do
    #[arg(long, default_value_t = 1)]
    pub tries: u32,
    /// In an open loop, how many actions may be under way
    #[arg(long, default_value_t = 1000)]
    pub threads_max: u32,
    /// Seed of what is drawn: actions, members, pauses
    #[arg(long, default_value_t = 1)]
    pub draw_seed: u64,
}

impl SetupOptions {
    /// All that a trial needs but its load, for clients of these speeds together; one speed is a single client.
    ///
    /// # Errors
    ///
    /// A mix, a population or a data store that is none.
    pub fn setup(&self, trace: Option<PathBuf>, speeds: &[f64]) -> Result<Setup, String> {
        let population = self.population.population(self.conduct.draw, speeds)?;
        let mix = Mix::open(&self.conduct.mix).map_err(|why| why.to_string())?;
        Ok(Setup {
            store: self.store.open()?,
            mix,
            drawing: Drawing::of_all(self.conduct.draw, population.members),
            conduct: self.conduct.conduct(),
            workers: self.store.workers(),
            tracing: trace.map_or(Tracing::None, Tracing::Keep),
            seed: self.conduct.draw_seed,
            population,
        })
    }

    /// As [`Work::confine`](super::coordinator::Work::confine).
    pub fn confine(&mut self, folder: Option<&Folder>) -> Result<(), String> {
        if let Some(edges) = &mut self.population.edges {
            *edges = folder::confine(folder, "--edges", edges)?;
        }
        self.conduct.mix = folder::confine_mix(folder, &self.conduct.mix)?;
        Ok(())
    }
}

impl TrialOptions {
    pub fn trial(&self) -> Trial {
        Trial {
            load: match self.rate {
                Some(rate) => Load::Rate(rate),
                None => Load::Threads(self.threads),
            },
            warmup: self.warmup,
            duration: self.duration.unwrap_or(match self.actions {
                Some(_) => Trial::UNBOUNDED,
                None => DURATION_DEFAULT,
            }),
            actions: self.actions,
            warmup_actions: self.warmup_actions,
        }
    }
}

impl StoreOptions {
    /// # Errors
    ///
    /// A name nobody knows, or what the data store says of its options.
    pub fn open(&self) -> Result<Arc<dyn Store>, String> {
        if self.connections == Some(0) {
            return Err("--connections 0: there must be one at least".to_owned());
        }
        if let Some(count) = self.connections.filter(|count| *count > CONNECTIONS_MAX) {
            return Err(format!("--connections {count}: at most {CONNECTIONS_MAX}"));
        }
        if let Some(count) = self.workers.filter(|count| *count > WORKERS_MAX) {
            return Err(format!(
                "--workers {count}: at most {WORKERS_MAX}; each is a thread of this machine, and has as many emulated ones as are asked for"
            ));
        }
        let options = stores::Options {
            address: self.address.clone(),
            connections: self.connections,
            settings: self.settings.clone(),
        };
        stores::open(&self.store, &options).map(Arc::from)
    }

    pub fn workers(&self) -> usize {
        self.workers
            .unwrap_or_else(|| available_parallelism().map_or(1, |count| count.get()))
    }
}

impl PopulationOptions {
    /// # Errors
    ///
    /// Numbers that cannot be, by name.
    pub fn population(
        &self,
        distribution: Distribution,
        speeds: &[f64],
    ) -> Result<Arc<Population>, String> {
        let mut members = self.members.unwrap_or(10_000);
        let mut friendships = Friendships::Lattice;
        if let Some(path) = &self.edges {
            let graph = edges::read(path)?;
            members = self.members.unwrap_or(graph.members());
            friendships = Friendships::Graph(Arc::new(graph));
        }
        memory::check(members, &format!("--members {members}"), MEMBER_BYTES)?;
        let communities = Communities::new(distribution, members, speeds);
        if self.edges.is_none() && self.friendships == Shape::Zipf {
            // Each friendship of a graph is there twice, and once more while it is made.
            let what = format!("--members {members} --friends {}", self.friends);
            memory::check(members, &what, 16 * u64::from(self.friends).max(1))?;
            let graph = self.zipf_graph(members, communities.as_deref())?;
            friendships = Friendships::Graph(Arc::new(graph));
        }
        let smallest = communities.as_ref().and_then(|it| it.sizes().min());
        let smallest = smallest.unwrap_or(members);
        let strangers = smallest.saturating_sub(self.friends + 1);
        let population = Population {
            members,
            friends: self.friends,
            friendships,
            communities,
            invitations: self
                .invitations
                .unwrap_or(INVITATIONS_DEFAULT.min(strangers / 4)),
            resources: self.resources,
            comments: self.comments,
            image_size: self.image_size,
            attribute_size: self.attribute_size,
            comment_size: self.comment_size,
            seed: self.seed,
        };
        population.check().map_err(|why| why.to_string())?;
        Ok(Arc::new(population))
    }

    /// A graph whose friendships stay within each community.
    fn zipf_graph(&self, members: u32, communities: Option<&Communities>) -> Result<Graph, String> {
        let graph = |members, seed| zipfian::graph(members, self.friends, 0.8, 0.2, seed);
        let Some(communities) = communities else {
            return graph(members, self.seed);
        };
        let mut edges = Vec::new();
        for (seed, fragment) in (self.seed..).zip(communities.fragments()) {
            let own = fragment.members();
            let part = graph(own.len() as u32, seed)?;
            for (place, member) in (0..).zip(own) {
                // Each friendship once: the other end has it, too.
                let friends = part.friends_of(place).iter().filter(|it| **it > place);
                edges.extend(friends.map(|friend| (*member, own[*friend as usize])));
            }
        }
        Ok(Graph::new(members, &edges))
    }
}

impl ConductOptions {
    fn conduct(&self) -> Conduct {
        Conduct {
            think: self.think,
            between: self.between,
            timeout: self.timeout,
            top: self.top,
            unique_reads: !self.shared_reads,
            tries: self.tries,
            threads_max: self.threads_max,
        }
    }
}

fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(['K', 'M']);
    let how = || "a size is a number of bytes, or one with K or M, such as 12K".to_owned();
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return Err(how()),
    };
    let count: usize = digits.parse().map_err(|_| how())?;
    match count.checked_mul(unit) {
        Some(size) if (1..=64 << 20).contains(&size) => Ok(size),
        _ => Err("must be 1 byte to 64M".to_owned()),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}
