//! What a read came to: its rows, or what must be there before it can be answered.
//!
//! ```text
//!  range ──► Done
//!     └────► Needs { elsewhere } ──► supply ────────────────┐
//!                  { owned }     ──► Exchange::ask, step ───┼──► ask again
//!                  { steps }     ──► Engine::step ──────────┘
//! ```
//!
//! 1. A read that needs something has handed out no row.
//! 2. While a read is under way the engine gathers here what it lacks, so that all is asked for together; between two operations it is
//!    not looked at.

use crate::base::key_range::KeyRange;

/// What a read came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ReadOutcome<T = ()> {
    Done(T),
    /// No row was handed out: see to what it needs, and ask again.
    Needs(Box<Needs>),
}

/// What a read needs before it can be answered. At least one of these is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Ranges of tables whose rows come from elsewhere, to be supplied (see [`Engine::supply`](crate::Engine::supply)).
    pub elsewhere: Vec<KeyRange>,
    /// Ranges that other engines own, by owner, to be asked for (see [`Exchange::ask`](crate::Exchange::ask)).
    pub owned: Vec<(u16, KeyRange)>,
    /// More is to be computed than a read may at a time (see [`Engine::set_read_rows`](crate::Engine::set_read_rows)):
    /// [`Engine::step`](crate::Engine::step) goes on with it. Ask again when
    /// [`Engine::ended_reads`](crate::Engine::ended_reads) is this no more.
    pub steps: Option<u64>,
}

impl<T> ReadOutcome<T> {
    pub fn done(self) -> Option<T> {
        match self {
            ReadOutcome::Done(done) => Some(done),
            ReadOutcome::Needs(_) => None,
        }
    }

    /// Whether [`Engine::step`](crate::Engine::step) goes on with it.
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
    /// Of a read that goes on in steps.
    pub(crate) fn steps(ended: u64) -> Box<Needs> {
        Box::new(Needs {
            steps: Some(ended),
            ..Needs::default()
        })
    }

    pub fn is_empty(&self) -> bool {
        !self.lacks_rows() && self.steps.is_none()
    }

    /// Whether rows are missing that are not here.
    pub(crate) fn lacks_rows(&self) -> bool {
        !self.elsewhere.is_empty() || !self.owned.is_empty()
    }

    /// Adds what another read needs.
    pub fn add(&mut self, other: Needs) {
        self.elsewhere.extend(other.elsewhere);
        self.owned.extend(other.owned);
        self.steps = self.steps.max(other.steps);
    }

    pub(crate) fn clear(&mut self) {
        self.elsewhere.clear();
        self.owned.clear();
        self.steps = None;
    }

    /// What was gathered, in order and each range once.
    pub(crate) fn take(&mut self) -> Needs {
        let mut needs = std::mem::take(self);
        needs.elsewhere.sort();
        needs.elsewhere.dedup();
        needs.owned.sort();
        needs.owned.dedup();
        needs
    }
}
