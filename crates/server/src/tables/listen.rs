//! Connections that are told of rows that change.
//!
//! ```text
//!  engine ─ heard ─► Tables::tell ─► who has what the key begins with ─► Mailbox ─► the connection's session
//! ```
//!
//! 1. A mailbox holds no more than its limit: a connection that does not take its notes is ended.
//! 2. Notes of one row are put into a mailbox in the order of its changes: they come from the one core that has the row.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use larder_join::RowChange;
use tokio::sync::{Notify, mpsc};

use super::{Refusal, Tables, complete};
use crate::Shared;
use crate::resp::matches;

/// What a note takes beside its key.
const NOTE_BYTES: usize = 96;

/// A row changed.
pub struct Note {
    /// As the client wrote it; nothing if it asked for this key alone.
    pub pattern: Option<Arc<[u8]>>,
    pub key: Box<[u8]>,
    /// It has a value now; else it went.
    pub is_there: bool,
}

/// Where notes wait for a connection.
pub struct Mailbox {
    notes: mpsc::UnboundedSender<Note>,
    bytes: AtomicUsize,
    bytes_max: usize,
    is_full: AtomicBool,
    /// Ends the connection.
    end: Box<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    pub fn new(
        bytes_max: usize,
        end: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<Mailbox>, mpsc::UnboundedReceiver<Note>) {
        let (notes, receiver) = mpsc::unbounded_channel();
        let mailbox = Mailbox {
            notes,
            bytes: AtomicUsize::new(0),
            bytes_max,
            is_full: AtomicBool::new(false),
            end: Box::new(end),
        };
        (Arc::new(mailbox), receiver)
    }

    fn put(&self, note: Note) {
        if self.is_full.load(Relaxed) {
            return;
        }
        let bytes = note.key.len() + NOTE_BYTES;
        if self.bytes.fetch_add(bytes, Relaxed) + bytes <= self.bytes_max {
            // Without its receiver the connection is gone.
            let _ = self.notes.send(note);
        } else if !self.is_full.swap(true, Relaxed) {
            tracing::warn!(
                limit = self.bytes_max,
                "a subscriber did not take its notes and is closed (server.subscriber_buffer_bytes)"
            );
            (self.end)();
        }
    }

    /// To be told of each note that was received.
    pub fn taken(&self, note: &Note) {
        self.bytes.fetch_sub(note.key.len() + NOTE_BYTES, Relaxed);
    }
}

/// What a connection wants to be told of.
#[derive(Clone)]
pub struct Subscription {
    pub id: u64,
    /// What all keys begin with, or the one key.
    pub beginning: Vec<u8>,
    pub is_key: bool,
    /// Which of them.
    pub glob: Vec<u8>,
    pub pattern: Option<Arc<[u8]>>,
    pub mailbox: Arc<Mailbox>,
}

impl Subscription {
    fn means(&self, key: &[u8]) -> bool {
        match self.is_key {
            true => *key == *self.beginning,
            false => matches(&self.glob, key),
        }
    }
}

/// Those of a core, by what their keys begin with.
#[derive(Default)]
pub(super) struct Listeners {
    by_beginning: RefCell<HashMap<Vec<u8>, Vec<Listener>>>,
    /// How long the beginnings are, and how many are so long.
    lengths: RefCell<BTreeMap<usize, usize>>,
    /// Ranges may be behind.
    pub behind: Notify,
    /// They are looked after.
    is_kept: Cell<bool>,
}

struct Listener {
    subscription: Subscription,
    /// The engine's number.
    number: u64,
}

impl Listeners {
    fn tell(&self, heard: &RowChange) {
        let all = self.by_beginning.borrow();
        for &length in self.lengths.borrow().keys() {
            let Some(beginning) = heard.key.get(..length) else {
                return;
            };
            for listener in all.get(beginning).into_iter().flatten() {
                let subscription = &listener.subscription;
                if subscription.means(&heard.key) {
                    subscription.mailbox.put(Note {
                        pattern: subscription.pattern.clone(),
                        key: heard.key.clone(),
                        is_there: heard.is_there,
                    });
                }
            }
        }
    }
}

impl Tables {
    /// Tells those who listen what has been heard.
    pub(super) fn tell(&self) {
        let heard = self.engine.borrow_mut().take_row_changes();
        heard.iter().for_each(|heard| self.listeners.tell(heard));
    }

    /// Whether ranges that are listened to must be read before all is told.
    pub(super) fn are_listeners_behind(&self) -> bool {
        self.listeners.is_kept.get() && !self.engine.borrow().subscriptions_behind().is_empty()
    }

    /// Tells of changes on this core from now on.
    ///
    /// # Errors
    /// Nobody can tell of them.
    pub async fn subscribe(
        self: Rc<Self>,
        subscription: Subscription,
        shared: Arc<Shared>,
    ) -> Result<(), Refusal> {
        let (beginning, is_key) = (&subscription.beginning, subscription.is_key);
        let number = self
            .read_waiting(None, shared.postgres.as_ref(), |engine, now| {
                complete(engine.subscribe(beginning, is_key, now))
            })
            .await?;
        // What was heard until now is not for this one.
        self.tell();
        let length = subscription.beginning.len();
        *self
            .listeners
            .lengths
            .borrow_mut()
            .entry(length)
            .or_default() += 1;
        let mut all = self.listeners.by_beginning.borrow_mut();
        all.entry(subscription.beginning.clone())
            .or_default()
            .push(Listener {
                subscription,
                number,
            });
        if !self.listeners.is_kept.replace(true) {
            tokio::task::spawn_local(self.clone().keep_told(shared));
        }
        Ok(())
    }

    pub fn unsubscribe(&self, id: u64, beginning: &[u8]) {
        let mut all = self.listeners.by_beginning.borrow_mut();
        let Some(own) = all.get_mut(beginning) else {
            return;
        };
        let Some(at) = own.iter().position(|own| own.subscription.id == id) else {
            return;
        };
        let gone = own.swap_remove(at);
        if own.is_empty() {
            all.remove(beginning);
        }
        let mut lengths = self.listeners.lengths.borrow_mut();
        if let Some(count) = lengths.get_mut(&beginning.len()) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&beginning.len());
            }
        }
        self.engine.borrow_mut().unsubscribe(gone.number);
    }

    /// Reads what is behind of the ranges that are listened to, so that all is told. Runs for ever.
    async fn keep_told(self: Rc<Self>, shared: Arc<Shared>) {
        loop {
            self.listeners.behind.notified().await;
            let behind = self.engine.borrow().subscriptions_behind();
            for number in behind {
                self.resumed(None).await;
                let postgres = shared.postgres.as_ref();
                let read = self.read_waiting(None, postgres, |engine, now| {
                    complete(engine.refresh_subscription(number, now))
                });
                if let Err((_, why)) = read.await {
                    tracing::warn!(why, "rows that are subscribed to cannot be computed");
                    // Not at once again.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}
