//! A slab allocator over memory that the caller provides.
//!
//! 1. A cell lies in one chunk, and all cells of a chunk have the same size.
//! 2. A chunk that is neither full nor empty is in the list of chunks with free cells of its cell size. An empty
//!    chunk is in the list of empty chunks of its length.
//!
//! After J. Bonwick, "The Slab Allocator", USENIX Summer 1994.

use std::collections::BTreeMap;

/// Minimum cell size in bytes.
const CELL_MIN: usize = 64;
/// The number of cell sizes per power of two.
const STEPS: usize = 8;
/// The length of a chunk with several cells.
const CHUNK: usize = 256 << 10;
/// Maximum size of a cell that shares its chunk with others.
const SHARED_CELL_MAX: usize = 32 << 10;
const PAGE: usize = 4 << 10;

/// An allocated cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    chunk: u32,
    index: u32,
}

#[derive(Debug)]
struct Chunk {
    address: usize,
    len: usize,
    cell_len: usize,
    used: u32,
    /// Cells from this index on have not been used since the chunk was assigned its cell size.
    fresh: u32,
    free: Vec<u32>,
    /// The chunk's position in the list that contains it.
    listed_at: usize,
}

#[derive(Debug, Default)]
pub struct Cells {
    chunks: Vec<Chunk>,
    /// Chunks with free cells, by cell length.
    with_room: BTreeMap<usize, Vec<u32>>,
    /// Empty chunks, by chunk length.
    empty: BTreeMap<usize, Vec<u32>>,
    used_bytes: usize,
}

/// Returns the length of the cell for a value of `len` bytes.
fn cell_len(len: usize) -> usize {
    let len = len.max(CELL_MIN);
    let step = (len.next_power_of_two() / 2 / STEPS).max(STEPS);
    len.next_multiple_of(step)
}

/// Returns the length of a chunk for cells of this length.
fn chunk_len(cell_len: usize) -> usize {
    if cell_len <= SHARED_CELL_MAX {
        CHUNK
    } else {
        cell_len.next_multiple_of(PAGE)
    }
}

impl Cells {
    /// Allocates a cell of at least `len` bytes and returns it with its address. If all chunks are full, returns the
    /// length of the chunk that must be added with [`Cells::add`].
    pub fn allocate(&mut self, len: usize) -> Result<(Cell, usize), usize> {
        let cell_len = cell_len(len);
        let number = match self.with_room.get(&cell_len).and_then(|all| all.last()) {
            Some(&number) => number,
            None => self.assign_chunk(cell_len)?,
        };
        let chunk = &mut self.chunks[number as usize];
        let index = chunk.free.pop().unwrap_or_else(|| {
            chunk.fresh += 1;
            chunk.fresh - 1
        });
        chunk.used += 1;
        let address = chunk.address + index as usize * cell_len;
        self.used_bytes += cell_len;
        if chunk.is_full() {
            self.unlist(number);
        }
        let chunk = number;
        Ok((Cell { chunk, index }, address))
    }

    /// Adds a chunk of the length that [`Cells::take`] returned.
    pub fn add(&mut self, address: usize, len: usize) {
        let number = u32::try_from(self.chunks.len()).expect("less than 2^32 chunks");
        self.chunks.push(Chunk {
            address,
            len,
            cell_len: 0,
            used: 0,
            fresh: 0,
            free: Vec::new(),
            listed_at: 0,
        });
        self.list(number);
    }

    /// Frees a cell.
    pub fn free(&mut self, cell: Cell) {
        let chunk = &mut self.chunks[cell.chunk as usize];
        let was_full = chunk.is_full();
        chunk.used -= 1;
        chunk.free.push(cell.index);
        self.used_bytes -= chunk.cell_len;
        if self.chunks[cell.chunk as usize].used == 0 {
            if !was_full {
                self.unlist(cell.chunk);
            }
            self.chunks[cell.chunk as usize].free = Vec::new();
            self.list(cell.chunk);
        } else if was_full {
            self.list(cell.chunk);
        }
    }

    /// Returns the total size of all allocated cells.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Assigns this cell length to an empty chunk.
    fn assign_chunk(&mut self, cell_len: usize) -> Result<u32, usize> {
        let len = chunk_len(cell_len);
        let number = *self.empty.get(&len).and_then(|all| all.last()).ok_or(len)?;
        self.unlist(number);
        let chunk = &mut self.chunks[number as usize];
        (chunk.cell_len, chunk.fresh) = (cell_len, 0);
        self.list_with_room(number);
        Ok(number)
    }

    fn list(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        if chunk.used > 0 {
            return self.list_with_room(number);
        }
        let list = self.empty.entry(chunk.len).or_default();
        chunk.listed_at = list.len();
        chunk.cell_len = 0;
        list.push(number);
    }

    fn list_with_room(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        let list = self.with_room.entry(chunk.cell_len).or_default();
        chunk.listed_at = list.len();
        list.push(number);
    }

    /// Removes a chunk from the list that contains it.
    fn unlist(&mut self, number: u32) {
        let chunk = &self.chunks[number as usize];
        let at = chunk.listed_at;
        let list = match chunk.cell_len {
            0 => self.empty.get_mut(&chunk.len),
            cell_len => self.with_room.get_mut(&cell_len),
        };
        let list = list.expect("a listed chunk has a list");
        debug_assert_eq!(list[at], number);
        list.swap_remove(at);
        if let Some(&moved) = list.get(at) {
            self.chunks[moved as usize].listed_at = at;
        }
    }
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.free.is_empty() && (self.fresh as usize + 1) * self.cell_len > self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cell_is_at_most_an_eighth_longer_than_requested() {
        for len in 1..200_000 {
            let cell = cell_len(len);
            assert!(cell >= len);
            assert!(cell <= CELL_MIN.max(len + len / 8 + STEPS), "{len}: {cell}");
            assert_eq!(cell_len(cell), cell);
        }
    }

    /// An address space without memory.
    #[derive(Default)]
    struct Space {
        cells: Cells,
        end: usize,
    }

    impl Space {
        fn take(&mut self, len: usize) -> (Cell, usize) {
            loop {
                match self.cells.allocate(len) {
                    Ok(taken) => return taken,
                    Err(chunk) => {
                        self.cells.add(self.end, chunk);
                        self.end += chunk;
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn cells_in_use_never_overlap_and_room_is_used_again(
            steps in prop::collection::vec((any::<bool>(), 1..80_000_usize, any::<prop::sample::Index>()), 1..400)
        ) {
            let mut space = Space::default();
            // Allocated cells by address: the end of the cell and the cell.
            let mut used: BTreeMap<usize, (usize, Cell)> = BTreeMap::new();
            for (is_taken, len, which) in steps {
                if is_taken || used.is_empty() {
                    let (cell, at) = space.take(len);
                    prop_assert!(at + len <= space.end);
                    if let Some((_, (end, _))) = used.range(..=at).next_back() {
                        prop_assert!(*end <= at);
                    }
                    if let Some((next, _)) = used.range(at + 1..).next() {
                        prop_assert!(at + len <= *next);
                    }
                    used.insert(at, (at + len, cell));
                } else {
                    let at = *which.get(&used.keys().copied().collect::<Vec<_>>());
                    let (_, cell) = used.remove(&at).expect("it is in use");
                    space.cells.free(cell);
                }
            }
            for (_, cell) in used.into_values() {
                space.cells.free(cell);
            }
            prop_assert_eq!(space.cells.used_bytes(), 0);
            // All chunks are empty now and are reused before new memory is requested.
            let end = space.end;
            let chunks = space.cells.empty.get(&CHUNK).map_or(0, Vec::len);
            for _ in 0..chunks * (CHUNK / 1024) {
                space.take(1000);
            }
            prop_assert_eq!(space.end, end);
        }
    }
}
