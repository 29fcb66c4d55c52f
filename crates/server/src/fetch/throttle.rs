//! The two [`Budget`]s of a node with their clock: one for bytes received over the network, one for bytes that background work
//! reads locally (verification, warming, compaction). Each has its own rate. Both yield to reads in the same way.
//!
//! The system reports how long reads wait: the time that serving threads were runnable without a CPU
//! (`/proc/self/task/<thread>/schedstat`), divided by the number of times that they ran. This costs reads nothing, and measures
//! exactly what background work takes from them. If the system does not report it, background work never yields.
//!
//! A change of the rate takes effect within [`SLEEP_MAX`], also for current waiters.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::budget::{Budget, BudgetFigures, Ticket};

/// Maximum sleep before the rate is checked again.
const SLEEP_MAX: Duration = Duration::from_millis(200);

pub struct Throttle {
    began: Instant,
    network: Mutex<Budget>,
    local: Mutex<Budget>,
    serving: Mutex<Vec<ServingThread>>,
}

/// A thread that serves reads.
struct ServingThread {
    schedstat: File,
    /// Nanoseconds of waiting, and how often it ran.
    last: (u64, u64),
}

impl Throttle {
    /// Rates are in bytes per second; 0 means no limit. With `yield_at_us` 0, background work never yields.
    pub fn new(network_rate: u64, local_rate: u64, yield_at_us: u64) -> Throttle {
        Throttle {
            began: Instant::now(),
            network: Mutex::new(Budget::new(network_rate, yield_at_us, 0)),
            local: Mutex::new(Budget::new(local_rate, yield_at_us, 0)),
            serving: Mutex::default(),
        }
    }

    /// Sets the rate of the network.
    pub fn set_rate(&self, bytes_per_second: u64) {
        let now = self.now_us();
        lock(&self.network).set_rate(now, bytes_per_second);
    }

    /// The figures of the network budget.
    pub fn figures(&self) -> BudgetFigures {
        lock(&self.network).figures()
    }

    /// The figures of the budget for local reads.
    pub fn local_figures(&self) -> BudgetFigures {
        lock(&self.local).figures()
    }

    /// Like [`Throttle::figures`], with the current shares.
    pub fn figures_now(&self) -> BudgetFigures {
        self.sample(self.now_us());
        self.figures()
    }

    /// Registers the calling thread as a serving thread.
    pub fn add_serving_thread(&self) {
        // SAFETY: gettid takes nothing and cannot fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let Ok(schedstat) = File::open(format!("/proc/self/task/{thread}/schedstat")) else {
            return;
        };
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.push(ServingThread {
            schedstat,
            last: (0, 0),
        });
    }

    /// Waits until `bytes` may be received over the network.
    pub async fn acquire(&self, bytes: u64) {
        let place = QueuedWait::of(self, &self.network);
        while let Some(next_sleep) = place.next_sleep(bytes) {
            tokio::time::sleep(next_sleep).await;
        }
    }

    /// Blocks until `bytes` may be read locally, or `should_continue` returns false.
    pub fn acquire_local(&self, bytes: u64, should_continue: &dyn Fn() -> bool) {
        let place = QueuedWait::of(self, &self.local);
        while let Some(next_sleep) = place.next_sleep(bytes).filter(|_| should_continue()) {
            std::thread::sleep(next_sleep);
        }
    }

    /// Records bytes already received over the network; waiters of the network budget wait for them.
    pub fn charge(&self, bytes: u64) {
        if bytes > 0 {
            let now = self.now_us();
            lock(&self.network).charge(now, bytes);
        }
    }

    /// A pace for one thread's work in steps.
    pub fn pace(&self) -> Pace<'_> {
        Pace {
            throttle: self,
            cpu: Cell::new(thread_cpu()),
            done: Cell::new(0),
        }
    }

    fn sample(&self, now_us: u64) {
        if !lock(&self.network).is_sample_due(now_us) {
            return;
        }
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = serving.iter_mut().filter_map(ServingThread::wait_us);
        // The longest wait, because a connection is served by one thread.
        if let Some(wait) = waits.max() {
            lock(&self.network).observe(now_us, wait);
            lock(&self.local).observe(now_us, wait);
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

fn lock(budget: &Mutex<Budget>) -> MutexGuard<'_, Budget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A ticket that is given back when its waiter is dropped.
struct QueuedWait<'a> {
    throttle: &'a Throttle,
    budget: &'a Mutex<Budget>,
    ticket: Ticket,
}

impl<'a> QueuedWait<'a> {
    fn of(throttle: &'a Throttle, budget: &'a Mutex<Budget>) -> QueuedWait<'a> {
        let ticket = lock(budget).enqueue();
        QueuedWait {
            throttle,
            budget,
            ticket,
        }
    }

    /// The time until the next attempt; `None` once the bytes have passed.
    fn next_sleep(&self, bytes: u64) -> Option<Duration> {
        let now = self.throttle.now_us();
        self.throttle.sample(now);
        let wait = lock(self.budget).try_admit(now, &self.ticket, bytes);
        wait.map(|wait| Duration::from_micros(wait).min(SLEEP_MAX))
    }
}

impl Drop for QueuedWait<'_> {
    fn drop(&mut self) {
        lock(self.budget).cancel(&self.ticket);
    }
}

/// Paces work in steps on one thread. After each step, it waits for the step's bytes, and rests according to the CPU time that
/// the step took.
pub struct Pace<'a> {
    throttle: &'a Throttle,
    /// The thread's CPU time after the last step.
    cpu: Cell<Duration>,
    /// In the unit of the work's progress.
    done: Cell<u64>,
}

impl Pace<'_> {
    /// To be called after a step that read `bytes` locally. May sleep; `should_continue` is checked meanwhile.
    pub fn step(&self, bytes: u64, should_continue: &dyn Fn() -> bool) {
        self.throttle.acquire_local(bytes, should_continue);
        let pause = self.pause();
        if !pause.is_zero() && should_continue() {
            std::thread::sleep(pause);
        }
    }

    /// For work that reports its total bytes so far. Returns whether to continue.
    pub fn advance_to(&self, done: u64, should_continue: &dyn Fn() -> bool) -> bool {
        let step = done.saturating_sub(self.done.replace(done));
        if should_continue() {
            self.step(step, should_continue);
        }
        should_continue()
    }

    /// Like [`Pace::step`], for work whose bytes have already passed.
    pub async fn step_async(&self) {
        let pause = self.pause();
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }

    fn pause(&self) -> Duration {
        let now = thread_cpu();
        let busy = now.saturating_sub(self.cpu.replace(now));
        let pause = lock(&self.throttle.local).pause_us(busy.as_micros() as u64);
        Duration::from_micros(pause)
    }
}

impl ServingThread {
    /// Returns how long the thread waited for a CPU since the last call, on average per time that it ran; `None` if it did not
    /// run or has ended.
    fn wait_us(&mut self) -> Option<u64> {
        let mut text = [0; 80];
        let size = self.schedstat.read_at(&mut text, 0).ok()?;
        let now = parse_schedstat(std::str::from_utf8(&text[..size]).ok()?)?;
        let before = std::mem::replace(&mut self.last, now);
        let (wait_ns, ran) = (
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        );
        // The first value covers the thread's complete lifetime, so it is skipped.
        (before.1 > 0 && ran > 0).then(|| wait_ns / ran / 1000)
    }
}

/// Parses the nanoseconds of waiting and the number of times that the thread ran: the second and the third number.
fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().skip(1);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_rate_is_unlimited_and_the_queue_is_empty_afterwards() {
        let throttle = Throttle::new(0, 0, 0);
        throttle.acquire_local(u64::MAX >> 1, &|| true);
        let throttle = Throttle::new(0, 1, 0);
        throttle.acquire_local(1 << 40, &|| true);
        throttle.acquire_local(1, &|| false);
        assert_eq!(throttle.local_figures().waiting, 0);
        assert_eq!(throttle.local_figures().passed_bytes, 1 << 40);
    }

    #[test]
    fn local_reads_do_not_count_as_network_bytes() {
        // With a network rate of one byte per second, a second step would wait for ages.
        let throttle = Throttle::new(1, 0, 0);
        throttle.charge(10);
        let pace = throttle.pace();
        assert!(pace.advance_to(1 << 30, &|| true) && pace.advance_to(1 << 31, &|| true));
        assert_eq!(throttle.figures().passed_bytes, 10);
        assert_eq!(throttle.local_figures().passed_bytes, 1 << 31);
    }

    #[test]
    fn work_in_steps_counts_each_byte_once() {
        let throttle = Throttle::new(0, 0, 0);
        let pace = throttle.pace();
        for done in [10, 10, 25, 40] {
            assert!(pace.advance_to(done, &|| true));
        }
        assert!(!pace.advance_to(90, &|| false));
        assert_eq!(throttle.local_figures().passed_bytes, 40);
    }

    #[test]
    fn the_wait_time_of_a_thread_is_read_from_schedstat() {
        assert_eq!(parse_schedstat("12 3749939 17\n"), Some((3_749_939, 17)));
        assert_eq!(parse_schedstat("12 3"), None);
        let throttle = Throttle::new(0, 0, 100);
        throttle.add_serving_thread();
        let mut serving = throttle.serving.lock().unwrap();
        for thread in serving.iter_mut() {
            assert_eq!(thread.wait_us(), None, "there is no earlier sample");
        }
    }
}
