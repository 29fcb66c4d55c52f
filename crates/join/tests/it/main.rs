//! Joins against a model that recomputes them.

mod fills;
mod model;
mod random;
mod shards;
mod story;
