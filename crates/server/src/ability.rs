//! Whether this server can serve: what `/readyz` reports, and what a cluster node's lease follows.

use std::sync::OnceLock;
use std::time::Duration;

use larder_journal::{Failure, Health};

/// What is watched. Each core's progress and the journal's may be read by any thread.
#[derive(Default)]
pub struct Ability {
    /// `tables.stall_seconds`.
    limit: Duration,
    journal: OnceLock<Health>,
}

/// Why the server cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inability {
    pub why: String,
    /// Only writes are refused.
    pub are_reads_served: bool,
}

impl Ability {
    pub fn new(limit: Duration) -> Ability {
        Ability {
            limit,
            journal: OnceLock::new(),
        }
    }

    /// Begins to watch the journal, once.
    pub fn watch(&self, journal: Health) {
        let _ = self.journal.set(journal);
    }

    /// Why the server cannot serve, if that has lasted for `tables.stall_seconds`. The text stays the same while it lasts.
    pub fn inability(&self) -> Option<Inability> {
        let journal = self.journal.get()?;
        let seconds = self.limit.as_secs();
        let writes_fail = |why: String| Inability {
            why,
            are_reads_served: true,
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
                are_reads_served: false,
            });
        }
        let (error, _) = journal
            .trouble()
            .filter(|(_, lasted)| *lasted >= self.limit)?;
        Some(writes_fail(format!(
            "the journal could not be written for {seconds} s or longer: {error}"
        )))
    }
}
