//! The memory of a version's indexes: one allocation for all segments, in huge pages if the kernel provides them. A
//! lookup accesses one random location of a filter and one of a directory; with small pages both would miss the TLB.
//!
//! The bytes are those of the files and are accessed in place.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// The memory of all indexes of a version, while they are loaded.
pub struct IndexArena {
    bytes: Vec<u8>,
    taken: usize,
}

/// Sections are aligned to a cache line, so that a filter's line is never split.
const ALIGNMENT: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// One section of an index.
#[derive(Clone)]
pub struct IndexBytes {
    arena: Arc<Vec<u8>>,
    start: usize,
    /// The section itself, so that a lookup need not go through the arena.
    bytes: NonNull<[u8]>,
}

// SAFETY: the bytes are not modified after the arena is shared, and the arena, which is `Send` and `Sync`, is kept
// alive next to the pointer into it.
unsafe impl Send for IndexBytes {}
// SAFETY: as above.
unsafe impl Sync for IndexBytes {}

impl IndexArena {
    /// Allocates an arena for sections of these sizes.
    pub fn for_sections(sizes: impl Iterator<Item = usize>) -> IndexArena {
        let size: usize = sizes
            .map(|size| size.next_multiple_of(ALIGNMENT))
            .sum::<usize>()
            + ALIGNMENT;
        let mut bytes: Vec<u8> = Vec::with_capacity(size);
        if size >= HUGE_PAGE {
            let start = (bytes.as_ptr() as usize).next_multiple_of(4096);
            let end = (bytes.as_ptr() as usize + size) & !4095;
            // SAFETY: the pages lie within this allocation; the advice changes no bytes.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
        }
        bytes.resize(size, 0);
        let taken = bytes.as_ptr().align_offset(ALIGNMENT);
        IndexArena { bytes, taken }
    }

    /// Reserves the range of the next section.
    pub fn take(&mut self, size: usize) -> Range<usize> {
        let start = self.taken;
        self.taken += size.next_multiple_of(ALIGNMENT);
        start..start + size
    }

    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Ends the loading. Sections are created from the result and the reserved ranges.
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

    /// Creates a section with an arena of its own, for tests and small tools.
    pub fn of(bytes: &[u8]) -> IndexBytes {
        let mut arena = IndexArena::for_sections([bytes.len()].into_iter());
        let range = arena.take(bytes.len());
        arena.bytes_mut(range.clone()).copy_from_slice(bytes);
        IndexBytes::new(&arena.share(), range)
    }

    /// Returns a part of this section, in the same arena.
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
        // SAFETY: a part of the arena's bytes, which live as long as `self.arena` and do not move: the vector in the
        // `Arc` is immutable.
        unsafe { self.bytes.as_ref() }
    }
}
