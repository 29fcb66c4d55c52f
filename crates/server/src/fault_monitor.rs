//! Determines whether this server can serve, for `/readyz` and for a cluster node's lease.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_journal::{Failure, Health};

use crate::watchdog::{self, Turns};

/// The monitored state: the progress of the journal and of each core. Readable by any thread.
#[derive(Default)]
pub struct FaultMonitor {
    /// `tables.stall_seconds`.
    limit: Duration,
    journal: OnceLock<Health>,
    turns: OnceLock<Arc<Turns>>,
}

/// The reason why the server cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub why: String,
    /// Some requests are still served: reads, or those of other cores.
    pub is_partial: bool,
}

impl FaultMonitor {
    pub fn new(limit: Duration) -> FaultMonitor {
        FaultMonitor {
            limit,
            journal: OnceLock::new(),
            turns: OnceLock::new(),
        }
    }

    /// Starts to monitor the journal; called once.
    pub fn watch_journal(&self, journal: Health) {
        let _ = self.journal.set(journal);
    }

    /// Starts to monitor the cores; called once.
    pub fn watch_cores(&self, turns: Arc<Turns>) {
        let _ = self.turns.set(turns);
    }

    /// Returns the reason why the server has not been able to serve for `tables.stall_seconds`, if so. The text does not change
    /// while the condition lasts.
    pub fn fault(&self) -> Option<Fault> {
        let of_cores = || self.core_fault();
        self.journal_fault().or_else(of_cores)
    }

    /// The part of [`FaultMonitor::fault`] that concerns the journal.
    pub fn journal_fault(&self) -> Option<Fault> {
        let journal = self.journal.get()?;
        let seconds = self.limit.as_secs();
        let writes_fail = |why: String| Fault {
            why,
            is_partial: true,
        };
        match journal.failure().as_deref() {
            Some(Failure::Closed) => return None,
            Some(Failure::Failed(error)) => {
                return Some(writes_fail(format!(
                    "the journal has stopped: {error}; repair the disk, then restart this server"
                )));
            }
            None => {}
        }
        if journal.stalled_for() >= Some(self.limit) {
            return Some(Fault {
                why: format!(
                    "the disk hangs: it has not completed a write or sync of the journal for {seconds} s or longer; check the disk"
                ),
                is_partial: false,
            });
        }
        let (error, _) = journal
            .write_failure()
            .filter(|(_, lasted)| *lasted >= self.limit)?;
        Some(writes_fail(format!(
            "the journal could not be written for {seconds} s or longer: {error}"
        )))
    }

    fn core_fault(&self) -> Option<Fault> {
        let mut stalls = self.turns.get()?.stalls();
        let stalled = stalls.find(|stall| stall.current >= Some(self.limit))?;
        let (core, seconds) = (stalled.core, self.limit.as_secs());
        Some(Fault {
            why: watchdog::describe_stall(core, format_args!("{seconds} s or longer")),
            is_partial: true,
        })
    }
}
