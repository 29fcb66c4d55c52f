//! For tests: forces lookups of chosen keys onto a disk thread although they are in memory. No effect in release
//! builds.

use std::sync::OnceLock;

type DiskHook = (
    Box<dyn Fn(&[u8]) -> bool + Send + Sync>,
    Box<dyn Fn(&[u8]) + Send + Sync>,
);

static DISK_HOOK: OnceLock<DiskHook> = OnceLock::new();

/// For tests: makes a disk thread look up the keys for which `is_cold` returns true. The thread calls `on_read` first.
/// No effect in release builds or when called a second time.
#[doc(hidden)]
pub fn set_disk_hook(
    is_cold: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    on_read: impl Fn(&[u8]) + Send + Sync + 'static,
) {
    let _ = DISK_HOOK.set((Box::new(is_cold), Box::new(on_read)));
}

#[inline]
pub(in crate::resp) fn is_hooked(key: &[u8]) -> bool {
    cfg!(debug_assertions) && DISK_HOOK.get().is_some_and(|(is_cold, _)| is_cold(key))
}

pub(super) fn run_hook(key: &[u8]) {
    if cfg!(debug_assertions)
        && let Some((is_cold, on_read)) = DISK_HOOK.get()
        && is_cold(key)
    {
        on_read(key);
    }
}
