//! JSON documents. Names keep their order; integers of 64 bits are exact.

use serde_json::Value;

use crate::base::number::Number;
use crate::error::{Refusal, Result};

#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub root: Value,
}

impl Document {
    /// # Errors
    /// It is no JSON, or nests deeper than 127.
    pub fn parse(text: &[u8]) -> Result<Document> {
        Ok(Document { root: parse(text)? })
    }

    /// Without blanks.
    pub fn print(&self) -> Vec<u8> {
        print(&self.root)
    }
}

/// # Errors
/// It is no JSON, or nests deeper than 127.
pub fn parse(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).map_err(|error| {
        let message = format!("this is no JSON: {error}");
        match error.line() {
            1 => Refusal::at_column(error.column(), message),
            _ => Refusal::new(message),
        }
    })
}

pub fn print(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("names are strings, and memory takes what is written")
}

pub fn number(number: &serde_json::Number) -> Number {
    match (number.as_i64(), number.as_u64()) {
        (Some(value), _) => Number::Int(value),
        (None, Some(value)) => Number::of_i128(i128::from(value)),
        (None, None) => number
            .as_f64()
            .and_then(Number::of_f64)
            .unwrap_or(Number::Int(0)),
    }
}
