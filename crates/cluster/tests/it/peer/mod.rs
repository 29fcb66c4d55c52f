//! Connections between nodes.

mod connections;
mod frames;
mod support;
