//! Handles Ctrl-C and SIGTERM: the first signal ends a command with its results so far, the second one ends the process
//! immediately. Neither leaves temporary files.

use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use super::output;
use crate::verdict::scratch;

/// The exit status of a process ended by Ctrl-C, by shell convention.
const INTERRUPTED: i32 = 130;

/// Signals closer to each other than this count as one: some tools send two to end a process (timeout(1) sends one to
/// it and one to its group).
const REPEAT_WINDOW: Duration = Duration::from_millis(300);

/// Calls `end` on the first Ctrl-C or SIGTERM, which ends the command with its results so far. The second one ends the
/// process.
///
/// # Errors
///
/// The signal handlers cannot be installed.
pub fn on_interrupt(end: impl Fn() + Send + 'static) -> Result<(), String> {
    on_signal(move |count| {
        if count == 0 {
            output::err(format_args!("ending; send it again to exit immediately"));
            end();
        } else {
            exit_interrupted();
        }
    })
}

/// Ends the process on the first signal, for commands that have no partial results.
///
/// # Errors
///
/// As for [`on_interrupt`].
pub fn exit_on_interrupt() -> Result<(), String> {
    on_signal(|_| exit_interrupted())
}

fn exit_interrupted() {
    scratch::remove_all();
    std::process::exit(INTERRUPTED);
}

/// Calls `handler` on each signal with the number of earlier signals.
fn on_signal(handler: impl Fn(u32) + Send + 'static) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("cannot handle signals: {why}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    // From here on, signals are delivered to the thread and no longer end the process.
    let (mut interrupt, mut terminate) = {
        let _within = runtime.enter();
        (
            signal(SignalKind::interrupt()).map_err(failed)?,
            signal(SignalKind::terminate()).map_err(failed)?,
        )
    };
    thread::spawn(move || {
        runtime.block_on(async {
            let (mut count, mut last) = (0, None::<Instant>);
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if last.is_none_or(|last| last.elapsed() > REPEAT_WINDOW) {
                    last = Some(Instant::now());
                    handler(count);
                    count += 1;
                }
            }
        });
    });
    Ok(())
}
