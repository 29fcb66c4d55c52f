//! Ctrl-C and SIGTERM: things end with what they have, and leave nothing behind.

use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use crate::scratch;

/// The status of a process that ended by Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// Ctrl-C or SIGTERM calls `end`, which lets things end with what they have; a second one ends everything.
///
/// # Errors
///
/// A system that gives no signals.
pub fn on_interrupt(end: impl Fn() + Send + 'static) -> Result<(), String> {
    watch(move |count| {
        if count == 0 {
            eprintln!("ending; once more to give up");
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
            for count in 0.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                tell(count);
            }
        });
    });
    Ok(())
}
