//! The copies of a holder, addressed by the rows of its index. A search reads the copies that it found without looking
//! up their keys.

use larder_types::{fetch, prefetch};

use crate::index::Objects;
use crate::mapping::Region;

pub(super) struct Copy {
    pub region: Region,
    /// The claim for which the copy arrived.
    pub number: u32,
    pub bytes: Box<[u8]>,
    /// In milliseconds since 1970.
    pub expires_at: Option<u64>,
}

impl Copy {
    /// Returns the heap size of the copy, without its entry in the list.
    fn heap_bytes(&self) -> usize {
        let going = self.expires_at.map_or(0, |_| 32);
        self.bytes.len() + going
    }
}

#[derive(Default)]
pub(super) struct Copies {
    by_row: Vec<Option<Copy>>,
    len: usize,
    /// The total heap size of the copies, without the list.
    heap_bytes: usize,
}

/// The number of copies that are prefetched, first their entries and then their bytes, before the first one is read.
const AHEAD: usize = 8;

impl Copies {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns an exclusive upper bound of the rows.
    pub fn end(&self) -> u32 {
        self.by_row.len() as u32
    }

    pub fn get(&self, row: u32) -> Option<&Copy> {
        self.by_row.get(row as usize)?.as_ref()
    }

    /// Stores a copy, and returns the previous one.
    pub fn put(&mut self, row: u32, copy: Copy) -> Option<Copy> {
        let at = row as usize;
        if self.by_row.len() <= at {
            self.by_row.resize_with(at + 1, || None);
        }
        self.heap_bytes += copy.heap_bytes();
        let before = self.by_row[at].replace(copy);
        self.len += usize::from(before.is_none());
        self.forget(before)
    }

    pub fn remove(&mut self, row: u32) -> Option<Copy> {
        let before = self.by_row.get_mut(row as usize)?.take();
        self.len -= usize::from(before.is_some());
        self.forget(before)
    }

    fn forget(&mut self, before: Option<Copy>) -> Option<Copy> {
        self.heap_bytes -= before.as_ref().map_or(0, Copy::heap_bytes);
        before
    }

    /// Drops at most `places` entries at the end, and returns their number.
    pub fn drop_last(&mut self, places: usize) -> usize {
        let left = self.by_row.len().saturating_sub(places);
        let dropped = self.by_row.drain(left..);
        let count = dropped.len();
        dropped.flatten().for_each(|_| self.len -= 1);
        count
    }

    pub fn memory_bytes(&self) -> usize {
        self.by_row.capacity() * size_of::<Option<Copy>>() + self.heap_bytes
    }

    fn fetch_place(&self, row: u32) {
        if let Some(place) = self.by_row.get(row as usize) {
            prefetch(place);
        }
    }

    fn fetch_bytes(&self, row: u32) {
        if let Some(copy) = self.get(row) {
            fetch(copy.bytes.as_ptr());
        }
    }
}

impl Objects for Copies {
    fn object(&self, row: u32, _: &[u8], read: &mut dyn FnMut(&[u8])) {
        if let Some(copy) = self.get(row) {
            read(&copy.bytes);
        }
    }

    fn objects(&self, rows: &[(u32, &[u8])], read: &mut dyn FnMut(usize, Option<&[u8]>)) {
        for (at, (row, _)) in rows.iter().enumerate() {
            if at.is_multiple_of(AHEAD) {
                let next = rows[at..].iter().take(AHEAD);
                next.clone().for_each(|(row, _)| self.fetch_place(*row));
                next.for_each(|(row, _)| self.fetch_bytes(*row));
            }
            read(at, self.get(*row).map(|copy| &copy.bytes[..]));
        }
    }
}
