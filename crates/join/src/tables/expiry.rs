//! Expiry: base rows that go at a time.
//!
//! Every operation lets rows go first whose time has come. Where steps are bounded (see [`Engine::set_step_rows`]) and more of
//! them are due than that, the rest are *late*, and go with the next operations; [`Engine::begin`] by itself is one.
//!
//! 1. No operation on a base row, and no read of base rows, sees one whose time has come: those it would see go first.
//! 2. What is computed from a late row changes when the row goes: a read of outputs waits until none is late.

use std::ops::Bound;

use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::tables::log::LogEntry;

impl Engine {
    /// Lets a base row go at a time, in milliseconds; `None` lets it stay. Says whether there is such a row.
    ///
    /// # Errors
    /// The key names no table or a computed one.
    pub fn expire(&mut self, key: &[u8], at: Option<u64>, now: u64) -> Result<bool, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        if self.tables[table].rows.get(key).is_none() {
            return Ok(false);
        }
        self.set_expiry(key, at);
        self.begin(now);
        Ok(true)
    }

    /// When a row will go, in milliseconds.
    pub fn expires_at(&mut self, key: &[u8], now: u64) -> Option<u64> {
        self.begin(now);
        self.expire_if_late(key);
        self.expires_at.get(key).copied()
    }

    /// When the next row goes, in milliseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Lets rows go whose time has come; every operation does so first.
    pub fn begin(&mut self, now: u64) {
        self.ticks += 1;
        self.now = now;
        self.budget = Budget::of(self.pace.step_rows);
        if !self.doubtful.is_empty() {
            self.reconsider_all();
            self.budget = Budget::of(self.pace.step_rows);
        }
        if self.next_expiry().is_some_and(|at| at <= now) {
            self.expire_some();
        }
    }

    /// Whether rows are still here whose time has come.
    pub fn has_late_rows(&self) -> bool {
        self.next_expiry().is_some_and(|at| at <= self.now)
    }

    /// Lets late rows go, as many as the budget allows and one at the least; then the budget is whole again.
    pub(crate) fn expire_some(&mut self) {
        let budget = self.budget;
        while let Some((at, key)) = self.expiries.first()
            && *at <= self.now
        {
            let key = key.clone();
            self.budget.spend(1);
            self.expire_row(&key);
            if self.budget.is_spent() {
                break;
            }
        }
        self.budget = budget;
    }

    /// Lets all late rows go, however many.
    pub(crate) fn expire_all(&mut self) {
        while self.has_late_rows() {
            self.expire_some();
        }
    }

    /// Lets the late rows of a range of base rows go, at most so many. Says whether all have gone.
    pub(crate) fn expire_in(&mut self, lo: &[u8], hi: &[u8], rows_max: usize) -> bool {
        if !self.has_late_rows() {
            return true;
        }
        let range = (Bound::Included(lo), Bound::Excluded(hi));
        let here = self.expires_at.range::<[u8], _>(range);
        let late = here.filter(|(_, at)| **at <= self.now);
        let keys: Vec<_> = late.map(|(key, _)| key.clone()).take(rows_max).collect();
        keys.iter().for_each(|key| self.expire_row(key));
        keys.len() < rows_max
    }

    /// Lets a base row go if its time has come.
    pub(crate) fn expire_if_late(&mut self, key: &[u8]) {
        if self.has_late_rows() && self.expires_at.get(key).is_some_and(|at| *at <= self.now) {
            self.expire_row(key);
        }
    }

    fn expire_row(&mut self, key: &[u8]) {
        if let Some(table) = self.tables.of_key(key) {
            self.remove_row(table, key);
        }
        self.set_expiry(key, None);
    }

    pub(crate) fn set_expiry(&mut self, key: &[u8], at: Option<u64>) {
        let before = self.expires_at.remove(key);
        if let Some(before) = before {
            self.expiries.remove(&(before, key.into()));
            self.expiry_bytes -= 2 * key.len() + 64;
        }
        if let Some(at) = at {
            self.expires_at.insert(key.into(), at);
            self.expiries.insert((at, key.into()));
            self.expiry_bytes += 2 * key.len() + 64;
        }
        if before.is_some() || at.is_some() {
            self.record(|| LogEntry::Expire {
                key: key.to_vec(),
                at,
            });
        }
    }
}
