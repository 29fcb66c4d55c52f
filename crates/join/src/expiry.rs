//! Expiry: base rows that go at a time.

use crate::engine::Engine;
use crate::error::Error;
use crate::log::LogEntry;

impl Engine {
    /// Lets a base row go at a time, in milliseconds; `None` lets it stay. Says whether there is such a row.
    ///
    /// # Errors
    /// The key names no table or a computed one.
    pub fn expire(&mut self, key: &[u8], at: Option<u64>, now: u64) -> Result<bool, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        if self.tables[table as usize].rows.get(key).is_none() {
            return Ok(false);
        }
        self.set_expiry(key, at);
        self.begin(now);
        Ok(true)
    }

    /// When a row will go, in milliseconds.
    pub fn expires_at(&mut self, key: &[u8], now: u64) -> Option<u64> {
        self.begin(now);
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
        self.budget = self.step_rows.unwrap_or(usize::MAX);
        if !self.doubtful.is_empty() {
            self.reconsider_all();
            self.budget = self.step_rows.unwrap_or(usize::MAX);
        }
        while let Some((at, _)) = self.expiries.first()
            && *at <= now
        {
            let (_, key) = self.expiries.first().expect("just seen").clone();
            if let Ok(table) = self.base_table(&key) {
                self.remove_row(table, &key);
            }
            self.set_expiry(&key, None);
        }
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
