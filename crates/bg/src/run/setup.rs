//! All parameters of a trial except its load: the data store, the members, their behaviour and the handling of the
//! trace.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::draw::Drawing;
use crate::model::mix::Mix;
use crate::model::population::Population;
use crate::stores::contract::Store;

/// All parameters of a trial except its load.
pub struct Setup {
    pub store: Arc<dyn Store>,
    pub population: Arc<Population>,
    pub mix: Mix,
    pub drawing: Drawing,
    pub run_options: RunOptions,
    /// Number of operating system threads. Each has at least one connection of its own.
    pub workers: usize,
    pub tracing: Tracing,
    /// Seed of the draws; the population has its own seed.
    pub seed: u64,
}

/// Behaviour of members and their emulated threads.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// Delay between the actions of a session.
    pub think: Duration,
    /// Delay before each session, or before each action that belongs to no session.
    pub between: Duration,
    /// After this time without an answer, the outcome of a call is unknown.
    pub timeout: Duration,
    /// Number of resources of a wall, or of posts of a feed, that a read returns.
    pub top: u32,
    /// True if members that only read are held too, so that each member acts for one thread at a time.
    pub unique_reads: bool,
    /// Number of draws to find a member that can perform an action.
    pub tries: u32,
    /// Maximum number of actions in flight in an open loop.
    pub threads_max: u32,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            think: Duration::ZERO,
            between: Duration::ZERO,
            timeout: Duration::from_secs(5),
            top: 5,
            unique_reads: true,
            tries: 1,
            threads_max: 1000,
        }
    }
}

/// The use of the trace of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Tracing {
    None,
    /// Validated, then removed.
    Scratch,
    /// Validated and kept in this folder, which must be empty or not exist. The traces of later trials go to
    /// subfolders.
    Keep(PathBuf),
}
