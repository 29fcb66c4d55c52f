//! Determines whether this server can serve, for `/readyz` and for a cluster node's lease.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_journal::{Failure, Health};

use crate::watchdog::{self, Turns};

/// The monitored state: the progress of the journal and of each core. Readable by any thread.
#[derive(Default)]
pub struct Ability {
    /// `tables.stall_seconds`.
    limit: Duration,
    journal: OnceLock<Health>,
    turns: OnceLock<Arc<Turns>>,
}

/// The reason why the server cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inability {
    pub why: String,
    /// Some requests are still served: reads, or those of other cores.
    pub serves_some: bool,
}

impl Ability {
    pub fn new(limit: Duration) -> Ability {
        Ability {
            limit,
            journal: OnceLock::new(),
            turns: OnceLock::new(),
        }
    }

    /// Starts to monitor the journal; called once.
    pub fn watch(&self, journal: Health) {
        let _ = self.journal.set(journal);
    }

    /// Starts to monitor the cores; called once.
    pub fn watch_cores(&self, turns: Arc<Turns>) {
        let _ = self.turns.set(turns);
    }

    /// Returns the reason why the server has not been able to serve for `tables.stall_seconds`, if so. The text does not change
    /// while the condition lasts.
    pub fn inability(&self) -> Option<Inability> {
        let of_cores = || self.inability_of_cores();
        self.inability_of_journal().or_else(of_cores)
    }

    /// The part of [`Ability::inability`] that concerns the journal.
    pub fn inability_of_journal(&self) -> Option<Inability> {
        let journal = self.journal.get()?;
        let seconds = self.limit.as_secs();
        let writes_fail = |why: String| Inability {
            why,
            serves_some: true,
        };
        match journal.failure().as_deref() {
            Some(Failure::Closed) => return None,
            Some(Failure::Failed(error)) => {
                return Some(writes_fail(format!(
                    "the journal has stopped: {error}; see to the disk, then restart this server"
                )));
            }
            None => {}
        }
        if journal.stalled_for() >= Some(self.limit) {
            return Some(Inability {
                why: format!(
                    "the disk hangs: it has not completed a write or sync of the journal for {seconds} s or longer; see to the disk"
                ),
                serves_some: false,
            });
        }
        let (error, _) = journal
            .trouble()
            .filter(|(_, lasted)| *lasted >= self.limit)?;
        Some(writes_fail(format!(
            "the journal could not be written for {seconds} s or longer: {error}"
        )))
    }

    fn inability_of_cores(&self) -> Option<Inability> {
        let mut stalls = self.turns.get()?.stalls();
        let stalled = stalls.find(|stall| stall.present >= Some(self.limit))?;
        let (core, seconds) = (stalled.core, self.limit.as_secs());
        Some(Inability {
            why: watchdog::stalled(core, format_args!("{seconds} s or longer")),
            serves_some: true,
        })
    }
}
