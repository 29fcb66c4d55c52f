//! The growing, memory-mapped file that holds the cells.

use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::cells::{Cell, Cells};

/// The length by which the file grows, unless one value needs more.
const EXTENT: usize = 64 << 20;

/// An unnamed file that holds values. Any thread may allocate and free cells.
#[derive(Debug)]
pub struct ValueFile {
    file: File,
    state: Mutex<State>,
    /// The number of allocations that failed because the disk was full.
    failed_allocations: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    cells: Cells,
    /// The address and length of every mapped extent.
    extents: Vec<(usize, usize)>,
    /// The number of bytes of the last extent that belong to chunks.
    assigned: usize,
}

impl ValueFile {
    /// Creates an empty file in `folder`. It has no name, and the system deletes it when the process ends.
    ///
    /// # Errors
    /// If the folder is not writable.
    pub fn create(folder: &Path) -> io::Result<Arc<ValueFile>> {
        let file = tempfile::tempfile_in(folder)?;
        Ok(Arc::new(ValueFile {
            file,
            state: Mutex::default(),
            failed_allocations: AtomicU64::new(0),
        }))
    }

    /// Copies bytes into a new cell; `None` if the disk is full.
    pub(crate) fn store(&self, bytes: &[u8]) -> Option<(Cell, NonNull<u8>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (cell, address) = loop {
            match state.cells.allocate(bytes.len()) {
                Ok(taken) => break taken,
                Err(len) => match self.reserve(&mut state, len) {
                    Ok(address) => state.cells.add(address, len),
                    Err(_) => {
                        self.failed_allocations.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                },
            }
        };
        drop(state);
        let at = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address))?;
        // SAFETY: the cell is in a mapped extent, is at least that long, and belongs to this caller alone until it is
        // freed.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Some((cell, at))
    }

    pub(crate) fn free(&self, cell: Cell) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cells.free(cell);
    }

    /// Returns the total size of all allocated cells, and the length of the file.
    pub fn bytes(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let file = state.extents.iter().map(|(_, len)| len).sum();
        (state.cells.used_bytes(), file)
    }

    /// Returns the number of values that are in memory because the disk was full.
    pub fn failed_allocations(&self) -> u64 {
        self.failed_allocations.load(Ordering::Relaxed)
    }

    /// Returns the address of `len` bytes that belong to no chunk yet, and extends the file if necessary.
    fn reserve(&self, state: &mut State, len: usize) -> io::Result<usize> {
        let left = state
            .extents
            .last()
            .map_or(0, |(_, len)| len - state.assigned);
        if left < len {
            let end: usize = state.extents.iter().map(|(_, len)| len).sum();
            let extent = len.max(EXTENT);
            // Reserves the disk blocks, so that a write through the mapping cannot fail because the disk is full.
            fallocate(
                &self.file,
                FallocateFlags::empty(),
                end as u64,
                extent as u64,
            )?;
            // SAFETY: a new mapping, at an address that the system chooses, of an allocated part of the file.
            let address = unsafe {
                mmap(
                    ptr::null_mut(),
                    extent,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &self.file,
                    end as u64,
                )?
            };
            // Values are read individually, so read-ahead is useless. SAFETY: the advice changes no bytes.
            let _ = unsafe { madvise(address, extent, Advice::Random) };
            state.extents.push((address.expose_provenance(), extent));
            state.assigned = 0;
        }
        let (address, _) = *state.extents.last().expect("there is an extent now");
        let at = address + state.assigned;
        state.assigned += len;
        Ok(at)
    }
}

impl Drop for ValueFile {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for &(address, len) in &state.extents {
            // SAFETY: every value in the file holds a reference to it, so none is left.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(address), len) };
        }
    }
}
