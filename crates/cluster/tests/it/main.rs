//! Tests of the map, the placement, the controller, and of what keeps them.

mod changes;
mod coordination;
mod maps;
mod text;
