//! FT.SEARCH: what is asked for, and the answer, made of partial answers.
//!
//! `options` are those that FT.SEARCH and FT.AGGREGATE share; `request` reads all of FT.SEARCH's; `regions` tells where it is looked
//! for; `partial` is what one region found, and merges, `kept` the rows of it; `content` is what of an object is returned.
//!
//! The order of an answer is total and does not depend on regions: by the sort keys, missing values last in both directions, then by key. Without
//! sort keys it is by key.

pub mod content;
mod kept;
pub mod options;
pub mod partial;
pub mod regions;
pub mod request;
#[cfg(test)]
mod tests;

pub use kept::{Entry, InOrder};
pub use options::QueryOptions;
pub use partial::Partial;
pub use request::{Content, ReturnField, Search, SortBy, SortKey};
