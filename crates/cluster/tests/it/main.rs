//! Tests of the map, the placement and the controller.

mod changes;
mod maps;
mod text;
