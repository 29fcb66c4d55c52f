//! What can be seen of a trial while it runs, and changed: threads, an early end.
//!
//! Workers keep their counts to themselves and hand them over every second ([`Interval`]), so that watching costs them nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::schedule::Schedule;
use crate::model::draw::Drawn;
use crate::verdict::measure::{Judged, Laboratory, Load, Measured, Moment, Trial};

/// Shared between a process, those who watch it, and those who press its buttons.
pub struct Live {
    control: watch::Sender<Control>,
    /// No trial shall begin any more.
    over: AtomicBool,
    seen: Mutex<Seen>,
}

/// Told after each second of a trial.
pub type Tell = Box<dyn FnMut(&Live)>;

/// A laboratory whose trials can be watched, changed and ended while they run: this process, or clients together.
pub trait Watchable: Laboratory {
    fn live(&self) -> &Arc<Live>;

    /// Calls this after each second of a trial.
    fn watch(&mut self, tell: Tell);
}

/// What workers obey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// None before the start.
    pub schedule: Option<Schedule>,
    /// Emulated threads of all workers together.
    pub threads: u32,
    pub stop: bool,
    /// There will be no start.
    pub cancelled: bool,
}

/// The trial so far.
#[derive(Clone, Debug)]
pub struct Seen {
    pub trial: Trial,
    /// Emulated threads at present, or at most in an open loop.
    pub threads: u32,
    /// Nanoseconds since the trial's start; zero before it.
    pub now_ns: u64,
    /// How many seconds have ended, the warm-up's too.
    pub seconds: u64,
    /// Whether the one that ended last was measured, and none of the warm-up.
    pub counts: bool,
    /// All that was measured, up to the last second.
    pub total: Measured,
    /// Of the second that ended last, the warm-up's too.
    pub second: Measured,
    /// Why calls failed, with how many did so; the first few reasons.
    pub failures: Vec<(String, u64)>,
    next: Measured,
    fatal: Option<String>,
    /// What was judged when the last second ended: reads, and the unpredictable.
    judged: (u64, u64),
    /// The judge gave up: what it said before does not hold for the trial so far.
    unjudged: bool,
}

/// What one worker saw since it last told.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// As the schedule numbers intervals.
    pub index: u64,
    pub measured: Measured,
    pub failures: Vec<(String, u64)>,
}

/// Reasons for failures that are told apart.
const REASONS_MAX: usize = 16;

impl Interval {
    /// With nothing drawn yet, as `drawn` has it.
    pub fn new(index: u64, drawn: Drawn) -> Interval {
        Interval {
            index,
            measured: Measured {
                drawn,
                ..Measured::new(Duration::ZERO)
            },
            failures: Vec::new(),
        }
    }

    pub fn failed(&mut self, why: &str) {
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
            over: AtomicBool::new(false),
            seen: Mutex::new(Seen::new(trial, 0)),
        }
    }

    /// Looks at the trial; workers do not wait for whoever looks.
    pub fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the number of emulated threads of a closed loop that runs.
    pub fn set_threads(&self, threads: u32) {
        self.control
            .send_modify(|control| control.threads = threads);
        self.lock().threads = threads;
    }

    /// Ends the trial now: calls under way get their answers, what was measured is the result.
    pub fn stop(&self) {
        self.control.send_modify(|control| control.stop = true);
    }

    /// Ends the trial now, and every later one before it begins.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Whether it was told to [`end`](Live::end).
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// What was asked for.
    pub(crate) fn control(&self) -> Control {
        *self.control.borrow()
    }

    /// Lets go of workers that wait for a start that will not be.
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

    /// What the reads judged so far are like.
    pub(crate) fn judged(&self, judged: Judged) {
        let mut seen = self.lock();
        if !seen.unjudged {
            seen.total.reads = Some(judged);
        }
    }

    /// Reads are not judged before the trial is over.
    pub(super) fn unjudged(&self) {
        let mut seen = self.lock();
        seen.unjudged = true;
        seen.total.reads = None;
    }

    pub(super) fn failed(&self) -> Option<String> {
        self.lock().fatal.clone()
    }

    /// Why calls failed so far, in place of what was known.
    pub(crate) fn set_failures(&self, failures: &[(String, u64)]) {
        let mut seen = self.lock();
        seen.failures.clear();
        for (why, count) in failures {
            count_reason(&mut seen.failures, why, *count);
        }
    }

    pub(crate) fn begin(&self, trial: &Trial, threads: u32) {
        *self.lock() = Seen::new(*trial, threads);
        // Whether it is over is asked under the lock, so that an end at the same time is not lost.
        self.control.send_modify(|control| {
            *control = Control {
                schedule: None,
                threads,
                stop: self.is_over(),
                cancelled: false,
            };
        });
    }

    pub(super) fn go(&self, schedule: Schedule) {
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

    /// A second is over, and all workers told.
    pub(crate) fn second_ended(&self, now_ns: u64, counts: bool) {
        let mut seen = self.lock();
        (seen.now_ns, seen.counts) = (now_ns, counts);
        seen.seconds += 1;
        let fresh = Measured::new(Duration::from_secs(1));
        seen.second = std::mem::replace(&mut seen.next, fresh);
        let now = seen.total.reads.as_ref();
        if let Some((reads, unpredictable)) = now.map(|now| (now.reads, now.unpredictable)) {
            let before = std::mem::replace(&mut seen.judged, (reads, unpredictable));
            seen.second.reads = Some(Judged {
                reads: reads - before.0,
                unpredictable: unpredictable - before.1,
                ..Judged::default()
            });
        }
        if counts {
            let mut moment = Moment::new();
            if let Some(judged) = &seen.second.reads {
                (moment.reads, moment.unpredictable) = (judged.reads, judged.unpredictable);
            }
            for action in &seen.second.actions {
                moment
                    .latency
                    .add(&action.latency)
                    .expect("histograms that grow as needed");
                moment.failed += action.failed.len();
            }
            seen.total.series.push(moment);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nobody panics while they look")
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

impl Seen {
    fn new(trial: Trial, threads: u32) -> Seen {
        let nothing = || Measured::new(Duration::from_secs(1));
        Seen {
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
