//! Judging traces that are on disk, in bounded memory.
//!
//! ```text
//!   trace files, or text logs of the released BG ──► Records ──► parts: one judged after the other ──► Report
//! ```
//!
//! The verdicts do not depend on the bound: an item's records, and those of the other items of its member, are in one part.

mod files;
mod parts;
pub mod print;
mod text;

use larder_validate::record::Record;

pub use files::TraceFolder;
pub use parts::{Bound, judge_within};
pub use text::{TextFolder, TextNames};

/// Where records come from; they can be gone through once more.
pub trait Records {
    /// About how many there are.
    fn expected(&self) -> Result<u64, String>;

    /// Every record, those of one call together.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is not whole, by its name; or what `take` says.
    fn each(&self, take: &mut dyn FnMut(Record) -> Result<(), String>) -> Result<(), String>;
}
