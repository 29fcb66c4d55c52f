//! Expressions over the fields of an object or the columns of a row: the FILTER of FT.CREATE, and APPLY and FILTER of
//! FT.AGGREGATE.
//!
//! Read `cell` for the values, `grammar` for the syntax and `evaluate` for the semantics. `functions` is the table of
//! functions, and `calendar` the date functions.

mod calendar;
mod cell;
mod evaluate;
mod functions;
mod grammar;
#[cfg(test)]
mod tests;

pub use cell::Cell;
pub use evaluate::Names;
pub use grammar::{Expression, Operation};
