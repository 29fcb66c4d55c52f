//! What a session does at regular times while nothing comes from PostgreSQL: it checks that the connection lives, that tables and publication
//! are as they were, and, when a load or write waits for the replication stream, it has PostgreSQL write something that moves the stream on.

use std::time::{Duration, Instant};

use super::{Done, Session};
use crate::database::Event;
use crate::error::Error;
use crate::range::Range;
use crate::verify::{Verified, verify};
use crate::work;

/// A load or write that waits for the stream has PostgreSQL asked to write on after so long.
const NUDGE_AFTER: Duration = Duration::from_millis(5);
/// Every so many beats all of the database is looked at again; at each, whether its catalogs have another version.
const VERIFY_BEATS: u64 = 10;

impl Session {
    /// The database was looked at again.
    pub(super) fn compare(&mut self, now: Verified, sink: &dyn Fn(Event)) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.verified, now);
        let now = &self.verified;
        let altered = before.tables.iter().zip(&now.tables).find(|(a, b)| a != b);
        if let Some((_, table)) = altered {
            return Err(Error::Setup(format!(
                "the table {} was altered; it is looked at again",
                table.mapping.shown()
            )));
        }
        if !now.is_published_as(&before) {
            // Transactions that were under way then may hold rows still that nobody will tell. A new slot begins behind them.
            return Err(Error::Setup(format!(
                "the publication {} was changed; all is loaded anew",
                self.options.publication
            )));
        }
        // Nobody could write the table in the midst of this.
        let changed = now.changed_since(&before);
        let changed: Vec<Range> = changed.map(|m| Range::prefix(&m.prefix)).collect();
        for range in changed {
            self.forget(range, sink);
        }
        Ok(())
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
        if self.beats.is_multiple_of(VERIFY_BEATS) {
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
