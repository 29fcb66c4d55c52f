//! Tests of the map, the placement, the controller, and of what keeps them.

mod changes;
mod controller;
mod coordination;
mod maps;
mod placement;
mod plan;
mod random;
mod text;
