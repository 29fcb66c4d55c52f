//! Handles ctrl-c, SIGTERM, and SIGHUP, which arrives when the terminal is closed. The first signal requests the
//! command to clean up and end; a second one ends it immediately. A SIGHUP that is ignored at the start, as under
//! `nohup`, stays ignored.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static NOTICES: OnceLock<[&str; 2]> = OnceLock::new();

/// Like [`listen`], for a command whose cleanup takes time: prints `first` on standard error when the cleanup begins,
/// and `second` when a second signal ends the process before that.
pub fn listen_with_notices(first: &'static str, second: &'static str) -> Result<(), Failure> {
    NOTICES.get_or_init(|| [first, second]);
    listen()
}

/// Records signals from now on, instead of letting them end the program. Further calls are no-ops.
pub fn listen() -> Result<(), Failure> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    larder_remote::set_interrupt_check(is_interrupted);
    STARTED.get_or_init(start).clone().map_err(Failure::new)
}

fn start() -> Result<(), String> {
    let note_signals = |mut signals: Signals| async move {
        while signals.next().await {
            let is_second = INTERRUPTED.swap(true, Ordering::SeqCst);
            if let Some(notices) = NOTICES.get() {
                // A closed standard error must not prevent the process from ending.
                let notice = notices[usize::from(is_second)];
                let _ = writeln!(std::io::stderr(), "larder: {notice}");
            }
            if is_second {
                std::process::exit(130);
            }
            // Locking and unlocking ensures that no waiter misses the change between its check and its wait.
            drop(WAITERS.0.lock());
            WAITERS.1.notify_all();
        }
    };
    on_own_thread(Signals::new, note_signals)
        .map_err(|error| format!("cannot listen for signals: {error}"))
}

/// Runs `handle` on the signals from `listen`, on a separate thread.
///
/// # Errors
/// The system cannot create the thread, or register the signals.
pub fn on_own_thread<S: Send + 'static, F: Future<Output = ()>>(
    listen: impl FnOnce() -> std::io::Result<S>,
    handle: impl FnOnce(S) -> F + Send + 'static,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = {
        let _inside = runtime.enter();
        listen()?
    };
    let run = move || runtime.block_on(handle(signals));
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(run).map(drop)
}

/// The signals that request a program to end. While this value exists, they do not end the program by default.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Registers the signals. Must be called inside a runtime.
    pub fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if ignores_hangup() {
                None
            } else {
                Some(signal(SignalKind::hangup())?)
            },
        })
    }

    /// Waits for the next signal. Returns `false` if there can be no more.
    pub async fn next(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = self.interrupt.recv() => received.is_some(),
            received = self.terminate.recv() => received.is_some(),
            received = hangup => received.is_some(),
        }
    }
}

/// Returns whether the process was started to survive the end of its terminal.
fn ignores_hangup() -> bool {
    let mask = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
    let bit = SignalKind::hangup().as_raw_value() - 1;
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Returns `Err` after an interrupt. For loops that can stop between two steps.
pub fn check() -> Result<(), Failure> {
    if is_interrupted() {
        return Err(Failure::interrupted(
            "interrupted; no partial output was left",
        ));
    }
    Ok(())
}

/// Waits for the given time, or until an interrupt.
pub fn wait(time: Duration) {
    let guard = WAITERS
        .0
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    drop(
        WAITERS
            .1
            .wait_timeout_while(guard, time, |()| !is_interrupted()),
    );
}
