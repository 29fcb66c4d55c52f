//! One value of an Arrow array, its plain text form and its nested form.
//!
//! [`value_of`] handles every type explicitly; [`write_text`] and [`emit_value`] write the two forms. The table in
//! `larder_protocol::columns` documents them for users, and a test keeps the two consistent.
//!
//! Invariants:
//! 1. No type is formatted by another library. A value without a lossless text form is rejected: by [`FieldShape::of`]
//!    before the first row if the type alone decides it, else with the row.
//! 2. Different values of a column have different texts, and equal values have the same text, whatever the encoding
//!    (dictionary, run-end, view) and the unit.

mod nested;
mod shape;
mod text;
mod value;

pub(crate) use nested::emit_value;
pub(crate) use shape::{FieldShape, REFUSED_NOTE, UUID_NOTE, with_note};
pub(crate) use text::{TextForm, non_finite, write_text};
pub(crate) use value::{Value, value_of};
