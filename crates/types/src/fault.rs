//! Fault points: named places at which a test can inject a failure.
//!
//! | `LARDER_FAULT_POINT` | effect at that point |
//! |---|---|
//! | `name` | kills the process, like a crash |
//! | `panic@name` | the thread panics |
//! | `hang@name` | the thread blocks forever |
//!
//! `name:3` selects the third pass of the point. Release builds have no fault points.

/// Performs the action that the environment selects for this point.
#[cfg(debug_assertions)]
pub fn fault_point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct FaultSpec {
        action: String,
        name: String,
        passes_left: AtomicU64,
    }
    static SELECTED_FAULT: OnceLock<Option<FaultSpec>> = OnceLock::new();
    let selected = SELECTED_FAULT.get_or_init(|| {
        let spec = std::env::var("LARDER_FAULT_POINT").ok()?;
        let (action, place) = spec.split_once('@').unwrap_or(("kill", &spec));
        let (name, passes) = place.split_once(':').unwrap_or((place, "1"));
        Some(FaultSpec {
            action: action.to_owned(),
            name: name.to_owned(),
            passes_left: AtomicU64::new(passes.parse().ok()?),
        })
    });
    let Some(selected) = selected else { return };
    if selected.name != name || selected.passes_left.fetch_sub(1, Ordering::SeqCst) != 1 {
        return;
    }
    match selected.action.as_str() {
        "panic" => panic!("fault point {name}"),
        "hang" => loop {
            std::thread::park();
        },
        // SAFETY: getpid and kill have no preconditions; the signal goes only to this process.
        _ => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn fault_point(_name: &str) {}
