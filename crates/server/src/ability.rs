//! Whether this server can serve: what `/readyz` reports, and what a cluster node's lease follows.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_journal::{Failure, Health};

use crate::watchdog::{self, Turns};

/// What is watched: the journal's progress and each core's, which any thread may read.
#[derive(Default)]
pub struct Ability {
    /// `tables.stall_seconds`.
    limit: Duration,
    journal: OnceLock<Health>,
    turns: OnceLock<Arc<Turns>>,
}

/// Why the server cannot serve.
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

    /// Begins to watch the journal, once.
    pub fn watch(&self, journal: Health) {
        let _ = self.journal.set(journal);
    }

    /// Begins to watch the cores, once.
    pub fn watch_cores(&self, turns: Arc<Turns>) {
        let _ = self.turns.set(turns);
    }

    /// Why the server cannot serve, if that has lasted for `tables.stall_seconds`. The text stays the same while it lasts.
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
