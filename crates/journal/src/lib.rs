//! An append-only log and snapshots.
