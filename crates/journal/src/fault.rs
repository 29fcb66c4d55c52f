//! Fault points: named places at which a test can kill the process.
//!
//! `LARDER_FAULT_POINT=name` kills at the first pass of that point, `name:3` at the third. Release builds have no
//! fault points. (The same convention as in `larder-batch`, which this crate does not link.)

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

/// Ends the process by SIGKILL, like a crash, if the environment selects this point.
#[cfg(debug_assertions)]
pub(crate) fn fault_point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct SelectedPoint {
        name: String,
        passes_left: AtomicU64,
    }
    static SELECTED: OnceLock<Option<SelectedPoint>> = OnceLock::new();
    debug_assert!(FAULT_POINTS.contains(&name), "{name} is not in the list");
    let selected = SELECTED.get_or_init(|| {
        let spec = std::env::var("LARDER_FAULT_POINT").ok()?;
        let (name, passes) = spec.split_once(':').unwrap_or((&spec, "1"));
        Some(SelectedPoint {
            name: name.to_owned(),
            passes_left: AtomicU64::new(passes.parse().ok()?),
        })
    });
    let Some(selected) = selected else { return };
    if selected.name == name && selected.passes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SAFETY: getpid and kill have no preconditions; the signal goes only to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn fault_point(_name: &str) {}
