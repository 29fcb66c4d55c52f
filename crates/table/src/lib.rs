//! Ordered in-memory tables.
