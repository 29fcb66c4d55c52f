//! The trial runner of a single process: starts the workers of a trial, adds up their results and has the reads
//! validated.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::budget::Budget;
use super::live::{Interval, Live, OnSecond, Watchable};
use super::schedule::Schedule;
use super::setup::{Setup, Tracing};
use super::{effort, worker, writer};
use crate::model::action::Action;
use crate::model::draw::Cells;
use crate::model::state::State;
use crate::stores::load;
use crate::stores::notes::{self, Claim};
use crate::verdict::judge;
use crate::verdict::measure::{
    ActionMeasurements, Effort, Load, Measurements, StopCondition, Trial, TrialRunner,
};
use crate::verdict::scratch::Scratch;
use crate::verdict::trace;

/// Runs trials in this process.
pub struct Process {
    setup: Arc<Setup>,
    state: Arc<State>,
    live: Arc<Live>,
    cells: Arc<Cells>,
    trials: u32,
    /// True if the data store held the population when `state` was created.
    state_is_known: bool,
    /// The name under which this writer is registered with the data store.
    name: String,
    /// The claim of the last trial.
    claim: Option<Claim>,
    online: bool,
    on_second: Option<OnSecond>,
    gate: Option<Gate>,
}

/// Returns when a ready trial may start, or the reason why it must not.
type Gate = Box<dyn FnMut() -> Result<(), String>>;

/// The data that workers share.
pub(super) struct TrialContext<'a> {
    pub setup: &'a Arc<Setup>,
    pub state: &'a Arc<State>,
    pub live: &'a Live,
    pub cells: &'a Arc<Cells>,
    pub load: Load,
    /// Set if the trial is bounded by a count.
    pub budget: Option<Arc<Budget>>,
    /// True if it is unknown whether the data store holds the population.
    pub check_sample: bool,
}

/// A message from a worker to its process.
pub(super) enum WorkerMessage {
    Connected(Result<(), String>),
    /// Each worker sends each interval once, in order, unless it stops early.
    Interval(Box<Interval>),
    /// Processor time of the worker's thread in the measured time.
    Ended(Duration),
}

/// Number of scratch folders that this process has made.
static SCRATCH_FOLDERS: AtomicU32 = AtomicU32::new(0);

/// Maximum number of emulated threads of one process. Each is a task with a call in flight.
const THREADS_MAX: u32 = 1 << 20;

impl Process {
    /// Creates a process for the setup.
    ///
    /// # Errors
    ///
    /// A parameter makes trials impossible; the message names it.
    pub fn new(setup: Setup) -> Result<Process, String> {
        setup.population.check().map_err(|why| why.to_string())?;
        if setup.workers == 0 {
            return Err("--workers 0: must be at least 1".to_owned());
        }
        if setup.drawing.size() < 2 {
            return Err("--members: each client needs at least 2 members".to_owned());
        }
        if setup.run_options.timeout.is_zero() {
            return Err("--timeout 0: every call would time out".to_owned());
        }
        for (option, value) in [
            ("--top", setup.run_options.top),
            ("--tries", setup.run_options.tries),
            ("--threads-max", setup.run_options.threads_max),
        ] {
            if value == 0 {
                return Err(format!("{option} 0: must be at least 1"));
            }
        }
        let resources = setup.mix.actions().any(|action| action.needs_resources());
        if resources && setup.population.resources == 0 {
            return Err(format!(
                "--resources 0: the mix {} reads resources",
                setup.mix.name()
            ));
        }
        Ok(Process {
            state: Arc::new(State::new(setup.population.clone())),
            live: Arc::new(Live::new()),
            cells: Arc::new(Cells::new(&setup.drawing)),
            trials: 0,
            state_is_known: false,
            name: notes::unique_name(),
            claim: None,
            online: false,
            on_second: None,
            gate: None,
            setup: Arc::new(setup),
        })
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the state that others may watch and change while a trial runs.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Also validates reads while trials run, for observers. This costs processor time and requires traced reads.
    pub fn validate_online(&mut self) {
        self.online = true;
    }

    /// Registers this process under the name of a run that has several processes.
    pub fn set_run_name(&mut self, run: &str) {
        run.clone_into(&mut self.name);
    }

    /// Sets the callback that runs after each second of a trial.
    pub fn on_second(&mut self, callback: impl FnMut(&Live) + 'static) {
        self.on_second = Some(Box::new(callback));
    }

    /// Sets the callback that runs in each trial once all workers are connected. The trial starts when it returns.
    pub fn before_start(&mut self, gate: impl FnMut() -> Result<(), String> + 'static) {
        self.gate = Some(Box::new(gate));
    }

    /// Empties the data store and loads the population. The state of the members is reset to the population.
    ///
    /// # Errors
    ///
    /// The load failed or was ended early.
    pub fn load(&mut self, on_progress: &mut dyn FnMut(load::Progress)) -> Result<(), String> {
        load::load(
            &self.setup.store,
            &self.setup.population,
            self.setup.workers,
            &mut |progress| {
                on_progress(progress);
                if self.live.is_over() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        )?;
        self.state = Arc::new(State::new(self.setup.population.clone()));
        self.state_is_known = true;
        self.claim = None;
        Ok(())
    }

    /// Checks that a trial can run.
    ///
    /// # Errors
    ///
    /// These members cannot produce the load, or the trace cannot be written to its folder.
    pub fn check(&self, trial: &Trial) -> Result<(), String> {
        let threads = match trial.load {
            Load::Threads(0) => return Err("--threads 0: must be at least 1".to_owned()),
            Load::Threads(threads) => threads,
            Load::Rate(rate) if !(rate > 0.0 && rate <= 1e9) => {
                return Err(format!(
                    "--rate {rate}: must be more than 0 and at most 10^9"
                ));
            }
            Load::Rate(_) => self.setup.run_options.threads_max,
        };
        if threads > THREADS_MAX {
            return Err(format!(
                "{threads} emulated threads: at most {THREADS_MAX} (--threads, --threads-max)"
            ));
        }
        let members = self.setup.drawing.size();
        if self.setup.run_options.unique_reads && threads > members {
            return Err(format!(
                "{threads} threads need as many members, but there are {members}; use --shared-reads to let threads share members, or increase --members"
            ));
        }
        if trial.duration.is_zero() {
            return Err("--duration 0: must be more than 0".to_owned());
        }
        if trial.actions == Some(0) {
            return Err("--actions 0: must be at least 1".to_owned());
        }
        if let (Tracing::Keep(folder), 0) = (&self.setup.tracing, self.trials) {
            trace::make_folder(folder)?;
        }
        Ok(())
    }

    fn trace_folder(&self) -> Option<PathBuf> {
        match &self.setup.tracing {
            Tracing::None => None,
            Tracing::Scratch => Some(std::env::temp_dir().join(format!(
                "bg-trace-{}-{}",
                std::process::id(),
                SCRATCH_FOLDERS.fetch_add(1, Ordering::Relaxed)
            ))),
            Tracing::Keep(folder) if self.trials == 1 => Some(folder.clone()),
            Tracing::Keep(folder) => Some(folder.join(format!("trial-{}", self.trials))),
        }
    }
}

impl Watchable for Process {
    fn live(&self) -> &Arc<Live> {
        &self.live
    }

    fn watch(&mut self, on_second: OnSecond) {
        self.on_second = Some(on_second);
    }
}

impl TrialRunner for Process {
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
        self.run_until(trial, &|_, _| false)
    }

    fn is_over(&self) -> bool {
        self.live.is_over()
    }

    fn run_until(
        &mut self,
        trial: &Trial,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        self.check(trial)?;
        if self.is_over() {
            return Err("the run was stopped before the trial began".to_owned());
        }
        if self.setup.store.is_volatile() && !self.state_is_known {
            self.load(&mut |_| {})?;
        }
        let (store, population) = (&self.setup.store, &self.setup.population);
        if !store.skips_validation() {
            let look = Claim::verify_load(store, population, &self.name, self.claim.as_ref());
            self.claim = Some(look?);
        }
        if let Some(actions) = trial.warmup_actions {
            self.warm_up(trial, actions)?;
        }
        self.trials += 1;
        let folder = self.trace_folder();
        let scratch = self.setup.tracing == Tracing::Scratch;
        let _scratch = folder.clone().filter(|_| scratch).map(Scratch::new);
        let writer = folder
            .as_deref()
            .map(|folder| {
                let online = self.online && !self.setup.store.skips_validation();
                writer::Writer::create(folder, &self.setup, &self.state, &self.live, online)
            })
            .transpose()?;
        let mut gate = self.gate.take();
        // If there was a warm-up by count, it has already passed the gate.
        let measured = match trial.warmup_actions {
            None => self.experiment(trial, writer.as_ref(), gate.as_mut(), should_stop),
            Some(_) => self.experiment(trial, writer.as_ref(), None, should_stop),
        };
        self.gate = gate;
        let mut measured = measured?;
        if let Some(claim) = &self.claim {
            claim.check(&self.setup.store)?;
        }
        if let (Some(writer), Some(folder)) = (writer, folder) {
            writer.finish()?;
            if !self.setup.store.skips_validation() {
                measured.reads = Some(judge::judge_folder(&folder, self.setup.workers)?);
            }
        }
        Ok(measured)
    }
}

impl Process {
    /// Runs this many actions without measuring or tracing them. Their writes are known afterwards, so the trial's
    /// trace starts from that state.
    fn warm_up(&mut self, trial: &Trial, actions: u64) -> Result<(), String> {
        let (mut gate, on_second) = (self.gate.take(), self.on_second.take());
        let counted = Trial::counted(trial.load, actions);
        let warmed = self.experiment(&counted, None, gate.as_mut(), &|_, _| false);
        (self.gate, self.on_second) = (gate, on_second);
        let warmed = warmed?;
        let due = |one: &ActionMeasurements| one.calls() + one.skipped;
        if warmed.actions.iter().map(due).sum::<u64>() < actions {
            Err("the run was stopped during the warm-up".to_owned())
        } else {
            Ok(())
        }
    }

    /// Runs the workers for one trial and adds up their measurements.
    fn experiment(
        &mut self,
        trial: &Trial,
        writer: Option<&writer::Writer>,
        mut gate: Option<&mut Gate>,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        let threads = match trial.load {
            Load::Threads(threads) => threads,
            Load::Rate(_) => self.setup.run_options.threads_max,
        };
        self.live.begin(trial, threads);
        let (sender, receiver) = channel();
        let store = &self.setup.store;
        let shared = TrialContext {
            setup: &self.setup,
            state: &self.state,
            live: &self.live,
            cells: &self.cells,
            load: trial.load,
            budget: trial.actions.map(|actions| Arc::new(Budget::new(actions))),
            check_sample: !self.state_is_known && !store.skips_validation() && !store.is_faulty(),
        };
        let mut on_second = self.on_second.take();
        let measured = thread::scope(|scope| {
            for index in 0..self.setup.workers {
                let (sender, shared) = (sender.clone(), &shared);
                let recorder = writer.map(|writer| writer.recorder(index));
                thread::Builder::new()
                    .name(format!("worker {index}"))
                    .spawn_scoped(scope, move || {
                        worker::run_worker(shared, index, recorder, &sender);
                    })
                    .expect("the system can create threads");
            }
            drop(sender);
            let mut after_second = |measured: bool, elapsed: Duration| {
                if let Some(callback) = &mut on_second {
                    callback(&self.live);
                }
                if measured
                    && self
                        .live
                        .with_state(|seen| should_stop(&seen.total, elapsed))
                {
                    self.live.stop();
                }
            };
            let collected = self
                .wait_for_connections(&receiver)
                .and_then(|()| self.claim())
                .and_then(|()| gate.as_mut().map_or(Ok(()), |gate| gate()))
                .map(|()| Schedule::start(trial))
                .inspect(|schedule| self.live.start(*schedule))
                .and_then(|schedule| self.collect(schedule, trial, &receiver, &mut after_second));
            self.live.cancel();
            collected
        });
        self.on_second = on_second;
        let measured = measured?;
        self.state_is_known = true;
        Ok(measured)
    }

    /// Puts the claim into the data store before the first write.
    fn claim(&self) -> Result<(), String> {
        let writes = self.setup.mix.actions().any(Action::is_write);
        match &self.claim {
            Some(claim) if writes => claim.put(&self.setup.store),
            _ => Ok(()),
        }
    }

    fn wait_for_connections(&self, receiver: &Receiver<WorkerMessage>) -> Result<(), String> {
        for _ in 0..self.setup.workers {
            match receiver.recv() {
                Ok(WorkerMessage::Connected(Ok(()))) => {}
                Ok(WorkerMessage::Connected(Err(why))) => {
                    return Err(why);
                }
                Ok(_) => unreachable!("a worker connects before anything else"),
                Err(_) => return Err("a worker ended before it connected".to_owned()),
            }
        }
        Ok(())
    }

    /// Adds up the results of the workers until all have ended.
    fn collect(
        &self,
        schedule: Schedule,
        trial: &Trial,
        receiver: &Receiver<WorkerMessage>,
        after_second: &mut dyn FnMut(bool, Duration),
    ) -> Result<Measurements, String> {
        let processes = self.setup.store.processes();
        let mut usage = effort::Usage::now(processes);
        let (mut ended, mut busiest) = (0, Duration::ZERO);
        // `complete` is the next interval to be completed. `reported` holds the number of workers that have sent that
        // interval, and each later one.
        let (mut complete, mut reported) = (0u64, VecDeque::new());
        while ended < self.setup.workers {
            let interval = match receiver.recv() {
                Ok(WorkerMessage::Interval(interval)) => interval,
                Ok(WorkerMessage::Ended(worker)) => {
                    ended += 1;
                    busiest = busiest.max(worker);
                    continue;
                }
                Ok(WorkerMessage::Connected(_)) => unreachable!("all workers are connected"),
                Err(_) => return Err("a worker ended before the trial".to_owned()),
            };
            let place = (interval.index - complete) as usize;
            if reported.len() <= place {
                reported.resize(place + 1, 0);
            }
            reported[place] += 1;
            self.live
                .add(&interval, schedule.is_measured(interval.index));
            while reported.front() == Some(&self.setup.workers) {
                reported.pop_front();
                let end = schedule.interval_end(complete);
                self.live
                    .complete_second(end, schedule.is_measured(complete));
                complete += 1;
                if end == schedule.measured_from {
                    usage = effort::Usage::now(processes);
                }
                let elapsed = end.saturating_sub(schedule.measured_from);
                let counts = schedule.is_measured(complete - 1);
                after_second(counts, Duration::from_nanos(elapsed));
            }
        }
        if !reported.is_empty() {
            let now = schedule.clock.now();
            self.live
                .complete_second(now, schedule.is_measured(complete));
        }
        let used = usage.until(&effort::Usage::now(processes));
        let stopped = schedule.clock.now().min(schedule.end);
        let duration = Duration::from_nanos(stopped.saturating_sub(schedule.measured_from));
        if let Some(why) = self.live.fatal_error() {
            return Err(why);
        }
        let mut measured = self.live.with_state(|seen| seen.total.clone());
        measured.duration = duration.min(trial.duration);
        measured.effort = Some(Effort {
            cpu: used.own,
            others: used.others,
            stolen: used.stolen,
            processors: thread::available_parallelism().map_or(1, |count| count.get() as u32),
            busiest_worker: busiest.as_secs_f64() / duration.as_secs_f64().max(1e-9),
        });
        Ok(measured)
    }
}
