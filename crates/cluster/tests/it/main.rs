//! Tests of the map, the placement, the controller, the coordination service, replication, and complete clusters.

mod changes;
mod controller;
mod coordination;
mod maps;
mod paper;
mod peer;
mod placement;
mod plan;
mod random;
mod rebuild;
mod replication;
mod system;
mod text;
