//! Reports when the servers do not answer, and gives up after a time limit.
//!
//! A request to a hanging server may itself take a minute, so a separate thread does this.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output;

/// Time without an answer after which it is reported.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// Time without an answer after which the command gives up.
const OUTAGE_MAX: Duration = Duration::from_secs(120);

enum WatchEvent {
    Answered,
    /// The reason.
    Failed(String),
}

/// Reports outages until it is dropped.
pub struct OutageWatch {
    events: Option<Sender<WatchEvent>>,
    thread: Option<JoinHandle<()>>,
    answered: std::cell::Cell<Instant>,
}

impl OutageWatch {
    /// Starts watching, with the present as the time of the last answer.
    pub fn begin() -> OutageWatch {
        let (events, received) = channel();
        let thread = std::thread::spawn(move || {
            let mut outage = Outage::new(Instant::now());
            loop {
                let message = match received.recv_timeout(REPORT_AFTER / 4) {
                    Ok(WatchEvent::Answered) => outage.answered(Instant::now()),
                    Ok(WatchEvent::Failed(why)) => {
                        outage.observe_failure(Instant::now(), Some(why))
                    }
                    Err(RecvTimeoutError::Timeout) => outage.observe_failure(Instant::now(), None),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if let Some(message) = message {
                    eprintln!("larder: {message}");
                }
            }
        });
        OutageWatch {
            events: Some(events),
            thread: Some(thread),
            answered: Instant::now().into(),
        }
    }

    pub fn answered(&self) {
        self.answered.set(Instant::now());
        self.send(WatchEvent::Answered);
    }

    pub fn failed(&self, why: &str) {
        self.send(WatchEvent::Failed(why.to_owned()));
    }

    /// Returns whether the time limit has passed.
    pub fn is_over(&self) -> bool {
        self.answered.get().elapsed() > OUTAGE_MAX
    }

    fn send(&self, event: WatchEvent) {
        // The thread receives until the sender is dropped.
        let _ = self.events.as_ref().map(|it| it.send(event));
    }
}

impl Drop for OutageWatch {
    fn drop(&mut self) {
        self.events = None;
        // The thread's result is not needed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The time since the last answer, and whether the outage was reported.
struct Outage {
    since: Instant,
    why: Option<String>,
    is_reported: bool,
}

impl Outage {
    fn new(now: Instant) -> Outage {
        Outage {
            since: now,
            why: None,
            is_reported: false,
        }
    }

    /// Records an answer. Returns the message to print, if an outage was reported.
    fn answered(&mut self, now: Instant) -> Option<String> {
        let before = std::mem::replace(self, Outage::new(now));
        before
            .is_reported
            .then(|| "the server answers again".to_owned())
    }

    /// Records a failure, or the passing of time. Returns the message to print, if one is due.
    fn observe_failure(&mut self, now: Instant, why: Option<String>) -> Option<String> {
        self.why = why.or(self.why.take());
        let away = now.duration_since(self.since);
        if self.is_reported || away < REPORT_AFTER {
            return None;
        }
        self.is_reported = true;
        let why = self.why.as_deref().unwrap_or("a request is not answered");
        Some(format!(
            "the server has not answered for {}: {why}; retrying for {}; the operation continues when the server is back",
            output::duration(away),
            output::duration(OUTAGE_MAX.saturating_sub(away)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_and_its_end_are_each_reported_once() {
        let started = Instant::now();
        let after = |seconds| started + Duration::from_secs(seconds);
        let mut outage = Outage::new(started);
        assert_eq!(
            outage.observe_failure(after(1), Some("refused".to_owned())),
            None
        );
        let text = outage
            .observe_failure(after(4), None)
            .expect("it is long enough");
        assert!(
            text.contains("for 4 s: refused; retrying for 1") && text.contains("is back"),
            "{text}"
        );
        assert_eq!(
            outage.observe_failure(after(9), Some("refused".to_owned())),
            None
        );
        let again = outage.answered(after(10));
        assert_eq!(again.as_deref(), Some("the server answers again"));
        assert_eq!(outage.answered(after(11)), None);
        assert_eq!(outage.observe_failure(after(13), None), None);
    }
}
