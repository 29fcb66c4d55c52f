//! Supervision of threads: the failure of a thread on which others depend ends the server, instead of leaving the others waiting.
//!
//! ```text
//!  thread ── returns an error, or panics ──► Supervisor::fail ──► Server::failed ──► the process ends with the message
//!  job    ── panics inside `contain` ──────► an error of that job; its thread continues
//! ```
//!
//! 1. The first failure is recorded, with the thread's name and the panic's message and location.
//! 2. On a serving thread, every panic counts, including one of a task, which the runtime would merely drop: the thread's tables
//!    may then be half changed, and a waiter for that task would wait forever. See `docs/decisions/0033-failing-threads.md`.
//! 3. A panic inside [`contain`] is never a failure of the server.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::error::Error;

thread_local! {
    /// The server that fails when this thread panics.
    static WATCHED_BY: RefCell<Option<Supervisor>> = const { RefCell::new(None) };
    /// Active calls of `contain` on this thread.
    static CONTAINED: Cell<u32> = const { Cell::new(0) };
}

/// Receives the failures of a server's threads.
#[derive(Clone)]
pub struct Supervisor {
    failure: Arc<watch::Sender<Option<String>>>,
}

impl Default for Supervisor {
    fn default() -> Supervisor {
        Supervisor {
            failure: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl Supervisor {
    /// Starts a thread whose error or panic is a failure of the server.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let supervisor = self.clone();
        let named = std::thread::Builder::new().name(name.to_owned());
        named.spawn(move || supervisor.run(work))
    }

    /// Runs work on the calling thread. Its error or panic is a failure of the server.
    pub fn run(&self, work: impl FnOnce() -> Result<(), Error>) {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error.to_string()),
            Err(panic) => self.fail(describe_panic(&*panic)),
        }
    }

    /// Returns a guard that reports a panic of the thread that holds it, for threads that [`Supervisor::run`] does not run.
    pub fn guard(&self) -> PanicGuard {
        PanicGuard(self.clone())
    }

    /// Makes every further panic on the calling thread a failure of the server, including one that a runtime catches, unless it
    /// occurs inside [`contain`].
    pub fn watch_this_thread(&self) {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                before(panic);
                if CONTAINED.get() > 0 {
                    return;
                }
                WATCHED_BY.with_borrow(|supervisor| {
                    let Some(supervisor) = supervisor else { return };
                    let place = panic.location();
                    let place = place.map_or_else(String::new, |place| format!(" ({place})"));
                    let what = payload_text(panic.payload());
                    supervisor.fail(format!("{}{place}", panic_failure(what)));
                });
            }));
        });
        WATCHED_BY.set(Some(self.clone()));
    }

    /// Records a failure; only the first one counts.
    pub fn fail(&self, why: String) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            if is_first {
                tracing::error!(%why, "the server cannot continue");
                *failure = Some(why);
            }
            is_first
        });
    }

    /// The failure, if there was one.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Waits for a failure.
    pub async fn failed(&self) -> String {
        let mut failures = self.failure.subscribe();
        let failed = failures.wait_for(Option::is_some).await;
        // The sender lives as long as `self`, so waiting cannot fail.
        failed.map_or_else(|_| String::new(), |why| why.clone().unwrap_or_default())
    }
}

/// See [`Supervisor::guard`].
pub struct PanicGuard(Supervisor);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(panic_failure("its message is in the log"));
        }
    }
}

/// Runs one job, and converts its panic to an error. `what` names the job.
///
/// # Errors
/// The error of the job; [`Error::Corrupted`] if it panicked, because a job's input is external.
pub fn contain<T>(what: &str, job: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    CONTAINED.set(CONTAINED.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(job));
    CONTAINED.set(CONTAINED.get() - 1);
    done.unwrap_or_else(|panic| Err(job_panicked(what, &*panic)))
}

/// The error of a job that panicked.
pub fn job_panicked(what: &str, panic: &(dyn Any + Send)) -> Error {
    let why = payload_text(panic);
    tracing::error!(what, %why, "a job panicked");
    Error::Corrupted(format!(
        "{what} failed on bytes that larder cannot handle: {why}; this is a bug in larder, please report it"
    ))
}

/// Like [`job_panicked`], for a task of a runtime.
pub fn task_panicked(what: &str, error: tokio::task::JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => job_panicked(what, &*panic),
        Err(error) => Error::Io(format!("{what} did not finish: {error}")),
    }
}

/// Describes a panic of the calling thread.
fn describe_panic(panic: &(dyn Any + Send)) -> String {
    panic_failure(payload_text(panic))
}

fn panic_failure(what: &str) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    format!(
        "thread {name} panicked: {what}; this is a bug in larder, please report it, and start larder again"
    )
}

fn payload_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(
        supervisor: &Supervisor,
        work: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Option<String> {
        let thread = supervisor.spawn("worker", work).expect("a thread");
        thread.join().expect("its panic is caught");
        supervisor.failure()
    }

    #[test]
    fn a_thread_that_fails_is_reported_with_its_message() {
        let failed = start(&Supervisor::default(), || Err(Error::Io("no disk".into())));
        assert_eq!(failed.as_deref(), Some("no disk"));
        let failed = start(&Supervisor::default(), || panic!("index {}", 7));
        let failed = failed.expect("a failure");
        assert!(
            failed.starts_with("thread worker panicked: index 7"),
            "{failed}"
        );
        assert_eq!(start(&Supervisor::default(), || Ok(())), None);
    }

    #[test]
    fn a_panic_of_a_task_on_a_watched_thread_is_a_failure_and_a_contained_one_is_not() {
        let run = |job: fn() -> Result<(), Error>| {
            let supervisor = Supervisor::default();
            let own = supervisor.clone();
            start(&supervisor, move || {
                own.watch_this_thread();
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                // The runtime catches the panic of a task.
                let _ = runtime
                    .expect("a runtime")
                    .block_on(async move { tokio::spawn(async move { drop(job()) }).await });
                Ok(())
            })
        };
        let failed = run(|| panic!("half changed")).expect("a failure");
        assert!(failed.contains("half changed"), "{failed}");
        let contained = run(|| contain("reading x", || panic!("bad bytes")));
        assert_eq!(contained, None);
        let error = contain("reading x", || -> Result<(), Error> { panic!("bad bytes") });
        let error = error.expect_err("an error").to_string();
        assert!(error.starts_with("reading x failed"), "{error}");
        assert!(error.contains("bad bytes"), "{error}");
    }
}
