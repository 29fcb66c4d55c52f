//! Threads that yield to reads: a small share of the CPU, and the last place in the disk's queue.

/// `setpriority`'s scale ends at 19; with 15, a thread still progresses on a busy machine.
const NICE: i32 = 15;
/// `ioprio_set`: class "best effort" (2) shifted by 13, level 7 of 0..=7. The idle class may starve forever on a busy disk, and a
/// pull that never ends is useless.
const IO_PRIORITY: libc::c_int = (2 << 13) | 7;
const IOPRIO_WHO_PROCESS: libc::c_int = 1;

/// Permanently lowers the priority of the calling thread. If the system refuses, that is harmless.
pub fn lower_thread_priority() {
    // SAFETY: gettid, setpriority and ioprio_set take integers, touch no memory of ours, and with the calling thread's own id
    // change that thread alone (Linux keeps priorities per thread).
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid);
        libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, NICE);
        libc::syscall(
            libc::SYS_ioprio_set,
            IOPRIO_WHO_PROCESS,
            thread as libc::c_int,
            IO_PRIORITY,
        );
    }
}

/// Starts a named low-priority thread.
pub fn spawn_low_priority<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    // Linux shows 15 bytes of a thread's name.
    let shown: String = name.chars().take(15).collect();
    std::thread::Builder::new().name(shown).spawn(move || {
        lower_thread_priority();
        work()
    })
}
