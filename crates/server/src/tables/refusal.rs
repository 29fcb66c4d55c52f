//! Rejection of writes while the journal cannot be written or, after a failed sync, until a restart.
//!
//! ```text
//!                   a write fails                                  a sync fails
//!  writes accepted ─────────────► rejected, journal write retried ─────────────► rejected until a restart
//!                  ◄─────────────
//!                   one succeeds
//! ```
//!
//! 1. A rejected command changes nothing. Earlier commands have taken effect in memory, and the journal keeps them
//!    until they are written. Their replies wait (see `gate`).
//! 2. The coordinator rejects a transaction over several cores before the cores pause; nothing is rejected during the
//!    pause.

use std::time::Duration;

use larder_journal::{Error, Failure};
use larder_protocol::errors::Code;

use super::{Refusal, Tables};

impl Tables {
    /// Checks that writes are accepted. Also for one core's part of a command that other cores must then reject too.
    ///
    /// # Errors
    /// The reason, and what to do.
    pub fn ensure_writes_accepted(&self) -> Result<(), Refusal> {
        self.ensure_journal()?;
        if self.is_paused() {
            Ok(())
        } else {
            self.ensure_lease()
        }
    }

    /// # Errors
    /// The reason why the journal accepts nothing, and what to do.
    pub(super) fn ensure_journal(&self) -> Result<(), Refusal> {
        match &*self.write_refusal.borrow() {
            Some(refusal) if !self.is_paused() => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// Returns for how long the journal could not be written.
    pub(super) fn journal_failing_for(&self) -> Duration {
        self.journal
            .write_failure()
            .map_or(Duration::ZERO, |(_, lasted)| lasted)
    }

    /// Updates the rejection state from the state of the journal.
    pub(super) fn check_journal(&self) {
        let refusal = match (self.journal.failure(), self.journal.write_failure()) {
            (Some(failure), _) => Some(permanent_refusal(&failure)),
            (None, Some((error, _))) => Some(temporary_refusal(&error)),
            (None, None) => None,
        };
        let mut refuses = self.write_refusal.borrow_mut();
        if *refuses == refusal {
            return;
        }
        if self.index == 0 {
            match (&*refuses, &refusal) {
                (_, Some((_, why))) => tracing::error!("{why}"),
                (_, None) => tracing::info!("tables accept writes again"),
            }
            self.handle.set_refusal(refusal.clone());
        }
        *refuses = refusal;
    }
}

fn temporary_refusal(error: &Error) -> Refusal {
    let (code, what) = if error.is_disk_full() {
        (
            Code::DiskFull,
            "the server accepts writes again as soon as there is room",
        )
    } else {
        (
            Code::Io,
            "the server retries the write, and accepts writes again when it succeeds",
        )
    };
    let why = format!("tables currently reject writes: {error}; reads continue, and {what}");
    (code, why)
}

fn permanent_refusal(failure: &Failure) -> Refusal {
    let why = match failure {
        Failure::Closed => "tables reject writes: the server is stopping".to_owned(),
        Failure::Failed(error) => format!(
            "tables reject writes: {error}; reads continue; check the disk, then restart the server"
        ),
    };
    (Code::Io, why)
}
