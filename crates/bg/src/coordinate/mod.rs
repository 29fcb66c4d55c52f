//! Runs several clients as one: a coordinator controls processes on other machines and adds up their results.
//!
//! ```text
//!   coordinator (Fleet)                       client (serve), one or many
//!     hello        ──────────────────────────►  protocol version
//!                  ◄──────────────────────────  hello
//!     prepare      ──────────────────────────►  the command line, the client's fragment, whether to load
//!                  ◄──────── alive, a second ─
//!                  ◄──────────────────────────  prepared: its proportion of all draws, its members
//!     trial        ──────────────────────────►  its part of the load
//!                  ◄──────────────────────────  ready: connected to the data store
//!     go           ──────────────────────────►  when all are ready
//!                  ◄─── second, each second ──  measurements of that second
//!     threads, stop ─────────────────────────►  at any time
//!     alive, a second ───────────────────────►
//!                  ◄──────────────────────────  done: Measured   (or failed: why)
//! ```
//!
//! The members are partitioned (D-Zipfian fragments). Clients never act for the same member and have no written item in
//! common, so they need not communicate: each validates its own trace. `protocol` defines the messages, `door` admits
//! coordinators and `client` implements the client side. This file implements the coordinator side, with `hear` to
//! receive from all clients and `trial` to run one trial.
//!
//! Invariants:
//!
//! 1. A trial has a result only if every participating client delivered one. A client that crashes, falls silent or
//!    fails ends the trial for all; the error contains its address and the reason.
//! 2. After such a failure, the next trial starts from scratch: connections are made again, the data store is loaded
//!    again (the writes of the lost client are unknown), and clients prepare again.
//! 3. A client without a coordinator runs nothing: when the connection is lost, it ends its work immediately.
//! 4. A coordinator that sends no keep-alive message for longer than a client's patience counts as gone (stopped or
//!    disconnected): the client serves the next one.
//! 5. A coordinator that is ended early ends its clients immediately; its result is what they measured until then.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::run::live::{Live, Tell as OnSecond, Watchable};
use crate::stores::notes;
use crate::verdict::measure::{Enough, Laboratory, Load, Measured, Trial};

pub mod client;
pub mod door;
mod hear;
pub mod protocol;
mod session_control;
mod trial;

use hear::{Event, hear};
use protocol::{ALIVE, Load as Part, Order, PROTOCOL, Tell};
use trial::Running;

/// A client that is silent for this long counts as crashed. A running client sends a keep-alive message every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A group of clients that acts as one.
pub struct Fleet {
    addresses: Vec<String>,
    /// Relative speeds of the clients, in any unit.
    speeds: Vec<f64>,
    /// The command line for the clients: `rate --store memory ...`.
    words: Vec<String>,
    /// True if the data store must be loaded before the next trial.
    load: bool,
    /// True if the data store must be loaded before every trial.
    reload: bool,
    silence_max: Duration,
    /// The name under which all of them are registered with the data store.
    run: String,
    /// The secret that clients require before any order.
    secret: Option<String>,
    /// Empty before the first trial and after a failure.
    clients: Vec<Connection>,
    live: Arc<Live>,
    on_second: Option<OnSecond>,
    /// Faults that the clients' data stores injected into their answers.
    injected: Vec<(String, u64)>,
}

struct Connection {
    address: String,
    /// The stream from which messages are read.
    stream: TcpStream,
    /// The same stream for writing, shared with the thread that sends keep-alive messages.
    output: Arc<Mutex<TcpStream>>,
    /// Ends that thread when dropped.
    _alive: Sender<()>,
    /// The proportion of all draws that select this client's members.
    mass: f64,
    members: u32,
}

impl Connection {
    fn new(address: &str, stream: TcpStream, silence_max: Duration) -> Result<Connection, String> {
        let fail = |why: io::Error| why.to_string();
        // A client that reads nothing must not block the coordinator.
        stream
            .set_write_timeout(Some(silence_max.max(ALIVE)))
            .map_err(fail)?;
        let output = Arc::new(Mutex::new(stream.try_clone().map_err(fail)?));
        let (alive, ended) = channel::<()>();
        let writer = output.clone();
        thread::spawn(move || {
            while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
                if send(&writer, &Order::Alive).is_err() {
                    // The thread that reads from the client reports the reason.
                    return;
                }
            }
        });
        Ok(Connection {
            address: address.to_owned(),
            stream,
            output,
            _alive: alive,
            mass: 0.0,
            members: 0,
        })
    }

    fn send(&self, order: &Order) -> io::Result<()> {
        send(&self.output, order)
    }
}

fn send(output: &Mutex<TcpStream>, order: &Order) -> io::Result<()> {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    protocol::write(&mut *output, order)
}

impl Fleet {
    /// Returns a fleet of clients, by address and speed. Does not connect yet.
    pub fn new(clients: Vec<(String, f64)>, words: Vec<String>, load: bool, reload: bool) -> Fleet {
        let (addresses, speeds) = clients.into_iter().unzip();
        Fleet {
            addresses,
            speeds,
            words,
            load,
            reload,
            silence_max: SILENCE_MAX,
            run: notes::unique(),
            secret: None,
            clients: Vec::new(),
            live: Arc::new(Live::new()),
            on_second: None,
            injected: Vec::new(),
        }
    }

    /// Sets how long a client may be silent before it counts as crashed.
    pub fn with_silence_max(mut self, silence_max: Duration) -> Fleet {
        self.silence_max = silence_max;
        self
    }

    /// Sets the secret for clients that require one.
    pub fn with_secret(mut self, secret: Option<String>) -> Fleet {
        self.secret = secret;
        self
    }

    /// Connects to every client and prepares it.
    ///
    /// # Errors
    ///
    /// A client cannot be reached or cannot prepare. The message names the first one.
    pub fn prepare(&mut self) -> Result<(), String> {
        if self.clients.is_empty() {
            for address in &self.addresses {
                let connection = connect(address, self.secret.clone())
                    .and_then(|stream| Connection::new(address, stream, self.silence_max));
                self.clients
                    .push(connection.map_err(|why| format!("client {address}: {why}"))?);
            }
        } else if !self.load {
            return Ok(());
        }
        let orders: Vec<Order> = (0..self.clients.len())
            .map(|fragment| {
                Order::Prepare(protocol::Prepare {
                    words: self.words.clone(),
                    fragment,
                    speeds: self.speeds.clone(),
                    load: self.load && fragment == 0,
                    run: self.run.clone(),
                })
            })
            .collect();
        // The first client loads the shared data before the others check it.
        for (from, to) in [(0, 1), (1, self.clients.len())] {
            let mut answers = vec![(0.0, 0); to - from];
            let clients: Vec<&Connection> = self.clients[from..to].iter().collect();
            trial::tell(&clients, |index| orders[from + index].clone())?;
            hear(&clients, self.silence_max, &mut |event| match event {
                Event::Said(index, Tell::Prepared { mass, members }) => {
                    answers[index] = (mass, members);
                    Ok(())
                }
                Event::Said(index, other) => Err(odd(clients[index], &other)),
                Event::Idle if self.live.is_over() => {
                    Err("it was told to end while clients made ready".to_owned())
                }
                Event::Idle => Ok(()),
            })?;
            for (client, answer) in self.clients[from..to].iter_mut().zip(answers) {
                (client.mass, client.members) = answer;
            }
        }
        self.load = false;
        Ok(())
    }

    /// Returns the maximum number of threads that can be distributed without exceeding any client's number of members.
    /// Requires prepared clients.
    pub fn threads_max(&self) -> u64 {
        let total: f64 = self.masses().iter().sum();
        let most = |client: &Connection| f64::from(client.members) * total / client.mass;
        let most = self.clients.iter().map(most).fold(f64::INFINITY, f64::min);
        // Rounding may give a client up to one thread more than its proportion.
        (most as u64)
            .saturating_sub(self.clients.len() as u64)
            .max(1)
    }

    /// Returns the faults that data stores injected into the answers to clients, by class.
    pub fn injected(&self) -> &[(String, u64)] {
        &self.injected
    }

    fn try_run(&mut self, trial: &Trial, enough: Enough<'_>) -> Result<Measured, String> {
        self.prepare()?;
        self.load = self.reload;
        let parts = share(trial.load, &self.masses());
        let with_part = self.clients.iter().zip(parts);
        let (clients, loads): (Vec<&Connection>, Vec<Part>) = with_part
            .filter_map(|(client, part)| Some((client, part?)))
            .unzip();
        let masses: Vec<f64> = clients.iter().map(|client| client.mass).collect();
        let actions = |count: Option<u64>, own| count.map(|count| part_of(count, &masses, own));
        let orders: Vec<Order> = loads
            .into_iter()
            .enumerate()
            .map(|(own, load)| {
                Order::Trial(protocol::Trial {
                    load,
                    warmup_seconds: trial.warmup.as_secs_f64(),
                    seconds: trial.duration.as_secs_f64(),
                    actions: actions(trial.actions, own),
                    warmup_actions: actions(trial.warmup_actions, own),
                })
            })
            .collect();
        self.live.begin(
            trial,
            match trial.load {
                Load::Threads(threads) => threads,
                Load::Rate(_) => 0,
            },
        );
        trial::tell(&clients, |index| orders[index].clone())?;
        let together = Running {
            clients,
            live: &self.live,
            silence_max: self.silence_max,
            on_second: &mut self.on_second,
            enough,
        }
        .run(trial)?;
        self.live.set_failures(&together.failures);
        self.injected = together.injected;
        Ok(together.measured)
    }

    fn masses(&self) -> Vec<f64> {
        self.clients.iter().map(|client| client.mass).collect()
    }
}

impl Watchable for Fleet {
    fn live(&self) -> &Arc<Live> {
        &self.live
    }

    fn watch(&mut self, tell: OnSecond) {
        self.on_second = Some(tell);
    }
}

impl Laboratory for Fleet {
    fn run(&mut self, trial: &Trial) -> Result<Measured, String> {
        self.run_until(trial, &|_, _| false)
    }

    fn is_over(&self) -> bool {
        self.live.is_over()
    }

    fn run_until(&mut self, trial: &Trial, enough: Enough<'_>) -> Result<Measured, String> {
        let measured = self.try_run(trial, enough);
        if measured.is_err() {
            self.load = true;
            for client in self.clients.drain(..) {
                // It may be closed already.
                let _ = client.stream.shutdown(Shutdown::Both);
            }
        }
        measured
    }
}

/// Distributes a load in proportion to the clients' draws. A client with None does not take part. Each further thread
/// goes to the client furthest below its proportion.
fn share(load: Load, masses: &[f64]) -> Vec<Option<Part>> {
    let total: f64 = masses.iter().sum();
    match load {
        Load::Rate(rate) => masses
            .iter()
            .map(|mass| (*mass > 0.0).then_some(Part::Rate(rate * mass / total)))
            .collect(),
        Load::Threads(threads) => {
            let mut parts = vec![0u32; masses.len()];
            for given in 0..threads {
                let due = f64::from(given + 1) / total;
                let owed = |index: usize| masses[index] * due - f64::from(parts[index]);
                let most = (0..masses.len()).max_by(|a, b| owed(*a).total_cmp(&owed(*b)));
                parts[most.expect("there are clients")] += 1;
            }
            parts
                .into_iter()
                .map(|threads| (threads > 0).then_some(Part::Threads(threads)))
                .collect()
        }
    }
}

/// Returns one client's part of a count, in proportion to its draws. The parts add up to the count, unless a part would
/// be zero and is raised to one.
pub fn part_of(count: u64, masses: &[f64], own: usize) -> u64 {
    let total: f64 = masses.iter().sum();
    let up_to = |clients: usize| {
        let share: f64 = masses[..clients].iter().sum();
        (share / total * count as f64).round() as u64
    };
    (up_to(own + 1) - up_to(own)).max(count.min(1))
}

fn connect(address: &str, secret: Option<String>) -> Result<TcpStream, String> {
    let mut last = "no such address".to_owned();
    let addresses = address.to_socket_addrs().map_err(|why| why.to_string())?;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return greet(stream, secret).map_err(|why| why.to_string()),
            Err(why) => last = format!("{why}; does bg client listen there?"),
        }
    }
    Err(last)
}

fn greet(mut stream: TcpStream, secret: Option<String>) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT_MAX))?;
    let hello = Order::Hello {
        protocol: PROTOCOL,
        secret,
    };
    protocol::write(&mut stream, &hello)?;
    match protocol::read::<Tell>(&mut BufReader::with_capacity(1, &stream))? {
        Tell::Hello { protocol: PROTOCOL } => Ok(stream),
        Tell::Hello { protocol } => Err(io::Error::other(format!(
            "it speaks protocol {protocol}, this coordinator {PROTOCOL}: take the same bg for all"
        ))),
        Tell::Failed { why } => Err(io::Error::other(why)),
        other => Err(io::Error::other(format!(
            "it answered a greeting with {}",
            other.name()
        ))),
    }
}

fn odd(client: &Connection, tell: &Tell) -> String {
    format!(
        "client {}: answered with {} where something else was due",
        client.address,
        tell.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_count_add_up_to_it() {
        let parts = |count, masses: &[f64]| -> Vec<u64> {
            let all = 0..masses.len();
            all.map(|own| part_of(count, masses, own)).collect()
        };
        assert_eq!(parts(1000, &[0.5, 0.5]), [500, 500]);
        assert_eq!(parts(10, &[0.26, 0.26, 0.48]), [3, 2, 5]);
        assert_eq!(parts(0, &[0.5, 0.5]), [0, 0]);
        assert_eq!(parts(1, &[0.2, 0.4, 0.4]), [1, 1, 1]);
    }

    #[test]
    fn parts_of_a_load_add_up_to_it() {
        let threads = |load, masses: &[f64]| -> Vec<u32> {
            let parts = share(Load::Threads(load), masses);
            let whole = |part| match part {
                Some(Part::Threads(threads)) => threads,
                None => 0,
                Some(Part::Rate(_)) => panic!("threads"),
            };
            parts.into_iter().map(whole).collect()
        };
        assert_eq!(threads(10, &[0.5, 0.5]), [5, 5]);
        assert_eq!(threads(9, &[0.66, 0.34]), [6, 3]);
        assert_eq!(threads(1, &[0.4, 0.6]), [0, 1]);
        assert_eq!(threads(1000, &[0.1, 0.2, 0.7]), [100, 200, 700]);
        let rates = share(Load::Rate(300.0), &[1.0, 2.0, 0.0]);
        assert_eq!(
            rates,
            [Some(Part::Rate(100.0)), Some(Part::Rate(200.0)), None]
        );
    }
}
