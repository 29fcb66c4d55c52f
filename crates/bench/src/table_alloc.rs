//! An allocator that counts, so that every rival's bytes are counted the same way: what was asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ASKED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

/// Bytes asked of the allocator and not given back.
pub fn asked() -> usize {
    ASKED.load(Ordering::Relaxed)
}

// SAFETY: everything is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ASKED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(size, Ordering::Relaxed);
        ASKED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
