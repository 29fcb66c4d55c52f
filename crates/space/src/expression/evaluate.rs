//! What an expression means for one object or row.
//!
//! 1. A name without a value is null: a field that is not there, or does not fit its attribute. What is computed from null is null, no comparison with it
//!    holds (so `!=` does), and null is not true.
//! 2. A number compared with a text that is a number compares numbers, and so do two such texts with `<`. A number and any other text cannot be compared.
//!    Other texts compare by bytes.
//!    The expressions by which a space chooses its objects are different: there, null is an error, so that they do not hold, and a number is compared with any
//!    other text as a text, so that a space has the objects whose fields do not fit.
//! 3. Integers stay exact integers if the result has 64 bits.
//! 4. `&&`, `||`, `case` and `exists` evaluate no more than they need.

use super::cell::Cell;
use super::functions;
use super::grammar::{Expression, Operation};
use crate::base::number::Number;
use crate::error::{Refusal, Result, shown};

/// The columns that an expression may name.
pub trait Names {
    /// [`Cell::Null`] if there is nothing of this name.
    fn cell(&self, name: &str) -> Cell;

    /// Whether they choose the objects of a space, where a name without a value is an error.
    fn is_strict(&self) -> bool {
        false
    }
}

/// Names that must have values.
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
    /// # Errors
    /// A value is not of the kind that an operator or a function takes; or a name of strict names has no value.
    pub fn evaluate(&self, names: &dyn Names) -> Result<Cell> {
        match self {
            Expression::Constant(cell) => Ok(cell.clone()),
            Expression::Name(name) => match names.cell(name) {
                Cell::Null if names.is_strict() => Err(Refusal::new(format!(
                    "Could not find the value for a parameter name, consider using EXISTS if applicable for {name}"
                ))),
                cell => Ok(cell),
            },
            Expression::Not(inner) => Ok(Cell::of_bool(!inner.evaluate(names)?.is_true())),
            Expression::Negate(inner) => Ok(match inner.evaluate(names)? {
                cell @ (Cell::Nan | Cell::Null) => cell,
                cell => Cell::Number(number(&cell)?.negate()),
            }),
            Expression::Binary(operation, left, right) => binary(*operation, left, right, names),
            Expression::Call(row, arguments) => functions::call(row, arguments, names),
        }
    }

    /// Whether it holds: not if it cannot be evaluated, as for a name without a value.
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
        Operation::And if !left.is_true() => return Ok(Cell::of_bool(false)),
        Operation::Or if left.is_true() => return Ok(Cell::of_bool(true)),
        _ => {}
    }
    let right = right.evaluate(names)?;
    let by_text = names.is_strict();
    Ok(match operation {
        Operation::And | Operation::Or => Cell::of_bool(right.is_true()),
        Operation::Equal => Cell::of_bool(is_equal(&left, &right, by_text)),
        Operation::NotEqual => Cell::of_bool(!is_equal(&left, &right, by_text)),
        Operation::Less => {
            Cell::of_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_lt()))
        }
        Operation::AtMost => {
            Cell::of_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_le()))
        }
        Operation::Greater => {
            Cell::of_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_gt()))
        }
        Operation::AtLeast => {
            Cell::of_bool(compare(&left, &right, by_text).is_some_and(|order| order.is_ge()))
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

/// `by_text`: a number is compared with a text that is none as a text.
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
    Cell::of_f64(match operation {
        Operation::Add => a + b,
        Operation::Subtract => a - b,
        Operation::Multiply => a * b,
        Operation::Divide => a / b,
        Operation::Remainder => a % b,
        _ => a.powf(b),
    })
}

/// # Errors
/// The cell is no number.
pub(super) fn number(cell: &Cell) -> Result<Number> {
    cell.as_number().ok_or_else(|| {
        Refusal::new(format!(
            "Could not convert value to a number: {:?}; to_number and exists tell what can be computed with",
            shown(&cell.print())
        ))
    })
}
