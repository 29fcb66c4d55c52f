//! Decides when actions start: as soon as a thread is free (closed loop), or at the events of a Poisson process (open
//! loop).
//!
//! In an open loop, one emulated thread at a time waits for the next event, so that a single timer serves all of them.
//! If all threads are busy at an event, the action starts late, and its latency includes the delay. Runtime timers have
//! a resolution of a millisecond. Therefore this module waits on a kernel timer until shortly before the event, and
//! then yields until the event.

use std::cell::RefCell;

use larder_types::Random;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::clock::Clock;
use super::worker::RunWorker;

/// The time by which the kernel timer fires before an event, because the kernel and the runtime need it to wake a task.
const AHEAD_NS: u64 = 60_000;

pub struct Pace {
    arrivals: Option<Arrivals>,
}

struct Arrivals {
    turn: Mutex<Option<AsyncFd<std::os::fd::OwnedFd>>>,
    process: RefCell<PoissonProcess>,
}

/// A Poisson process: events with exponentially distributed gaps.
struct PoissonProcess {
    random: Random,
    gap_ns: f64,
    next: f64,
}

impl Pace {
    pub fn closed() -> Pace {
        Pace { arrivals: None }
    }

    /// Returns an open loop of `rate` events per second.
    pub fn open(rate: f64, random: Random) -> Pace {
        let mut process = PoissonProcess {
            random,
            gap_ns: 1e9 / rate,
            next: 0.0,
        };
        process.step();
        Pace {
            arrivals: Some(Arrivals {
                turn: Mutex::new(None),
                process: RefCell::new(process),
            }),
        }
    }

    /// Waits until an action is due and returns its scheduled start. In a closed loop, returns None immediately.
    pub async fn wait_for_start(&self, clock: Clock) -> Option<u64> {
        let arrivals = self.arrivals.as_ref()?;
        let mut timer = arrivals.turn.lock().await;
        let scheduled_start = arrivals.process.borrow().next as u64;
        loop {
            let now = clock.now();
            match scheduled_start.checked_sub(now) {
                None | Some(0) => break,
                Some(left) if left <= AHEAD_NS => tokio::task::yield_now().await,
                Some(left) => wait(&mut timer, left - AHEAD_NS).await,
            }
        }
        arrivals.process.borrow_mut().step();
        Some(scheduled_start)
    }

    /// Counts the events in the measured time for which no thread was free until the end.
    pub fn count_missed_starts(&self, worker: &RunWorker) {
        let Some(arrivals) = &self.arrivals else {
            return;
        };
        if worker.is_budget_spent() {
            return;
        }
        let mut process = arrivals.process.borrow_mut();
        let now = worker.schedule.clock.now().min(worker.schedule.end);
        let mut missed_starts = 0;
        while (process.next as u64) < now {
            missed_starts += u64::from(worker.schedule.covers(process.next as u64));
            process.step();
        }
        worker.interval.borrow_mut().measured.missed_starts += missed_starts;
    }
}

impl PoissonProcess {
    fn step(&mut self) {
        self.next += self.random.exponential() * self.gap_ns;
    }
}

/// Waits this long or slightly longer on the kernel timer.
async fn wait(timer: &mut Option<AsyncFd<std::os::fd::OwnedFd>>, nanoseconds: u64) {
    let fd = timer.get_or_insert_with(|| {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags).expect("a timer");
        // SAFETY: an owned descriptor stays the same for its whole lifetime, and is closed only when the AsyncFd that
        // it moves into is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        fd.expect("the timer can be registered")
    });
    let spec = Itimerspec {
        it_interval: Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: Timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000).max(1) as i64,
        },
    };
    timerfd_settime(fd.get_ref(), TimerfdTimerFlags::empty(), &spec).expect("a valid time");
    if let Ok(mut ready) = fd.readable().await {
        let mut count = [0; 8];
        // Reading consumes the expiration. If the timer has not expired, the wake-up was spurious, and the caller
        // checks the clock again.
        let _ = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut count)?));
    }
}
