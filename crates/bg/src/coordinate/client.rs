//! The client's side: does what one coordinator at a time asks.
//!
//! A thread reads orders, so that a connection that is lost ends the trial under way; another gives a sign of life each second.

use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::protocol::{self, Load as Part, Order, PROTOCOL, Prepare, Tell};
use crate::load;
use crate::measure::{Laboratory, Load, Measured, Trial};
use crate::run::Process;

/// Between signs of life.
const ALIVE: Duration = Duration::from_secs(1);

/// What a client is ready to run.
pub struct Ready {
    pub process: Process,
    /// Of all draws, those that go to this client's members.
    pub mass: f64,
}

/// Serves coordinators, one after the other, for ever. `prepare` makes ready what is asked for, loading excepted; `tell` hears what happens.
///
/// # Errors
///
/// A listener that accepts no more.
pub fn serve(
    listener: &TcpListener,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    tell: &dyn Fn(&str),
) -> io::Result<()> {
    loop {
        let (stream, from) = listener.accept()?;
        tell(&format!("coordinator {from}"));
        match attend(&stream, prepare, tell) {
            Ok(()) => tell("the coordinator has gone"),
            Err(why) => tell(&format!("the coordinator was lost: {why}")),
        }
    }
}

fn attend(
    stream: &TcpStream,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    tell: &dyn Fn(&str),
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (sender, orders) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    let reader = BufReader::new(stream.try_clone()?);
    let flag = gone.clone();
    thread::spawn(move || {
        let mut reader = reader;
        // Ends with the connection, at the latest when the coordinator closes it.
        loop {
            let order = protocol::read::<Order>(&mut reader);
            let last = order.is_err();
            if last {
                flag.store(true, Ordering::Relaxed);
            }
            if sender.send(order).is_err() || last {
                return;
            }
        }
    });
    let writer = Mutex::new(stream);
    let mut ready: Option<Ready> = None;
    for order in orders {
        let answer = match order {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(why) => {
                // A coordinator that speaks otherwise learns so.
                let why = why.to_string();
                say(&writer, &Tell::Failed { why: why.clone() })?;
                return Err(io::Error::other(why));
            }
            Ok(Order::Hello { .. }) => Ok(Tell::Hello { protocol: PROTOCOL }),
            Ok(Order::Prepare(order)) => {
                tell(&format!("preparing: {}", order.words.join(" ")));
                ready = None;
                alive(&writer, || get_ready(&order, prepare, &gone)).map(|new| {
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
                    alive(&writer, || run(ready, &order))
                        .map(|measured| Tell::Done(Box::new(measured)))
                }
            },
        };
        if gone.load(Ordering::Relaxed) {
            continue;
        }
        let answer = answer.unwrap_or_else(|why| {
            tell(&why);
            Tell::Failed { why }
        });
        say(&writer, &answer)?;
    }
    Ok(())
}

fn get_ready(
    order: &Prepare,
    prepare: &dyn Fn(&Prepare) -> Result<Ready, String>,
    gone: &Arc<AtomicBool>,
) -> Result<Ready, String> {
    let mut ready = prepare(order)?;
    if order.load || ready.process.setup().store.is_volatile() {
        ready.process.load(&mut |_: load::Progress| {})?;
    }
    let gone = gone.clone();
    ready.process.on_second(move |live| {
        if gone.load(Ordering::Relaxed) {
            live.stop();
        }
    });
    Ok(ready)
}

fn run(ready: &mut Ready, order: &protocol::Trial) -> Result<Measured, String> {
    let time = |seconds| Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string());
    ready.process.run(&Trial {
        load: match order.load {
            Part::Threads(threads) => Load::Threads(threads),
            Part::Rate(rate) => Load::Rate(rate),
        },
        warmup: time(order.warmup_seconds)?,
        duration: time(order.seconds)?,
    })
}

/// Does something long, with signs of life.
fn alive<T>(writer: &Mutex<&TcpStream>, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
                if say(writer, &Tell::Alive).is_err() {
                    return;
                }
            }
        });
        let answer = work();
        drop(done);
        answer
    })
}

fn say(writer: &Mutex<&TcpStream>, message: &Tell) -> io::Result<()> {
    let mut writer = writer.lock().expect("nobody panics while they write");
    protocol::write(&mut *writer, message)
}
