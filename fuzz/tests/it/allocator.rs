//! An allocator that rejects any allocation larger than a decoder may request. The process then aborts, and prints the
//! number of bytes.

use std::alloc::{GlobalAlloc, Layout, System};

/// The size of the largest value, with room for a key.
const BYTES_MAX: usize = larder_types::VALUE_BYTES_MAX as usize + (1 << 20);

struct Bounded;

// SAFETY: null means that no memory is available; all other calls are passed to the system's allocator.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;
