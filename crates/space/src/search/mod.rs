//! FT.SEARCH: the request, and the result, which is merged from partial results.
//!
//! - `options`: the options that FT.SEARCH and FT.AGGREGATE share.
//! - `request`: the arguments of FT.SEARCH.
//! - `regions`: the regions of an object, and those that a search contacts.
//! - `partial`: the mergeable result of one region, with its rows in `top_rows`.
//! - `content`: the returned content of an object.
//!
//! The order of a result is total and independent of regions: by the sort keys, with missing values last in both
//! directions, then by key. Without sort keys, it is the order of the keys.

pub mod content;
pub mod options;
pub mod partial;
pub mod regions;
pub mod request;
#[cfg(test)]
mod tests;
mod top_rows;

pub use options::QueryOptions;
pub use partial::Partial;
pub use request::{Content, ReturnField, Search, SortBy, SortKey};
pub use top_rows::{Entry, OrderedRows};
