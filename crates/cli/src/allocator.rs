//! The memory allocator of this program: mimalloc.
//!
//! In a server, memory that one core allocates is often freed by another. The system's allocator makes the two wait for
//! each other; mimalloc does not.

use std::ffi::c_int;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option that sets after how many milliseconds free memory is returned to the system, as its index in
/// `mi_option_e` of mimalloc.h. The bindings omit it.
const PURGE_DELAY: c_int = 15;

/// Makes the allocator return free memory to the system immediately, and not at the next allocation. Otherwise, an idle
/// server would keep the memory of its last pull.
pub fn purge_immediately() {
    // SAFETY: the option exists, and setting it affects no other option.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 0) };
}
