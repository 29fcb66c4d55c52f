//! Ctrl-C and SIGTERM: the first ends a command with the results that it has; a second one ends the process at once. Neither leaves
//! temporary files.

use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use super::say;
use crate::verdict::scratch;

/// The status of a process that ended by Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// Signals so close to each other are one: some who end a process send it two (timeout(1), to it and to its group).
const ONE: Duration = Duration::from_millis(300);

/// Ctrl-C or SIGTERM calls `end`, which lets things end with what they have; a second one ends everything.
///
/// # Errors
///
/// A system that gives no signals.
pub fn on_interrupt(end: impl Fn() + Send + 'static) -> Result<(), String> {
    watch(move |count| {
        if count == 0 {
            say::err(format_args!("ending; once more to give up"));
            end();
        } else {
            leave();
        }
    })
}

/// For commands that have nothing to say before they are done: the first one ends everything.
///
/// # Errors
///
/// As [`on_interrupt`].
pub fn leave_on_interrupt() -> Result<(), String> {
    watch(|_| leave())
}

fn leave() {
    scratch::remove_all();
    std::process::exit(INTERRUPTED);
}

/// Calls `tell` with how many signals came before.
fn watch(tell: impl Fn(u32) + Send + 'static) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("no signals: {why}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    // From here on signals wait for the thread, and do not end the process.
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
                if last.is_none_or(|last| last.elapsed() > ONE) {
                    last = Some(Instant::now());
                    tell(count);
                    count += 1;
                }
            }
        });
    });
    Ok(())
}
