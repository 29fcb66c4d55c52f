//! How a join is written, and what was meant: text in, a checked definition and its plan out. Nothing here has seen a row.
//!
//! Read `grammar` for what can be said (`words` cuts the text), `definition` for what it means, and `plan` for the order in
//! which sources are read; `describe` says all of it to people.

pub(crate) mod definition;
pub(crate) mod describe;
pub mod grammar;
pub(crate) mod plan;
pub(crate) mod words;
