//! Evaluates an expression for one object or row.
//!
//! 1. A name without a value is null: the field is absent, or does not match its attribute's type. A computation with
//!    null yields null. No comparison with null holds, except `!=`. Null is not true.
//! 2. A number and a text that represents a number compare as numbers, and so do two such texts with `<`. A number and
//!    any other text are not comparable. Other texts compare by bytes.
//! 3. Integers stay exact if the result fits in 64 bits.
//! 4. `&&`, `||`, `case` and `exists` evaluate only the arguments they need.
//!
//! The FILTER of a space differs. There null is an error, so the filter does not hold. A number and any other text
//! compare as texts, so the space covers objects whose fields have the wrong type.

use super::cell::Cell;
use super::functions;
use super::grammar::{Expression, Operation};
use crate::base::number::Number;
use crate::error::{Refusal, Result, printable};

/// The columns that an expression may name.
pub trait Names {
    /// Returns [`Cell::Null`] if the name has no value.
    fn cell(&self, name: &str) -> Cell;

    /// Returns whether the expression is the filter of a space, where a name without a value is an error.
    fn is_strict(&self) -> bool {
        false
    }
}

/// Names for the filter of a space.
struct Strict<'a>(&'a dyn Names);

impl Names for Strict<'_> {
    fn cell(&self, name: &str) -> Cell {
        self.0.cell(name)
    }

    fn is_strict(&self) -> bool {
        true
    }
}

impl<F: Fn(&str) -> Cell> Names for F {
    fn cell(&self, name: &str) -> Cell {
        self(name)
    }
}

impl Expression {
    /// Evaluates the expression.
    ///
    /// # Errors
    /// A value does not have the type that an operator or a function needs, or a strict name has no value.
    pub fn evaluate(&self, names: &dyn Names) -> Result<Cell> {
        match self {
            Expression::Constant(cell) => Ok(cell.clone()),
            Expression::Name(name) => match names.cell(name) {
                Cell::Null if names.is_strict() => Err(Refusal::new(format!(
                    "Could not find the value for a parameter name, consider using EXISTS if applicable for {name}"
                ))),
                cell => Ok(cell),
            },
            Expression::Not(inner) => Ok(Cell::from_bool(!inner.evaluate(names)?.is_true())),
            Expression::Negate(inner) => Ok(match inner.evaluate(names)? {
                cell @ (Cell::Nan | Cell::Null) => cell,
                cell => Cell::Number(number(&cell)?.negate()),
            }),
            Expression::Binary(operation, left, right) => binary(*operation, left, right, names),
            Expression::Call(row, arguments) => functions::call(row, arguments, names),
        }
    }

    /// Returns whether the expression holds, with strict names. An expression that cannot be evaluated does not hold.
    pub fn holds(&self, names: &dyn Names) -> bool {
        self.evaluate(&Strict(names))
            .is_ok_and(|cell| cell.is_true())
    }
}

fn binary(
    operation: Operation,
    left: &Expression,
    right: &Expression,
    names: &dyn Names,
) -> Result<Cell> {
    let left = left.evaluate(names)?;
    match operation {
        Operation::And if !left.is_true() => return Ok(Cell::from_bool(false)),
        Operation::Or if left.is_true() => return Ok(Cell::from_bool(true)),
        _ => {}
    }
    let right = right.evaluate(names)?;
    let by_text = names.is_strict();
    Ok(match operation {
        Operation::And | Operation::Or => Cell::from_bool(right.is_true()),
        Operation::Equal => Cell::from_bool(is_equal(&left, &right, by_text)),
        Operation::NotEqual => Cell::from_bool(!is_equal(&left, &right, by_text)),
        Operation::Less => {
            Cell::from_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_lt()))
        }
        Operation::AtMost => {
            Cell::from_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_le()))
        }
        Operation::Greater => {
            Cell::from_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_gt()))
        }
        Operation::AtLeast => {
            Cell::from_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_ge()))
        }
        _ if left == Cell::Null || right == Cell::Null => Cell::Null,
        _ if left == Cell::Nan || right == Cell::Nan => Cell::Nan,
        _ => arithmetic(operation, number(&left)?, number(&right)?),
    })
}

fn is_equal(left: &Cell, right: &Cell, by_text: bool) -> bool {
    match (left, right) {
        (Cell::Nan | Cell::Null, _) | (_, Cell::Nan | Cell::Null) => false,
        (Cell::Text(a), Cell::Text(b)) => a == b,
        _ => compare(left, right, by_text).is_some_and(|order| order.is_eq()),
    }
}

/// Compares two cells. With `by_text`, a number and a text that does not represent a number compare as texts.
fn compare(left: &Cell, right: &Cell, by_text: bool) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (Cell::Nan | Cell::Null, _) | (_, Cell::Nan | Cell::Null) => None,
        (Cell::Number(_) | Cell::Text(_), Cell::Number(_) | Cell::Text(_)) => {
            match (left.as_number(), right.as_number(), left, right) {
                (Some(a), Some(b), ..) => Some(a.cmp(&b)),
                (.., Cell::Text(a), Cell::Text(b)) => Some(a.cmp(b)),
                _ => by_text.then(|| left.print().cmp(&right.print())),
            }
        }
        _ => Some(left.order(right)),
    }
}

fn arithmetic(operation: Operation, left: Number, right: Number) -> Cell {
    if let (Number::Int(a), Number::Int(b)) = (left, right) {
        let exact = match operation {
            Operation::Add => a.checked_add(b),
            Operation::Subtract => a.checked_sub(b),
            Operation::Multiply => a.checked_mul(b),
            Operation::Remainder => a.checked_rem(b),
            _ => None,
        };
        if let Some(exact) = exact {
            return Cell::int(exact);
        }
    }
    let (a, b) = (left.as_f64(), right.as_f64());
    Cell::from_f64(match operation {
        Operation::Add => a + b,
        Operation::Subtract => a - b,
        Operation::Multiply => a * b,
        Operation::Divide => a / b,
        Operation::Remainder => a % b,
        _ => a.powf(b),
    })
}

/// Converts a cell to a number.
///
/// # Errors
/// The cell is not a number.
pub(super) fn number(cell: &Cell) -> Result<Number> {
    cell.as_number().ok_or_else(|| {
        Refusal::new(format!(
            "Could not convert value to a number: {:?}; test the value with exists, or convert it with to_number",
            printable(&cell.print())
        ))
    })
}
