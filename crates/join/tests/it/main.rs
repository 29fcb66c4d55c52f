//! Tests of joins against a model that recomputes them.

mod adopted;
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
mod redefined;
mod shards;
mod story;
mod subscriptions;
mod tracked;
