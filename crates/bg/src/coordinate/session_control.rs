//! Controls the current trial from the thread that reads a coordinator's requests, and from the thread that ends a
//! client.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::run::live::Live;

/// The control of one coordinator's session.
#[derive(Default)]
pub struct SessionControl {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Default)]
struct ControlState {
    signal: Signal,
    /// The state of the process that was prepared last.
    live: Option<Arc<Live>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Signal {
    #[default]
    Wait,
    Go,
    Stop,
    /// The coordinator is gone and reads no answer.
    Disconnected,
}

impl SessionControl {
    /// Directs all further requests to the trials of `live`.
    pub fn attach(&self, live: &Arc<Live>) {
        let mut state = self.lock();
        state.live = Some(live.clone());
        if state.signal == Signal::Disconnected {
            live.end();
        }
    }

    /// Prepares for another trial, which waits for its start.
    pub fn reset(&self) {
        self.set_signal(Signal::Wait);
    }

    pub fn go(&self) {
        self.set_signal(Signal::Go);
    }

    /// Ends the current trial with its results so far.
    pub fn stop(&self) {
        if let Some(live) = self.set_signal(Signal::Stop) {
            live.stop();
        }
    }

    /// Ends the current work and prevents any other from starting.
    pub fn disconnect(&self) {
        if let Some(live) = self.set_signal(Signal::Disconnected) {
            live.end();
        }
    }

    pub fn set_threads(&self, threads: u32) {
        if let Some(live) = &self.lock().live {
            live.set_threads(threads);
        }
    }

    pub fn is_disconnected(&self) -> bool {
        self.lock().signal == Signal::Disconnected
    }

    /// Waits until the trial may start.
    ///
    /// # Errors
    ///
    /// The trial will not start.
    pub fn wait_for_go(&self) -> Result<(), String> {
        let state = self
            .changed
            .wait_while(self.lock(), |state| state.signal == Signal::Wait)
            .unwrap_or_else(PoisonError::into_inner);
        match state.signal {
            Signal::Go => Ok(()),
            _ => Err("the trial was stopped before it began".to_owned()),
        }
    }

    fn set_signal(&self, signal: Signal) -> Option<Arc<Live>> {
        let mut state = self.lock();
        if state.signal != Signal::Disconnected {
            state.signal = signal;
        }
        self.changed.notify_all();
        state.live.clone()
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
