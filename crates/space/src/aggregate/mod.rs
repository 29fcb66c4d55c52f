//! FT.AGGREGATE: stages over the objects that a query finds, in the order in which they are written.
//!
//! ```text
//!  at each region:   object ─► loads ─► APPLY, FILTER ─► the first GROUPBY, SORTBY or LIMIT, as far as it goes there ─► Partial
//!  whoever asked:    Partial + Partial + .. ─► that stage's end ─► the stages behind it ─► rows
//! ```
//!
//! `request` reads the arguments and gives each name its place in a row; `reducer` has what GROUPBY keeps for a group; `partial` is what runs at
//! a region, `finish` what runs where partial results meet.
//!
//! A row has the names that stages mention, in that order, each once; after GROUPBY its keys and its reducers. Attributes are loaded when a stage names
//! them; other fields and paths by LOAD, or by naming them in an expression. Without SORTBY rows come by key, groups in an order that is always the same. SORTBY keeps 10 rows, unless MAX or
//! a LIMIT right behind it says otherwise.

mod finish;
mod partial;
mod reducer;
mod request;
#[cfg(test)]
mod tests;

pub use finish::{OutRow, finish};
pub use partial::{Limits, Partial};
pub use request::{Aggregation, Cursor};
