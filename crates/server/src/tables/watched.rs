//! Keys that connections watch between WATCH and EXEC: a change of a watched row sets a mark.
//!
//! 1. A mark is set before any other operation on the engine, so an EXEC on this core, or in a pause, sees all earlier
//!    changes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use larder_join::{LogEntry, row_slot};
use larder_types::{row_key, text_row, with_object_row};

use super::objects::has_object;
use super::{Gate, Tables};

/// Set when a row that a connection watches has changed.
pub type Mark = Arc<AtomicBool>;

type Marks = Vec<Weak<AtomicBool>>;

/// A core's watched keys. A connection that ends its WATCH drops the mark.
#[derive(Default)]
pub(super) struct Watched {
    marks: RefCell<HashMap<Box<[u8]>, Marks>>,
}

/// Minimum number of keys at which dropped marks are removed, and again at each power of two.
const CLEAN_AT: usize = 1024;

impl Watched {
    pub fn note(&self, changes: &[LogEntry]) {
        let mut marks = self.marks.borrow_mut();
        if marks.is_empty() {
            return;
        }
        for change in changes {
            if let Some(row) = change.row() {
                let marks = marks.remove(row_key(row));
                marks.unwrap_or_default().iter().for_each(set);
            } else if let LogEntry::RemoveRange { lo, hi } = change {
                marks.retain(|key, marks| {
                    let is_in = |row: &[u8]| lo[..] <= *row && *row < hi[..];
                    let is_hit = is_in(&text_row(key)) || with_object_row(key, is_in);
                    if is_hit {
                        marks.iter().for_each(set);
                    }
                    !is_hit
                });
            }
        }
    }

    /// Sets the marks of slots that moved to another node, where their rows may change.
    pub fn note_moved(&self, has_moved: &dyn Fn(u16) -> bool) {
        self.marks.borrow_mut().retain(|key, marks| {
            let stays = !has_moved(row_slot(key));
            if !stays {
                marks.iter().for_each(set);
            }
            stays
        });
    }
}

fn set(mark: &Weak<AtomicBool>) {
    if let Some(mark) = mark.upgrade() {
        mark.store(true, Ordering::Release);
    }
}

impl Tables {
    /// Removes expired rows, which sets their marks.
    pub fn expire_due(&self, keys: &[Vec<u8>]) {
        let now = self.now();
        let mut engine = self.engine.borrow_mut();
        for key in keys {
            let _ = engine.expires_at(&text_row(key), now);
            has_object(&mut engine, key, now);
        }
        // A failure is recorded and makes the next write fail.
        let _ = self.log(&mut engine, &mut Gate::default());
    }

    /// Registers `mark` to be set when the base row of a key is changed, added or removed on this core.
    pub fn watch(&self, key: &[u8], mark: &Mark) {
        let mut marks = self.watched.marks.borrow_mut();
        if marks.len() >= CLEAN_AT && marks.len().is_power_of_two() {
            marks.retain(|_, marks| {
                marks.retain(|mark| mark.strong_count() > 0);
                !marks.is_empty()
            });
        }
        let own = marks.entry(key.into()).or_default();
        own.retain(|mark| mark.strong_count() > 0);
        own.push(Arc::downgrade(mark));
    }
}
