//! Expressions over an object's fields or a row's columns: what FT.CREATE's FILTER and FT.AGGREGATE's APPLY and FILTER take.
//!
//! Read `cell` for the values, `grammar` for what can be said, `evaluate` for what it means; `functions` has a row for each function, and
//! `calendar` what they know of dates.

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
