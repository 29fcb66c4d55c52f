//! Refused writes: tables take none while the journal cannot be written, or, after a failed sync, until a restart.
//!
//! ```text
//!               a write fails                            a sync fails
//!  writes taken ─────────────► refused, tried again ─────────────────────► refused until a restart
//!               ◄─────────────
//!                 one succeeds
//! ```
//!
//! 1. Nothing changes for a command that is refused. What was executed before is in memory and is not forgotten: the journal
//!    holds it until it is written. Its replies wait (see `gate`).
//! 2. A transaction over several cores is refused by who coordinates it, before the cores pause; in the pause nothing is.

use std::time::Duration;

use larder_journal::{Error, Failure};
use larder_protocol::errors::Code;

use super::{Refusal, Tables};

impl Tables {
    /// Whether writes are taken. Also for one core's part of a command that others must refuse too.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn ensure_writes_taken(&self) -> Result<(), Refusal> {
        self.ensure_journal()?;
        match self.is_paused() {
            true => Ok(()),
            false => self.ensure_lease(),
        }
    }

    /// # Errors
    /// Why the journal takes nothing, and what to do.
    pub(super) fn ensure_journal(&self) -> Result<(), Refusal> {
        match &*self.write_refusal.borrow() {
            Some(refusal) if !self.is_paused() => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// How long the journal could not be written, until now.
    pub(super) fn journal_failing_for(&self) -> Duration {
        self.journal
            .trouble()
            .map_or(Duration::ZERO, |(_, lasted)| lasted)
    }

    /// Looks whether the journal can be written.
    pub(super) fn check_journal(&self) {
        let refusal = match (self.journal.failure(), self.journal.trouble()) {
            (Some(failure), _) => Some(until_restart(&failure)),
            (None, Some((error, _))) => Some(for_now(&error)),
            (None, None) => None,
        };
        let mut refuses = self.write_refusal.borrow_mut();
        if *refuses == refusal {
            return;
        }
        if self.index == 0 {
            match (&*refuses, &refusal) {
                (_, Some((_, why))) => tracing::error!("{why}"),
                (_, None) => tracing::info!("tables take writes again"),
            }
            self.handle.set_refusal(refusal.clone());
        }
        *refuses = refusal;
    }
}

fn for_now(error: &Error) -> Refusal {
    let (code, what) = match error.is_disk_full() {
        true => (
            Code::DiskFull,
            "as soon as there is room writes are taken again",
        ),
        false => (
            Code::Io,
            "writing is tried again all the while, and when it succeeds writes are taken again",
        ),
    };
    let why = format!("tables take no writes at present: {error}; reads go on, and {what}");
    (code, why)
}

fn until_restart(failure: &Failure) -> Refusal {
    let why = match failure {
        Failure::Closed => "tables take no writes: the server is stopping".to_owned(),
        Failure::Failed(error) => format!(
            "tables take no writes: {error}; reads go on; see to the disk, then restart the server"
        ),
    };
    (Code::Io, why)
}
