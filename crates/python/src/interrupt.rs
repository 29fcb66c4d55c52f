//! Ctrl-C while Rust works: Python hears of it on its main thread only, which therefore waits, and does not work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Whether what is being done is to end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Does `work` on a thread of its own, without the interpreter's lock. When a signal's handler raises, the work is ended, and that is what comes of it.
///
/// # Errors
/// Those of the work, and what a handler raises.
pub fn without_lock<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send,
) -> PyResult<T> {
    let raised = std::sync::Mutex::new(None);
    let result = py.detach(|| {
        let (done_in, done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Nobody who hears it is gone: the scope waits.
                let _ = done_in.send(work());
            });
            loop {
                match done.recv_timeout(LOOK) {
                    Ok(result) => return Some(result),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if let Err(error) = Python::attach(|py| py.check_signals()) {
                    INTERRUPTED.store(true, Ordering::Relaxed);
                    *raised.lock().expect("it is ours") = Some(error);
                    let ended = done.recv().ok();
                    INTERRUPTED.store(false, Ordering::Relaxed);
                    return ended;
                }
            }
        })
    });
    match (raised.into_inner().expect("it is ours"), result) {
        (Some(error), _) => Err(error),
        (None, Some(result)) => result,
        (None, None) => Err(crate::failed("it ended by a fault of larder's own")),
    }
}
