//! Ctrl-C during Rust code: Python handles signals only on its main thread, which therefore waits while another
//! thread works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The interval of checks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Returns whether the current work should end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Executes `work` on another thread, without the interpreter's lock. If a signal handler raises, the work is
/// cancelled and the exception is returned.
///
/// # Errors
/// Those of the work, and the exception of a handler.
pub fn without_lock<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send,
) -> PyResult<T> {
    let raised = std::sync::Mutex::new(None);
    let result = py.detach(|| {
        let (done_in, done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The receiver exists, because the scope waits for this thread.
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
