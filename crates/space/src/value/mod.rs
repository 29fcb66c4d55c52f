//! The conversion of an object's fields to values of attributes.
//!
//! - `column`: the values of one attribute in one object.
//! - `read`: converts the bytes of a field, or JSON, to a column.
//! - `row`: encodes the columns of an object, so that each can be decoded separately.
//!
//! A field that does not match the type of its attribute (a price that is not a number) does not cause the write to be
//! rejected, and does not hide the object. The write is a plain HSET whose client may not know the space, and a space
//! may be declared over existing objects. The attribute is then missing in the object, for searches and for sorting.
//! The fault is returned, and FT.INFO counts faults and shows one. `ismissing(@price)` finds the objects to correct,
//! and searches by other attributes find the object as usual.

pub mod column;
mod read;
pub mod row;

pub use column::Column;
pub use read::{Fault, column as read_column, flag as parse_flag, of_bytes as read_bytes};
pub use row::{Columns, Row, RowView};
