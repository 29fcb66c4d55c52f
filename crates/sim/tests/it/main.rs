//! Worlds of small nodes: connections keep their guarantees, faults actually occur, and a planted bug is found.

mod chatter;
mod store;
