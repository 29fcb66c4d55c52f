//! What a trial is made of, but for its load: the data store, the members, how they behave, and what becomes of the trace.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::draw::Drawing;
use crate::model::mix::Mix;
use crate::model::population::Population;
use crate::stores::contract::Store;

/// All of a trial but its load.
pub struct Setup {
    pub store: Arc<dyn Store>,
    pub population: Arc<Population>,
    pub mix: Mix,
    pub drawing: Drawing,
    pub conduct: Conduct,
    /// Threads of the machine, each with a connection of its own (or more).
    pub workers: usize,
    pub tracing: Tracing,
    /// Of what is drawn; the population has its own.
    pub seed: u64,
}

/// How members and their emulated threads behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Conduct {
    /// Between the actions of a session.
    pub think: Duration,
    /// Before each session, or each action that is none's.
    pub between: Duration,
    /// After so long an outcome is unknown.
    pub timeout: Duration,
    /// How many resources of a wall, or posts of a feed, are looked at.
    pub top: u32,
    /// Whether a member who only reads is held, too: one member acts for one thread at a time.
    pub unique_reads: bool,
    /// Draws of a member for an action that the one drawn cannot do.
    pub tries: u32,
    /// In an open loop, how many actions may be under way.
    pub threads_max: u32,
}

impl Default for Conduct {
    fn default() -> Conduct {
        Conduct {
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

/// What becomes of the trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Tracing {
    None,
    /// Judged, then removed.
    Scratch,
    /// Judged and kept in this folder, which is empty or not there; that of a later trial in a folder within.
    Keep(PathBuf),
}
