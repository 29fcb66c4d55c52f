//! What a trial is, and what came of it.
//!
//! A *trial* runs a mix against a data store with so much load for so long. What came of trials of several workers or clients adds up: counts by
//! sum, latencies by merging histograms.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::action::Action;

/// How hard a trial presses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Closed loop: so many emulated threads, each with one action at a time.
    Threads(u32),
    /// Open loop: actions a second, at intervals of a Poisson process; a latency counts from the moment meant.
    Rate(f64),
}

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    pub load: Load,
    /// Not measured, before `duration`.
    pub warmup: Duration,
    pub duration: Duration,
}

/// Whoever can run trials: this process, a coordinator of clients, or a model of a store in a test.
pub trait Laboratory {
    /// # Errors
    ///
    /// Why the trial has no result at all. A store that fails or stalls is a result.
    fn run(&mut self, trial: &Trial) -> Result<Measured, String>;
}

/// What came of a trial.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How long was measured.
    pub duration: Duration,
    /// By [`Action`] as a number.
    pub actions: Vec<ActionMeasured>,
    /// Sessions that ended, of mixes of sessions.
    pub sessions: u64,
    /// None where nothing was traced.
    pub reads: Option<Judged>,
}

/// Of one action.
#[derive(Clone, Debug)]
pub struct ActionMeasured {
    /// Nanoseconds of every call that was answered or given up, those that failed too.
    pub latency: Histogram<u64>,
    /// Of those, how many the data store refused.
    pub refused: u64,
    /// Of those, how many nobody knows the outcome of: timeouts, lost connections.
    pub unknown: u64,
    /// Draws that could not be done: no friend to thaw, no invitation to accept, nobody left to invite.
    pub skipped: u64,
    /// Answers whose bytes were not those stored.
    pub wrong: u64,
}

/// What validation said of a trial's reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub reads: u64,
    /// Those that no order of the writes explains.
    pub unpredictable: u64,
    /// Those that would take too long to tell.
    pub undecided: u64,
}

impl Measured {
    pub fn new(duration: Duration) -> Measured {
        Measured {
            duration,
            actions: Action::ALL.map(|_| ActionMeasured::new()).into(),
            sessions: 0,
            reads: None,
        }
    }

    pub fn of(&self, action: Action) -> &ActionMeasured {
        &self.actions[action as usize]
    }

    /// Actions answered, right or wrong; refusals and unknown outcomes are none.
    pub fn done(&self) -> u64 {
        self.actions.iter().map(ActionMeasured::done).sum()
    }

    /// Actions a second.
    pub fn throughput(&self) -> f64 {
        self.done() as f64 / self.duration.as_secs_f64()
    }

    /// Adds what another worker or client measured in the same trial.
    pub fn add(&mut self, other: &Measured) {
        self.duration = self.duration.max(other.duration);
        self.sessions += other.sessions;
        for (mine, theirs) in self.actions.iter_mut().zip(&other.actions) {
            mine.add(theirs);
        }
        self.reads = match (self.reads, other.reads) {
            (Some(mine), Some(theirs)) => Some(Judged {
                reads: mine.reads + theirs.reads,
                unpredictable: mine.unpredictable + theirs.unpredictable,
                undecided: mine.undecided + theirs.undecided,
            }),
            (mine, theirs) => mine.or(theirs),
        };
    }
}

impl ActionMeasured {
    pub fn new() -> ActionMeasured {
        ActionMeasured {
            latency: Histogram::new(3).expect("three significant digits"),
            refused: 0,
            unknown: 0,
            skipped: 0,
            wrong: 0,
        }
    }

    pub fn done(&self) -> u64 {
        self.latency.len() - self.refused - self.unknown
    }

    fn add(&mut self, other: &ActionMeasured) {
        self.latency
            .add(&other.latency)
            .expect("histograms that grow as needed");
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.skipped += other.skipped;
        self.wrong += other.wrong;
    }
}

impl Default for ActionMeasured {
    fn default() -> Self {
        ActionMeasured::new()
    }
}
