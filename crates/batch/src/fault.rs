//! Fault points: named places at which a test can have the process killed.
//!
//! `LARDER_FAULT_POINT=name` kills at the first pass of that point, `name:3` at the third. Release
//! builds hold no fault points.

/// Ends the process by SIGKILL, as a crash would, if the environment asks for it here.
#[cfg(debug_assertions)]
pub fn fault_point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Wanted {
        name: String,
        passes_left: AtomicU64,
    }
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let spec = std::env::var("LARDER_FAULT_POINT").ok()?;
        let (name, passes) = spec.split_once(':').unwrap_or((&spec, "1"));
        Some(Wanted {
            name: name.to_owned(),
            passes_left: AtomicU64::new(passes.parse().ok()?),
        })
    });
    let Some(wanted) = wanted else { return };
    if wanted.name == name && wanted.passes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SAFETY: getpid and kill have no preconditions; the signal goes to this process alone.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn fault_point(_name: &str) {}
