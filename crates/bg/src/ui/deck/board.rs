//! The state that the deck shows and the requests made on it, shared between the thread of the command and the thread
//! that serves HTTP.
//!
//! ```text
//!   Waiting ──record_second──► Running ──last second──► Ending ──record_end──► Waiting ... ──record_run_end──► Ended
//!      ▲ └──record_loading──► Loading                               └──wait_for_start──► Stopped ──start──┐
//!      └───────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//!
//! 1. A stop request applies to the running trial or, if none runs yet, to the first second of the next one.
//! 2. No lock of this module is held while a button's action runs: actions take other locks, which the threads that
//!    report seconds hold while they take the lock of this module.
//! 3. Points are numbered from 0 without gaps. Only the newest [`Board::POINTS_MAX`] points are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::routes::Failure;
use super::view::{
    About, ActionView, Agreement, CompletedTrial, Figures, Phase, Point, RatingView, ReadsView,
    SecondAndTrial, TrialView, action_views, sum_actions,
};
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Load, Measurements, Trial};

/// The effects of the buttons on the running trial.
pub trait Controls: Send + Sync {
    /// Changes the number of emulated threads of a closed loop.
    fn set_threads(&self, threads: u32);

    /// Ends the trial with its results so far.
    fn stop(&self);
}

/// A completed second of a trial.
pub struct Second<'a> {
    /// Time since the start of the trial.
    pub now: Duration,
    pub threads: u32,
    pub second: &'a Measurements,
    pub total: &'a Measurements,
    pub failures: &'a [(String, u64)],
}

/// The next step of the thread that runs trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    Go,
    /// Runs no more trials until a start request.
    Stop,
}

pub struct Board {
    about: About,
    sla: Option<Sla>,
    controls: Arc<dyn Controls>,
    opened: Instant,
    /// Distinguishes runs at the same address.
    id: String,
    now: Mutex<BoardState>,
    changed: Condvar,
}

/// The mutable state.
struct BoardState {
    phase: Phase,
    /// Progress of loading: members loaded, and their total number.
    loaded: Option<(u64, u64)>,
    trial: Option<TrialView>,
    all: Option<SecondAndTrial>,
    actions: Vec<ActionView>,
    agreement: Option<Agreement>,
    reads: Option<ReadsView>,
    failures: Vec<(String, u64)>,
    visits: Vec<CompletedTrial>,
    rated: Option<RatingView>,
    /// The reason why the run ended early.
    failed: Option<String>,
    points: VecDeque<Point>,
    /// The number of the first of `points`.
    points_from: u64,
    /// The number of threads at the start of the next trial of a closed loop, if a user chose one.
    threads: Option<u32>,
    next_step: NextStep,
    quit: bool,
    last_request: Option<Instant>,
    /// True if a page has received the end of the run.
    end_delivered: bool,
}

impl Board {
    /// Number of seconds kept: one hour.
    pub const POINTS_MAX: usize = 3600;

    pub fn new(about: About, sla: Option<Sla>, controls: Arc<dyn Controls>) -> Board {
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        let started = started.map_or(0, |since| since.as_nanos());
        Board {
            id: format!("{}-{started}", std::process::id()),
            now: Mutex::new(BoardState {
                phase: Phase::Waiting,
                loaded: None,
                trial: None,
                all: None,
                actions: Vec::new(),
                agreement: sla.as_ref().map(|sla| Agreement::new(sla, None)),
                reads: None,
                failures: Vec::new(),
                visits: Vec::new(),
                rated: None,
                failed: None,
                points: VecDeque::new(),
                points_from: 0,
                threads: None,
                next_step: NextStep::Go,
                quit: false,
                last_request: None,
                end_delivered: false,
            }),
            about,
            sla,
            controls,
            opened: Instant::now(),
            changed: Condvar::new(),
        }
    }

    /// Returns the answer to `GET /v1/state`: the current state, and the seconds from number `from` on.
    pub(super) fn json(&self, from: u64) -> String {
        let mut now = self.lock();
        now.last_request = Some(Instant::now());
        if now.phase == Phase::Ended {
            now.end_delivered = true;
            self.changed.notify_all();
        }
        let skip = from.saturating_sub(now.points_from) as usize;
        let first = now.points_from + skip.min(now.points.len()) as u64;
        let points: Vec<&Point> = now.points.iter().skip(skip).collect();
        let deck = self.about.command == "deck";
        let ended = now.phase == Phase::Ended;
        json!({
            "id": self.id,
            "version": env!("CARGO_PKG_VERSION"),
            "about": self.about,
            "phase": now.phase,
            "uptime_seconds": self.opened.elapsed().as_secs_f64(),
            "loaded": now.loaded.map(|(done, of)| json!({"done": done, "of": of})),
            "trial": now.trial,
            "all": now.all,
            "actions": now.actions,
            "agreement": now.agreement,
            "reads": now.reads,
            "failures": now.failures.iter().map(|(why, count)| json!({"why": why, "count": count})).collect::<Vec<_>>(),
            "trials": now.visits,
            "rated": now.rated,
            "failed": now.failed,
            "controls": {
                "threads": now.check_threads_change(deck).is_ok() && self.about.command != "rate",
                "stop": !ended && now.next_step == NextStep::Go && now.phase != Phase::Stopped,
                "start": now.phase == Phase::Stopped,
                "stopping": !ended && now.next_step == NextStep::Stop && now.phase != Phase::Stopped,
                "threads_next": now.threads,
            },
            "points": {"from": first, "points": points},
        })
        .to_string()
    }

    pub(super) fn set_threads(&self, threads: u32) -> Result<(), Failure> {
        let most = self.about.threads_max;
        if threads == 0 || threads > most {
            return Err(Failure::Bad(format!(
                "threads: {threads}, must be 1 to {most}"
            )));
        }
        if self.about.command == "rate" {
            let why = "a rating chooses the number of threads".to_owned();
            return Err(Failure::Conflict(why));
        }
        let mut now = self.lock();
        now.check_threads_change(self.about.command == "deck")?;
        now.threads = Some(threads);
        let running = now.phase == Phase::Running;
        if let Some(trial) = now.trial.as_mut().filter(|_| running) {
            trial.threads = threads;
        }
        drop(now);
        if running {
            self.controls.set_threads(threads);
        }
        Ok(())
    }

    pub(super) fn stop(&self) -> Result<(), Failure> {
        let mut now = self.lock();
        match now.phase {
            Phase::Ended => return Err(Failure::Conflict("the run has ended".to_owned())),
            Phase::Stopped => {
                return Err(Failure::Conflict("the run is already stopped".to_owned()));
            }
            _ => {}
        }
        now.next_step = NextStep::Stop;
        drop(now);
        self.controls.stop();
        Ok(())
    }

    pub(super) fn start(&self) -> Result<(), Failure> {
        let mut now = self.lock();
        if now.phase != Phase::Stopped {
            let why = match self.about.command {
                "deck" => "the run is not stopped",
                _ => "only `bg deck` can start again",
            };
            return Err(Failure::Conflict(why.to_owned()));
        }
        now.next_step = NextStep::Go;
        now.phase = Phase::Waiting;
        now.failed = None;
        self.changed.notify_all();
        Ok(())
    }

    pub fn next_step(&self) -> NextStep {
        self.lock().next_step
    }

    /// Returns the number of threads at the start of the next trial of a closed loop, if a user chose one.
    pub fn threads(&self) -> Option<u32> {
        self.lock().threads
    }

    pub fn record_loading(&self, done: u64, of: u64) {
        let mut now = self.lock();
        now.phase = Phase::Loading;
        now.loaded = Some((done, of));
    }

    /// Registers a trial that is about to start.
    pub fn record_start(&self, trial: &Trial) {
        let mut now = self.lock();
        let number = now.trial.as_ref().map_or(1, |trial| trial.number + 1);
        let threads = match trial.load {
            Load::Threads(threads) => threads,
            Load::Rate(_) => 0,
        };
        now.phase = Phase::Waiting;
        now.loaded = None;
        now.trial = Some(TrialView::new(number, trial, threads));
        now.failures.clear();
        now.agreement = self.sla.as_ref().map(|sla| Agreement::new(sla, None));
    }

    pub fn record_second(&self, second: &Second<'_>) {
        let at = self.opened.elapsed();
        let mut locked = self.lock();
        let now = &mut *locked;
        let Some(trial) = &mut now.trial else { return };
        let elapsed = second.now.as_secs_f64();
        let seconds = elapsed - trial.elapsed_seconds;
        trial.elapsed_seconds = elapsed;
        trial.threads = second.threads;
        let measured = (elapsed - trial.warmup_seconds).max(0.0);
        let total = Measurements {
            duration: Duration::from_secs_f64(measured),
            reads: second.total.reads.clone(),
            actions: second.total.actions.clone(),
            ..Measurements::new(Duration::ZERO)
        };
        now.all = Some(SecondAndTrial {
            second: Figures::new(&sum_actions(second.second), seconds),
            trial: Figures::new(&sum_actions(&total), measured),
        });
        let sla = self.sla.as_ref();
        now.actions = action_views(second.second, seconds, &total, measured, sla);
        now.agreement = sla.map(|sla| Agreement::new(sla, Some(&total)));
        if let Some(judged) = &total.reads {
            now.reads = Some(ReadsView::new(trial.number, judged));
        }
        now.failures = second.failures.to_vec();
        let point = Point::new(trial, at, second.second, seconds);
        now.points.push_back(point);
        if now.points.len() > Board::POINTS_MAX {
            now.points.pop_front();
            now.points_from += 1;
        }
        let is_over = |length: f64| elapsed + 1e-6 >= length;
        now.phase = if trial.length_seconds().is_some_and(is_over) {
            Phase::Ending
        } else {
            Phase::Running
        };
        let stop = now.next_step == NextStep::Stop;
        if stop {
            now.phase = Phase::Ending;
        }
        drop(locked);
        if stop {
            self.controls.stop();
        }
    }

    /// Registers the result of the last trial.
    pub fn record_end(&self, ended: &Result<Measurements, String>) {
        let mut now = self.lock();
        let now = &mut *now;
        let Some(trial) = &now.trial else { return };
        let sla = self.sla.as_ref();
        now.visits.push(CompletedTrial::new(trial, ended, sla));
        if let Ok(measured) = ended {
            now.agreement = sla.map(|sla| Agreement::new(sla, Some(measured)));
            now.reads = match &measured.reads {
                Some(judged) => Some(ReadsView::new(trial.number, judged)),
                None => now.reads.take(),
            };
            let (all, seconds) = (sum_actions(measured), measured.duration.as_secs_f64());
            if let Some(both) = &mut now.all {
                both.trial = Figures::new(&all, seconds);
            }
            let nothing = Measurements::new(Duration::ZERO);
            for row in action_views(&nothing, 1.0, measured, seconds, sla) {
                if let Some(shown) = now.actions.iter_mut().find(|it| it.action == row.action) {
                    shown.figures.trial = row.figures.trial;
                    shown.agreed = row.agreed;
                }
            }
        }
        now.phase = Phase::Ending;
    }

    /// Sets the reason why the search ran the last trial.
    pub fn set_purpose(&self, purpose: &str) {
        if let Some(visit) = self.lock().visits.last_mut() {
            visit.purpose = Some(purpose.to_owned());
        }
    }

    /// Sets the result of the search. `confirmed` is the index, among the trials with a result, of the one that
    /// confirmed it.
    pub fn record_rating(
        &self,
        load: u64,
        throughput: f64,
        confirmed: Option<usize>,
        notes: &[String],
    ) {
        let mut now = self.lock();
        let mut with_result = now.visits.iter().filter(|visit| visit.seconds > 0.0);
        now.rated = Some(RatingView {
            load,
            actions_per_second: throughput,
            trial: confirmed
                .and_then(|index| with_result.nth(index))
                .map(|visit| visit.number),
            notes: notes.to_vec(),
        });
    }

    /// Marks the end of the run, with the reason if it failed. Only the first call has an effect.
    pub fn record_run_end(&self, failed: Option<String>) {
        let mut now = self.lock();
        if now.phase != Phase::Ended {
            now.phase = Phase::Ended;
            now.failed = failed;
        }
    }

    /// Registers a trial without a result. No other trial starts until a start request.
    pub fn record_failure(&self, why: String) {
        let mut now = self.lock();
        now.next_step = NextStep::Stop;
        now.failed = Some(why);
    }

    /// Waits for a start request. Returns false if there will be none.
    pub fn wait_for_start(&self) -> bool {
        let mut now = self.lock();
        if !now.quit {
            now.phase = Phase::Stopped;
        }
        let now = self
            .changed
            .wait_while(now, |now| now.next_step == NextStep::Stop && !now.quit)
            .unwrap_or_else(PoisonError::into_inner);
        !now.quit
    }

    /// Ends the running trial and any waiting, for Ctrl-C.
    pub fn quit(&self) {
        let mut now = self.lock();
        now.quit = true;
        now.next_step = NextStep::Stop;
        self.changed.notify_all();
        drop(now);
        self.controls.stop();
    }

    /// Waits until a page has received the end of the run, for at most `patience`. Does not wait if no page sent a
    /// request within that time.
    pub(super) fn wait_for_watchers(&self, patience: Duration) {
        let now = self.lock();
        let observed = now.last_request.is_some_and(|at| at.elapsed() < patience);
        if observed {
            let end_delivered = self
                .changed
                .wait_timeout_while(now, patience, |now| !now.end_delivered);
            drop(end_delivered.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BoardState {
    fn check_threads_change(&self, deck: bool) -> Result<(), Failure> {
        let no = |why: &str| Err(Failure::Conflict(why.to_owned()));
        let closed = self
            .trial
            .as_ref()
            .is_none_or(|trial| matches!(trial.load, super::view::LoadView::Threads(_)));
        match self.phase {
            _ if !closed => no("the number of threads of an open loop follows from its rate"),
            Phase::Ended => no("the run has ended"),
            Phase::Running => Ok(()),
            _ if deck => Ok(()),
            _ => no("no trial is running"),
        }
    }
}
