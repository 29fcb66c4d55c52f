//! What the thread that reads a coordinator's orders, and whoever ends a client, do to the trial under way.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::run::live::Live;

/// Of one visit of a coordinator.
#[derive(Default)]
pub struct SessionControl {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    word: Word,
    /// Of the process that was prepared last.
    live: Option<Arc<Live>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Word {
    #[default]
    Wait,
    Go,
    Stop,
    /// Nobody waits for the answer any more.
    Gone,
}

impl SessionControl {
    /// From here on these trials are meant.
    pub fn take(&self, live: &Arc<Live>) {
        let mut held = self.lock();
        held.live = Some(live.clone());
        if held.word == Word::Gone {
            live.end();
        }
    }

    /// Another trial is asked for: it waits for its start.
    pub fn reset(&self) {
        self.say(Word::Wait);
    }

    pub fn go(&self) {
        self.say(Word::Go);
    }

    /// Ends the trial under way with what it has.
    pub fn stop(&self) {
        if let Some(live) = self.say(Word::Stop) {
            live.stop();
        }
    }

    /// Ends whatever is under way, and lets nothing else begin.
    pub fn part(&self) {
        if let Some(live) = self.say(Word::Gone) {
            live.end();
        }
    }

    pub fn set_threads(&self, threads: u32) {
        if let Some(live) = &self.lock().live {
            live.set_threads(threads);
        }
    }

    pub fn is_gone(&self) -> bool {
        self.lock().word == Word::Gone
    }

    /// # Errors
    ///
    /// That there will be no start.
    pub fn wait_for_go(&self) -> Result<(), String> {
        let held = self
            .changed
            .wait_while(self.lock(), |held| held.word == Word::Wait)
            .unwrap_or_else(PoisonError::into_inner);
        match held.word {
            Word::Go => Ok(()),
            _ => Err("it was told to stop before the trial began".to_owned()),
        }
    }

    fn say(&self, word: Word) -> Option<Arc<Live>> {
        let mut held = self.lock();
        if held.word != Word::Gone {
            held.word = word;
        }
        self.changed.notify_all();
        held.live.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
