//! Terminates processes that a program has started and left behind, including those that have created their own session.
//!
//! The program is started with a mark in its environment, which all of its child processes inherit. Afterwards, `/proc` is
//! searched for processes with the mark. A process that has removed it from its environment, or that runs as another user, is not
//! found.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Maximum number of searches, because new processes may be started during one.
const ROUNDS_MAX: usize = 10;

/// The mark of one program.
pub struct ProcessMark {
    value: String,
}

impl ProcessMark {
    /// The environment variable.
    pub const NAME: &str = "LARDER_GATE_PROGRAM";

    /// Creates a unique mark.
    pub fn new() -> ProcessMark {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        let own = std::process::id();
        let began = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |it| it.as_nanos());
        ProcessMark {
            value: format!("{own}-{number}-{began}"),
        }
    }

    pub fn value(&self) -> &str {
        &self.value
    }

    /// Terminates all processes with the mark.
    pub fn kill_all(&self) {
        for _ in 0..ROUNDS_MAX {
            if !self.kill_each() {
                return;
            }
        }
    }

    /// Terminates all processes found. Returns whether there were any.
    fn kill_each(&self) -> bool {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return false;
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let ids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
        ids.filter(|id| self.kill(*id)).count() > 0
    }

    fn kill(&self, id: Pid) -> bool {
        // The descriptor is opened before the check, so that a process id reused meanwhile is not affected.
        let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else {
            return false;
        };
        let environment = std::fs::read(format!("/proc/{}/environ", id.as_raw_nonzero()));
        let variable = format!("{}={}", ProcessMark::NAME, self.value);
        let is_marked = environment.is_ok_and(|it| {
            it.split(|byte| *byte == 0)
                .any(|it| it == variable.as_bytes())
        });
        is_marked && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }
}
