//! Reports when the servers do not answer, and gives up after a time limit.
//!
//! A request to a hanging server may itself take a minute, so a separate thread does this.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output;

/// Time without an answer after which it is reported.
const SAID_AFTER: Duration = Duration::from_secs(3);
/// Time without an answer after which the command gives up.
const AWAY_MAX: Duration = Duration::from_secs(120);

enum News {
    Answered,
    /// The reason.
    Failed(String),
}

/// Reports outages until it is dropped.
pub struct Watch {
    news: Option<Sender<News>>,
    thread: Option<JoinHandle<()>>,
    answered: std::cell::Cell<Instant>,
}

impl Watch {
    /// Starts watching, with the present as the time of the last answer.
    pub fn begin() -> Watch {
        let (news, heard) = channel();
        let thread = std::thread::spawn(move || {
            let mut silence = Silence::new(Instant::now());
            loop {
                let said = match heard.recv_timeout(SAID_AFTER / 4) {
                    Ok(News::Answered) => silence.answered(Instant::now()),
                    Ok(News::Failed(why)) => silence.look(Instant::now(), Some(why)),
                    Err(RecvTimeoutError::Timeout) => silence.look(Instant::now(), None),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if let Some(said) = said {
                    eprintln!("larder: {said}");
                }
            }
        });
        Watch {
            news: Some(news),
            thread: Some(thread),
            answered: Instant::now().into(),
        }
    }

    pub fn answered(&self) {
        self.answered.set(Instant::now());
        self.tell(News::Answered);
    }

    pub fn failed(&self, why: &str) {
        self.tell(News::Failed(why.to_owned()));
    }

    /// Returns whether the time limit has passed.
    pub fn is_over(&self) -> bool {
        self.answered.get().elapsed() > AWAY_MAX
    }

    fn tell(&self, news: News) {
        // The thread receives until the sender is dropped.
        let _ = self.news.as_ref().map(|it| it.send(news));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.news = None;
        // The thread's result is not needed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The time since the last answer, and whether the outage was reported.
struct Silence {
    since: Instant,
    why: Option<String>,
    is_said: bool,
}

impl Silence {
    fn new(now: Instant) -> Silence {
        Silence {
            since: now,
            why: None,
            is_said: false,
        }
    }

    /// Records an answer. Returns the message to print, if an outage was reported.
    fn answered(&mut self, now: Instant) -> Option<String> {
        let before = std::mem::replace(self, Silence::new(now));
        before
            .is_said
            .then(|| "the server answers again".to_owned())
    }

    /// Records a failure, or the passing of time. Returns the message to print, if one is due.
    fn look(&mut self, now: Instant, why: Option<String>) -> Option<String> {
        self.why = why.or(self.why.take());
        let away = now.duration_since(self.since);
        if self.is_said || away < SAID_AFTER {
            return None;
        }
        self.is_said = true;
        let why = self.why.as_deref().unwrap_or("a request is not answered");
        Some(format!(
            "the server has not answered for {}: {why}; it is tried again for {}, and what has begun goes on when it is back",
            output::duration(away),
            output::duration(AWAY_MAX.saturating_sub(away)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_said_once_and_so_is_its_end() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut silence = Silence::new(begun);
        assert_eq!(silence.look(after(1), Some("refused".to_owned())), None);
        let said = silence.look(after(4), None).expect("it is long enough");
        assert!(
            said.contains("for 4 s: refused; it is tried again for 1") && said.contains("is back"),
            "{said}"
        );
        assert_eq!(silence.look(after(9), Some("refused".to_owned())), None);
        let again = silence.answered(after(10));
        assert_eq!(again.as_deref(), Some("the server answers again"));
        assert_eq!(silence.answered(after(11)), None);
        assert_eq!(silence.look(after(13), None), None);
    }
}
