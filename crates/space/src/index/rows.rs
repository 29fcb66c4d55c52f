//! The rows of an index: dense numbers of objects, reused after a deletion, and the keys in order.

use larder_types::prefetch;

use super::bytes::Bytes;
use super::sorted::Sorted;

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By row; empty for a free row.
    keys: Vec<Bytes>,
    /// By row: the index's clock when the object was added. A run skips objects that were added after its start.
    added_at: Vec<u64>,
    /// A bit for each row that has an object.
    alive: Vec<u64>,
    free: Vec<u32>,
    by_key: Sorted,
    /// The heap size of long keys.
    long_bytes: usize,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns an exclusive upper bound of the rows ever used.
    pub fn end(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub fn key(&self, row: u32) -> &[u8] {
        &self.keys[row as usize]
    }

    /// Prefetches a key that will be read soon.
    #[inline]
    pub fn prefetch_key(&self, row: u32) {
        prefetch(&self.keys[row as usize]);
    }

    #[inline]
    pub fn added_at(&self, row: u32) -> u64 {
        self.added_at[row as usize]
    }

    #[inline]
    pub fn is_alive(&self, row: u32) -> bool {
        self.alive[row as usize / 64] >> (row % 64) & 1 == 1
    }

    /// Returns the bits of the 64 rows from 64 times `word`.
    #[inline]
    pub fn alive_word(&self, word: usize) -> u64 {
        self.alive[word]
    }

    pub fn by_key(&self) -> &Sorted {
        &self.by_key
    }

    /// Returns the number of keys that sort before this one.
    pub fn rank_of_key(&self, key: &[u8]) -> usize {
        self.by_key.rank(|row| self.key(row) < key)
    }

    pub fn find(&self, key: &[u8]) -> Option<u32> {
        let row = self.by_key.first_after(|row| self.key(row) < key)?;
        (self.key(row) == key).then_some(row)
    }

    /// Adds a row for a key, which must not have one.
    pub fn add(&mut self, key: &[u8], now: u64) -> u32 {
        let row = self.free.pop().unwrap_or_else(|| {
            let row = u32::try_from(self.keys.len()).expect("a core has fewer than 4 Gi objects");
            self.keys.push(Bytes::default());
            self.added_at.push(0);
            if self.alive.len() * 64 < self.keys.len() {
                self.alive.push(0);
            }
            row
        });
        self.keys[row as usize] = Bytes::new(key);
        self.long_bytes += self.keys[row as usize].heap_bytes();
        self.added_at[row as usize] = now;
        self.alive[row as usize / 64] |= 1 << (row % 64);
        let Rows { keys, by_key, .. } = self;
        by_key.insert(row, |other| keys[other as usize][..] < *key);
        row
    }

    pub fn remove(&mut self, row: u32) {
        let Rows { keys, by_key, .. } = self;
        let key = &keys[row as usize];
        by_key.remove(row, |other| keys[other as usize][..] < key[..]);
        self.long_bytes -= self.keys[row as usize].heap_bytes();
        self.keys[row as usize] = Bytes::default();
        self.alive[row as usize / 64] &= !(1 << (row % 64));
        self.free.push(row);
    }

    /// Returns all rows that have an object, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.end() as u32).filter(|row| self.is_alive(*row))
    }

    /// See [`super::SpaceIndex::free_some`].
    pub fn free_some(&mut self, pieces: &mut usize) {
        drop_last(&mut self.keys, pieces);
    }

    pub fn heap_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Bytes>()
            + self.long_bytes
            + self.added_at.capacity() * 8
            + self.alive.capacity() * 8
            + self.free.capacity() * 4
            + self.by_key.heap_bytes()
    }
}

/// Drops up to `count` elements at the end of a list, and subtracts their number from `count`.
pub(super) fn drop_last<T>(list: &mut Vec<T>, count: &mut usize) {
    let left = list.len().saturating_sub(*count);
    *count -= list.len() - left;
    list.truncate(left);
}
