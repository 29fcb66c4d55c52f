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
//!                  ◄──────────────────────────  done: Measurements   (or failed: why)
//! ```
//!
//! The members are partitioned (D-Zipfian fragments). Clients never act for the same member and have no written item in
//! common, so they need not communicate: each validates its own trace. `protocol` defines the messages, `admission`
//! admits coordinators and `client` implements the client side. This file implements the coordinator side, with
//! `receive` to receive from all clients and `trial` to run one trial.
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

use crate::run::live::{Live, OnSecond, Watchable};
use crate::stores::notes;
use crate::verdict::measure::{Load, Measurements, StopCondition, Trial, TrialRunner};

pub mod admission;
pub mod client;
pub mod protocol;
mod receive;
mod session_control;
mod trial;

use protocol::{ALIVE, ClientMessage, CoordinatorMessage, LoadShare, PROTOCOL};
use receive::{Event, receive_all};
use trial::RunningTrial;

/// A client that is silent for this long counts as crashed. A running client sends a keep-alive message every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A group of clients that acts as one.
pub struct Fleet {
    addresses: Vec<String>,
    /// Relative speeds of the clients, in any unit.
    speeds: Vec<f64>,
    /// The command line for the clients: `rate --store memory ...`.
    arguments: Vec<String>,
    /// True if the data store must be loaded before the next trial.
    load: bool,
    /// True if the data store must be loaded before every trial.
    reload: bool,
    silence_max: Duration,
    /// The name under which all of them are registered with the data store.
    run: String,
    /// The secret that clients require before any request.
    secret: Option<String>,
    /// Empty before the first trial and after a failure.
    clients: Vec<ClientConnection>,
    live: Arc<Live>,
    on_second: Option<OnSecond>,
    /// Faults that the clients' data stores injected into their answers.
    injected: Vec<(String, u64)>,
}

struct ClientConnection {
    address: String,
    /// The stream from which messages are read.
    stream: TcpStream,
    /// The same stream for writing, shared with the thread that sends keep-alive messages.
    output: Arc<Mutex<TcpStream>>,
    /// Ends that thread when dropped.
    _keep_alive: Sender<()>,
    /// The proportion of all draws that select this client's members.
    mass: f64,
    members: u32,
}

impl ClientConnection {
    fn new(
        address: &str,
        stream: TcpStream,
        silence_max: Duration,
    ) -> Result<ClientConnection, String> {
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
                if send(&writer, &CoordinatorMessage::Alive).is_err() {
                    // The thread that reads from the client reports the reason.
                    return;
                }
            }
        });
        Ok(ClientConnection {
            address: address.to_owned(),
            stream,
            output,
            _keep_alive: alive,
            mass: 0.0,
            members: 0,
        })
    }

    fn send(&self, request: &CoordinatorMessage) -> io::Result<()> {
        send(&self.output, request)
    }
}

fn send(output: &Mutex<TcpStream>, request: &CoordinatorMessage) -> io::Result<()> {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    protocol::write(&mut *output, request)
}

impl Fleet {
    /// Returns a fleet of clients, by address and speed. Does not connect yet.
    pub fn new(
        clients: Vec<(String, f64)>,
        arguments: Vec<String>,
        load: bool,
        reload: bool,
    ) -> Fleet {
        let (addresses, speeds) = clients.into_iter().unzip();
        Fleet {
            addresses,
            speeds,
            arguments,
            load,
            reload,
            silence_max: SILENCE_MAX,
            run: notes::unique_name(),
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
                    .and_then(|stream| ClientConnection::new(address, stream, self.silence_max));
                self.clients
                    .push(connection.map_err(|why| format!("client {address}: {why}"))?);
            }
        } else if !self.load {
            return Ok(());
        }
        let requests: Vec<CoordinatorMessage> = (0..self.clients.len())
            .map(|fragment| {
                CoordinatorMessage::Prepare(protocol::PrepareRequest {
                    arguments: self.arguments.clone(),
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
            let clients: Vec<&ClientConnection> = self.clients[from..to].iter().collect();
            trial::send_to_all(&clients, |index| requests[from + index].clone())?;
            receive_all(&clients, self.silence_max, &mut |event| match event {
                Event::Received(index, ClientMessage::Prepared { mass, members }) => {
                    answers[index] = (mass, members);
                    Ok(())
                }
                Event::Received(index, other) => Err(unexpected_message(clients[index], &other)),
                Event::Idle if self.live.is_over() => {
                    Err("the run was stopped while the clients prepared".to_owned())
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
        let most = |client: &ClientConnection| f64::from(client.members) * total / client.mass;
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

    fn try_run(
        &mut self,
        trial: &Trial,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        self.prepare()?;
        self.load = self.reload;
        let parts = split_load(trial.load, &self.masses());
        let with_part = self.clients.iter().zip(parts);
        let (clients, loads): (Vec<&ClientConnection>, Vec<LoadShare>) = with_part
            .filter_map(|(client, part)| Some((client, part?)))
            .unzip();
        let masses: Vec<f64> = clients.iter().map(|client| client.mass).collect();
        let actions = |count: Option<u64>, own| count.map(|count| split_count(count, &masses, own));
        let requests: Vec<CoordinatorMessage> = loads
            .into_iter()
            .enumerate()
            .map(|(own, load)| {
                CoordinatorMessage::Trial(protocol::TrialRequest {
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
        trial::send_to_all(&clients, |index| requests[index].clone())?;
        let together = RunningTrial {
            clients,
            live: &self.live,
            silence_max: self.silence_max,
            on_second: &mut self.on_second,
            should_stop,
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

    fn watch(&mut self, on_second: OnSecond) {
        self.on_second = Some(on_second);
    }
}

impl TrialRunner for Fleet {
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
        let measured = self.try_run(trial, should_stop);
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
fn split_load(load: Load, masses: &[f64]) -> Vec<Option<LoadShare>> {
    let total: f64 = masses.iter().sum();
    match load {
        Load::Rate(rate) => masses
            .iter()
            .map(|mass| (*mass > 0.0).then_some(LoadShare::Rate(rate * mass / total)))
            .collect(),
        Load::Threads(threads) => {
            let mut parts = vec![0u32; masses.len()];
            for given in 0..threads {
                let due = f64::from(given + 1) / total;
                let deficit = |index: usize| masses[index] * due - f64::from(parts[index]);
                let most = (0..masses.len()).max_by(|a, b| deficit(*a).total_cmp(&deficit(*b)));
                parts[most.expect("there are clients")] += 1;
            }
            parts
                .into_iter()
                .map(|threads| (threads > 0).then_some(LoadShare::Threads(threads)))
                .collect()
        }
    }
}

/// Returns one client's part of a count, in proportion to its draws. The parts add up to the count, unless a part would
/// be zero and is raised to one.
pub fn split_count(count: u64, masses: &[f64], own: usize) -> u64 {
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
            Ok(stream) => return handshake(stream, secret).map_err(|why| why.to_string()),
            Err(why) => last = format!("{why}; is bg client running there?"),
        }
    }
    Err(last)
}

fn handshake(mut stream: TcpStream, secret: Option<String>) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT_MAX))?;
    let hello = CoordinatorMessage::Hello {
        protocol: PROTOCOL,
        secret,
    };
    protocol::write(&mut stream, &hello)?;
    match protocol::read::<ClientMessage>(&mut BufReader::with_capacity(1, &stream))? {
        ClientMessage::Hello { protocol: PROTOCOL } => Ok(stream),
        ClientMessage::Hello { protocol } => Err(io::Error::other(format!(
            "the client uses protocol {protocol} and the coordinator protocol {PROTOCOL}; use the same version of bg everywhere"
        ))),
        ClientMessage::Failed { why } => Err(io::Error::other(why)),
        other => Err(io::Error::other(format!(
            "expected hello, received {}",
            other.name()
        ))),
    }
}

fn unexpected_message(client: &ClientConnection, message: &ClientMessage) -> String {
    format!(
        "client {}: unexpected message {}",
        client.address,
        message.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_count_add_up_to_it() {
        let parts = |count, masses: &[f64]| -> Vec<u64> {
            let all = 0..masses.len();
            all.map(|own| split_count(count, masses, own)).collect()
        };
        assert_eq!(parts(1000, &[0.5, 0.5]), [500, 500]);
        assert_eq!(parts(10, &[0.26, 0.26, 0.48]), [3, 2, 5]);
        assert_eq!(parts(0, &[0.5, 0.5]), [0, 0]);
        assert_eq!(parts(1, &[0.2, 0.4, 0.4]), [1, 1, 1]);
    }

    #[test]
    fn parts_of_a_load_add_up_to_it() {
        let threads = |load, masses: &[f64]| -> Vec<u32> {
            let parts = split_load(Load::Threads(load), masses);
            let threads_of = |part| match part {
                Some(LoadShare::Threads(threads)) => threads,
                None => 0,
                Some(LoadShare::Rate(_)) => panic!("threads"),
            };
            parts.into_iter().map(threads_of).collect()
        };
        assert_eq!(threads(10, &[0.5, 0.5]), [5, 5]);
        assert_eq!(threads(9, &[0.66, 0.34]), [6, 3]);
        assert_eq!(threads(1, &[0.4, 0.6]), [0, 1]);
        assert_eq!(threads(1000, &[0.1, 0.2, 0.7]), [100, 200, 700]);
        let rates = split_load(Load::Rate(300.0), &[1.0, 2.0, 0.0]);
        assert_eq!(
            rates,
            [
                Some(LoadShare::Rate(100.0)),
                Some(LoadShare::Rate(200.0)),
                None
            ]
        );
    }
}
