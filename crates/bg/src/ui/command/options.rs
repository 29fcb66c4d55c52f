//! Options that several commands share: data store, population, behaviour of members, trial.
//!
//! `run`, `deck` and `rate` have [`SetupOptions`]; `run` and `deck` also have [`TrialOptions`]. Thus shared options are
//! defined and described once.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::folder::{self, Folder};
use super::memory;
use crate::model::content;
use crate::model::draw::{self, Distribution, Drawing};
use crate::model::duration::parse_duration;
use crate::model::mix::{self, Mix};
use crate::model::population::communities::Communities;
use crate::model::population::graph::Graph;
use crate::model::population::{Friendships, Population, edges, zipfian};
use crate::run::{RunOptions, Setup, Tracing};
use crate::stores;
use crate::stores::contract::Store;
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Load, Trial};

/// Bytes of memory per member before any action: its state, its draws, its posts.
const MEMBER_BYTES: u64 = 200;

/// Default duration of a trial that is not bounded by a count.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Maximum number of threads, more than any machine has processors.
const WORKERS_MAX: usize = 1024;

/// Default number of unanswered invitations of each member, so that mixes that answer as many as they send have some
/// from the start.
const INVITATIONS_DEFAULT: u32 = 10;

/// Maximum number of connections per worker. More are likely a mistake.
const CONNECTIONS_MAX: usize = 10_000;

/// The options of every command that executes actions on a data store.
#[derive(Args, Clone, Debug)]
pub struct SetupOptions {
    #[command(flatten)]
    pub store: StoreOptions,
    #[command(flatten)]
    pub population: PopulationOptions,
    #[command(flatten)]
    pub behavior: BehaviorOptions,
    /// First empty the data store, and load it
    #[arg(long)]
    pub load: bool,
}

/// The options of commands whose trials all have one load.
#[derive(Args, Clone, Debug)]
pub struct TrialOptions {
    /// Closed loop: the number of emulated threads, each with one action at a time; a deck can change it
    #[arg(long, default_value_t = 1, conflicts_with = "rate")]
    threads: u32,
    /// Open loop: the number of actions per second, regardless of the data store's speed
    #[arg(long)]
    rate: Option<f64>,
    /// The measured duration of a trial [default: 10s; with --actions, until they are complete]
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// End the trial after this number of actions, including skipped ones
    #[arg(long)]
    actions: Option<u64>,
    /// The warm-up before the trial, which is not measured
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    warmup: Duration,
    /// The warm-up before the trial as a number of actions, which are not measured
    #[arg(long, conflicts_with = "warmup")]
    warmup_actions: Option<u64>,
    /// Report whether the trial meets this SLA; reads are validated if it has a clause about them
    #[arg(long, value_name = "AGREEMENT")]
    pub sla: Option<Sla>,
}

/// The option of commands that validate reads by default.
#[derive(Args, Clone, Copy, Debug)]
pub struct JudgeOption {
    /// Do not validate reads: this reduces the load on this machine, but wrong results are not detected
    #[arg(long)]
    pub untraced: bool,
}

/// The data store and its connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Data store")]
pub struct StoreOptions {
    /// The name of the data store, as listed by `bg stores`; faulty:NAME injects faults into the results of data store
    /// NAME
    #[arg(long, value_name = "NAME")]
    pub store: String,
    /// The address of the data store [default: its default address]
    #[arg(long = "at", value_name = "ADDRESS")]
    pub address: Option<String>,
    /// The number of connections of each worker, if the data store supports it
    #[arg(long)]
    pub connections: Option<usize>,
    /// A setting of this data store; can be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
    /// The number of worker threads of this machine, each with its own client [default: one per processor]
    #[arg(long)]
    pub workers: Option<usize>,
}

/// The members, friendships and resources in the data store.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Population (the same for load and run)")]
pub struct PopulationOptions {
    /// The number of members [default: 10000, or the members in --edges]
    #[arg(long)]
    pub members: Option<u32>,
    /// The number of confirmed friends of each member, an even number; with zipf, the mean
    #[arg(long, default_value_t = 100)]
    pub friends: u32,
    /// The distribution of friendships: lattice is the ring of neighbors in BG's report; zipf gives 20 % of the members
    /// 80 % of the friendships
    #[arg(long, value_enum, default_value_t = FriendshipShape::Lattice)]
    pub friendships: FriendshipShape,
    /// A file with the friendships of a real graph: two numbers per line; gzip is supported
    #[arg(long, value_name = "FILE", conflicts_with_all = ["friendships", "friends"])]
    pub edges: Option<PathBuf>,
    /// The number of pending invitations of each member [default: 10, or fewer if a member has fewer than 40 strangers]
    #[arg(long)]
    pub invitations: Option<u32>,
    /// The number of resources that each member has created
    #[arg(long, default_value_t = 100)]
    pub resources: u32,
    /// The number of comments on each resource
    #[arg(long, default_value_t = 0)]
    pub comments: u32,
    /// The size of a profile image in bytes, such as 12K [default: no images and no thumbnails]
    #[arg(long, value_parser = parse_size)]
    pub image_size: Option<usize>,
    /// The length of each of a profile's ten attributes, in letters
    #[arg(long, default_value_t = content::ATTRIBUTE_SIZE_DEFAULT, value_name = "LETTERS", value_parser = parse_size)]
    pub attribute_size: usize,
    /// The length of a comment, in letters
    #[arg(long, default_value_t = content::COMMENT_SIZE_DEFAULT, value_name = "LETTERS", value_parser = parse_size)]
    pub comment_size: usize,
    /// The seed of the population: its friendships and all contents
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The distribution of friendships.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FriendshipShape {
    Lattice,
    Zipf,
}

/// The selection of members, and their behavior.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Members' behavior")]
pub struct BehaviorOptions {
    /// The mix of actions: a name listed by `bg mixes`, a definition (`view-profile 80, list-friends 20`), or a file
    #[arg(long, default_value = mix::DEFAULT, value_name = "NAME|MIX|FILE")]
    pub mix: String,
    /// The distribution of members: uniform, zipf:theta=0.27 (BG's notation), zipf:exponent=0.73, zipf:80/20 or latest
    #[arg(long, default_value_t = draw::DEFAULT, value_name = "DISTRIBUTION")]
    pub draw: Distribution,
    /// The time between the actions of a session
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub think: Duration,
    /// The time before each session, or before each single action
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub between: Duration,
    /// The timeout of a call; after it, the outcome of the call is unknown
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// The number of resources of a wall, or posts of a feed, that an action reads
    #[arg(long, default_value_t = 5)]
    pub top: u32,
    /// Allow several threads to read as the same member concurrently
    #[arg(long)]
    pub shared_reads: bool,
    /// The maximum number of members to draw for an action that the first member cannot execute
    #[arg(long, default_value_t = 1)]
    pub tries: u32,
    /// The maximum number of concurrent actions in an open loop
    #[arg(long, default_value_t = 1000)]
    pub threads_max: u32,
    /// The seed of the random choices: actions, members, pauses
    #[arg(long, default_value_t = 1)]
    pub draw_seed: u64,
}

impl SetupOptions {
    /// Returns all parameters of a trial except its load, for clients of these speeds together. One speed means a
    /// single client.
    ///
    /// # Errors
    ///
    /// The mix, the population or the data store is invalid.
    pub fn setup(&self, trace: Option<PathBuf>, speeds: &[f64]) -> Result<Setup, String> {
        let population = self.population.population(self.behavior.draw, speeds)?;
        let mix = Mix::open(&self.behavior.mix).map_err(|why| why.to_string())?;
        Ok(Setup {
            store: self.store.open()?,
            mix,
            drawing: Drawing::for_all_members(self.behavior.draw, population.members),
            run_options: self.behavior.run_options(),
            workers: self.store.workers(),
            tracing: trace.map_or(Tracing::None, Tracing::Keep),
            seed: self.behavior.draw_seed,
            population,
        })
    }

    /// See [`Work::confine`](super::coordinator::Work::confine).
    pub fn confine(&mut self, folder: Option<&Folder>) -> Result<(), String> {
        if let Some(edges) = &mut self.population.edges {
            *edges = folder::confine(folder, "--edges", edges)?;
        }
        self.behavior.mix = folder::confine_mix(folder, &self.behavior.mix)?;
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
    /// Opens the data store.
    ///
    /// # Errors
    ///
    /// The name is unknown, an option is out of range, or the data store rejects its options.
    pub fn open(&self) -> Result<Arc<dyn Store>, String> {
        if self.connections == Some(0) {
            return Err("--connections 0: must be at least 1".to_owned());
        }
        if let Some(count) = self.connections.filter(|count| *count > CONNECTIONS_MAX) {
            return Err(format!("--connections {count}: at most {CONNECTIONS_MAX}"));
        }
        if let Some(count) = self.workers.filter(|count| *count > WORKERS_MAX) {
            return Err(format!(
                "--workers {count}: at most {WORKERS_MAX}; a worker is an operating system thread, and runs any number of emulated threads"
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
    /// Creates the population.
    ///
    /// # Errors
    ///
    /// A parameter is invalid; the message names it.
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
        if self.edges.is_none() && self.friendships == FriendshipShape::Zipf {
            // A graph contains each friendship twice, and once more during its construction.
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

    /// Returns a graph whose friendships stay within each community.
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
                // Add each friendship once: the other member's list contains it too.
                let friends = part.friends_of(place).iter().filter(|it| **it > place);
                edges.extend(friends.map(|friend| (*member, own[*friend as usize])));
            }
        }
        Ok(Graph::new(members, &edges))
    }
}

impl BehaviorOptions {
    fn run_options(&self) -> RunOptions {
        RunOptions {
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

fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(['K', 'M']);
    let syntax = || "must be a number of bytes, optionally with K or M, such as 12K".to_owned();
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return Err(syntax()),
    };
    let count: usize = digits.parse().map_err(|_| syntax())?;
    match count.checked_mul(unit) {
        Some(size) if (1..=64 << 20).contains(&size) => Ok(size),
        _ => Err("must be 1 byte to 64M".to_owned()),
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}
