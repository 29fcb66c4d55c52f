//! Which cells are in use: a slab allocator over memory that somebody else provides.
//!
//! 1. A cell lies in one chunk, and all cells of a chunk have one size.
//! 2. A chunk is in its size's list of chunks with room exactly when it has room and is not empty; an empty chunk is in the list of empty ones of its
//!    length.
//!
//! After J. Bonwick, "The Slab Allocator", USENIX Summer 1994.

use std::collections::BTreeMap;

/// The smallest cell, in bytes.
const CELL_MIN: usize = 64;
/// How many sizes there are from a power of two to the next.
const STEPS: usize = 8;
/// The length of chunks of several cells.
const CHUNK: usize = 256 << 10;
/// The largest cell that shares a chunk with others.
const SHARES_MAX: usize = 32 << 10;
const PAGE: usize = 4 << 10;

/// A cell in use.
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
    /// Cells from here on were never used since the chunk has cells of this size.
    fresh: u32,
    free: Vec<u32>,
    /// Where it is in the list that it is in.
    listed_at: usize,
}

#[derive(Debug, Default)]
pub struct Cells {
    chunks: Vec<Chunk>,
    /// By the length of their cells.
    with_room: BTreeMap<usize, Vec<u32>>,
    /// By their own length.
    empty: BTreeMap<usize, Vec<u32>>,
    used_bytes: usize,
}

/// The length of the cell for so many bytes.
fn cell_len(len: usize) -> usize {
    let len = len.max(CELL_MIN);
    let step = (len.next_power_of_two() / 2 / STEPS).max(STEPS);
    len.next_multiple_of(step)
}

/// The length of the chunk for cells of a length.
fn chunk_len(cell_len: usize) -> usize {
    if cell_len <= SHARES_MAX {
        CHUNK
    } else {
        cell_len.next_multiple_of(PAGE)
    }
}

impl Cells {
    /// A cell for so many bytes with its address; or, where all chunks are full, the length of the chunk to [`Cells::add`].
    pub fn take(&mut self, len: usize) -> Result<(Cell, usize), usize> {
        let cell_len = cell_len(len);
        let number = match self.with_room.get(&cell_len).and_then(|all| all.last()) {
            Some(&number) => number,
            None => self.begin(cell_len)?,
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

    /// Memory for one more chunk, of the length that [`Cells::take`] asked for.
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

    /// Gives a cell back.
    pub fn give_back(&mut self, cell: Cell) {
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

    /// The bytes of all cells in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// An empty chunk has cells of this length from now on.
    fn begin(&mut self, cell_len: usize) -> Result<u32, usize> {
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

    /// Takes a chunk out of the list that it is in: that of its cells' length, or of empty ones.
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
    fn a_cell_is_at_most_an_eighth_longer_than_asked() {
        for len in 1..200_000 {
            let cell = cell_len(len);
            assert!(cell >= len);
            assert!(cell <= CELL_MIN.max(len + len / 8 + STEPS), "{len}: {cell}");
            assert_eq!(cell_len(cell), cell);
        }
    }

    /// Memory that is a number only.
    #[derive(Default)]
    struct Space {
        cells: Cells,
        end: usize,
    }

    impl Space {
        fn take(&mut self, len: usize) -> (Cell, usize) {
            loop {
                match self.cells.take(len) {
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
            // By address: the end of the cell and the cell.
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
                    space.cells.give_back(cell);
                }
            }
            for (_, cell) in used.into_values() {
                space.cells.give_back(cell);
            }
            prop_assert_eq!(space.cells.used_bytes(), 0);
            // All that was there is empty now, and is used before more is asked for.
            let end = space.end;
            let chunks = space.cells.empty.get(&CHUNK).map_or(0, Vec::len);
            for _ in 0..chunks * (CHUNK / 1024) {
                space.take(1000);
            }
            prop_assert_eq!(space.end, end);
        }
    }
}
