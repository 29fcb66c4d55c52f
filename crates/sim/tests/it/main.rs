//! Worlds of small nodes: what a connection promises, which faults really happen, and that a planted bug is found.

mod chatter;
mod store;
