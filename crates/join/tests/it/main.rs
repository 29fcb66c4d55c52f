//! Joins against a model that recomputes them.

mod model;
mod random;
mod shards;
mod story;
