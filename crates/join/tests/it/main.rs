//! Tests of joins against a model that recomputes them.

mod base_rows;
mod definitions;
mod evicted;
mod exchange;
mod fills;
mod limits;
mod model;
mod pages;
mod pages_random;
mod parts;
mod random;
mod redefinitions;
mod shards;
mod story;
mod subscriptions;
mod tracked;
