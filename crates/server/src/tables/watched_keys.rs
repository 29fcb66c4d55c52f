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

use super::has_object;
use super::{Gate, Tables};

/// Set when a row that a connection watches has changed.
pub type WatchFlag = Arc<AtomicBool>;

type WatchFlags = Vec<Weak<AtomicBool>>;

/// A core's watched keys. A connection that ends its WATCH drops the mark.
#[derive(Default)]
pub(super) struct WatchedKeys {
    flags: RefCell<HashMap<Box<[u8]>, WatchFlags>>,
}

/// Minimum number of keys at which dropped marks are removed, and again at each power of two.
const CLEAN_AT: usize = 1024;

impl WatchedKeys {
    pub fn mark_changed(&self, changes: &[LogEntry]) {
        let mut flags = self.flags.borrow_mut();
        if flags.is_empty() {
            return;
        }
        for change in changes {
            if let Some(row) = change.row() {
                let flags = flags.remove(row_key(row));
                flags.unwrap_or_default().iter().for_each(set_flag);
            } else if let LogEntry::RemoveRange { lo, hi } = change {
                flags.retain(|key, flags| {
                    let is_in = |row: &[u8]| lo[..] <= *row && *row < hi[..];
                    let is_hit = is_in(&text_row(key)) || with_object_row(key, is_in);
                    if is_hit {
                        flags.iter().for_each(set_flag);
                    }
                    !is_hit
                });
            }
        }
    }

    /// Sets the marks of slots that moved to another node, where their rows may change.
    pub fn mark_moved(&self, has_moved: &dyn Fn(u16) -> bool) {
        self.flags.borrow_mut().retain(|key, flags| {
            let stays = !has_moved(row_slot(key));
            if !stays {
                flags.iter().for_each(set_flag);
            }
            stays
        });
    }
}

fn set_flag(mark: &Weak<AtomicBool>) {
    if let Some(mark) = mark.upgrade() {
        mark.store(true, Ordering::Release);
    }
}

impl Tables {
    /// Removes expired rows, which sets their marks.
    pub fn remove_expired(&self, keys: &[Vec<u8>]) {
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
    pub fn watch(&self, key: &[u8], mark: &WatchFlag) {
        let mut flags = self.watched_keys.flags.borrow_mut();
        if flags.len() >= CLEAN_AT && flags.len().is_power_of_two() {
            flags.retain(|_, flags| {
                flags.retain(|mark| mark.strong_count() > 0);
                !flags.is_empty()
            });
        }
        let own = flags.entry(key.into()).or_default();
        own.retain(|mark| mark.strong_count() > 0);
        own.push(Arc::downgrade(mark));
    }
}
