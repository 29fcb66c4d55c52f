//! The watchdog detects a serving thread that has not completed a turn of its loop for a second.
//!
//! Such a thread serves none of its clients, and blocks others that need its rows. The watchdog reports this in the log, the
//! metrics and `/readyz`. It does not end the server, because the thread usually recovers.
//!
//! Each serving thread records ten times per second that its loop turns ([`Turns::run_heartbeat`]); a separate thread compares
//! that with the clock. If that thread itself was delayed, the complete machine was, and nothing is reported.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Shared;
use crate::error::Error;

const NOTE_EVERY: Duration = Duration::from_millis(100);
/// A thread is stalled when it has not turned for this long.
const STALL: Duration = Duration::from_secs(1);
/// If one of the watchdog's own pauses takes longer, it was delayed itself.
const OWN_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The time of each serving thread's last turn.
pub struct Turns {
    began: Instant,
    cores: Vec<Turn>,
}

#[derive(Default)]
struct Turn {
    /// Milliseconds from `began`, plus 1; 0 while the thread does not serve.
    last_ms: AtomicU64,
    /// The start of the current stall, in the form of `last_ms`; 0 if the thread is not stalled.
    stalled_since_ms: AtomicU64,
    stalls: AtomicU64,
}

/// Stalls of one serving thread.
pub struct Stalls {
    pub core: usize,
    /// Since the start, including the current one.
    pub count: u64,
    /// The duration of the current stall.
    pub current: Option<Duration>,
}

impl Turns {
    pub fn new(cores: usize) -> Turns {
        Turns {
            began: Instant::now(),
            cores: (0..cores).map(|_| Turn::default()).collect(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// Records turns of a serving thread until the future is dropped.
    pub async fn run_heartbeat(&self, core: usize) {
        struct ActiveCore<'a>(&'a Turn);
        impl Drop for ActiveCore<'_> {
            fn drop(&mut self) {
                self.0.last_ms.store(0, Relaxed);
            }
        }
        let active = ActiveCore(&self.cores[core]);
        let mut tick = tokio::time::interval(NOTE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            active.0.last_ms.store(self.now_ms(), Relaxed);
            larder_types::fault_point("core.turn");
            tick.tick().await;
        }
    }

    /// Compares the last turns with the clock. `report` receives each core whose stall began (false) or ended (true), with its
    /// duration.
    fn check(&self, now_ms: u64, mut report: impl FnMut(usize, bool, Duration)) {
        for (core, turn) in self.cores.iter().enumerate() {
            let (last, since) = (
                turn.last_ms.load(Relaxed),
                turn.stalled_since_ms.load(Relaxed),
            );
            let is_stalled = last > 0 && now_ms.saturating_sub(last) > STALL.as_millis() as u64;
            match (since, is_stalled) {
                (0, true) => {
                    turn.stalled_since_ms.store(last, Relaxed);
                    turn.stalls.fetch_add(1, Relaxed);
                    report(core, false, Duration::from_millis(now_ms - last));
                }
                (1.., false) => {
                    turn.stalled_since_ms.store(0, Relaxed);
                    let length = now_ms.saturating_sub(since);
                    report(core, true, Duration::from_millis(length));
                }
                _ => {}
            }
        }
    }

    /// The stalls of every core.
    pub fn stalls(&self) -> impl Iterator<Item = Stalls> {
        let now_ms = self.now_ms();
        self.cores.iter().enumerate().map(move |(core, turn)| {
            let since = turn.stalled_since_ms.load(Relaxed);
            let current = Duration::from_millis(now_ms.saturating_sub(since));
            Stalls {
                core,
                count: turn.stalls.load(Relaxed),
                current: (since > 0).then_some(current),
            }
        })
    }

    /// One message for each stalled serving thread.
    pub fn describe_stalls(&self) -> Vec<String> {
        let stalls = self.stalls();
        let all = stalls.filter_map(|stall| Some((stall.core, stall.current?)));
        let describe = |(core, length): (usize, Duration)| {
            describe_stall(core, format_args!("{:.1} s", length.as_secs_f64()))
        };
        all.map(describe).collect()
    }
}

/// A message about a stalled serving thread.
pub fn describe_stall(core: usize, length: impl fmt::Display) -> String {
    format!(
        "serving thread {core} has served no client for {length}: a command that it executes takes too long"
    )
}

/// The thread while it runs.
pub struct Watchdog {
    /// Dropping it ends the thread.
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// # Errors
    /// [`Error::Io`] if the thread cannot be created.
    pub fn spawn(shared: &Arc<Shared>) -> Result<Watchdog, Error> {
        let (stop, stopped) = sync_channel::<()>(0);
        let watched = shared.clone();
        let run = move || {
            let turns = &watched.turns;
            loop {
                let paused = Instant::now();
                if stopped.recv_timeout(NOTE_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return Ok(());
                }
                if paused.elapsed() > OWN_PAUSE_MAX {
                    continue;
                }
                turns.check(turns.now_ms(), |core, has_ended, length| {
                    let seconds = length.as_secs_f64();
                    if has_ended { tracing::warn!(core, seconds, "the serving thread responds again") } else { tracing::warn!(
                            core,
                            seconds,
                            "a serving thread is stalled: its clients wait, and so do others that need its rows"
                        ) }
                });
            }
        };
        let thread = shared.supervisor.spawn("larder-watchdog", run);
        let thread = thread
            .map_err(|error| Error::Io(format!("cannot start the watchdog's thread: {error}")))?;
        Ok(Watchdog { stop, thread })
    }

    pub fn stop(self) {
        drop(self.stop);
        // The supervisor catches and reports panics.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_monitor::FaultMonitor;

    #[test]
    fn a_stalled_thread_is_reported_once_until_it_recovers() {
        let turns = Turns::new(2);
        let mut reports = Vec::new();
        let check = |now_ms, reports: &mut Vec<(usize, bool, u64)>| {
            turns.check(now_ms, |core, has_ended, length| {
                reports.push((core, has_ended, length.as_millis() as u64));
            });
        };
        // The other thread does not serve yet, or no longer.
        turns.cores[1].last_ms.store(500, Relaxed);
        check(1500, &mut reports);
        assert_eq!(reports, []);
        check(1501, &mut reports);
        check(2500, &mut reports);
        assert_eq!(reports, [(1, false, 1001)]);
        assert_eq!(turns.describe_stalls().len(), 1);
        turns.cores[1].last_ms.store(2600, Relaxed);
        check(2700, &mut reports);
        assert_eq!(reports[1..], [(1, true, 2200)]);
        assert_eq!(turns.describe_stalls(), Vec::<String>::new());
        let counts: Vec<u64> = turns.stalls().map(|stalls| stalls.count).collect();
        assert_eq!(counts, [0, 1]);
    }

    #[test]
    fn a_stalled_thread_is_a_fault() {
        let turns = Arc::new(Turns::new(2));
        let fault_monitor = FaultMonitor::new(Duration::ZERO);
        fault_monitor.watch_cores(turns.clone());
        assert_eq!(fault_monitor.fault(), None);
        turns.cores[1].last_ms.store(1, Relaxed);
        turns.check(5000, |_, _, _| {});
        let fault = fault_monitor.fault().expect("a thread has stalled");
        assert!(fault.why.starts_with("serving thread 1 "));
        assert!(fault.is_partial, "the other one serves");
        turns.cores[1].last_ms.store(5000, Relaxed);
        turns.check(5001, |_, _, _| {});
        assert_eq!(fault_monitor.fault(), None);
    }
}
