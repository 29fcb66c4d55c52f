//! A worker: a thread with its own runtime and its own client, which runs its share of the emulated threads as tasks.
//!
//! The worker's own task spawns them, hands over its measurements every second, and waits for the calls in flight at
//! the end. Emulated threads that are asleep at that point are dropped.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use larder_types::Random;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use super::budget::Budget;
use super::in_flight::InFlightCalls;
use super::live::{Control, Interval};
use super::pace::Pace;
use super::process::{TrialContext, WorkerMessage};
use super::schedule::Schedule;
use super::setup::{RunOptions, Setup};
use super::writer::Recorder;
use super::{effort, emulate, preflight};
use crate::model::draw::Cells;
use crate::model::state::State;
use crate::stores::contract::Client;
use crate::stores::notes;
use crate::verdict::measure::Load;

/// The maximum time that a data store may take to accept a worker's connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The data that the emulated threads of one worker share.
pub(super) struct RunWorker {
    pub index: usize,
    pub setup: Arc<Setup>,
    pub state: Arc<State>,
    pub schedule: Schedule,
    pub client: Rc<dyn Client>,
    pub random: RefCell<Random>,
    /// Counts the draws.
    pub cells: Arc<Cells>,
    pub interval: RefCell<Box<Interval>>,
    pub recorder: RefCell<Option<Recorder>>,
    pub pace: Pace,
    /// Set if the trial is bounded by a count.
    pub budget: Option<Arc<Budget>>,
    /// Notified when the budget is spent. The worker's own task then ends the trial for all workers.
    pub spent: Notify,
    /// Number of emulated threads that this worker should have.
    pub threads: Cell<u32>,
    pub stopped: Cell<bool>,
    /// Number of calls in flight.
    pub calls: Cell<u32>,
    /// Start times of the calls in flight.
    pub in_flight: InFlightCalls,
    /// Notified when the last call in flight has ended.
    pub idle: Notify,
    pub sessions: Cell<u32>,
    /// Number of consecutive calls that completed on the first poll.
    pub instant: Cell<u32>,
}

impl RunWorker {
    pub fn run_options(&self) -> &RunOptions {
        &self.setup.run_options
    }
}

/// Runs a worker, from connecting to reporting its processor time.
pub(super) fn run_worker(
    shared: &TrialContext<'_>,
    index: usize,
    recorder: Option<Recorder>,
    sender: &Sender<WorkerMessage>,
) {
    // Sending fails only if the receiver has given up.
    let send = |message| drop(sender.send(message));
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(Default::default())
    {
        Ok(runtime) => runtime,
        Err(why) => return send(WorkerMessage::Connected(Err(why.to_string()))),
    };
    let connected = runtime.block_on(async {
        let (store, population) = (&shared.setup.store, shared.setup.population.clone());
        let failed = |why: String| notes::unreachable_message(&**store, &why);
        let client = match timeout(CONNECT_TIMEOUT, store.connect(population)).await {
            Ok(Ok(client)) => client,
            Ok(Err(why)) => return Err(failed(why.to_string())),
            Err(_) => {
                return Err(failed(format!(
                    "no answer in {} s",
                    CONNECT_TIMEOUT.as_secs()
                )));
            }
        };
        if shared.check_sample && index == 0 {
            preflight::check(&*client, shared.setup).await?;
        }
        Ok(client)
    });
    let client = match connected {
        Ok(client) => client,
        Err(why) => return send(WorkerMessage::Connected(Err(why))),
    };
    let control = shared.live.watch();
    send(WorkerMessage::Connected(Ok(())));
    runtime.block_on(supervise(shared, index, client, recorder, control, &send));
    drop(runtime);
}

async fn supervise(
    shared: &TrialContext<'_>,
    index: usize,
    client: Rc<dyn Client>,
    recorder: Option<Recorder>,
    mut control: watch::Receiver<Control>,
    send: &dyn Fn(WorkerMessage),
) {
    let started = control.wait_for(|control| control.schedule.is_some() || control.cancelled);
    let Some(schedule) = started.await.ok().and_then(|control| control.schedule) else {
        return;
    };
    let setup = shared.setup;
    let workers = setup.workers as u32;
    let worker = Rc::new(RunWorker {
        index,
        setup: setup.clone(),
        state: shared.state.clone(),
        schedule,
        client,
        random: RefCell::new(Random::stream(setup.seed, index as u64)),
        cells: shared.cells.clone(),
        interval: RefCell::new(Box::new(Interval::new(0, shared.cells.empty()))),
        recorder: RefCell::new(recorder),
        pace: match shared.load {
            Load::Threads(_) => Pace::closed(),
            Load::Rate(rate) => Pace::open(
                rate / f64::from(workers),
                Random::stream(!setup.seed, index as u64),
            ),
        },
        budget: shared.budget.clone(),
        spent: Notify::new(),
        threads: Cell::new(0),
        stopped: Cell::new(false),
        calls: Cell::new(0),
        in_flight: InFlightCalls::default(),
        idle: Notify::new(),
        sessions: Cell::new(0),
        instant: Cell::new(0),
    });
    let mut cpu = effort::thread_cpu();
    let mut tasks = Vec::new();
    let mut interval = 0;
    loop {
        let now = *control.borrow_and_update();
        worker.stopped.set(now.stop);
        if now.stop {
            break;
        }
        let share = now.threads / workers + u32::from((index as u32) < now.threads % workers);
        spawn_missing(&worker, share, &mut tasks);
        let end = schedule.interval_end(interval);
        tokio::select! {
            biased;
            _ = control.changed() => {}
            () = worker.spent.notified() => shared.live.stop(),
            () = sleep_until(schedule.clock.instant(end).into()) => {
                if end >= schedule.end {
                    break;
                }
                if end == schedule.measured_from {
                    cpu = effort::thread_cpu();
                }
                let watermark = worker.in_flight.tick(schedule.clock.now());
                if let Some(recorder) = worker.recorder.borrow_mut().as_mut() {
                    recorder.tick(watermark);
                }
                interval += 1;
                let fresh = Box::new(Interval::new(interval, worker.cells.empty()));
                send(WorkerMessage::Interval(worker.interval.replace(fresh)));
            }
        }
    }
    let cpu = effort::thread_cpu().saturating_sub(cpu);
    worker.stopped.set(true);
    while worker.calls.get() > 0 {
        worker.idle.notified().await;
    }
    worker.pace.count_missed_starts(&worker);
    let last = Box::new(Interval::new(interval + 1, worker.cells.empty()));
    send(WorkerMessage::Interval(worker.interval.replace(last)));
    send(WorkerMessage::Ended(cpu));
}

/// Spawns missing emulated threads. Surplus threads end on their own.
fn spawn_missing(worker: &Rc<RunWorker>, share: u32, tasks: &mut Vec<JoinHandle<()>>) {
    worker.threads.set(share);
    for place in 0..share {
        let missing = match tasks.get(place as usize) {
            Some(task) => task.is_finished(),
            None => true,
        };
        if missing {
            let task = tokio::task::spawn_local(emulate::emulate(worker.clone(), place));
            match tasks.get_mut(place as usize) {
                Some(old) => *old = task,
                None => tasks.push(task),
            }
        }
    }
}
