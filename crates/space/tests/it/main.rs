//! The tests of the crate, one binary.

mod mapping;
mod plan;
