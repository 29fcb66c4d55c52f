//! The local index of a space: the objects that one core has, found by their attributes. In memory, without I/O.
//!
//! | read | for |
//! |---|---|
//! | `space_index` | the index, and what changes it |
//! | `rows` | objects as dense numbers, and their keys in order |
//! | `column` | what each row has of an attribute |
//! | `attribute`, `composite` | what finds rows by one attribute, or by several |
//! | `coming` | indexes that are built while the others serve |
//! | `sorted`, `postings`, `bytes` | rows in an order, the rows of one tag, short strings |
//! | `access` | the planner: where the rows are that a predicate may hold for, and how many there are |
//! | `check` | a predicate, tested on columns |
//! | `finder` | the steps in which a run comes by its rows |
//! | `search_run`, `aggregate_run` | what is made of them |
//! | `at_once` | a search that takes one step |
//! | `full_scan` | searches that no index serves |
//! | `plan`, `failures` | what is told: how a search is answered, which fields do not fit |
//!
//! 1. A run answers as if every object had been looked at with [`crate::query::matches`], whatever the index does instead.
//! 2. Between two steps of a run objects may come, go and change. An object that the query holds for from the run's first step to its last is found
//!    exactly once; another is found or not, by what it is when it is looked at, and never twice.
//! 3. A step looks at a bounded number of objects.

mod access;
mod aggregate_run;
mod at_once;
mod attribute;
mod bytes;
mod check;
mod column;
mod coming;
mod composite;
mod failures;
mod finder;
mod full_scan;
mod plan;
mod postings;
mod rows;
mod search_run;
mod sorted;
mod space_index;
mod step_bytes;

pub use aggregate_run::AggregateRun;
pub use at_once::Found;
pub use failures::{Failure, Failures};
pub use plan::{Plan, Profile};
pub use search_run::SearchRun;
pub use space_index::{Changed, RowColumns, SpaceIndex};

/// The effort of a step that looks at so many objects wherever they lie. One that looks at objects one after the other, by a byte of each, looks at
/// 256 times as many.
pub const fn effort(objects: usize) -> usize {
    objects.saturating_mul(finder::APART)
}

/// Where objects are kept. Rows are those of the index: who keeps objects beside it may keep them by these.
pub trait Objects {
    /// Calls `read` with the encoded object of this row and key; not if there is none, or it has expired.
    fn object(&self, row: u32, key: &[u8], read: &mut dyn FnMut(&[u8]));

    /// As [`Objects::object`] of several, in their order and with their numbers; `None` where there is no object.
    fn objects(&self, rows: &[(u32, &[u8])], read: &mut dyn FnMut(usize, Option<&[u8]>)) {
        for (at, (row, key)) in rows.iter().enumerate() {
            let mut is_there = false;
            self.object(*row, key, &mut |bytes| {
                is_there = true;
                read(at, Some(bytes));
            });
            if !is_there {
                read(at, None);
            }
        }
    }
}
