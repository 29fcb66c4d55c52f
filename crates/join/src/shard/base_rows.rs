//! Base rows whose ownership this shard gains and loses at run time. Another component stores and logs them at other
//! times.
//!
//! ```text
//!   stored elsewhere ── adopt ──► base rows, visible and read by joins ── remove_unowned ──► stored elsewhere
//! ```
//!
//! 1. Neither operation is logged or reported to subscribers: from the clients' view, the row existed throughout.
//! 2. The caller drops what was computed from removed rows, with [`Engine::change_owners`] or
//!    [`Engine::discard_computed_from`].

use crate::base::key_range::{Flow, KeyRange, table_name};
use crate::base::rows::Value;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::tables::log::BeforeImage;

/// A callback that receives a key, a value and the expiry time at a time, until it breaks.
pub type EachBaseRow<'a> = dyn FnMut(&[u8], &[u8], Option<u64>) -> Flow + 'a;

/// Maximum number of changes that [`Engine::has_before_images_in`] scans.
const BEFORE_IMAGES_SCANNED_MAX: usize = 4096;

impl Engine {
    /// Adds a base row, in place of an existing one. If joins compute its table, the row is hidden while they exist.
    ///
    /// # Errors
    /// The key does not name a table.
    pub fn adopt(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(), Error> {
        let name = table_name(key).ok_or_else(|| Error::NoTable { key: key.to_vec() })?;
        let table = self.tables.find_or_create(name);
        let is_logged = self.log.pause();
        self.set_budget(Budget::limited_to(self.step_limits.step_rows));
        let state = &mut self.tables[table];
        if state.readers.is_empty() {
            state.rows.put_bytes(key, value);
        } else {
            let value = Value::new(value);
            let old = state.rows.replace(key, &value);
            let subscriptions = std::mem::take(&mut state.subscriptions);
            self.propagate_change(table, key, old.as_ref(), Some(&value));
            self.tables[table].subscriptions = subscriptions;
        }
        self.set_expiry(key, expires_at);
        self.log.resume(is_logged);
        self.make_room();
        Ok(())
    }

    /// Removes a base row that the shard no longer owns. Returns whether it existed.
    pub fn remove_unowned(&mut self, key: &[u8]) -> bool {
        let Some(table) = self.tables.of_key(key) else {
            return false;
        };
        let is_logged = self.log.pause();
        self.set_budget(Budget::limited_to(self.step_limits.step_rows));
        let subscriptions = std::mem::take(&mut self.tables[table].subscriptions);
        let existed = self.remove_row(table, key);
        self.tables[table].subscriptions = subscriptions;
        self.log.resume(is_logged);
        existed
    }

    /// Drops what was computed from rows in the slots, and replicas of other shards' rows in them.
    pub fn discard_computed_from(&mut self, slots: &dyn Fn(u16) -> bool) {
        self.discard_slots(slots);
    }

    /// Returns a base row with its expiry time, even if it has expired.
    pub fn base_row(&self, key: &[u8]) -> Option<(&[u8], Option<u64>)> {
        let table = self.tables.of_key(key)?;
        let value = self.tables[table].rows.get(key)?;
        Some((value, self.expiry.of(key)))
    }

    /// Passes the values of base rows to `each`, in the order of `keys`, with the index of the key; `None` if there is
    /// no row. This is faster than separate lookups.
    pub fn base_values<'e>(
        &'e self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Option<&'e [u8]>),
    ) {
        let mut begin = 0;
        while begin < keys.len() {
            let name = table_name(keys[begin]);
            let others = keys[begin..].iter().position(|key| table_name(key) != name);
            let end = others.map_or(keys.len(), |others| begin + others);
            match name.and_then(|name| self.tables.named(name)) {
                Some(table) => {
                    let rows = &self.tables[table].rows;
                    rows.get_each(&keys[begin..end], &mut |at, value| each(begin + at, value));
                }
                None => (begin..end).for_each(|at| each(at, None)),
            }
            begin = end;
        }
    }

    /// Passes the base rows of a range of one table with their expiry times to `each`, in key order, including expired
    /// rows.
    pub fn read_base_rows(&self, lo: &[u8], hi: &[u8], each: &mut EachBaseRow<'_>) {
        let Some(table) = self.tables.of_key(lo) else {
            return;
        };
        let expiry = &self.expiry;
        let _ = self.tables[table]
            .rows
            .read(lo, hi, false, &mut |key, value| {
                let expires_at = if expiry.is_empty() {
                    None
                } else {
                    expiry.of(key)
                };
                each(key, value, expires_at)
            });
    }

    /// Enables or disables [`Engine::take_before_images`]; disabled by default.
    pub fn enable_before_images(&mut self, on: bool) {
        self.log.enable_before_images(on);
    }

    /// Returns whether a base row of the range may have changed since the last call of
    /// [`Engine::take_before_images`]. After many changes the answer is true for any range, because each call scans the
    /// changes.
    pub fn has_before_images_in(&self, range: &KeyRange) -> bool {
        let images = self.log.before_images();
        images.len() > BEFORE_IMAGES_SCANNED_MAX
            || images.iter().any(|image| range.contains(&image.key))
    }

    /// Returns the former state of base rows that have changed since the last call. The first entry of each row counts.
    pub fn take_before_images(&mut self) -> Vec<BeforeImage> {
        self.log.take_before_images()
    }
}
