//! Joins against a model that recomputes them.

mod fills;
mod model;
mod pages;
mod random;
mod shards;
mod story;
