//! The fault points of the journal; see [`larder_types::fault_point`].

/// The fault points of this crate, in the order of a journal's life cycle.
pub const FAULT_POINTS: [&str; 12] = [
    "journal.written",
    "journal.synced",
    "journal.sealed",
    "journal.created",
    "journal.rotated",
    "journal.snapshot_begun",
    "journal.snapshot_written",
    "journal.snapshot_synced",
    "journal.snapshot_renamed",
    "journal.snapshot_swept",
    "journal.recovery_cut",
    "journal.recovery_sealed",
];

/// Passes one of these points.
#[inline]
pub(crate) fn fault_point(name: &str) {
    debug_assert!(FAULT_POINTS.contains(&name), "{name} is not in the list");
    larder_types::fault_point(name);
}
