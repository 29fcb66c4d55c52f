//! Objects in an engine, and the expiry of the fields of hashes. `resp/objects` has all else about objects.
//!
//! The expired fields of a hash are removed by a read of the hash, or by any read, and within a second at the latest. In an
//! engine without objects, the cost is the check of a flag.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use larder_join::{Engine, KeyRange, LogEntry};
use larder_space::object::{Object, ObjectView};
use larder_types::{object_key, with_object_row};

use super::Tables;

/// Maximum number of hashes whose expired fields are removed in one step.
const EXPIRED_HASHES_PER_STEP: usize = 64;

/// Passes a key's encoded object to `read`. Returns `None` if there is none.
#[inline]
pub fn read_object<T>(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    read: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    if !engine.has_objects() {
        return None;
    }
    with_object_row(key, |row| {
        // Remove the object or its fields first, if they have expired.
        engine.expires_at(row, now);
        let (bytes, _) = engine.base_row(row)?;
        if ObjectView::next_expiry_ms(bytes).is_some_and(|at| at <= now) {
            remove_expired_fields(engine, row, now);
        }
        engine.base_row(row).map(|(bytes, _)| read(bytes))
    })
}

/// Removes expired fields of a hash, and the hash with its last field.
#[cold]
fn remove_expired_fields(engine: &mut Engine, row: &[u8], now: u64) {
    let at = engine.expires_at(row, now);
    let Some(Ok(Object::Hash(mut hash))) = engine.base_row(row).map(|(it, _)| Object::decode(it))
    else {
        return;
    };
    hash.expire(now);
    let done = if hash.fields.is_empty() {
        engine.remove(row, now).map(drop)
    } else {
        engine
            .put(row, &Object::Hash(hash).encode(), now)
            .and_then(|_| match at {
                Some(_) => engine.expire(row, at, now).map(drop),
                None => Ok(()),
            })
    };
    if let Err(error) = done {
        // The fields are invisible nevertheless: readers of a hash check expiry times.
        tracing::debug!(%error, "expired fields cannot be removed yet");
    }
}

/// The expiry times of hash fields on a core: the earliest of each hash. Expired fields are removed by a read of the
/// hash, or by any read, and within a second at the latest.
#[derive(Default)]
pub(super) struct FieldExpiries {
    index: RefCell<ExpiryIndex>,
    /// The earliest time; `u64::MAX` if there is none.
    next: Cell<NextExpiry>,
}

#[derive(Default)]
struct ExpiryIndex {
    by_time: BTreeSet<(u64, Box<[u8]>)>,
    by_key: HashMap<Box<[u8]>, u64>,
}

#[derive(Clone, Copy)]
struct NextExpiry(u64);

impl Default for NextExpiry {
    fn default() -> NextExpiry {
        NextExpiry(u64::MAX)
    }
}

impl FieldExpiries {
    #[inline]
    pub fn are_due(&self, now: u64) -> bool {
        self.next.get().0 <= now
    }

    /// Updates the times after rows were put or removed.
    pub fn apply_changes(&self, changes: &[LogEntry]) {
        for change in changes {
            match change {
                LogEntry::Put { key, value } if ObjectView::expires(value) => {
                    self.set(key, ObjectView::next_expiry_ms(value));
                }
                LogEntry::Put { key, .. } | LogEntry::Remove { key } => self.set(key, None),
                _ => {}
            }
        }
    }

    /// Sets the earliest expiry time of a hash's fields; `None` removes it.
    pub fn set(&self, row: &[u8], at: Option<u64>) {
        let Some(key) = object_key(row) else { return };
        let times = &mut *self.index.borrow_mut();
        if at.is_none() && times.by_key.is_empty() {
            return;
        }
        if let Some(before) = times.by_key.remove(key) {
            times.by_time.remove(&(before, key.into()));
        }
        if let Some(at) = at {
            times.by_key.insert(key.into(), at);
            times.by_time.insert((at, key.into()));
        }
        let next = times.by_time.first().map_or(u64::MAX, |(at, _)| *at);
        self.next.set(NextExpiry(next));
    }

    /// Returns the keys of some hashes with expired fields.
    fn due_keys(&self, now: u64) -> Vec<Box<[u8]>> {
        let times = self.index.borrow();
        let due = times.by_time.iter().take_while(|(at, _)| *at <= now);
        due.take(EXPIRED_HASHES_PER_STEP)
            .map(|(_, key)| key.clone())
            .collect()
    }
}

/// Returns whether a key has an object.
#[inline]
pub fn has_object(engine: &mut Engine, key: &[u8], now: u64) -> bool {
    read_object(engine, key, now, |_| ()).is_some()
}

impl Tables {
    /// Removes some expired fields.
    pub(super) fn remove_due_fields(&self, engine: &mut Engine, now: u64) {
        for key in self.field_expiries.due_keys(now) {
            let left = read_object(engine, &key, now, ObjectView::next_expiry_ms).flatten();
            // The hash may have moved with its slot, or the change failed. Otherwise, the change sets the time again.
            let next_expiry = left.map(|at| at.max(now + 1000));
            with_object_row(&key, |row| self.field_expiries.set(row, next_expiry));
        }
    }

    /// Records the times of all hashes at startup.
    pub(super) fn load_field_expiries(&self) {
        let engine = self.engine.borrow();
        for table in engine.tables() {
            let range = KeyRange::prefix(&table.name);
            if object_key(&table.name).is_none() {
                continue;
            }
            engine.read_base_rows(&range.lo, &range.hi, &mut |row, object, _| {
                if ObjectView::expires(object) {
                    self.field_expiries
                        .set(row, ObjectView::next_expiry_ms(object));
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Updates the times of rows that arrived or left with their slots.
    pub(super) fn update_moved_field_expiries(&self, rows: &[Box<[u8]>]) {
        if rows.is_empty() {
            return;
        }
        let engine = self.engine.borrow();
        for row in rows {
            let object = engine.base_row(row);
            let at = object.and_then(|(object, _)| ObjectView::next_expiry_ms(object));
            self.field_expiries.set(row, at);
        }
    }

    /// Returns whether hashes have expired fields, which are removed in steps. Reads of a hash do not return them.
    pub fn has_expired_fields(&self) -> bool {
        self.field_expiries.are_due(self.now())
    }
}
