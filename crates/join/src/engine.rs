//! The tables and joins of one core, and the operations on them.
//!
//! The path of a write is `engine → propagate::maintain → join::updater`, that of a read
//! `evaluate::reads → view → (fill | settle) → rows`.
//!
//! 1. A filled range, once settled, equals the join recomputed from its sources. Every read settles the range first.
//! 2. Time is an argument, in milliseconds, and never decreases.
//! 3. Fields that share an invariant form one type that maintains it. A function that needs one such type takes only
//!    that type.

use std::ops::ControlFlow;

use larder_types::integer;

use crate::base::key_range::table_name;
use crate::base::rows::Value;
use crate::budget::{Budget, StepLimits};
use crate::error::{Error, text};
use crate::evaluate::Reads;
use crate::join::TableId;
use crate::join::joins::Joins;
use crate::memory::Memory;
use crate::propagate::Writes;
use crate::propagate::subscription::Subscriptions;
use crate::shard::Sharding;
use crate::tables::expiry::{Expiry, ExpirySummary};
use crate::tables::log::{ChangeLog, LogEntry};
use crate::tables::table::Tables;

/// Tables and joins, owned by one core.
#[derive(Default)]
pub struct Engine {
    pub(crate) tables: Tables,
    pub(crate) joins: Joins,
    pub(crate) time: Time,
    /// The work that the current operation may still do.
    pub(crate) budget: Budget,
    pub(crate) step_limits: StepLimits,
    pub(crate) writes: Writes,
    pub(crate) reads: Reads,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) memory: Memory,
    pub(crate) expiry: Expiry,
    pub(crate) log: ChangeLog,
    pub(crate) sharding: Sharding,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    /// Time of the last operation, in milliseconds.
    pub now: u64,
    /// Number of operations so far.
    pub ticks: u64,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Number of base rows that changed.
    pub rows: u64,
    /// The change that the reply must wait for: some outputs do not reflect it until [`Engine::is_done`] returns true
    /// for it. `None`: all outputs reflect the write.
    pub waits_for: Option<u64>,
}

impl Engine {
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a base row. The outputs computed from it are up to date on return, or once [`WriteOutcome::waits_for`] is
    /// done.
    ///
    /// # Errors
    /// The key does not name a table, the table is computed, or base rows alone exceed the memory limit. Nothing
    /// changed.
    pub fn put(&mut self, key: &[u8], value: &[u8], now: u64) -> Result<WriteOutcome, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        self.put_row(table, key, value)
    }

    /// Puts a base row even if the memory limit is reached, to restore a row that was removed in favor of a rejected
    /// one.
    ///
    /// # Errors
    /// The key does not name a table, or the table is computed.
    pub fn put_beyond_limit(
        &mut self,
        key: &[u8],
        value: &[u8],
        now: u64,
    ) -> Result<WriteOutcome, Error> {
        let limit = self.memory.limit_bytes.take();
        let written = self.put(key, value, now);
        self.memory.limit_bytes = limit;
        written
    }

    /// Puts a base row unless one exists. [`WriteOutcome::rows`] is 0 if it does.
    ///
    /// # Errors
    /// As [`Engine::put`].
    pub fn put_if_absent(
        &mut self,
        key: &[u8],
        value: &[u8],
        now: u64,
    ) -> Result<WriteOutcome, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        if self.tables[table].rows.get(key).is_some() {
            return Ok(WriteOutcome {
                rows: 0,
                waits_for: None,
            });
        }
        self.put_row(table, key, value)
    }

    /// Adds `by` to a row that holds an integer; an absent row counts as 0. Returns the sum.
    ///
    /// # Errors
    /// As [`Engine::put`], and if the row does not hold an integer or the sum exceeds 64 bits.
    pub fn increment(
        &mut self,
        key: &[u8],
        by: i64,
        now: u64,
    ) -> Result<(i64, WriteOutcome), Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        let before = match self.tables[table].rows.get(key) {
            None => Some(0),
            Some(value) => integer(value),
        };
        let before = before.ok_or_else(|| Error::NotAnInteger { key: key.to_vec() })?;
        let sum = before.checked_add(by);
        let sum = sum.ok_or_else(|| Error::Overflow { key: key.to_vec() })?;
        let expiry = self.expiry.of(key);
        let written = self.put_row(table, key, sum.to_string().as_bytes())?;
        if let Some(at) = expiry {
            self.set_expiry(key, Some(at));
        }
        Ok((sum, written))
    }

    /// Removes a base row. [`WriteOutcome::rows`] is 0 if there was none.
    ///
    /// # Errors
    /// The key does not name a table, or the table is computed.
    pub fn remove(&mut self, key: &[u8], now: u64) -> Result<WriteOutcome, Error> {
        self.begin(now);
        let table = self.base_table(key)?;
        let before = self.writes.backlog.last_change();
        let removed = self.remove_row(table, key);
        self.make_room();
        Ok(self.write_outcome(u64::from(removed), before))
    }

    /// Removes at most `rows_max` base rows of a range. Call it again as long as it removes that many.
    ///
    /// # Errors
    /// The range is in no table, in several tables, or in a computed one.
    pub fn remove_range(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        rows_max: u64,
        now: u64,
    ) -> Result<WriteOutcome, Error> {
        self.begin(now);
        let Some(table) = self.tables.of_range(lo, hi)? else {
            return Ok(WriteOutcome {
                rows: 0,
                waits_for: None,
            });
        };
        self.refuse_computed(table)?;
        let before = self.writes.backlog.last_change();
        // Expired rows do not count as removed, up to the number that one step may expire.
        self.expire_in(lo, hi, self.step_limits.step_rows.unwrap_or(usize::MAX));
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        let _ = self.tables[table].rows.read(lo, hi, false, &mut |key, _| {
            if keys.len() as u64 == rows_max {
                return ControlFlow::Break(());
            }
            keys.push(key.into());
            ControlFlow::Continue(())
        });
        for key in &keys {
            self.remove_row(table, key);
        }
        self.make_room();
        Ok(self.write_outcome(keys.len() as u64, before))
    }

    fn put_row(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<WriteOutcome, Error> {
        self.refuse_beyond_limit(key, value)?;
        if self.log.records_before_images() {
            self.record_before_image(table, key);
        }
        if !self.expiry.is_empty() {
            self.set_expiry(key, None);
        }
        // The database logs rows that come from it.
        if self.tables[table].supplied.is_none() {
            self.log.record(|| LogEntry::Put {
                key: key.to_vec(),
                value: value.to_vec(),
            });
        }
        let state = &mut self.tables[table];
        if state.supplied.as_ref().is_some_and(|s| !s.holds(key)) {
            return Ok(WriteOutcome {
                rows: 1,
                waits_for: None,
            });
        }
        if state.readers.is_empty() && state.subscriptions == 0 {
            state.rows.put_bytes(key, value);
            self.make_room();
            return Ok(WriteOutcome {
                rows: 1,
                waits_for: None,
            });
        }
        let before = self.writes.backlog.last_change();
        let value = Value::new(value);
        let old = state.rows.replace(key, &value);
        self.propagate_change(table, key, old.as_ref(), Some(&value));
        self.make_room();
        Ok(self.write_outcome(1, before))
    }

    /// Records the former value of a row that is about to change.
    #[cold]
    pub(crate) fn record_before_image(&mut self, table: TableId, key: &[u8]) {
        let state = &self.tables[table];
        if state.supplied.is_none() {
            let value = state.rows.get(key);
            self.log
                .record_before_image(key, value, self.expiry.of(key));
        }
    }

    pub(crate) fn remove_row(&mut self, table: TableId, key: &[u8]) -> bool {
        if self.log.records_before_images() {
            self.record_before_image(table, key);
        }
        let Some(old) = self.tables[table].rows.remove(key) else {
            return false;
        };
        if !self.expiry.is_empty() {
            self.set_expiry(key, None);
        }
        if self.tables[table].supplied.is_none() {
            self.log.record(|| LogEntry::Remove { key: key.to_vec() });
        }
        self.propagate_change(table, key, Some(&old), None);
        true
    }

    /// Returns the outcome of a write. `before` is the last change that was pending before it.
    pub(crate) fn write_outcome(&self, rows: u64, before: u64) -> WriteOutcome {
        let last = self.writes.backlog.last_change();
        let waits = last > before && !self.is_done(last);
        WriteOutcome {
            rows,
            waits_for: waits.then_some(last),
        }
    }

    /// Returns whether all outputs reflect `change` and all earlier changes.
    pub fn is_done(&self, change: u64) -> bool {
        self.writes.backlog.is_done(change)
    }

    /// Limits the number of outputs that a write updates before the rest is deferred to [`Engine::step`]. `None`, the
    /// default, means no limit.
    pub fn set_step_rows(&mut self, rows: Option<usize>) {
        self.step_limits.step_rows = rows;
    }

    /// Returns the table of a base row's key, and creates it if necessary.
    pub(crate) fn base_table(&mut self, key: &[u8]) -> Result<TableId, Error> {
        self.expire_if_due(key);
        let name = table_name(key).ok_or_else(|| Error::NoTable { key: key.to_vec() })?;
        let table = self.tables.find_or_create(name);
        self.refuse_computed(table)?;
        Ok(table)
    }

    /// Checks that clients may write the row. Changes nothing.
    ///
    /// # Errors
    /// A join computes the key's table.
    pub fn refuse_computed_row(&self, key: &[u8]) -> Result<(), Error> {
        let table = self.tables.of_key(key);
        table.map_or(Ok(()), |table| self.refuse_computed(table))
    }

    fn refuse_computed(&self, table: TableId) -> Result<(), Error> {
        let state = &self.tables[table];
        match state.makers.first() {
            None => Ok(()),
            Some(&maker) => Err(Error::ComputedTable {
                table: text(&state.name[..state.name.len() - 1]),
                join: self
                    .joins
                    .get(maker)
                    .map_or(String::new(), |j| j.name.clone()),
            }),
        }
    }

    /// Returns whether joins or subscriptions depend on the table's rows.
    pub(crate) fn is_read(&self, table: TableId) -> bool {
        self.tables[table].is_read()
    }

    /// Memory of all rows and of the state that keeps them fresh, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let (tables, joins) = (self.tables.memory_bytes(), self.joins.memory_bytes());
        tables + joins + self.memory.clock.memory_bytes() + self.expiry.memory_bytes()
    }

    /// Summarizes the base rows with a TTL.
    pub fn expiry_summary(&self) -> ExpirySummary {
        self.expiry.summary()
    }

    /// Number of base and computed rows.
    pub fn row_count(&self) -> u64 {
        let base: u64 = self.tables.iter().map(|t| t.rows.len()).sum();
        base + self.joins.all().map(|j| j.output.rows.len()).sum::<u64>()
    }
}
