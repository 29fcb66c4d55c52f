//! Expiry of base rows with a TTL.
//!
//! Every operation first removes expired rows. If steps are bounded (see [`Engine::set_step_rows`]) and more rows have
//! expired than one step may remove, the rest are *late*: the next operations remove them. [`Engine::begin`] alone is
//! such an operation.
//!
//! 1. No operation on a base row, and no read of base rows, sees an expired row: those in its range are removed first.
//! 2. Rows computed from a late row change when it is removed. A read of an output waits until no row is late.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::tables::log::LogEntry;

/// The expiry times of rows. Both maps hold the same rows.
#[derive(Default)]
pub struct Expiry {
    by_time: BTreeSet<(u64, Box<[u8]>)>,
    by_key: BTreeMap<Box<[u8]>, u64>,
    /// The sum of all expiry times, in milliseconds.
    sum_ms: u128,
    bytes: usize,
}

/// The number of rows with a TTL, and their expiry times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpirySummary {
    pub rows: u64,
    /// The sum of their expiry times, in milliseconds.
    pub sum_ms: u128,
}

impl ExpirySummary {
    pub fn add(&mut self, other: ExpirySummary) {
        self.rows += other.rows;
        self.sum_ms += other.sum_ms;
    }

    /// Average remaining TTL in milliseconds; 0 without rows.
    pub fn average_ttl_ms(self, now: u64) -> u64 {
        let average = self.sum_ms.checked_div(u128::from(self.rows));
        let average = average.and_then(|at| u64::try_from(at).ok());
        average.unwrap_or(0).saturating_sub(now)
    }
}

impl Expiry {
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn summary(&self) -> ExpirySummary {
        ExpirySummary {
            rows: self.by_key.len() as u64,
            sum_ms: self.sum_ms,
        }
    }

    /// Returns a row's expiry time.
    pub fn of(&self, key: &[u8]) -> Option<u64> {
        self.by_key.get(key).copied()
    }

    /// Returns the earliest expiry time.
    pub fn first(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Returns the row that expires next, if its time has passed.
    fn next_expired(&self, now: u64) -> Option<&[u8]> {
        let (at, key) = self.by_time.first()?;
        (*at <= now).then_some(&**key)
    }

    /// Returns at most `rows_max` expired rows of a range.
    fn expired_in(&self, lo: &[u8], hi: &[u8], now: u64, rows_max: usize) -> Vec<Box<[u8]>> {
        let range = (Bound::Included(lo), Bound::Excluded(hi));
        let entries = self.by_key.range::<[u8], _>(range);
        let expired = entries.filter(|(_, at)| **at <= now);
        expired.map(|(key, _)| key.clone()).take(rows_max).collect()
    }

    /// Sets or removes a row's expiry time. Returns whether this changed it.
    fn set(&mut self, key: &[u8], at: Option<u64>) -> bool {
        let before = self.by_key.remove(key);
        if let Some(before) = before {
            self.by_time.remove(&(before, key.into()));
            self.sum_ms -= u128::from(before);
            self.bytes -= entry_bytes(key);
        }
        if let Some(at) = at {
            self.by_key.insert(key.into(), at);
            self.by_time.insert((at, key.into()));
            self.sum_ms += u128::from(at);
            self.bytes += entry_bytes(key);
        }
        before.is_some() || at.is_some()
    }

    /// Iterates over all rows with a TTL, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.by_key.iter().map(|(key, at)| (&**key, *at))
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

fn entry_bytes(key: &[u8]) -> usize {
    2 * key.len() + 64
}

impl Engine {
    /// Sets the expiry time of a base row, in milliseconds; `None` removes it. Returns whether the row exists.
    ///
    /// # Errors
    /// The key does not name a table, or the table is computed.
    pub fn expire(&mut self, key: &[u8], at: Option<u64>, now: u64) -> Result<bool, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        if self.tables[table].rows.get(key).is_none() {
            return Ok(false);
        }
        if self.log.records_before_images() {
            self.record_before_image(table, key);
        }
        self.set_expiry(key, at);
        self.begin(now);
        Ok(true)
    }

    /// Returns a row's expiry time, in milliseconds.
    pub fn expires_at(&mut self, key: &[u8], now: u64) -> Option<u64> {
        self.begin(now);
        self.expire_if_due(key);
        self.expiry.of(key)
    }

    /// Returns the earliest expiry time of all rows, in milliseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expiry.first()
    }

    /// Starts an operation at time `now`: removes expired rows, as many as one step may.
    pub fn begin(&mut self, now: u64) {
        self.time.ticks += 1;
        self.time.now = now;
        self.set_budget(Budget::limited_to(self.step_limits.step_rows));
        if !self.writes.to_review.is_empty() {
            self.review_lists();
            self.set_budget(Budget::limited_to(self.step_limits.step_rows));
        }
        if self.next_expiry().is_some_and(|at| at <= now) {
            self.expire_some();
        }
    }

    /// Returns whether expired rows have not been removed yet.
    pub fn has_expired_rows(&self) -> bool {
        self.next_expiry().is_some_and(|at| at <= self.time.now)
    }

    /// Removes expired rows as far as the budget allows, and at least one. The budget is then restored.
    pub(crate) fn expire_some(&mut self) {
        let budget = self.budget;
        while let Some(key) = self.expiry.next_expired(self.time.now) {
            let key = Box::<[u8]>::from(key);
            self.budget.spend(1);
            self.expire_row(&key);
            if self.budget.is_spent() {
                break;
            }
        }
        self.set_budget(budget);
    }

    /// Removes all expired rows, without a limit.
    pub(crate) fn expire_all(&mut self) {
        while self.has_expired_rows() {
            self.expire_some();
        }
    }

    /// Removes at most `rows_max` expired rows of a range. Returns whether none is left.
    pub(crate) fn expire_in(&mut self, lo: &[u8], hi: &[u8], rows_max: usize) -> bool {
        if !self.has_expired_rows() {
            return true;
        }
        let keys = self.expiry.expired_in(lo, hi, self.time.now, rows_max);
        keys.iter().for_each(|key| self.expire_row(key));
        keys.len() < rows_max
    }

    /// Removes a base row if it has expired.
    pub(crate) fn expire_if_due(&mut self, key: &[u8]) {
        let is_expired = |at: u64| at <= self.time.now;
        if self.has_expired_rows() && self.expiry.of(key).is_some_and(is_expired) {
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
        if self.expiry.set(key, at) {
            self.log.record(|| LogEntry::Expire {
                key: key.to_vec(),
                at,
            });
        }
    }
}
