//! The client side: executes the requests of one coordinator at a time, which `admission` has admitted.
//!
//! One thread reads requests, so that a stop or a lost connection ends the current work immediately
//! (`session_control`). Another thread sends a keep-alive message every second. The coordinator does the same: if it is
//! silent for longer than the client's silence limit, the client closes the connection and serves the next coordinator.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::admission::Admission;
use super::protocol::{
    self, ALIVE, ClientMessage, CoordinatorMessage, LoadShare, PROTOCOL, PrepareRequest,
    SecondReport, TrialResult,
};
use super::session_control::SessionControl;
use crate::run::Process;
use crate::run::live::LiveState;
use crate::stores::load;
use crate::verdict::measure::{Load, Measurements, Trial, TrialRunner};

/// A client that is ready to run trials.
pub struct PreparedClient {
    pub process: Process,
    /// The proportion of all draws that select this client's members.
    pub mass: f64,
}

/// Ends a client from another thread: the current work ends, its coordinator is notified of the reason, and [`serve`]
/// returns.
#[derive(Clone, Default)]
pub struct StopHandle(Arc<StopState>);

#[derive(Default)]
struct StopState {
    requested: AtomicBool,
    /// The connected coordinator.
    session: Mutex<Option<(TcpStream, Arc<SessionControl>)>>,
}

impl StopHandle {
    pub fn stop(&self, listener: &TcpListener) {
        self.0.requested.store(true, Ordering::SeqCst);
        if let Some((stream, control)) = &*self.session() {
            control.disconnect();
            // Accept no more requests; answers can still be sent.
            let _ = stream.shutdown(Shutdown::Read);
        }
        // Wakes the thread that waits for a connection.
        if let Ok(address) = listener.local_addr() {
            let _ = TcpStream::connect_timeout(&address, ALIVE);
        }
    }

    fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    fn session(&self) -> MutexGuard<'_, Option<(TcpStream, Arc<SessionControl>)>> {
        self.0
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves admitted coordinators one after the other until [`StopHandle::stop`] is called. Closes the connection of a
/// coordinator that is silent for longer than `silence_max`. `prepare` sets up the process for a request, except for
/// loading; `log` receives progress messages.
pub fn serve(
    listener: &TcpListener,
    admission: &Admission,
    stop_handle: &StopHandle,
    silence_max: Duration,
    prepare: &dyn Fn(&PrepareRequest) -> Result<PreparedClient, String>,
    log: &dyn Fn(&str),
) {
    let (sender, admitted) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            admission.accept_until(listener, &|| stop_handle.is_requested(), &sender)
        });
        for coordinator in admitted {
            if stop_handle.is_requested() {
                break;
            }
            log(&format!("coordinator {}", coordinator.from));
            match serve_coordinator(coordinator.stream, stop_handle, silence_max, prepare, log) {
                Ok(()) => log("the coordinator disconnected"),
                Err(why) if is_disconnected(&why) => log("the coordinator disconnected"),
                Err(why) => log(&format!(
                    "the connection to the coordinator was lost: {why}"
                )),
            }
            *stop_handle.session() = None;
            admission.release();
            if stop_handle.is_requested() {
                break;
            }
        }
    });
}

/// Returns whether the other side closed the connection. A process killed with unread messages resets it.
fn is_disconnected(why: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        why.kind(),
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe
    )
}

/// Returns whether nothing was received within the read timeout.
fn is_timeout(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn serve_coordinator(
    stream: TcpStream,
    stop_handle: &StopHandle,
    silence_max: Duration,
    prepare: &dyn Fn(&PrepareRequest) -> Result<PreparedClient, String>,
    log: &dyn Fn(&str),
) -> io::Result<()> {
    let control = Arc::new(SessionControl::default());
    *stop_handle.session() = Some((stream.try_clone()?, control.clone()));
    stream.set_read_timeout(Some(silence_max))?;
    let reader = BufReader::new(stream.try_clone()?);
    let requests = spawn_reader(reader, control.clone());
    let coordinator = Coordinator(Arc::new(Mutex::new(stream)));
    let mut ready: Option<PreparedClient> = None;
    for request in requests {
        let answer = match request {
            Err(why) if is_disconnected(&why) => return Ok(()),
            Err(why) if is_timeout(&why) => {
                let why = format!(
                    "the coordinator sent no heartbeat for {} s",
                    silence_max.as_secs_f64()
                );
                // The coordinator may not read this message either.
                let _ = coordinator.send(&ClientMessage::Failed { why: why.clone() });
                return Err(io::Error::other(why));
            }
            Err(why) => {
                // A coordinator with a different protocol receives the reason.
                let why = why.to_string();
                coordinator.send(&ClientMessage::Failed { why: why.clone() })?;
                return Err(io::Error::other(why));
            }
            Ok(CoordinatorMessage::Hello { .. }) => Ok(ClientMessage::Hello { protocol: PROTOCOL }),
            Ok(CoordinatorMessage::Prepare(request)) => {
                log(&format!("preparing: {}", request.arguments.join(" ")));
                ready = None;
                let made = coordinator
                    .with_keep_alive(|| prepare_process(&request, prepare, &control, &coordinator));
                made.map(|new| {
                    let answer = ClientMessage::Prepared {
                        mass: new.mass,
                        members: new.process.setup().drawing.size(),
                    };
                    ready = Some(new);
                    answer
                })
            }
            Ok(CoordinatorMessage::Trial(request)) => match &mut ready {
                None => Err("the trial was requested before prepare".to_owned()),
                Some(ready) => {
                    log(&format!(
                        "trial: {:?} for {} s",
                        request.load, request.seconds
                    ));
                    let measured =
                        coordinator.with_keep_alive(|| run_trial(&mut ready.process, &request));
                    measured.map(|measured| {
                        ClientMessage::Done(Box::new(trial_result(&ready.process, measured)))
                    })
                }
            },
            Ok(
                CoordinatorMessage::Go
                | CoordinatorMessage::Threads(_)
                | CoordinatorMessage::Stop
                | CoordinatorMessage::Alive,
            ) => {
                unreachable!("the reader thread handles these messages")
            }
        };
        let answer = match answer {
            _ if stop_handle.is_requested() => {
                Err("the client was stopped by Ctrl-C or SIGTERM".to_owned())
            }
            _ if control.is_disconnected() => continue,
            answer => answer,
        };
        coordinator.send(&answer.unwrap_or_else(|why| {
            log(&why);
            ClientMessage::Failed { why }
        }))?;
    }
    Ok(())
}

/// Starts a thread that executes requests for the current trial immediately and forwards all others.
fn spawn_reader(
    mut reader: BufReader<TcpStream>,
    control: Arc<SessionControl>,
) -> Receiver<io::Result<CoordinatorMessage>> {
    let (sender, requests): (Sender<io::Result<CoordinatorMessage>>, _) = channel();
    // The thread ends with the connection, at the latest when the coordinator closes it.
    thread::spawn(move || {
        loop {
            let request = protocol::read_request(&mut reader);
            match &request {
                Ok(CoordinatorMessage::Go) => control.go(),
                Ok(CoordinatorMessage::Threads(threads)) => control.set_threads(*threads),
                Ok(CoordinatorMessage::Stop) => control.stop(),
                Ok(CoordinatorMessage::Trial(_)) => control.reset(),
                Err(_) => control.disconnect(),
                Ok(CoordinatorMessage::Alive) => continue,
                Ok(_) => {}
            }
            let last = request.is_err();
            let forwarded = !matches!(
                request,
                Ok(CoordinatorMessage::Go
                    | CoordinatorMessage::Threads(_)
                    | CoordinatorMessage::Stop)
            );
            if (forwarded && sender.send(request).is_err()) || last {
                return;
            }
        }
    });
    requests
}

fn prepare_process(
    request: &PrepareRequest,
    prepare: &dyn Fn(&PrepareRequest) -> Result<PreparedClient, String>,
    control: &Arc<SessionControl>,
    coordinator: &Coordinator,
) -> Result<PreparedClient, String> {
    let mut ready = prepare(request)?;
    control.attach(ready.process.live());
    if request.load || ready.process.setup().store.is_volatile() {
        ready.process.load(&mut |_: load::Progress| {})?;
    }
    let (control, other) = (control.clone(), coordinator.clone());
    ready.process.before_start(move || {
        other
            .send(&ClientMessage::Ready)
            .map_err(|why| why.to_string())?;
        control.wait_for_go()
    });
    let coordinator = coordinator.clone();
    ready.process.on_second(move |live| {
        let second = live.with_state(second_report);
        // If sending fails, the thread that reads requests notices that the connection is closed.
        let _ = coordinator.send(&ClientMessage::Second(Box::new(second)));
    });
    Ok(ready)
}

fn second_report(seen: &LiveState) -> SecondReport {
    SecondReport {
        index: seen.seconds.saturating_sub(1),
        now_ns: seen.now_ns,
        counts: seen.counts,
        measured: Measurements {
            reads: None,
            ..seen.second.clone()
        },
        failures: seen.failures.clone(),
        reads: seen.total.reads.clone(),
    }
}

fn run_trial(
    process: &mut Process,
    request: &protocol::TrialRequest,
) -> Result<Measurements, String> {
    let time = |seconds| Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string());
    process.run(&Trial {
        load: match request.load {
            LoadShare::Threads(threads) => Load::Threads(threads),
            LoadShare::Rate(rate) => Load::Rate(rate),
        },
        warmup: time(request.warmup_seconds)?,
        duration: time(request.seconds)?,
        actions: request.actions,
        warmup_actions: request.warmup_actions,
    })
}

fn trial_result(process: &Process, measured: Measurements) -> TrialResult {
    let injected = process.setup().store.injected().into_iter();
    TrialResult {
        measured,
        failures: process.live().with_state(|seen| seen.failures.clone()),
        injected: injected
            .map(|(class, count)| (class.to_owned(), count))
            .collect(),
    }
}

/// The connection to the coordinator. Several threads may send messages.
#[derive(Clone)]
struct Coordinator(Arc<Mutex<TcpStream>>);

impl Coordinator {
    fn send(&self, message: &ClientMessage) -> io::Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::write(&mut *writer, message)
    }

    /// Runs `work` while keep-alive messages are sent.
    fn with_keep_alive<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, ended) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
                    if self.send(&ClientMessage::Alive).is_err() {
                        return;
                    }
                }
            });
            let answer = work();
            drop(done);
            answer
        })
    }
}
