//! What a session does at regular times while nothing comes from PostgreSQL: it checks that the connection lives, that tables and publication
//! are as they were, and, when a load or write waits for the replication stream, it has PostgreSQL write something that moves the stream on.

use std::time::{Duration, Instant};

use super::{Done, Session};
use crate::changes::Altered;
use crate::database::Event;
use crate::error::Error;
use crate::range::Range;
use crate::snapshot::Snapshot;
use crate::verify::{Verified, VerifiedTable, verify};
use crate::work;

/// A load or write that waits for the stream has PostgreSQL asked to write on after so long.
const NUDGE_AFTER: Duration = Duration::from_millis(5);
/// Every so many beats all of the database is looked at again, and at each one while a table has a fault; otherwise each beat compares the
/// versions of its catalogs.
const VERIFY_BEATS: u64 = 10;

impl Session {
    /// Compares a new look at the database with the one before. A table that cannot be followed any more is excluded, one that may have changed
    /// unseen is forgotten, and one that needs a new stream waits for it while the others are followed.
    ///
    /// # Errors
    /// The publication is another one: the stream may lack changes of all tables. A new slot begins behind the transactions that are under way,
    /// which may hold such changes.
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
        // Nobody could write these tables in the midst of the change.
        let changed = self.verified.changed_since(&before);
        let changed: Vec<Range> = changed.map(|m| Range::prefix(&m.prefix)).collect();
        self.changed.extend(changed);
        self.report_tables();
        Ok(())
    }

    /// Ends the session for a new one once no transaction is under way that the new slot would wait for: until then the other tables are followed.
    ///
    /// # Errors
    /// It is time.
    pub(super) fn renew_behind(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match &mut self.renewed_at {
            None => return Ok(()),
            Some(at) if *at == 0 => *at = snapshot.xmax,
            Some(_) => {}
        }
        match self.renewed_at.is_some_and(|at| snapshot.xmin >= at) {
            true => Err(self.new_stream("tables were added or altered".to_owned())),
            false => Ok(()),
        }
    }

    fn new_stream(&mut self, why: String) -> Error {
        self.needs_new_stream = true;
        Error::Setup(format!("{why}; all tables are loaded again"))
    }

    /// The stream describes tables that no longer fit their mappings.
    pub(super) fn exclude_altered(&mut self, altered: Vec<Altered>) {
        for Altered { mapping, why } in altered {
            let mut tables = self.verified.tables.iter();
            let Some(at) = tables.position(|table| table.mapping.name == mapping.name) else {
                continue;
            };
            let fault = format!("the table {} was altered: {why}", mapping.shown());
            self.verified.tables[at].fault = Some(fault);
            self.exclude(at);
            self.changed.push(Range::prefix(&mapping.prefix));
        }
        self.report_tables();
        self.verify_again();
    }

    /// Ends the loads of a table that cannot be followed any more, and its changes.
    fn exclude(&mut self, at: usize) {
        let VerifiedTable { mapping, fault, .. } = &self.verified.tables[at];
        let error = Error::Setup(fault.clone().unwrap_or_default());
        self.translator.exclude(&mapping.name);
        for load in self.merge.loads_of(&Range::prefix(&mapping.prefix)) {
            self.merge.forget_load(load);
            for done in self.loads.remove(&load).unwrap_or_default() {
                // The reader may have gone.
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Shows in INFO, `/readyz` and the log which tables cannot be followed.
    pub(super) fn report_tables(&self) {
        let tables = self.verified.tables.iter();
        let tables = tables.map(|table| (table.mapping.name.clone(), table.fault.clone()));
        self.stats.set_tables(tables.collect());
    }

    /// Rows of a range may have changed without being told of.
    pub(super) fn forget(&mut self, range: Range, sink: &dyn Fn(Event)) {
        self.merge.disturb(&range);
        sink(Event::Forget {
            ranges: vec![range],
        });
    }

    pub(super) fn beat(&mut self) -> Result<(), Error> {
        let silence = self.last_message_at.elapsed();
        if silence >= self.options.silence_timeout {
            return Err(Error::Unreachable(format!(
                "nothing came from PostgreSQL for {} seconds",
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

    /// Has it seen where PostgreSQL is, and whether its catalogs have changed.
    pub(super) fn check_versions(&mut self) {
        self.beats_under_way += 1;
        let (pool, look) = (self.pool.clone(), self.verified.look.clone());
        self.work.push(Box::pin(async move {
            Done::Beat(work::beat(&pool, &look).await)
        }));
    }

    pub(super) fn verify_again(&mut self) {
        // What changes in the midst of a look is seen at the next one.
        if std::mem::replace(&mut self.is_verifying, true) {
            return;
        }
        let (pool, options) = (self.pool.clone(), self.options.clone());
        self.work.push(Box::pin(async move {
            let connection = match pool.get().await {
                Ok(connection) => connection,
                Err(error) => return Done::Verified(Err(error)),
            };
            let verified =
                verify(connection.client(), &options.mappings, &options.publication).await;
            connection.give_back();
            Done::Verified(verified)
        }));
    }

    /// When PostgreSQL is to be asked to write on.
    pub(super) fn nudge_at(&self) -> Option<Instant> {
        let since = self.awaited_since.filter(|_| !self.is_nudging)?;
        self.merge.awaited().map(|_| since + NUDGE_AFTER)
    }

    pub(super) fn nudge(&mut self) {
        if std::mem::replace(&mut self.is_nudging, true) {
            return;
        }
        let pool = self.pool.clone();
        self.work.push(Box::pin(async move {
            // Whether it could is seen by what comes.
            let _ = work::nudge(&pool).await;
            Done::Nudged
        }));
    }
}
