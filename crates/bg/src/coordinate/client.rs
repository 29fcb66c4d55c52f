//! The client side: executes the orders of one coordinator at a time, which `door` has admitted.
//!
//! One thread reads orders, so that a stop or a lost connection ends the current work immediately (`session_control`).
//! Another thread sends a keep-alive message every second. The coordinator does the same: if it is silent for longer
//! than the client's patience, the client closes the connection and serves the next coordinator.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::door::Door;
use super::protocol::{self, ALIVE, Done, Load as Part, Order, PROTOCOL, Prepare, Second, Tell};
use super::session_control::SessionControl;
use crate::run::Process;
use crate::run::live::Seen;
use crate::stores::load;
use crate::verdict::measure::{Laboratory, Load, Measured, Trial};

/// A client that is ready to run trials.
pub struct Ready {
    pub process: Process,
    /// The proportion of all draws that select this client's members.
    pub mass: f64,
}

/// Ends a client from another thread: the current work ends, its coordinator is notified of the reason, and [`serve`]
/// returns.
#[derive(Clone, Default)]
pub struct Leave(Arc<Leaving>);

#[derive(Default)]
struct Leaving {
    wished: AtomicBool,
    /// The connected coordinator.
    visit: Mutex<Option<(TcpStream, Arc<SessionControl>)>>,
}

impl Leave {
    pub fn leave(&self, listener: &TcpListener) {
        self.0.wished.store(true, Ordering::SeqCst);
        if let Some((stream, control)) = &*self.visit() {
            control.part();
            // Accept no more orders; answers can still be sent.
            let _ = stream.shutdown(Shutdown::Read);
        }
        // Wakes the thread that waits for a connection.
        if let Ok(address) = listener.local_addr() {
            let _ = TcpStream::connect_timeout(&address, ALIVE);
        }
    }

    fn is_wished(&self) -> bool {
        self.0.wished.load(Ordering::SeqCst)
    }

    fn visit(&self) -> MutexGuard<'_, Option<(TcpStream, Arc<SessionControl>)>> {
        self.0.visit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves admitted coordinators one after the other until [`Leave`] is called. Closes the connection of a coordinator
/// that is silent for longer than `patience`. `prepare` sets up the process for an order, except for loading; `tell`
/// receives progress messages.
pub fn serve(
    listener: &TcpListener,
    door: &Door,
    leave: &Leave,
    patience: Duration,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    tell: &dyn Fn(&str),
) {
    let (sender, visitors) = channel();
    thread::scope(|scope| {
        scope.spawn(move || door.keep(listener, &|| leave.is_wished(), &sender));
        for visitor in visitors {
            if leave.is_wished() {
                break;
            }
            tell(&format!("coordinator {}", visitor.from));
            match attend(visitor.stream, leave, patience, prepare, tell) {
                Ok(()) => tell("the coordinator has gone"),
                Err(why) if has_gone(&why) => tell("the coordinator has gone"),
                Err(why) => tell(&format!("the coordinator was lost: {why}")),
            }
            *leave.visit() = None;
            door.leave();
            if leave.is_wished() {
                break;
            }
        }
    });
}

/// Returns whether the other side closed the connection. A process killed with unread messages resets it.
fn has_gone(why: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        why.kind(),
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe
    )
}

/// Returns whether nothing was received within the read timeout.
fn is_silent(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn attend(
    stream: TcpStream,
    leave: &Leave,
    patience: Duration,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    tell: &dyn Fn(&str),
) -> io::Result<()> {
    let control = Arc::new(SessionControl::default());
    *leave.visit() = Some((stream.try_clone()?, control.clone()));
    stream.set_read_timeout(Some(patience))?;
    let reader = BufReader::new(stream.try_clone()?);
    let orders = read(reader, control.clone());
    let coordinator = Coordinator(Arc::new(Mutex::new(stream)));
    let mut ready: Option<Ready> = None;
    for order in orders {
        let answer = match order {
            Err(why) if has_gone(&why) => return Ok(()),
            Err(why) if is_silent(&why) => {
                let why = format!("no sign of life for {} s", patience.as_secs_f64());
                // The coordinator may not read this message either.
                let _ = coordinator.say(&Tell::Failed { why: why.clone() });
                return Err(io::Error::other(why));
            }
            Err(why) => {
                // A coordinator with a different protocol receives the reason.
                let why = why.to_string();
                coordinator.say(&Tell::Failed { why: why.clone() })?;
                return Err(io::Error::other(why));
            }
            Ok(Order::Hello { .. }) => Ok(Tell::Hello { protocol: PROTOCOL }),
            Ok(Order::Prepare(order)) => {
                tell(&format!("preparing: {}", order.words.join(" ")));
                ready = None;
                let made = coordinator.alive(|| get_ready(&order, prepare, &control, &coordinator));
                made.map(|new| {
                    let answer = Tell::Prepared {
                        mass: new.mass,
                        members: new.process.setup().drawing.size(),
                    };
                    ready = Some(new);
                    answer
                })
            }
            Ok(Order::Trial(order)) => match &mut ready {
                None => Err("nothing was prepared".to_owned()),
                Some(ready) => {
                    tell(&format!("trial: {:?} for {} s", order.load, order.seconds));
                    let measured = coordinator.alive(|| run(&mut ready.process, &order));
                    measured.map(|measured| Tell::Done(Box::new(done(&ready.process, measured))))
                }
            },
            Ok(Order::Go | Order::Threads(_) | Order::Stop | Order::Alive) => {
                unreachable!("the thread that reads obeys these")
            }
        };
        let answer = match answer {
            _ if leave.is_wished() => Err("it was told to end (Ctrl-C or SIGTERM)".to_owned()),
            _ if control.is_gone() => continue,
            answer => answer,
        };
        coordinator.say(&answer.unwrap_or_else(|why| {
            tell(&why);
            Tell::Failed { why }
        }))?;
    }
    Ok(())
}

/// Starts a thread that executes orders for the current trial immediately and forwards all others.
fn read(
    mut reader: BufReader<TcpStream>,
    control: Arc<SessionControl>,
) -> Receiver<io::Result<Order>> {
    let (sender, orders): (Sender<io::Result<Order>>, _) = channel();
    // The thread ends with the connection, at the latest when the coordinator closes it.
    thread::spawn(move || {
        loop {
            let order = protocol::read_order(&mut reader);
            match &order {
                Ok(Order::Go) => control.go(),
                Ok(Order::Threads(threads)) => control.set_threads(*threads),
                Ok(Order::Stop) => control.stop(),
                Ok(Order::Trial(_)) => control.reset(),
                Err(_) => control.part(),
                Ok(Order::Alive) => continue,
                Ok(_) => {}
            }
            let last = order.is_err();
            let passed_on = !matches!(order, Ok(Order::Go | Order::Threads(_) | Order::Stop));
            if (passed_on && sender.send(order).is_err()) || last {
                return;
            }
        }
    });
    orders
}

fn get_ready(
    order: &Prepare,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    control: &Arc<SessionControl>,
    coordinator: &Coordinator,
) -> Result<Ready, String> {
    let mut ready = prepare(order)?;
    control.take(ready.process.live());
    if order.load || ready.process.setup().store.is_volatile() {
        ready.process.load(&mut |_: load::Progress| {})?;
    }
    let (control, other) = (control.clone(), coordinator.clone());
    ready.process.before_start(move || {
        other.say(&Tell::Ready).map_err(|why| why.to_string())?;
        control.wait_for_go()
    });
    let coordinator = coordinator.clone();
    ready.process.on_second(move |live| {
        let second = live.seen(second);
        // If sending fails, the thread that reads orders notices that the connection is closed.
        let _ = coordinator.say(&Tell::Second(Box::new(second)));
    });
    Ok(ready)
}

fn second(seen: &Seen) -> Second {
    Second {
        index: seen.seconds.saturating_sub(1),
        now_ns: seen.now_ns,
        counts: seen.counts,
        measured: Measured {
            reads: None,
            ..seen.second.clone()
        },
        failures: seen.failures.clone(),
        reads: seen.total.reads.clone(),
    }
}

fn run(process: &mut Process, order: &protocol::Trial) -> Result<Measured, String> {
    let time = |seconds| Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string());
    process.run(&Trial {
        load: match order.load {
            Part::Threads(threads) => Load::Threads(threads),
            Part::Rate(rate) => Load::Rate(rate),
        },
        warmup: time(order.warmup_seconds)?,
        duration: time(order.seconds)?,
        actions: order.actions,
        warmup_actions: order.warmup_actions,
    })
}

fn done(process: &Process, measured: Measured) -> Done {
    let injected = process.setup().store.injected().into_iter();
    Done {
        measured,
        failures: process.live().seen(|seen| seen.failures.clone()),
        injected: injected
            .map(|(class, count)| (class.to_owned(), count))
            .collect(),
    }
}

/// The connection to the coordinator. Several threads may send messages.
#[derive(Clone)]
struct Coordinator(Arc<Mutex<TcpStream>>);

impl Coordinator {
    fn say(&self, message: &Tell) -> io::Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::write(&mut *writer, message)
    }

    /// Runs `work` while keep-alive messages are sent.
    fn alive<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, ended) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
                    if self.say(&Tell::Alive).is_err() {
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
