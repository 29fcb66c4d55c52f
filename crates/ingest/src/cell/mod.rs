//! One value of an Arrow array: what it is, as plain text, and as a nested value.
//!
//! Every type goes through [`value_of`], which knows it by name; [`write_text`] and [`emit_value`] are its two
//! spellings. What a user is told about them is the table in `larder_protocol::columns`, and a test holds the two together.
//!
//! Invariants:
//! 1. No type passes through another library's idea of showing it: what has no faithful text is refused, by [`Shape::of`]
//!    before the first row where the type alone says so, else with the row.
//! 2. Two values of one column that differ have different texts, and one value has one text, whatever the
//!    encoding (dictionary, run-end, view) and the unit.

mod nested;
mod shape;
mod text;
mod value;

pub(crate) use nested::emit_value;
pub(crate) use shape::{REFUSED_NOTE, Shape, UUID_NOTE, with_note};
pub(crate) use text::{Text, non_finite, write_text};
pub(crate) use value::{Value, value_of};
