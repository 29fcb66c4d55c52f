//! The state of a running trial that other threads can watch and control: number of threads, early end.
//!
//! Workers collect their counts locally and hand them over once a second ([`Interval`]), so that observers do not slow
//! them down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::schedule::Schedule;
use crate::model::draw::DrawCounts;
use crate::verdict::measure::{
    Load, Measurements, ReadValidation, SecondMeasurements, Trial, TrialRunner,
};

/// The state shared between a process, its observers and those that control it.
pub struct Live {
    control: watch::Sender<Control>,
    /// Set when no further trial may start.
    ended: AtomicBool,
    seen: Mutex<LiveState>,
}

/// A callback that runs after each second of a trial.
pub type OnSecond = Box<dyn FnMut(&Live)>;

/// A trial runner whose trials can be watched, changed and ended while they run: this process, or a group of clients.
pub trait Watchable: TrialRunner {
    fn live(&self) -> &Arc<Live>;

    /// Sets the callback that runs after each second of a trial.
    fn watch(&mut self, on_second: OnSecond);
}

/// The settings that workers follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// None before the start.
    pub schedule: Option<Schedule>,
    /// Number of emulated threads of all workers together.
    pub threads: u32,
    pub stop: bool,
    /// Set when the trial will not start.
    pub cancelled: bool,
}

/// The results of the trial so far.
#[derive(Clone, Debug)]
pub struct LiveState {
    pub trial: Trial,
    /// Current number of emulated threads; in an open loop, the maximum.
    pub threads: u32,
    /// Nanoseconds since the start of the trial; 0 before it.
    pub now_ns: u64,
    /// Number of seconds completed, including the warm-up.
    pub seconds: u64,
    /// True if the last completed second was in the measured time, not in the warm-up.
    pub counts: bool,
    /// Totals of the measured time, up to the last completed second.
    pub total: Measurements,
    /// Values of the last completed second, which may be in the warm-up.
    pub second: Measurements,
    /// Reasons for failed calls, with the number of calls that each affected. Limited to the first few reasons.
    pub failures: Vec<(String, u64)>,
    next: Measurements,
    fatal: Option<String>,
    /// Numbers of validated reads and of unpredictable reads at the end of the last second.
    judged: (u64, u64),
    /// Set when online validation gave up: its earlier results do not cover the trial so far.
    unjudged: bool,
}

/// The measurements of one worker since its last interval.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Number of the interval, as in the schedule.
    pub index: u64,
    pub measured: Measurements,
    pub failures: Vec<(String, u64)>,
}

/// Maximum number of distinct failure reasons kept.
const REASONS_MAX: usize = 16;

impl Interval {
    /// Returns an empty interval. `drawn` must have no draws.
    pub fn new(index: u64, drawn: DrawCounts) -> Interval {
        Interval {
            index,
            measured: Measurements {
                drawn,
                ..Measurements::new(Duration::ZERO)
            },
            failures: Vec::new(),
        }
    }

    pub fn count_failure(&mut self, why: &str) {
        count_reason(&mut self.failures, why, 1);
    }
}

fn count_reason(reasons: &mut Vec<(String, u64)>, why: &str, count: u64) {
    match reasons.iter().position(|(known, _)| known == why) {
        Some(place) => reasons[place].1 += count,
        None if reasons.len() < REASONS_MAX => reasons.push((why.to_owned(), count)),
        None => {}
    }
}

impl Live {
    pub fn new() -> Live {
        let trial = Trial::timed(Load::Threads(0), Duration::ZERO, Duration::ZERO);
        Live {
            control: watch::Sender::new(Control {
                schedule: None,
                threads: 0,
                stop: true,
                cancelled: true,
            }),
            ended: AtomicBool::new(false),
            seen: Mutex::new(LiveState::new(trial, 0)),
        }
    }

    /// Runs `look` on the current results. Workers do not wait for observers.
    pub fn with_state<T>(&self, look: impl FnOnce(&LiveState) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the number of emulated threads of a running closed loop.
    pub fn set_threads(&self, threads: u32) {
        self.control
            .send_modify(|control| control.threads = threads);
        self.lock().threads = threads;
    }

    /// Ends the trial now. Calls in flight complete, and the result is what was measured so far.
    pub fn stop(&self) {
        self.control.send_modify(|control| control.stop = true);
    }

    /// Ends the trial now and prevents later trials from starting.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Returns whether [`end`](Live::end) was called.
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Returns the current settings.
    pub(crate) fn control(&self) -> Control {
        *self.control.borrow()
    }

    /// Releases workers that wait for a start that will not happen.
    pub(super) fn cancel(&self) {
        self.control.send_modify(|control| {
            control.stop = true;
            control.cancelled = true;
        });
    }

    /// Ends the trial without a result.
    pub(crate) fn fail(&self, why: String) {
        self.lock().fatal.get_or_insert(why);
        self.stop();
    }

    /// Sets the validation results of the reads so far.
    pub(crate) fn set_validation(&self, judged: ReadValidation) {
        let mut seen = self.lock();
        if !seen.unjudged {
            seen.total.reads = Some(judged);
        }
    }

    /// Marks the reads as not validated until the trial is over.
    pub(super) fn withdraw_validation(&self) {
        let mut seen = self.lock();
        seen.unjudged = true;
        seen.total.reads = None;
    }

    pub(super) fn fatal_error(&self) -> Option<String> {
        self.lock().fatal.clone()
    }

    /// Replaces the reasons for failed calls.
    pub(crate) fn set_failures(&self, failures: &[(String, u64)]) {
        let mut seen = self.lock();
        seen.failures.clear();
        for (why, count) in failures {
            count_reason(&mut seen.failures, why, *count);
        }
    }

    pub(crate) fn begin(&self, trial: &Trial, threads: u32) {
        *self.lock() = LiveState::new(*trial, threads);
        // `is_over` is read under the lock, so that a concurrent `end` is not lost.
        self.control.send_modify(|control| {
            *control = Control {
                schedule: None,
                threads,
                stop: self.is_over(),
                cancelled: false,
            };
        });
    }

    pub(super) fn start(&self, schedule: Schedule) {
        self.control
            .send_modify(|control| control.schedule = Some(schedule));
    }

    pub(super) fn watch(&self) -> watch::Receiver<Control> {
        self.control.subscribe()
    }

    pub(crate) fn add(&self, interval: &Interval, counts: bool) {
        let mut seen = self.lock();
        if counts {
            seen.total.add(&interval.measured);
        }
        seen.next.add(&interval.measured);
        for (why, count) in &interval.failures {
            count_reason(&mut seen.failures, why, *count);
        }
    }

    /// Completes a second, for which all workers have sent their interval.
    pub(crate) fn complete_second(&self, now_ns: u64, counts: bool) {
        let mut seen = self.lock();
        (seen.now_ns, seen.counts) = (now_ns, counts);
        seen.seconds += 1;
        let fresh = Measurements::new(Duration::from_secs(1));
        seen.second = std::mem::replace(&mut seen.next, fresh);
        let now = seen.total.reads.as_ref();
        if let Some((reads, unpredictable)) = now.map(|now| (now.reads, now.unpredictable)) {
            let before = std::mem::replace(&mut seen.judged, (reads, unpredictable));
            seen.second.reads = Some(ReadValidation {
                reads: reads - before.0,
                unpredictable: unpredictable - before.1,
                ..ReadValidation::default()
            });
        }
        if counts {
            let mut moment = SecondMeasurements::new();
            if let Some(judged) = &seen.second.reads {
                (moment.reads, moment.unpredictable) = (judged.reads, judged.unpredictable);
            }
            for action in &seen.second.actions {
                moment
                    .latency
                    .add(&action.latency)
                    .expect("the histogram resizes automatically");
                moment.failed += action.failed.len();
            }
            seen.total.series.push(moment);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LiveState> {
        self.seen.lock().expect("no panic while locked")
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

impl LiveState {
    fn new(trial: Trial, threads: u32) -> LiveState {
        let nothing = || Measurements::new(Duration::from_secs(1));
        LiveState {
            trial,
            threads,
            now_ns: 0,
            seconds: 0,
            counts: false,
            total: nothing(),
            second: nothing(),
            failures: Vec::new(),
            next: nothing(),
            fatal: None,
            judged: (0, 0),
            unjudged: false,
        }
    }
}
