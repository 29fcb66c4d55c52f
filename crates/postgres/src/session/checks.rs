//! The periodic work of a session. It checks that the connection is alive and that tables and publication are
//! unchanged. While a load or write waits for the replication stream, it makes PostgreSQL write a record that advances
//! the stream.

use std::time::{Duration, Instant};

use larder_types::KeyRange;

use super::{Session, WorkOutcome};
use crate::changes::Altered;
use crate::database::Event;
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::verify::{Verified, VerifiedTable, verify};
use crate::work;

/// Delay before a waiting load or write makes PostgreSQL advance the stream.
const NUDGE_AFTER: Duration = Duration::from_millis(5);
/// Number of beats between two complete checks of the database. While a table has a fault, every beat makes a complete
/// check. All other beats only compare the versions of the catalogs.
const VERIFY_BEATS: u64 = 10;

impl Session {
    /// Compares a new check of the database with the previous one. A table that cannot be followed any more is
    /// excluded. The rows of a table that may have changed without notification are discarded. A table that needs a new
    /// stream waits for it, while the others are followed.
    ///
    /// # Errors
    /// The publication has changed, so the stream may lack changes of all tables. A new slot starts after the
    /// transactions in progress, which may contain such changes.
    pub(super) fn compare(&mut self, mut now: Verified) -> Result<(), Error> {
        if !now.is_published_as(&self.verified) {
            return Err(self.new_stream(format!(
                "the publication {} was changed",
                self.options.publication
            )));
        }
        for (at, why) in now.needing_new_stream(&self.verified) {
            let shown = now.tables[at].mapping.shown();
            now.tables[at].fault = Some(format!(
                "the table {shown} {why}; it is read when the transactions that write in PostgreSQL at present have ended"
            ));
            if self.renewed_at.is_none() {
                self.renewed_at = Some(0);
                self.check_versions();
            }
        }
        let before = std::mem::replace(&mut self.verified, now);
        for at in 0..self.verified.tables.len() {
            if self.verified.tables[at].fault.is_some() && before.tables[at].fault.is_none() {
                self.exclude(at);
            }
        }
        // No transaction could write to these tables during the change.
        let changed = self.verified.changed_since(&before);
        let changed: Vec<KeyRange> = changed.map(|m| KeyRange::prefix(&m.prefix)).collect();
        self.changed.extend(changed);
        self.report_tables();
        Ok(())
    }

    /// Ends the session once no transaction is in progress that a new slot would have to wait for. Until then, the
    /// other tables are followed.
    ///
    /// # Errors
    /// The session must end now.
    pub(super) fn end_when_renewable(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match &mut self.renewed_at {
            None => return Ok(()),
            Some(at) if *at == 0 => *at = snapshot.xmax,
            Some(_) => {}
        }
        if self.renewed_at.is_some_and(|at| snapshot.xmin >= at) {
            Err(self.new_stream("tables were added or altered".to_owned()))
        } else {
            Ok(())
        }
    }

    fn new_stream(&mut self, why: String) -> Error {
        self.needs_new_stream = true;
        Error::Setup(format!("{why}; all tables are loaded again"))
    }

    /// Excludes tables that the stream describes and that no longer match their mappings.
    pub(super) fn exclude_altered(&mut self, altered: Vec<Altered>) {
        for Altered { mapping, why } in altered {
            let mut tables = self.verified.tables.iter();
            let Some(at) = tables.position(|table| table.mapping.name == mapping.name) else {
                continue;
            };
            let fault = format!("the table {} was altered: {why}", mapping.shown());
            self.verified.tables[at].fault = Some(fault);
            self.exclude(at);
            self.changed.push(KeyRange::prefix(&mapping.prefix));
        }
        self.report_tables();
        self.verify_again();
    }

    /// Fails the loads of a table that cannot be followed any more, and stops translating its changes.
    fn exclude(&mut self, at: usize) {
        let VerifiedTable { mapping, fault, .. } = &self.verified.tables[at];
        let error = Error::Setup(fault.clone().unwrap_or_default());
        self.translator.exclude(&mapping.name);
        for load in self.merge.loads_of(&KeyRange::prefix(&mapping.prefix)) {
            self.merge.forget_load(load);
            for done in self.loads.remove(&load).unwrap_or_default() {
                // The reader may have stopped waiting.
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Reports the tables that cannot be followed in INFO, `/readyz` and the log.
    pub(super) fn report_tables(&self) {
        let tables = self.verified.tables.iter();
        let tables = tables.map(|table| (table.mapping.name.clone(), table.fault.clone()));
        self.stats.set_tables(tables.collect());
    }

    /// Discards a range whose rows may have changed without notification.
    pub(super) fn forget(&mut self, range: KeyRange, sink: &dyn Fn(Event)) {
        self.merge.invalidate(&range);
        sink(Event::Forget {
            ranges: vec![range],
        });
    }

    pub(super) fn beat(&mut self) -> Result<(), Error> {
        let silence = self.last_message_at.elapsed();
        if silence >= self.options.silence_timeout {
            return Err(Error::Unreachable(format!(
                "PostgreSQL sent nothing for {} seconds",
                silence.as_secs()
            )));
        }
        if silence >= self.options.silence_timeout / 2 {
            self.nudge();
        }
        self.beats += 1;
        self.check_versions();
        let mut tables = self.verified.tables.iter();
        let has_fault = tables.any(|table| table.fault.is_some());
        if has_fault || self.beats.is_multiple_of(VERIFY_BEATS) {
            self.verify_again();
        }
        Ok(())
    }

    /// Starts a query of PostgreSQL's position and of the versions of its catalogs.
    pub(super) fn check_versions(&mut self) {
        self.beats_in_flight += 1;
        let (pool, version_query) = (self.pool.clone(), self.verified.version_query.clone());
        self.work.push(Box::pin(async move {
            WorkOutcome::Beat(work::beat(&pool, &version_query).await)
        }));
    }

    pub(super) fn verify_again(&mut self) {
        // Changes during a check are detected by the next one.
        if std::mem::replace(&mut self.is_verifying, true) {
            return;
        }
        let (pool, options) = (self.pool.clone(), self.options.clone());
        self.work.push(Box::pin(async move {
            let connection = match pool.get().await {
                Ok(connection) => connection,
                Err(error) => return WorkOutcome::Verified(Err(error)),
            };
            let verified =
                verify(connection.client(), &options.mappings, &options.publication).await;
            connection.release();
            WorkOutcome::Verified(verified)
        }));
    }

    /// Returns the time at which PostgreSQL must be made to advance the stream.
    pub(super) fn nudge_at(&self) -> Option<Instant> {
        let since = self.awaited_since.filter(|_| !self.is_nudging)?;
        self.merge.awaited_position().map(|_| since + NUDGE_AFTER)
    }

    pub(super) fn nudge(&mut self) {
        if std::mem::replace(&mut self.is_nudging, true) {
            return;
        }
        let pool = self.pool.clone();
        self.work.push(Box::pin(async move {
            // Success is visible in the stream.
            let _ = work::nudge(&pool).await;
            WorkOutcome::NudgeSent
        }));
    }
}
