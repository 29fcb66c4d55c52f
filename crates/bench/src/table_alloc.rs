//! A counting allocator, which measures the memory of every map in the same way: the bytes requested by each thread. An
//! atomic counter for all threads would cost a write as much as the allocation itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

/// Returns the bytes that this thread has allocated and not freed.
pub fn allocated_bytes() -> usize {
    ALLOCATED.get()
}

/// Memory may be freed by another thread than the one that allocated it, so a counter may wrap below zero.
fn count(more: usize, less: usize) {
    ALLOCATED.set(ALLOCATED.get().wrapping_add(more).wrapping_sub(less));
}

// SAFETY: all calls are passed to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
