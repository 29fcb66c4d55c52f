//! The local index of a space: the objects that one core has, found by their attributes. In memory, without I/O.
//!
//! `space_index` is the index and what changes it; `search_run` and `aggregate_run` are searches that go on in steps; `plan` tells how
//! one is answered; `failures` counts the fields that do not fit.
//!
//! 1. A run answers as if every object had been looked at with [`crate::query::matches`], whatever the index does instead.
//! 2. Between two steps of a run objects may come, go and change. An object that the query holds for from the run's first step to its last is found
//!    exactly once; another is found or not, by what it is when it is looked at, and never twice.
//! 3. A step looks at a bounded number of objects.

mod aggregate_run;
mod failures;
mod plan;
mod search_run;
mod space_index;

pub use aggregate_run::AggregateRun;
pub use failures::{Failure, Failures};
pub use plan::{Plan, Profile};
pub use search_run::SearchRun;
pub use space_index::SpaceIndex;

/// Where objects are kept.
pub trait Objects {
    /// Calls `read` with the encoded object under this key; not if there is none, or it has expired.
    fn object(&self, key: &[u8], read: &mut dyn FnMut(&[u8]));
}
