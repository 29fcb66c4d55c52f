//! FT.AGGREGATE: stages over the objects that a query matches, in the order in which they are written.
//!
//! ```text
//!  at each region:    object ─► loads ─► APPLY, FILTER ─► the first GROUPBY, SORTBY or LIMIT, as far as possible ─► Partial
//!  at the coordinator: Partial + Partial + .. ─► the rest of that stage ─► the following stages ─► rows
//! ```
//!
//! - `request`: parses the arguments, and assigns each name a position in the row.
//! - `reducer`: the state that GROUPBY keeps for a group.
//! - `partial`: the work at each region.
//! - `finish`: the work on the merged partial results.
//!
//! A row contains the names that stages mention, in that order, each once. After GROUPBY, it contains the grouping keys
//! and the reducers. Attributes are loaded if a stage names them; other fields and paths are loaded if LOAD or an
//! expression names them. Without SORTBY, rows are in key order, and groups in a deterministic order. SORTBY keeps 10
//! rows, unless MAX or a directly following LIMIT sets another number.

mod finish;
mod partial;
mod reducer;
mod request;
#[cfg(test)]
mod tests;

pub use finish::{ResultRow, finish};
pub use partial::{Limits, Partial};
pub use request::{Aggregation, Cursor};
