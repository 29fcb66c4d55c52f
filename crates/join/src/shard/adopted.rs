//! Base rows that this shard comes to own, and ceases to own, while it runs: somebody else keeps and logs them meanwhile.
//!
//! ```text
//!   kept elsewhere ── adopt ──► base rows, seen and followed by joins ── surrender ──► kept elsewhere
//! ```
//!
//! 1. Neither is logged, and nobody who subscribed to a row is told: to clients the row was there all the time.
//! 2. What was computed from rows that are surrendered is forgotten by the caller: [`Engine::change_owners`] does, and
//!    [`Engine::forget_computed_from`].

use crate::base::key_range::{Flow, KeyRange, table_name};
use crate::base::rows::Value;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::tables::log::Before;

/// Takes rows with when they go, one after the other, until it breaks.
pub type EachBaseRow<'a> = dyn FnMut(&[u8], &[u8], Option<u64>) -> Flow + 'a;

impl Engine {
    /// Takes in a base row, in place of one that is there. Joins that compute its table hide it as long as they are there.
    ///
    /// # Errors
    /// The key names no table.
    pub fn adopt(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(), Error> {
        let name = table_name(key).ok_or_else(|| Error::NoTable { key: key.to_vec() })?;
        let table = self.tables.named_or_new(name);
        let is_logged = self.log.pause();
        self.set_budget(Budget::of(self.pace.step_rows));
        let state = &mut self.tables[table];
        if state.readers.is_empty() {
            state.rows.put_bytes(key, value);
        } else {
            let value = Value::new(value);
            let old = state.rows.replace(key, &value);
            let subscriptions = std::mem::take(&mut state.subscriptions);
            self.changed(table, key, old.as_ref(), Some(&value));
            self.tables[table].subscriptions = subscriptions;
        }
        self.set_expiry(key, expires_at);
        self.log.go_on(is_logged);
        self.make_room();
        Ok(())
    }

    /// Gives up a base row; says whether there was one.
    pub fn surrender(&mut self, key: &[u8]) -> bool {
        let Some(table) = self.tables.of_key(key) else {
            return false;
        };
        let is_logged = self.log.pause();
        self.set_budget(Budget::of(self.pace.step_rows));
        let subscriptions = std::mem::take(&mut self.tables[table].subscriptions);
        let was_there = self.remove_row(table, key);
        self.tables[table].subscriptions = subscriptions;
        self.log.go_on(is_logged);
        was_there
    }

    /// Forgets what was computed from rows in some slots, and copies of other shards' rows in them.
    pub fn forget_computed_from(&mut self, slots: &dyn Fn(u16) -> bool) {
        self.forget_slots(slots);
    }

    /// A base row with when it goes, also if its time has come.
    pub fn base_row(&self, key: &[u8]) -> Option<(&[u8], Option<u64>)> {
        let table = self.tables.of_key(key)?;
        let value = self.tables[table].rows.get(key)?;
        Some((value, self.expiry.of(key)))
    }

    /// Hands out the values of base rows by their keys, in the order of these, with each key's number; `None` where there is no row. Many rows take
    /// less time together than one by one.
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

    /// Hands out the base rows of a range of one table with when they go, in the order of their keys, also those whose time has come.
    pub fn read_base_rows(&self, lo: &[u8], hi: &[u8], each: &mut EachBaseRow<'_>) {
        let Some(table) = self.tables.of_key(lo) else {
            return;
        };
        let expiry = &self.expiry;
        let _ = self.tables[table]
            .rows
            .read(lo, hi, false, &mut |key, value| {
                let expires_at = match expiry.is_empty() {
                    true => None,
                    false => expiry.of(key),
                };
                each(key, value, expires_at)
            });
    }

    /// Whether [`Engine::take_befores`] has anything to tell; off at first.
    pub fn record_befores(&mut self, on: bool) {
        self.log.set_befores(on);
    }

    /// Whether a base row of the range has changed since [`Engine::take_befores`] was last called. Scans all changes since then.
    pub fn has_befores_in(&self, range: &KeyRange) -> bool {
        let mut befores = self.log.befores().iter();
        befores.any(|before| range.contains(&before.key))
    }

    /// What base rows were that have changed since it was last asked: of each the first word counts.
    pub fn take_befores(&mut self) -> Vec<Before> {
        self.log.take_befores()
    }
}
