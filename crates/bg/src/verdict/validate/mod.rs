//! Validates traces on disk in bounded memory.
//!
//! ```text
//!   trace files, or text logs of the original BG ──► Records ──► parts, validated one after the other ──► Report
//! ```
//!
//! The results do not depend on the memory bound: the records of an item, and those of the other items of its member,
//! are in the same part.

mod files;
mod parts;
pub mod print;
mod text;

use larder_validate::record::Record;

pub use files::TraceFolder;
pub use parts::{Bound, judge_within};
pub use text::{TextFolder, TextNames};

/// A source of records, which can be read repeatedly.
pub trait Records {
    /// Returns the approximate number of records.
    fn expected(&self) -> Result<u64, String>;

    /// Passes every record to `take`. The records of one call are consecutive.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is incomplete (the message names it), or `take` failed.
    fn each(&self, take: &mut dyn FnMut(Record) -> Result<(), String>) -> Result<(), String>;
}
