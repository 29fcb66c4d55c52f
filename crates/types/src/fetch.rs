//! What will be read soon is asked for, so that the processor does not wait for it then.

/// Asks the processor to fetch the line of memory of this address, whatever is there.
#[inline]
pub fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks the processor to fetch the line where something begins.
#[inline]
pub fn prefetch<T>(at: &T) {
    fetch(std::ptr::from_ref(at).cast());
}
