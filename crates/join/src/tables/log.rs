//! The entries that a log must contain to restore the tables: base rows and definitions. Computed rows are never
//! logged.

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
    /// Sets the row's expiry time, in milliseconds; `None` removes it.
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

impl LogEntry {
    /// Returns the key of the row that changes, if the entry is about a single row.
    pub fn row(&self) -> Option<&[u8]> {
        match self {
            LogEntry::Put { key, .. } | LogEntry::Remove { key } | LogEntry::Expire { key, .. } => {
                Some(key)
            }
            LogEntry::RemoveRange { .. } | LogEntry::Create { .. } | LogEntry::Drop { .. } => None,
        }
    }
}

/// The former state of a base row that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeforeImage {
    pub key: Box<[u8]>,
    /// `None`: there was no row.
    pub value: Option<Box<[u8]>>,
    /// Its expiry time, in milliseconds.
    pub expires_at: Option<u64>,
}

/// The changes since they were last taken.
#[derive(Default)]
pub struct ChangeLog {
    is_on: bool,
    changes: Vec<LogEntry>,
    /// The former states of rows, if they are requested.
    before_images: Option<Vec<BeforeImage>>,
}

impl ChangeLog {
    /// Records a change, which is constructed only if changes are recorded.
    #[inline]
    pub fn record(&mut self, entry: impl FnOnce() -> LogEntry) {
        if self.is_on {
            self.changes.push(entry());
        }
    }

    #[inline]
    pub fn records_before_images(&self) -> bool {
        self.before_images.is_some()
    }

    pub fn record_before_image(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        expires_at: Option<u64>,
    ) {
        if self.is_on
            && let Some(images) = &mut self.before_images
        {
            images.push(BeforeImage {
                key: key.into(),
                value: value.map(Box::from),
                expires_at,
            });
        }
    }

    pub fn enable_before_images(&mut self, on: bool) {
        self.before_images = on.then(Vec::new);
    }

    pub fn before_images(&self) -> &[BeforeImage] {
        self.before_images.as_deref().unwrap_or_default()
    }

    pub fn take_before_images(&mut self) -> Vec<BeforeImage> {
        self.before_images
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Stops recording until [`ChangeLog::resume`] is called with the returned value.
    pub fn pause(&mut self) -> bool {
        std::mem::replace(&mut self.is_on, false)
    }

    pub fn resume(&mut self, was_on: bool) {
        self.is_on = was_on;
    }
}

impl Engine {
    /// Enables or disables [`Engine::take_changes`]; disabled by default.
    pub fn record_changes(&mut self, on: bool) {
        self.log.is_on = on;
    }

    /// Returns the changes to be logged since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.log.changes)
    }

    /// Passes all base rows and definitions to `each`, as log entries that restore them.
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
