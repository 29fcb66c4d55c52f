//! The file: mapped memory for cells, which grows.

use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::cells::{Cell, Cells};

/// By how much the file grows, unless one value needs more.
const EXTENT: usize = 64 << 20;

/// A file without a name that holds values. Cheap to share; any thread may take and give back.
#[derive(Debug)]
pub struct ValueFile {
    file: File,
    state: Mutex<State>,
    /// How often there was no room on the disk.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    cells: Cells,
    /// All extents: where each is mapped and its length.
    extents: Vec<(usize, usize)>,
    /// How much of the last extent is in chunks.
    begun: usize,
}

impl ValueFile {
    /// A new, empty file in a folder. It has no name, and is gone when the process is.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn create(folder: &Path) -> io::Result<Arc<ValueFile>> {
        let file = tempfile::tempfile_in(folder)?;
        Ok(Arc::new(ValueFile {
            file,
            state: Mutex::default(),
            refused: AtomicU64::new(0),
        }))
    }

    /// Copies bytes into a cell; `None` if the disk has no room for it.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Option<(Cell, NonNull<u8>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (cell, address) = loop {
            match state.cells.take(bytes.len()) {
                Ok(taken) => break taken,
                Err(len) => match self.more(&mut state, len) {
                    Ok(address) => state.cells.add(address, len),
                    Err(_) => {
                        self.refused.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                },
            }
        };
        drop(state);
        let at = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address))?;
        // SAFETY: the cell is in a mapped extent, is at least so long, and is this caller's alone until it is given back.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Some((cell, at))
    }

    pub(crate) fn give_back(&self, cell: Cell) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cells.give_back(cell);
    }

    /// The bytes of all cells in use, and the length of the file.
    pub fn bytes(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let file = state.extents.iter().map(|(_, len)| len).sum();
        (state.cells.used_bytes(), file)
    }

    /// How many values there was no room for on the disk; they are in memory.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The address of so many bytes that no chunk has yet.
    fn more(&self, state: &mut State, len: usize) -> io::Result<usize> {
        let left = state.extents.last().map_or(0, |(_, len)| len - state.begun);
        if left < len {
            let end: usize = state.extents.iter().map(|(_, len)| len).sum();
            let extent = len.max(EXTENT);
            // The disk's blocks are this file's from here on: a write to the map never finds the disk full.
            fallocate(
                &self.file,
                FallocateFlags::empty(),
                end as u64,
                extent as u64,
            )?;
            // SAFETY: a new mapping at an address of the system's choice, of a part of the file that is there.
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
            // Values are found one by one: what lies behind one is of no use to its reader.
            // SAFETY: the advice changes no bytes.
            let _ = unsafe { madvise(address, extent, Advice::Random) };
            state.extents.push((address.expose_provenance(), extent));
            state.begun = 0;
        }
        let (address, _) = *state.extents.last().expect("there is an extent now");
        let at = address + state.begun;
        state.begun += len;
        Ok(at)
    }
}

impl Drop for ValueFile {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for &(address, len) in &state.extents {
            // SAFETY: every value in the file holds a count of it, so there is none.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(address), len) };
        }
    }
}
