//! Basic types: numbers, words, instants, points, order-preserving byte encodings, and command arguments.

pub mod arguments;
pub mod instant;
pub mod number;
pub mod ordered;
pub mod point;
pub mod words;
