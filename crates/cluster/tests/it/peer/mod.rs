//! Connections between nodes.

mod connections;
mod frames;
mod simulated;
mod support;
