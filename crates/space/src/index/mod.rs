//! The local index of a space: finds the objects of one core by their attributes. It is in memory, without I/O.
//!
//! | file | contents |
//! |---|---|
//! | `space_index` | the index, and its changes |
//! | `rows` | the numbering of objects as dense rows, and their keys in order |
//! | `column` | the value of an attribute in each row |
//! | `attribute`, `composite` | the indexes of one attribute, and of several |
//! | `index_build` | indexes that are being built while the others serve |
//! | `sorted`, `postings`, `bytes` | ordered lists of rows, the rows of one term, short strings |
//! | `access` | the planner: access paths of a predicate, and their estimated numbers of rows |
//! | `check` | predicates compiled for tests on columns |
//! | `finder` | the steps in which a run finds matching rows |
//! | `run` | searches and aggregations that run in steps |
//! | `single_step` | searches that take one step |
//! | `full_scan` | the detection of searches that no index serves |
//! | `plan`, `failures` | reports: query plans, and fields of the wrong type |
//!
//! 1. A run returns the same result as [`crate::query::matches`] applied to every object.
//! 2. Objects may be added, changed and deleted between two steps of a run. An object that matches from the first step
//!    to the last is found exactly once. Any other object is found at most once, depending on its state when it is
//!    examined.
//! 3. A step examines a bounded number of objects.

mod access;
mod attribute;
mod bytes;
mod check;
mod column;
mod composite;
mod failures;
mod finder;
mod full_scan;
mod index_build;
mod plan;
mod postings;
mod rows;
mod run;
mod single_step;
mod sorted;
mod space_index;

pub use failures::{Failure, Failures};
pub use plan::{Plan, Profile};
pub use run::{AggregateRun, Consumer, Run, SearchRun};
pub use single_step::SearchResult;
pub use space_index::{PutEffect, RowColumns, SpaceIndex};

/// Returns the effort of a step that examines this many objects individually. A sequential scan of sketch bytes
/// examines 256 times as many with the same effort.
pub const fn effort(objects: usize) -> usize {
    objects.saturating_mul(finder::SINGLE_ROW_EFFORT)
}

/// Access to the stored objects. Rows are those of the index, so a store may address its objects by them.
pub trait Objects {
    /// Calls `read` with the encoded object of this row and key, unless it does not exist or has expired.
    fn object(&self, row: u32, key: &[u8], read: &mut dyn FnMut(&[u8]));

    /// Like [`Objects::object`], for several objects in order. `read` receives the position of each, and `None` if
    /// there is no object.
    fn objects(&self, rows: &[(u32, &[u8])], read: &mut dyn FnMut(usize, Option<&[u8]>)) {
        for (at, (row, key)) in rows.iter().enumerate() {
            let mut exists = false;
            self.object(*row, key, &mut |bytes| {
                exists = true;
                read(at, Some(bytes));
            });
            if !exists {
                read(at, None);
            }
        }
    }
}
