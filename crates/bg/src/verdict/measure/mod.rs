//! Trials and their results.
//!
//! A *trial* runs a mix against a data store with a given load for a given time. The results of several workers or
//! clients can be added: counts are summed and latency histograms are merged. All results are serializable (serde):
//! clients send them to their coordinator, and reports contain them.
//!
//! Invariants:
//!
//! 1. [`ActionMeasurements::failed`] contains exactly the calls of [`ActionMeasurements::latency`] that were rejected
//!    or whose outcome is unknown.
//! 2. The moments of [`Measurements::series`] cover the measured time in order. Each lasts a second, except the last.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::model::action::Action;
use crate::model::draw::DrawCounts;
use crate::stores::contract::Failure;

mod delivered;
mod json;

pub use delivered::DeliveredMix;

/// The load of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Closed loop: this many emulated threads, each with one action at a time.
    Threads(u32),
    /// Open loop: actions per second, started by a Poisson process. A latency counts from the scheduled start.
    Rate(f64),
}

/// The parameters of one trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    pub load: Load,
    /// Time before `duration` that is not measured.
    pub warmup: Duration,
    pub duration: Duration,
    /// Ends the trial after this number of measured actions, including skipped ones, if that happens before the end of
    /// `duration`.
    pub actions: Option<u64>,
    /// Number of unmeasured actions to run before `warmup`.
    pub warmup_actions: Option<u64>,
}

impl Trial {
    /// Returns a trial bounded by time alone.
    pub fn timed(load: Load, warmup: Duration, duration: Duration) -> Trial {
        Trial {
            load,
            warmup,
            duration,
            actions: None,
            warmup_actions: None,
        }
    }

    /// A duration longer than that of any trial that a count ends.
    pub const UNBOUNDED: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Returns a trial bounded by a count alone.
    pub fn counted(load: Load, actions: u64) -> Trial {
        Trial {
            actions: Some(actions),
            ..Trial::timed(load, Duration::ZERO, Trial::UNBOUNDED)
        }
    }
}

/// An executor of trials: this process, a coordinator of clients, or a simulated store in a test.
pub trait TrialRunner {
    /// Runs a trial.
    ///
    /// # Errors
    ///
    /// The trial has no result at all. A store that fails or stalls is a result, not an error.
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String>;

    /// Runs a trial, but ends it as soon as `should_stop` returns true. An implementation that cannot end a trial early
    /// runs it to its end.
    ///
    /// # Errors
    ///
    /// As for [`TrialRunner::run`].
    fn run_until(
        &mut self,
        trial: &Trial,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        let _ = should_stop;
        self.run(trial)
    }

    /// Returns the time since an arbitrary instant.
    fn now(&self) -> Duration {
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        FIRST.elapsed()
    }

    /// Returns whether no further trials may run. The result of the last trial then covers the time until it was ended.
    fn is_over(&self) -> bool {
        false
    }
}

/// Called after each second with the measurements so far and their duration. Returns whether the trial may end.
pub type StopCondition<'a> = &'a dyn Fn(&Measurements, Duration) -> bool;

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// The length of the measured time.
    #[serde(rename = "seconds", with = "json::seconds")]
    pub duration: Duration,
    /// Indexed by [`Action`] as a number.
    #[serde(with = "json::by_action")]
    pub actions: Vec<ActionMeasurements>,
    /// Number of sessions completed, in mixes of sessions.
    pub sessions: u64,
    /// Number of scheduled starts of an open loop at which no thread became free.
    #[serde(default, rename = "unbegun")]
    pub missed_starts: u64,
    /// The draws of members that were free to act, or to be viewed.
    #[serde(default)]
    pub drawn: DrawCounts,
    /// None if reads were not traced.
    pub reads: Option<ReadValidation>,
    /// Empty if no series was recorded.
    pub series: Vec<SecondMeasurements>,
    /// Resources that generating the load used. None if not measured.
    pub effort: Option<Effort>,
    /// The measurements of each client of a coordinator. Empty without a coordinator, and while the trial runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Measurements>,
}

/// The results of one action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionMeasurements {
    /// Nanoseconds of every call that was answered or given up, including failed calls.
    #[serde(rename = "latency_ns", with = "json::histogram")]
    pub latency: Histogram<u64>,
    /// Nanoseconds of the calls of `latency` that were rejected or whose outcome is unknown.
    #[serde(rename = "failed_ns", with = "json::histogram")]
    pub failed: Histogram<u64>,
    /// Number of `failed` calls that the data store rejected.
    pub refused: u64,
    /// Number of `failed` calls whose outcome is unknown: timeouts and lost connections.
    pub unknown: u64,
    /// Draws that could not be carried out: no friend to thaw, no invitation to accept, no member left to invite. If a
    /// session ends early, each of its remaining actions counts.
    pub skipped: u64,
    /// Answers whose bytes differ from those stored.
    pub wrong: u64,
}

/// The validation results of a trial's reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadValidation {
    pub reads: u64,
    /// Reads that no order of the writes explains: counts, members, and lists at one instant.
    pub unpredictable: u64,
    /// Sessions, or actions that belong to none, with at least one unpredictable read.
    pub unpredictable_sessions: u64,
    /// Reads that would take too long to decide.
    pub undecided: u64,
    /// By level as a number: reads that do not satisfy that [`Level`] or one below it, each read counted once. This is
    /// the meaning of `at` in an agreement. None for levels not validated. For [`Level::Snapshot`], `unpredictable` is
    /// the number to use.
    pub by_level: [Option<u64>; Level::ALL.len()],
    /// Unpredictable reads by class. Each class name occurs once.
    pub by_class: Vec<(String, u64)>,
    /// Stale reads by age: index i counts those whose age in nanoseconds has i bits.
    pub ages: Vec<u64>,
    /// Descriptions of the first unpredictable reads.
    pub witnesses: Vec<String>,
}

/// Consistency levels for the validation of reads, from the weakest to the strictest. Each level includes the ones
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Counts correspond to some order of the writes. This is BG's own measure.
    Counts,
    /// Every element of a list was present at some instant of the read.
    Members,
    /// All elements of a list were present at the same instant.
    Snapshot,
    /// A value that one read returned is visible to later reads.
    Atomic,
    /// All items that one action returns are of the same instant.
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

/// One second of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondMeasurements {
    /// Nanoseconds of the calls that ended in this second.
    #[serde(rename = "latency_ns", with = "json::histogram")]
    pub latency: Histogram<u64>,
    /// Number of these calls that were rejected or whose outcome is unknown.
    pub failed: u64,
    /// Number of validated reads. This and `unpredictable` are 0 if reads are validated only at the end.
    pub reads: u64,
    pub unpredictable: u64,
}

/// The resources that generating the load used. A load generator short of processor time measures itself instead of the
/// data store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Processor time of all threads of the client.
    #[serde(rename = "cpu_seconds", with = "json::seconds")]
    pub cpu: Duration,
    /// Number of processors that the client may use.
    pub processors: u32,
    /// Proportion of the measured time, 0 to 1, for which the busiest worker thread was running.
    pub busiest_worker: f64,
    /// Processor time used by neither the client nor the data store's own processes. None if unknown.
    #[serde(default, rename = "others_seconds", with = "json::some_seconds")]
    pub others: Option<Duration>,
    /// Processor time that the host of a virtual machine gave to other guests.
    #[serde(default, rename = "stolen_seconds", with = "json::some_seconds")]
    pub stolen: Option<Duration>,
}

impl Measurements {
    pub fn new(duration: Duration) -> Measurements {
        Measurements {
            duration,
            actions: Action::ALL.map(|_| ActionMeasurements::new()).into(),
            sessions: 0,
            missed_starts: 0,
            drawn: DrawCounts::default(),
            reads: None,
            series: Vec::new(),
            effort: None,
            clients: Vec::new(),
        }
    }

    pub fn of(&self, action: Action) -> &ActionMeasurements {
        &self.actions[action as usize]
    }

    /// Returns the number of actions answered, right or wrong. Rejections and unknown outcomes do not count.
    pub fn done(&self) -> u64 {
        self.actions.iter().map(ActionMeasurements::done).sum()
    }

    /// Returns the actions per second.
    pub fn throughput(&self) -> f64 {
        self.done() as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// Returns a warning if the load generator was short of processor time, so that the result may be its limit instead
    /// of the data store's.
    pub fn generator_warning(&self) -> Option<String> {
        let effort = self.effort?;
        let used = effort.processors_used(self.duration);
        if effort.busiest_worker > Effort::BUSY {
            return Some(format!(
                "the load generator's busiest worker used {:.0} % of a processor, so the result may be its limit, not the data store's; \
                 use more --workers, or clients on other machines",
                100.0 * effort.busiest_worker
            ));
        }
        (used > Effort::BUSY * f64::from(effort.processors)).then(|| {
            format!(
                "the load generator used {used:.2} of {} processors, so the result may be its limit, not the data store's; \
                 use clients on other machines",
                effort.processors
            )
        })
    }

    /// Returns a warning if other processes used the machine's processors during the trial.
    pub fn disturbance_warning(&self) -> Option<String> {
        let effort = self.effort?;
        let seconds = self.duration.as_secs_f64().max(1e-9);
        let used = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() / seconds;
        let (others, stolen) = (used(effort.others), used(effort.stolen));
        (others + stolen > Effort::DISTURBED * f64::from(effort.processors)).then(|| {
            format!(
                "other processes used {others:.2} of {} processors, and the host took {stolen:.2}: \
                 the results are lower and less repeatable than on an idle machine",
                effort.processors
            )
        })
    }

    /// Adds the results of another client of the same trial, which has its own members.
    pub fn join(&mut self, other: &Measurements) {
        let mut drawn = std::mem::take(&mut self.drawn);
        drawn.join(&other.drawn);
        self.add(other);
        self.drawn = drawn;
    }

    /// Adds the results of another worker of the same trial, or of a following period.
    pub fn add(&mut self, other: &Measurements) {
        self.duration = self.duration.max(other.duration);
        self.sessions += other.sessions;
        self.missed_starts += other.missed_starts;
        self.drawn.add(&other.drawn);
        for (mine, theirs) in self.actions.iter_mut().zip(&other.actions) {
            mine.add(theirs);
        }
        self.reads = merge(self.reads.take(), other.reads.clone(), ReadValidation::add);
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

impl ReadValidation {
    /// Returns the number of unpredictable reads at a level. None if that level was not validated.
    pub fn at(&self, level: Level) -> Option<u64> {
        match level {
            Level::Snapshot => Some(self.unpredictable),
            level => self.by_level[level as usize],
        }
    }

    /// Maximum number of witnesses kept when results are added.
    const WITNESSES_MAX: usize = 20;

    /// Adds the results of another client for its own reads.
    pub fn add(&mut self, other: ReadValidation) {
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
        self.witnesses.truncate(ReadValidation::WITNESSES_MAX);
    }
}

impl SecondMeasurements {
    pub fn new() -> SecondMeasurements {
        SecondMeasurements {
            latency: Histogram::new(2).expect("two significant digits"),
            failed: 0,
            reads: 0,
            unpredictable: 0,
        }
    }

    fn add(&mut self, other: &SecondMeasurements) {
        self.latency
            .add(&other.latency)
            .expect("the histogram resizes automatically");
        self.failed += other.failed;
        self.reads += other.reads;
        self.unpredictable += other.unpredictable;
    }
}

impl Default for SecondMeasurements {
    fn default() -> Self {
        SecondMeasurements::new()
    }
}

impl Effort {
    /// Proportion of processor time above which its user counts as short of it.
    const BUSY: f64 = 0.9;

    /// Proportion of all processors above which their use by others is reported.
    const DISTURBED: f64 = 0.05;

    /// Returns the mean number of processors used over this duration.
    pub fn processors_used(&self, duration: Duration) -> f64 {
        self.cpu.as_secs_f64() / duration.as_secs_f64().max(1e-9)
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

impl ActionMeasurements {
    pub fn new() -> ActionMeasurements {
        ActionMeasurements {
            latency: Histogram::new(3).expect("three significant digits"),
            failed: Histogram::new(3).expect("three significant digits"),
            refused: 0,
            unknown: 0,
            skipped: 0,
            wrong: 0,
        }
    }

    /// Records one call with its latency and failure, if any.
    pub fn record(&mut self, latency_ns: u64, failure: Option<&Failure>) {
        self.latency
            .record(latency_ns)
            .expect("the histogram resizes automatically");
        let Some(failure) = failure else { return };
        self.failed
            .record(latency_ns)
            .expect("the histogram resizes automatically");
        match failure {
            Failure::Refused(_) => self.refused += 1,
            Failure::Unknown(_) => self.unknown += 1,
        }
    }

    pub fn calls(&self) -> u64 {
        self.latency.len()
    }

    /// Returns the number of calls answered.
    pub fn done(&self) -> u64 {
        self.latency.len().saturating_sub(self.failed.len())
    }

    /// Returns the number of calls answered within this many nanoseconds, with the histogram's precision of three
    /// digits.
    pub fn within(&self, limit_ns: u64) -> u64 {
        self.latency
            .count_between(0, limit_ns)
            .saturating_sub(self.failed.count_between(0, limit_ns))
    }

    pub fn add(&mut self, other: &ActionMeasurements) {
        self.latency
            .add(&other.latency)
            .expect("the histogram resizes automatically");
        self.failed
            .add(&other.failed)
            .expect("the histogram resizes automatically");
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.skipped += other.skipped;
        self.wrong += other.wrong;
    }
}

impl Default for ActionMeasurements {
    fn default() -> Self {
        ActionMeasurements::new()
    }
}
