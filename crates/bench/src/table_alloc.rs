//! An allocator that counts, so that every rival's bytes are counted the same way: what was asked for, by each thread.
//! An atomic count for all threads would cost a write as much as the memory that it asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

/// Bytes that this thread has asked of the allocator and not given back.
pub fn asked() -> usize {
    ASKED.get()
}

/// Memory may be given back by another thread than asked for it, so a count may pass zero.
fn count(more: usize, less: usize) {
    ASKED.set(ASKED.get().wrapping_add(more).wrapping_sub(less));
}

// SAFETY: everything is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
