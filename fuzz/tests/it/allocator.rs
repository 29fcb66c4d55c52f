//! An allocator that refuses one allocation of more than any decoder may ask for: the process then ends with the number of bytes.

use std::alloc::{GlobalAlloc, Layout, System};

/// The largest value, and room for a key beside it.
const BYTES_MAX: usize = larder_types::VALUE_BYTES_MAX as usize + (1 << 20);

struct Bounded;

// SAFETY: null is what an allocator returns that has no memory; everything else is passed to the system's allocator.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: by the caller.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;
