//! The outcome of a read: its rows, or what it needs first.
//!
//! ```text
//!  range ──► Done
//!     └────► Needs { elsewhere } ──► supply ────────────────┐
//!                  { owned }     ──► Exchange::ask, step ───┼──► retry
//!                  { steps }     ──► Engine::step ──────────┘
//! ```
//!
//! 1. A read that needs something has output no row.
//! 2. During a read, the engine collects here what is missing, so that all of it is requested together. Between
//!    operations the content is meaningless.

use crate::base::key_range::KeyRange;

/// The outcome of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ReadOutcome<T = ()> {
    Done(T),
    /// No row was output. Provide what it needs, and retry.
    Needs(Box<Needs>),
}

/// The needs of a read: rows and steps without which it cannot be executed. At least one field is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Ranges of tables with rows from an external source, to be supplied (see
    /// [`Engine::supply`](crate::Engine::supply)).
    pub external: Vec<KeyRange>,
    /// Ranges that other engines own, with their owners. The caller requests them through the [`Exchange`](crate::Exchange).
    pub remote: Vec<(u16, KeyRange)>,
    /// The read exceeds its budget (see [`Engine::set_read_rows`](crate::Engine::set_read_rows)), and
    /// [`Engine::step`](crate::Engine::step) continues it. Retry when
    /// [`Engine::ended_reads`](crate::Engine::ended_reads) differs from this value.
    pub steps: Option<u64>,
}

impl<T> ReadOutcome<T> {
    pub fn done(self) -> Option<T> {
        match self {
            ReadOutcome::Done(done) => Some(done),
            ReadOutcome::Needs(_) => None,
        }
    }

    /// Returns whether [`Engine::step`](crate::Engine::step) continues the read.
    pub fn needs_steps(&self) -> bool {
        matches!(self, ReadOutcome::Needs(needs) if needs.steps.is_some())
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ReadOutcome<U> {
        match self {
            ReadOutcome::Done(done) => ReadOutcome::Done(change(done)),
            ReadOutcome::Needs(needs) => ReadOutcome::Needs(needs),
        }
    }
}

impl Needs {
    /// The needs of a deferred read.
    pub(crate) fn steps(ended: u64) -> Box<Needs> {
        Box::new(Needs {
            steps: Some(ended),
            ..Needs::default()
        })
    }

    pub fn is_empty(&self) -> bool {
        !self.lacks_rows() && self.steps.is_none()
    }

    /// Returns whether rows are missing that this engine does not have.
    pub(crate) fn lacks_rows(&self) -> bool {
        !self.external.is_empty() || !self.remote.is_empty()
    }

    /// Adds the needs of another read.
    pub fn add(&mut self, other: Needs) {
        self.external.extend(other.external);
        self.remote.extend(other.remote);
        self.steps = self.steps.max(other.steps);
    }

    pub(crate) fn clear(&mut self) {
        self.external.clear();
        self.remote.clear();
        self.steps = None;
    }

    /// Returns the collected needs, sorted and without duplicates.
    pub(crate) fn take(&mut self) -> Needs {
        let mut needs = std::mem::take(self);
        needs.external.sort();
        needs.external.dedup();
        needs.remote.sort();
        needs.remote.dedup();
        needs
    }
}
