//! Software prefetch of memory that is read soon.

/// Prefetches the cache line of this address, which need not be valid.
#[inline]
pub fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that the program can observe, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line in which a value begins.
#[inline]
pub fn prefetch<T>(at: &T) {
    fetch(std::ptr::from_ref(at).cast());
}
