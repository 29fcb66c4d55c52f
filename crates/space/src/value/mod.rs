//! What an object's fields mean as values of a space's attributes.
//!
//! `column` is what one attribute has in one object, `read` makes it of a field's bytes or of JSON, `row` keeps the columns of an object as bytes
//! from which each is read by itself.
//!
//! **A field that does not fit its attribute** (a price that is no number) neither has the write refused nor hides the object: the write is a plain
//! HSET that may know nothing of the space, and a space may be declared over objects that are there already. The attribute is missing
//! in that object, for searches and for order, and the fault is told, to be counted and shown by FT.INFO. So `ismissing(@price)` finds what
//! is to be corrected, and a search by the object's other attributes finds the object.

pub mod column;
mod read;
pub mod row;

pub use column::Column;
pub use read::{Fault, column as read_column, flag as parse_flag, of_bytes as read_bytes};
pub use row::{Columns, Row, RowView};
