//! Who gives out memory in this program: mimalloc.
//!
//! What one core of a server has found another core gives back. The system's allocator has both wait for one another there; this one does not.

use std::ffi::c_int;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// After how many milliseconds memory that is free goes back to the system. Its place in `mi_option_e` of mimalloc.h, which the bindings leave out.
const PURGE_DELAY: c_int = 15;

/// Free memory goes back to the system at once, and not when somebody next asks for some: a server at rest would keep what a push took.
pub fn give_back_at_once() {
    // SAFETY: the option is one of those that there are; others leave it alone.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 0) };
}
