//! Controls the current trial from the thread that reads a coordinator's orders, and from the thread that ends a
//! client.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::run::live::Live;

/// The control of one coordinator's session.
#[derive(Default)]
pub struct SessionControl {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    word: Word,
    /// The state of the process that was prepared last.
    live: Option<Arc<Live>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Word {
    #[default]
    Wait,
    Go,
    Stop,
    /// The coordinator is gone and reads no answer.
    Gone,
}

impl SessionControl {
    /// Directs all further orders to the trials of `live`.
    pub fn take(&self, live: &Arc<Live>) {
        let mut held = self.lock();
        held.live = Some(live.clone());
        if held.word == Word::Gone {
            live.end();
        }
    }

    /// Prepares for another trial, which waits for its start.
    pub fn reset(&self) {
        self.say(Word::Wait);
    }

    pub fn go(&self) {
        self.say(Word::Go);
    }

    /// Ends the current trial with its results so far.
    pub fn stop(&self) {
        if let Some(live) = self.say(Word::Stop) {
            live.stop();
        }
    }

    /// Ends the current work and prevents any other from starting.
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

    /// Waits until the trial may start.
    ///
    /// # Errors
    ///
    /// The trial will not start.
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
