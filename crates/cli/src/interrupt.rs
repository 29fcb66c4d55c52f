//! Ctrl-c, SIGTERM and SIGHUP, which comes when the terminal goes: the first asks the command to clean up and end, a second ends it
//! immediately. A SIGHUP that is ignored at the start, as under `nohup`, stays ignored.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static NOTICES: OnceLock<[&str; 2]> = OnceLock::new();

/// As [`listen`], for a command whose cleaning up takes time: prints `first` on standard error when it begins, and `second` when a second signal ends the
/// process before it is done.
pub fn listen_with_notices(first: &'static str, second: &'static str) -> Result<(), Failure> {
    NOTICES.get_or_init(|| [first, second]);
    listen()
}

/// From now on signals are noted instead of ending the program. Calling it again does nothing.
pub fn listen() -> Result<(), Failure> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    larder_remote::interrupt_when(is_interrupted);
    STARTED.get_or_init(start).clone().map_err(Failure::new)
}

fn start() -> Result<(), String> {
    let note_signals = |mut signals: Signals| async move {
        while signals.next().await {
            let is_second = INTERRUPTED.swap(true, Ordering::SeqCst);
            if let Some(notices) = NOTICES.get() {
                // A closed standard error does not keep the process from ending.
                let notice = notices[usize::from(is_second)];
                let _ = writeln!(std::io::stderr(), "larder: {notice}");
            }
            if is_second {
                std::process::exit(130);
            }
            // Taken and released, so that no waiter misses the change between look and wait.
            drop(WAITERS.0.lock());
            WAITERS.1.notify_all();
        }
    };
    on_own_thread(Signals::new, note_signals)
        .map_err(|error| format!("cannot listen for signals: {error}"))
}

/// Has `handle` handle the signals that `listen` listens for, on a thread of its own.
///
/// # Errors
/// The system gives no thread, or no signals.
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

/// The signals that ask a program to end. From its making on they no longer end it by themselves.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// To be called inside a runtime.
    pub fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for the next one; false when there can be none any more.
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

/// Whether this process was started to outlive its terminal.
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

/// `Err` once interrupted: for loops that can stop between two steps.
pub fn check() -> Result<(), Failure> {
    if is_interrupted() {
        return Err(Failure::interrupted("interrupted; nothing was left behind"));
    }
    Ok(())
}

/// Waits for the time given, or less if interrupted meanwhile.
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
