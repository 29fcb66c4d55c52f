//! The language of joins: parses the text of a join into a checked definition and a plan. This module does not access
//! rows.
//!
//! Read `grammar` for the syntax (`words` is the lexer), `definition` for the checks, and `plan` for the order in which
//! sources are read. `describe` formats all of it as text.

pub(crate) mod definition;
pub(crate) mod describe;
pub mod grammar;
pub(crate) mod plan;
pub(crate) mod words;
