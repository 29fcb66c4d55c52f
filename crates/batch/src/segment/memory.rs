//! The memory that holds the indexes of a version: one allocation for all its segments, in huge
//! pages where the kernel gives them. A lookup reads one place of a filter and one of a directory at
//! random, and would else miss the TLB at both.
//!
//! The bytes are those of the files. They are read where they lie, by position.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of all indexes of a version, while they are read in.
pub struct IndexArena {
    bytes: Vec<u8>,
    taken: usize,
}

/// Sections begin at a cache line, so that a filter's line is never in two.
const ALIGNMENT: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// One section of an index.
#[derive(Clone)]
pub struct IndexBytes {
    arena: Arc<Vec<u8>>,
    start: usize,
    /// The section itself: a lookup need not ask the arena where it is.
    bytes: NonNull<[u8]>,
}

// SAFETY: the bytes are never written to again once the arena is shared, and the arena, which is
// `Send` and `Sync`, is kept alive beside the pointer into it.
unsafe impl Send for IndexBytes {}
// SAFETY: as above.
unsafe impl Sync for IndexBytes {}

impl IndexArena {
    /// An arena for sections of these sizes.
    pub fn for_sections(sizes: impl Iterator<Item = usize>) -> IndexArena {
        let size: usize = sizes
            .map(|size| size.next_multiple_of(ALIGNMENT))
            .sum::<usize>()
            + ALIGNMENT;
        let mut bytes: Vec<u8> = Vec::with_capacity(size);
        if size >= HUGE_PAGE {
            let start = (bytes.as_ptr() as usize).next_multiple_of(4096);
            let end = (bytes.as_ptr() as usize + size) & !4095;
            // SAFETY: the pages lie within our allocation; the advice changes no bytes.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
        }
        bytes.resize(size, 0);
        let taken = bytes.as_ptr().align_offset(ALIGNMENT);
        IndexArena { bytes, taken }
    }

    /// The place of the next section.
    pub fn take(&mut self, size: usize) -> Range<usize> {
        let start = self.taken;
        self.taken += size.next_multiple_of(ALIGNMENT);
        start..start + size
    }

    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Ends the reading in. Sections are made from the result and the ranges taken.
    pub fn share(self) -> Arc<Vec<u8>> {
        Arc::new(self.bytes)
    }
}

impl IndexBytes {
    pub fn new(arena: &Arc<Vec<u8>>, range: Range<usize>) -> IndexBytes {
        IndexBytes {
            arena: Arc::clone(arena),
            start: range.start,
            bytes: NonNull::from(&arena[range]),
        }
    }

    /// A section that is an arena of its own, for tests and small tools.
    pub fn of(bytes: &[u8]) -> IndexBytes {
        let mut arena = IndexArena::for_sections([bytes.len()].into_iter());
        let range = arena.take(bytes.len());
        arena.bytes_mut(range.clone()).copy_from_slice(bytes);
        IndexBytes::new(&arena.share(), range)
    }

    /// A part of this section, in the same arena.
    pub fn part(&self, range: Range<usize>) -> IndexBytes {
        IndexBytes::new(
            &self.arena,
            self.start + range.start..self.start + range.end,
        )
    }
}

impl Deref for IndexBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: a part of the arena's bytes, which live as long as `self.arena` does, where they
        // are: the vector behind an `Arc` is not changed.
        unsafe { self.bytes.as_ref() }
    }
}
