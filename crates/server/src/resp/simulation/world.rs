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
use super::network::{Network, Place};
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
    pub fn go_on_from(&self, time: u64) {
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
struct Awake(AtomicBool);

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl session::Stream for DuplexStream {}

/// A core, until it leaves.
struct Running {
    core: Rc<Core>,
    tasks: LocalSet,
    /// Messages of other cores, before they enter the network.
    sent: UnboundedReceiver<CoreMessage>,
    /// Messages that the network delivers.
    inbox: UnboundedSender<CoreMessage>,
}

/// The place of a core: its wake flag, and the core until it leaves.
struct Seat {
    awake: Arc<Awake>,
    running: RefCell<Option<Running>>,
}

/// All cores, with a function to connect to them.
#[derive(Clone)]
pub struct Cores {
    seats: Rc<[Seat]>,
    /// Stands in for the sockets of the connections.
    nowhere: Rc<File>,
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
        let client = clients.open(usize::MAX, core, self.nowhere.as_raw_fd(), addr, addr);
        let client = client.expect("there is room");
        let session = session::run(running.core.clone(), theirs, client);
        running.tasks.spawn_local(session);
        Some(ours)
    }
}

struct Client {
    awake: Arc<Awake>,
    life: Pin<Box<dyn Future<Output = ()>>>,
    has_ended: bool,
}

pub struct World {
    pub cores: Cores,
    pub clock: Clock,
    pub disk: ModelDisk,
    network: Network<CoreMessage>,
    random: Random,
    clients: Vec<Client>,
    writer: Writer,
    shared: Arc<Shared>,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl World {
    /// Creates a world of `cores` cores, whose messages take up to `delay_max` turns.
    pub fn new(seed: u64, cores: usize, delay_max: u64) -> World {
        World::on(ModelDisk::new(seed), seed, cores, delay_max)
    }

    /// Creates a world on a disk that may contain a journal.
    pub fn on(disk: ModelDisk, seed: u64, cores: usize, delay_max: u64) -> World {
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
        let limits = Limits::of(&shared.config);
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
            let running = Running {
                core,
                tasks,
                sent,
                inbox,
            };
            Seat {
                awake: Arc::new(Awake(AtomicBool::new(true))),
                running: RefCell::new(Some(running)),
            }
        };
        let cores = Cores {
            seats: all.into_iter().enumerate().map(start).collect(),
            nowhere: Rc::new(File::open("/dev/null").expect("there is one")),
        };
        drop(entered);
        World {
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
    pub fn start_client(&mut self, life: impl Future<Output = ()> + 'static) {
        self.clients.push(Client {
            awake: Arc::new(Awake(AtomicBool::new(true))),
            life: Box::pin(life),
            has_ended: false,
        });
    }

    /// Runs turns until no task can make progress.
    pub fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// As [`World::run`], but stops once `is_enough` returns true between two turns. Returns whether it did.
    pub fn run_until(&mut self, is_enough: impl Fn(&World) -> bool) -> bool {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        for _ in 0..TURNS_MAX {
            if is_enough(self) {
                return true;
            }
            self.clock.next();
            self.network.tick();
            if !self.turn() {
                return false;
            }
        }
        panic!("it goes on without end: {}", self.story());
    }

    /// Runs one turn. Returns whether another turn can make progress.
    fn turn(&mut self) -> bool {
        let cores = self.cores.seats.iter().map(|seat| &seat.awake);
        let clients = self.clients.iter().map(|client| &client.awake);
        let all = cores.chain(clients).enumerate();
        let awake: Vec<usize> = all
            .filter(|(_, awake)| awake.0.load(SeqCst))
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
                running.inbox.send(delivery.message).expect("it lives");
            }
            return true;
        }
        !awake.is_empty() || self.network.wait() || self.disk_goes_on()
    }

    /// Advances the disk's time, and returns whether that woke a task.
    fn disk_goes_on(&mut self) -> bool {
        (0..3).any(|_| {
            self.disk.advance(Duration::from_secs(1));
            self.writer.step();
            let mut seats = self.cores.seats.iter();
            seats.any(|seat| seat.awake.0.load(SeqCst))
        })
    }

    fn poll(&mut self, at: usize) {
        let count = self.cores.count();
        if at < count {
            let seat = &self.cores.seats[at];
            seat.awake.0.store(false, SeqCst);
            if let Some(running) = &mut *seat.running.borrow_mut() {
                let waker = Waker::from(seat.awake.clone());
                // The maintenance tasks of the tables never end.
                let _ = Pin::new(&mut running.tasks).poll(&mut Context::from_waker(&waker));
            }
            self.take_what_was_sent(at);
            return;
        }
        let client = &mut self.clients[at - count];
        client.awake.0.store(false, SeqCst);
        let waker = Waker::from(client.awake.clone());
        if !client.has_ended
            && let Poll::Ready(()) = client.life.as_mut().poll(&mut Context::from_waker(&waker))
        {
            client.has_ended = true;
            client.life = Box::pin(async {});
        }
    }

    /// Moves the messages that a core sent since the last call into the network. Only this core can have sent any since
    /// then.
    fn take_what_was_sent(&mut self, from: usize) {
        for (to, seat) in self.cores.seats.iter().enumerate() {
            let mut running = seat.running.borrow_mut();
            while let Some(message) = running.as_mut().and_then(|to| to.sent.try_recv().ok()) {
                self.network.send(Place(from), Place(to), message);
            }
        }
    }

    /// Stops a core at its current point. The messages that it has sent still arrive.
    pub fn leave(&mut self, core: usize) {
        let handle = self.runtime.handle().clone();
        let _entered = handle.enter();
        self.network.leave(Place(core));
        let gone = self.cores.seats[core].running.borrow_mut().take();
        drop(gone);
        self.take_what_was_sent(core);
    }

    /// # Panics
    /// A client is still waiting, or a core is paused.
    #[track_caller]
    pub fn check_ended(&self) {
        let waits = self.clients.iter().filter(|client| !client.has_ended);
        assert_eq!(
            waits.count(),
            0,
            "a client waits for ever: {}",
            self.story()
        );
        self.check_no_pause();
    }

    #[track_caller]
    fn check_no_pause(&self) {
        for seat in self.cores.seats.iter() {
            if let Some(running) = &*seat.running.borrow() {
                let tables = &running.core.tables;
                let pauses = (tables.is_paused(), tables.pauses_wanted());
                assert_eq!(pauses, (false, 0), "a pause has no end: {}", self.story());
            }
        }
    }

    /// Returns the number of pauses so far.
    pub fn pauses(&self) -> u64 {
        self.shared.tables.tickets()
    }

    fn story(&self) -> String {
        let waiting = (0..self.clients.len()).filter(|at| !self.clients[*at].has_ended);
        let core = |seat: &Seat| match &*seat.running.borrow() {
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
