//! What a trial is, and what came of it.
//!
//! A *trial* runs a mix against a data store with so much load for so long. What came of trials of several workers or clients adds up: counts by
//! sum, latencies by merging histograms. All of it is data (serde): clients send it to their coordinator, reports keep it.
//!
//! Invariants:
//!
//! 1. [`ActionMeasured::failed`] holds those calls of [`ActionMeasured::latency`] that were refused or whose outcome is unknown, and no others.
//! 2. The moments of [`Measured::series`] are those of the measured time, in order, each a second but for the last.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::model::action::Action;
use crate::model::draw::Drawn;
use crate::stores::contract::Failure;

mod delivered;
mod spelling;

pub use delivered::Delivered;

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
    /// Ends the trial after so many measured actions, skipped ones included, if that comes before the end of `duration`.
    pub actions: Option<u64>,
    /// So many actions before `warmup`, not measured.
    pub warmup_actions: Option<u64>,
}

impl Trial {
    /// Bounded by time alone.
    pub fn timed(load: Load, warmup: Duration, duration: Duration) -> Trial {
        Trial {
            load,
            warmup,
            duration,
            actions: None,
            warmup_actions: None,
        }
    }

    /// Longer than any trial that a count ends.
    pub const UNBOUNDED: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Bounded by a count alone.
    pub fn counted(load: Load, actions: u64) -> Trial {
        Trial {
            actions: Some(actions),
            ..Trial::timed(load, Duration::ZERO, Trial::UNBOUNDED)
        }
    }
}

/// Whoever can run trials: this process, a coordinator of clients, or a model of a store in a test.
pub trait Laboratory {
    /// # Errors
    ///
    /// Why the trial has no result at all. A store that fails or stalls is a result.
    fn run(&mut self, trial: &Trial) -> Result<Measured, String>;

    /// The same, but it ends before its time when it is `enough`. Whoever cannot end a trial runs it to its end.
    ///
    /// # Errors
    ///
    /// As [`Laboratory::run`].
    fn run_until(&mut self, trial: &Trial, enough: Enough<'_>) -> Result<Measured, String> {
        let _ = enough;
        self.run(trial)
    }

    /// The time, from any instant on.
    fn now(&self) -> Duration {
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        FIRST.elapsed()
    }

    /// Whether it was told to run no more trials: what ran last is what it had by then.
    fn is_over(&self) -> bool {
        false
    }
}

/// Says after each second whether what was measured so far, over so long, is enough.
pub type Enough<'a> = &'a dyn Fn(&Measured, Duration) -> bool;

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How long was measured.
    #[serde(rename = "seconds", with = "spelling::seconds")]
    pub duration: Duration,
    /// By [`Action`] as a number.
    #[serde(with = "spelling::by_action")]
    pub actions: Vec<ActionMeasured>,
    /// Sessions that ended, of mixes of sessions.
    pub sessions: u64,
    /// Of an open loop, moments that came and went with no thread free to act.
    #[serde(default)]
    pub unbegun: u64,
    /// Members drawn who were free to act, or to be looked at.
    #[serde(default)]
    pub drawn: Drawn,
    /// None where nothing was traced.
    pub reads: Option<Judged>,
    /// Empty where nobody kept it.
    pub series: Vec<Moment>,
    /// What making the load took; None where nobody looked.
    pub effort: Option<Effort>,
    /// What each client of a coordinator measured; empty without a coordinator, and of trials that still run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Measured>,
}

/// Of one action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionMeasured {
    /// Nanoseconds of every call that was answered or given up, those that failed too.
    #[serde(rename = "latency_ns", with = "spelling::histogram")]
    pub latency: Histogram<u64>,
    /// Nanoseconds of those calls of `latency` that were refused or whose outcome nobody knows.
    #[serde(rename = "failed_ns", with = "spelling::histogram")]
    pub failed: Histogram<u64>,
    /// Of those, how many the data store refused.
    pub refused: u64,
    /// Of those, how many nobody knows the outcome of: timeouts, lost connections.
    pub unknown: u64,
    /// Draws that could not be carried out: no friend to thaw, no invitation to accept, nobody left to invite. Of a session that ends early, each action
    /// that was left out.
    pub skipped: u64,
    /// Answers whose bytes were not those stored.
    pub wrong: u64,
}

/// What validation said of a trial's reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judged {
    pub reads: u64,
    /// Those that no order of the writes explains: counts, members, and lists at one instant.
    pub unpredictable: u64,
    /// Sessions, or actions that are of none, with at least one unpredictable read.
    pub unpredictable_sessions: u64,
    /// Those that would take too long to tell.
    pub undecided: u64,
    /// Reads that are not as each [`Level`] or one below it wants them, each read once, by level as a number: what an agreement means by `at`. None
    /// for levels not judged, and `unpredictable` for [`Level::Snapshot`].
    pub by_level: [Option<u64>; Level::ALL.len()],
    /// Of the unpredictable, by class; each name once.
    pub by_class: Vec<(String, u64)>,
    /// Of the stale, by age: at index i those whose age in nanoseconds has i bits.
    pub ages: Vec<u64>,
    /// The first unpredictable reads, in words.
    pub witnesses: Vec<String>,
}

/// How strictly reads are judged: BG counts, each level above also wants what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Counts are as some order of the writes makes them: BG's own number.
    Counts,
    /// Every element of a list was there at some instant of the read.
    Members,
    /// All elements of a list at one instant.
    Snapshot,
    /// What one read saw, a later one sees too.
    Atomic,
    /// What one action returns of several items is of one instant.
    Joint,
}

impl Level {
    pub const ALL: [Level; 5] = [
        Level::Counts,
        Level::Members,
        Level::Snapshot,
        Level::Atomic,
        Level::Joint,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Level::Counts => "counts",
            Level::Members => "members",
            Level::Snapshot => "snapshot",
            Level::Atomic => "atomic",
            Level::Joint => "joint",
        }
    }
}

/// A second of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Nanoseconds of the calls that ended in it.
    #[serde(rename = "latency_ns", with = "spelling::histogram")]
    pub latency: Histogram<u64>,
    /// Of those, refused or of unknown outcome.
    pub failed: u64,
    /// Reads judged, and of those the unpredictable; zero where they are judged only at the end.
    pub reads: u64,
    pub unpredictable: u64,
}

/// What making the load took: a generator that is short of processors measures itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Processor time of the whole client, of all its threads.
    #[serde(rename = "cpu_seconds", with = "spelling::seconds")]
    pub cpu: Duration,
    /// Processors that the client may use.
    pub processors: u32,
    /// Part of the measured time, 0 to 1, that the busiest of the workers' threads was on a processor.
    pub busiest_worker: f64,
    /// Processor time that went to neither the client nor the data store's own processes; None where nobody can tell.
    #[serde(default, rename = "others_seconds", with = "spelling::some_seconds")]
    pub others: Option<Duration>,
    /// Processor time that the host of a virtual machine gave to somebody else.
    #[serde(default, rename = "stolen_seconds", with = "spelling::some_seconds")]
    pub stolen: Option<Duration>,
}

impl Measured {
    pub fn new(duration: Duration) -> Measured {
        Measured {
            duration,
            actions: Action::ALL.map(|_| ActionMeasured::new()).into(),
            sessions: 0,
            unbegun: 0,
            drawn: Drawn::default(),
            reads: None,
            series: Vec::new(),
            effort: None,
            clients: Vec::new(),
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
        self.done() as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// Whether the load's generator was short of processors, so that this may be its limit and not the data store's: in words.
    pub fn short_of(&self) -> Option<String> {
        let effort = self.effort?;
        let used = effort.processors_used(self.duration);
        if effort.busiest_worker > Effort::BUSY {
            return Some(format!(
                "the generator's busiest worker was on a processor {:.0} % of the time: what was measured may be its limit, not the data store's; \
                 take more --workers, or clients on other machines",
                100.0 * effort.busiest_worker
            ));
        }
        (used > Effort::BUSY * f64::from(effort.processors)).then(|| {
            format!(
                "the generator used {used:.2} of {} processors: what was measured may be its limit, not the data store's; \
                 take clients on other machines",
                effort.processors
            )
        })
    }

    /// Whether somebody else used the machine's processors meanwhile: in words.
    pub fn disturbed(&self) -> Option<String> {
        let effort = self.effort?;
        let seconds = self.duration.as_secs_f64().max(1e-9);
        let used = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() / seconds;
        let (others, stolen) = (used(effort.others), used(effort.stolen));
        (others + stolen > Effort::DISTURBED * f64::from(effort.processors)).then(|| {
            format!(
                "others used {others:.2} of {} processors meanwhile, and the host of this machine took {stolen:.2}: \
                 the figures are lower, and less alike, than on a quiet machine",
                effort.processors
            )
        })
    }

    /// Adds what another client measured in the same trial, with members of its own.
    pub fn join(&mut self, other: &Measured) {
        let mut drawn = std::mem::take(&mut self.drawn);
        drawn.join(&other.drawn);
        self.add(other);
        self.drawn = drawn;
    }

    /// Adds what another worker measured in the same trial, or what followed.
    pub fn add(&mut self, other: &Measured) {
        self.duration = self.duration.max(other.duration);
        self.sessions += other.sessions;
        self.unbegun += other.unbegun;
        self.drawn.add(&other.drawn);
        for (mine, theirs) in self.actions.iter_mut().zip(&other.actions) {
            mine.add(theirs);
        }
        self.reads = merge(self.reads.take(), other.reads.clone(), Judged::add);
        self.effort = merge(self.effort, other.effort, Effort::add);
        for (index, moment) in other.series.iter().enumerate() {
            match self.series.get_mut(index) {
                Some(mine) => mine.add(moment),
                None => self.series.push(moment.clone()),
            }
        }
    }
}

fn merge<T>(mine: Option<T>, theirs: Option<T>, add: fn(&mut T, T)) -> Option<T> {
    match (mine, theirs) {
        (Some(mut mine), Some(theirs)) => {
            add(&mut mine, theirs);
            Some(mine)
        }
        (mine, theirs) => mine.or(theirs),
    }
}

impl Judged {
    /// Unpredictable reads at a level; None where reads were not judged so strictly.
    pub fn at(&self, level: Level) -> Option<u64> {
        match level {
            Level::Snapshot => Some(self.unpredictable),
            level => self.by_level[level as usize],
        }
    }

    /// Witnesses kept when results are added.
    const WITNESSES_MAX: usize = 20;

    /// Adds what another client judged of its own reads.
    pub fn add(&mut self, other: Judged) {
        self.reads += other.reads;
        self.unpredictable += other.unpredictable;
        self.unpredictable_sessions += other.unpredictable_sessions;
        self.undecided += other.undecided;
        for (mine, theirs) in self.by_level.iter_mut().zip(other.by_level) {
            *mine = merge(*mine, theirs, |mine, theirs| *mine += theirs);
        }
        for (class, count) in other.by_class {
            match self.by_class.iter_mut().find(|(name, _)| *name == class) {
                Some((_, mine)) => *mine += count,
                None => self.by_class.push((class, count)),
            }
        }
        if self.ages.len() < other.ages.len() {
            self.ages.resize(other.ages.len(), 0);
        }
        for (mine, theirs) in self.ages.iter_mut().zip(other.ages) {
            *mine += theirs;
        }
        self.witnesses.extend(other.witnesses);
        self.witnesses.truncate(Judged::WITNESSES_MAX);
    }
}

impl Moment {
    pub fn new() -> Moment {
        Moment {
            latency: Histogram::new(2).expect("two significant digits"),
            failed: 0,
            reads: 0,
            unpredictable: 0,
        }
    }

    fn add(&mut self, other: &Moment) {
        self.latency
            .add(&other.latency)
            .expect("histograms that grow as needed");
        self.failed += other.failed;
        self.reads += other.reads;
        self.unpredictable += other.unpredictable;
    }
}

impl Default for Moment {
    fn default() -> Self {
        Moment::new()
    }
}

impl Effort {
    /// Part of a processor's time above which whoever used it counts as short of it.
    const BUSY: f64 = 0.9;

    /// Part of all processors above which their use by others is told.
    const DISTURBED: f64 = 0.05;

    /// On average over so long.
    pub fn processors_used(&self, over: Duration) -> f64 {
        self.cpu.as_secs_f64() / over.as_secs_f64().max(1e-9)
    }

    fn add(&mut self, other: Effort) {
        self.cpu += other.cpu;
        self.processors += other.processors;
        self.busiest_worker = self.busiest_worker.max(other.busiest_worker);
        let sum = |mine: &mut Duration, theirs| *mine += theirs;
        self.others = merge(self.others, other.others, sum);
        self.stolen = merge(self.stolen, other.stolen, sum);
    }
}

impl ActionMeasured {
    pub fn new() -> ActionMeasured {
        ActionMeasured {
            latency: Histogram::new(3).expect("three significant digits"),
            failed: Histogram::new(3).expect("three significant digits"),
            refused: 0,
            unknown: 0,
            skipped: 0,
            wrong: 0,
        }
    }

    /// One call that ended so after so long.
    pub fn record(&mut self, latency_ns: u64, failure: Option<&Failure>) {
        self.latency
            .record(latency_ns)
            .expect("histograms that grow as needed");
        let Some(failure) = failure else { return };
        self.failed
            .record(latency_ns)
            .expect("histograms that grow as needed");
        match failure {
            Failure::Refused(_) => self.refused += 1,
            Failure::Unknown(_) => self.unknown += 1,
        }
    }

    pub fn calls(&self) -> u64 {
        self.latency.len()
    }

    /// Calls answered.
    pub fn done(&self) -> u64 {
        self.latency.len().saturating_sub(self.failed.len())
    }

    /// Calls answered within so many nanoseconds, to the histogram's three digits.
    pub fn within(&self, limit_ns: u64) -> u64 {
        self.latency
            .count_between(0, limit_ns)
            .saturating_sub(self.failed.count_between(0, limit_ns))
    }

    pub fn add(&mut self, other: &ActionMeasured) {
        self.latency
            .add(&other.latency)
            .expect("histograms that grow as needed");
        self.failed
            .add(&other.failed)
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
