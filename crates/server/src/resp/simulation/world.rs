//! The cores of a server, the clients connected to them, and the choice of the next turn.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use larder_journal::{Disk, Writer};
use larder_protocol::config::{Fsync, ServerConfig};
use larder_sim::Random;
use tokio::io::DuplexStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use super::super::core::Core;
use super::super::listen::start_table_tasks;
use super::super::session;
use super::network::{Endpoint, Network};
use crate::Shared;
use crate::clients::{Clients, Limits};
use crate::tables::model_disk::ModelDisk;
use crate::tables::{self, CoreMessage};

/// More turns than any seed needs; a longer run is considered endless.
const TURNS_MAX: u64 = 400_000;
/// Buffer size between a client and its core.
const WIRE_BYTES: usize = 16 << 10;

/// The number of turns and calls so far: the time of all records.
#[derive(Clone, Default)]
pub struct Clock(Rc<Cell<u64>>);

impl Clock {
    pub fn advance_to(&self, time: u64) {
        self.0.set(time);
    }

    /// Returns a time that was not returned before.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// A flag that is set when a task can make progress.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl session::Stream for DuplexStream {}

/// A core, until it leaves.
struct RunningCore {
    core: Rc<Core>,
    tasks: LocalSet,
    /// Messages of other cores, before they enter the network.
    sent: UnboundedReceiver<CoreMessage>,
    /// Messages that the network delivers.
    inbox: UnboundedSender<CoreMessage>,
}

/// The place of a core: its wake flag, and the core until it leaves.
struct CoreSlot {
    wake_flag: Arc<WakeFlag>,
    running: RefCell<Option<RunningCore>>,
}

/// All cores, with a function to connect to them.
#[derive(Clone)]
pub struct Cores {
    seats: Rc<[CoreSlot]>,
    /// Stands in for the sockets of the connections.
    null_file: Rc<File>,
}

impl Cores {
    pub fn count(&self) -> usize {
        self.seats.len()
    }

    pub fn has_left(&self, core: usize) -> bool {
        self.seats[core].running.borrow().is_none()
    }

    pub fn has_any_left(&self) -> bool {
        (0..self.count()).any(|core| self.has_left(core))
    }

    /// Opens a connection; `None` if the core has left.
    pub fn connect(&self, core: usize) -> Option<DuplexStream> {
        let running = self.seats[core].running.borrow();
        let running = running.as_ref()?;
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let clients = &running.core.clients;
        let client = clients.open(usize::MAX, core, self.null_file.as_raw_fd(), addr, addr);
        let client = client.expect("there is room");
        let session = session::run(running.core.clone(), theirs, client);
        running.tasks.spawn_local(session);
        Some(ours)
    }
}

struct ClientTask {
    wake_flag: Arc<WakeFlag>,
    future: Pin<Box<dyn Future<Output = ()>>>,
    has_ended: bool,
}

pub struct CoreWorld {
    pub cores: Cores,
    pub clock: Clock,
    pub disk: ModelDisk,
    network: Network<CoreMessage>,
    random: Random,
    clients: Vec<ClientTask>,
    writer: Writer,
    shared: Arc<Shared>,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl CoreWorld {
    /// Creates a world of `cores` cores, whose messages take up to `delay_max` turns.
    pub fn new(seed: u64, cores: usize, delay_max: u64) -> CoreWorld {
        CoreWorld::on(ModelDisk::new(seed), seed, cores, delay_max)
    }

    /// Creates a world on a disk that may contain a journal.
    pub fn on(disk: ModelDisk, seed: u64, cores: usize, delay_max: u64) -> CoreWorld {
        let mut random = Random::stream(seed, 3);
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = ServerConfig::default();
        config.server.data = folder.path().join("data");
        config.server.threads = cores as u32;
        config.tables.fsync = [Fsync::No, Fsync::EverySecond, Fsync::Always][random.index(3)];
        // Timers can be created, but never fire.
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().expect("a runtime");
        let shared = Arc::new(Shared::new(config).expect("prepared"));
        let on: Arc<dyn Disk> = Arc::new(disk.clone());
        let (all, writer) = tables::open_stepped(&shared, on).expect("opened");
        let limits = Limits::from_config(&shared.config);
        let clients = Arc::new(Clients::new(limits, shared.stats.clients.clone()));
        let entered = runtime.enter();
        let start = |(index, tables)| {
            let core = Rc::new(Core::new(
                index,
                shared.clone(),
                clients.clone(),
                Rc::new(tables),
                None,
            ));
            let (tasks, (inbox, messages)) = (LocalSet::new(), unbounded_channel());
            let sent = shared.tables.take_receiver(index).expect("taken once");
            let within = tasks.enter();
            start_table_tasks(&core, messages);
            drop(within);
            let running = RunningCore {
                core,
                tasks,
                sent,
                inbox,
            };
            CoreSlot {
                wake_flag: Arc::new(WakeFlag(AtomicBool::new(true))),
                running: RefCell::new(Some(running)),
            }
        };
        let cores = Cores {
            seats: all.into_iter().enumerate().map(start).collect(),
            null_file: Rc::new(File::open("/dev/null").expect("there is one")),
        };
        drop(entered);
        CoreWorld {
            cores,
            clock: Clock::default(),
            disk,
            network: Network::new(seed, delay_max),
            random,
            clients: Vec::new(),
            writer,
            shared,
            runtime,
            _folder: folder,
        }
    }

    /// Adds a client, which runs from the next turn on.
    pub fn start_client(&mut self, future: impl Future<Output = ()> + 'static) {
        self.clients.push(ClientTask {
            wake_flag: Arc::new(WakeFlag(AtomicBool::new(true))),
            future: Box::pin(future),
            has_ended: false,
        });
    }

    /// Runs turns until no task can make progress.
    pub fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// As [`CoreWorld::run`], but stops once `should_stop` returns true between two turns. Returns whether it did.
    pub fn run_until(&mut self, should_stop: impl Fn(&CoreWorld) -> bool) -> bool {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        for _ in 0..TURNS_MAX {
            if should_stop(self) {
                return true;
            }
            self.clock.next();
            self.network.tick();
            if !self.turn() {
                return false;
            }
        }
        panic!("the simulation does not end: {}", self.describe_state());
    }

    /// Runs one turn. Returns whether another turn can make progress.
    fn turn(&mut self) -> bool {
        let cores = self.cores.seats.iter().map(|seat| &seat.wake_flag);
        let clients = self.clients.iter().map(|client| &client.wake_flag);
        let all = cores.chain(clients).enumerate();
        let awake: Vec<usize> = all
            .filter(|(_, wake_flag)| wake_flag.0.load(SeqCst))
            .map(|(at, _)| at)
            .collect();
        // The network has the weight of one task, the disk that of half a task.
        let turn = self.random.index(2 * awake.len() + 3);
        if turn / 2 < awake.len() {
            self.poll(awake[turn / 2]);
            return true;
        }
        if turn == 2 * awake.len() + 2 {
            self.writer.step();
            return true;
        }
        if let Some(delivery) = self.network.deliver() {
            let running = self.cores.seats[delivery.to.0].running.borrow();
            if let Some(running) = &*running {
                running
                    .inbox
                    .send(delivery.message)
                    .expect("the tasks of the core exist");
            }
            return true;
        }
        !awake.is_empty() || self.network.wait() || self.advance_disk()
    }

    /// Advances the disk's time, and returns whether that woke a task.
    fn advance_disk(&mut self) -> bool {
        (0..3).any(|_| {
            self.disk.advance(Duration::from_secs(1));
            self.writer.step();
            let mut seats = self.cores.seats.iter();
            seats.any(|seat| seat.wake_flag.0.load(SeqCst))
        })
    }

    fn poll(&mut self, at: usize) {
        let count = self.cores.count();
        if at < count {
            let seat = &self.cores.seats[at];
            seat.wake_flag.0.store(false, SeqCst);
            if let Some(running) = &mut *seat.running.borrow_mut() {
                let waker = Waker::from(seat.wake_flag.clone());
                // The maintenance tasks of the tables never end.
                let _ = Pin::new(&mut running.tasks).poll(&mut Context::from_waker(&waker));
            }
            self.collect_sent(at);
            return;
        }
        let client = &mut self.clients[at - count];
        client.wake_flag.0.store(false, SeqCst);
        let waker = Waker::from(client.wake_flag.clone());
        if !client.has_ended
            && let Poll::Ready(()) = client
                .future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
        {
            client.has_ended = true;
            client.future = Box::pin(async {});
        }
    }

    /// Moves the messages that a core sent since the last call into the network. Only this core can have sent any since
    /// then.
    fn collect_sent(&mut self, from: usize) {
        for (to, seat) in self.cores.seats.iter().enumerate() {
            let mut running = seat.running.borrow_mut();
            while let Some(message) = running.as_mut().and_then(|to| to.sent.try_recv().ok()) {
                self.network.send(Endpoint(from), Endpoint(to), message);
            }
        }
    }

    /// Stops a core at its current point. The messages that it has sent still arrive.
    pub fn leave(&mut self, core: usize) {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        self.network.leave(Endpoint(core));
        let gone = self.cores.seats[core].running.borrow_mut().take();
        drop(gone);
        self.collect_sent(core);
    }

    /// # Panics
    /// A client is still waiting, or a core is paused.
    #[track_caller]
    pub fn check_all_ended(&self) {
        let unfinished = self.clients.iter().filter(|client| !client.has_ended);
        assert_eq!(
            unfinished.count(),
            0,
            "a client waits forever: {}",
            self.describe_state()
        );
        self.check_no_pause();
    }

    #[track_caller]
    fn check_no_pause(&self) {
        for seat in self.cores.seats.iter() {
            if let Some(running) = &*seat.running.borrow() {
                let tables = &running.core.tables;
                let pauses = (tables.is_paused(), tables.pending_pauses());
                assert_eq!(
                    pauses,
                    (false, 0),
                    "a pause does not end: {}",
                    self.describe_state()
                );
            }
        }
    }

    /// Returns the number of pauses so far.
    pub fn pauses(&self) -> u64 {
        self.shared.tables.tickets()
    }

    fn describe_state(&self) -> String {
        let waiting = (0..self.clients.len()).filter(|at| !self.clients[*at].has_ended);
        let core = |seat: &CoreSlot| match &*seat.running.borrow() {
            None => "left",
            Some(running) if running.core.tables.is_paused() => "paused",
            Some(_) => "runs",
        };
        format!(
            "at {}, clients {:?} wait, cores {:?}",
            self.network.now(),
            waiting.collect::<Vec<_>>(),
            self.cores.seats.iter().map(core).collect::<Vec<_>>()
        )
    }
}
