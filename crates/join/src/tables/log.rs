//! What a log must hold to make the tables again: base rows and definitions. Computed rows are never logged.

use std::ops::ControlFlow;

use crate::base::key_range::successor;
use crate::engine::Engine;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Remove {
        key: Vec<u8>,
    },
    RemoveRange {
        lo: Vec<u8>,
        hi: Vec<u8>,
    },
    /// The row goes at this time, in milliseconds; `None` takes a former expiry back.
    Expire {
        key: Vec<u8>,
        at: Option<u64>,
    },
    Create {
        name: String,
        definition: String,
    },
    Drop {
        name: String,
    },
}

/// What changed since it was last asked.
#[derive(Default)]
pub struct ChangeLog {
    is_on: bool,
    changes: Vec<LogEntry>,
}

impl ChangeLog {
    /// Notes a change, which is spelled out only if somebody asks for changes.
    #[inline]
    pub fn record(&mut self, entry: impl FnOnce() -> LogEntry) {
        if self.is_on {
            self.changes.push(entry());
        }
    }
}

impl Engine {
    /// Whether [`Engine::take_changes`] has anything to tell; off at first.
    pub fn record_changes(&mut self, on: bool) {
        self.log.is_on = on;
    }

    /// What happened since it was last asked and must be logged, in order.
    pub fn take_changes(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.log.changes)
    }

    /// All base rows and definitions, as entries of a log that makes them again.
    pub fn dump(&self, each: &mut dyn FnMut(LogEntry)) {
        for state in self
            .tables
            .iter()
            .filter(|t| t.makers.is_empty() && t.supplied.is_none())
        {
            let _ = state.rows.read(
                &state.name,
                &successor(&state.name),
                false,
                &mut |key, value| {
                    each(LogEntry::Put {
                        key: key.to_vec(),
                        value: value.to_vec(),
                    });
                    ControlFlow::Continue(())
                },
            );
        }
        for (key, at) in self.expiry.iter() {
            each(LogEntry::Expire {
                key: key.to_vec(),
                at: Some(at),
            });
        }
        for join in self.joins.live() {
            each(LogEntry::Create {
                name: join.name.clone(),
                definition: join.definition.text.clone(),
            });
        }
    }
}
