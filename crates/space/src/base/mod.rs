//! What the other rooms stand on: numbers, words, instants, points, bytes that sort, and the arguments of a command.

pub mod arguments;
pub mod instant;
pub mod number;
pub mod ordered;
pub mod point;
pub mod words;
