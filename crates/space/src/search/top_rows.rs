//! A bounded set of the first rows of a result, in one allocation.
//!
//! ```text
//!  bytes   rank key content │ rank key content │ (a row that was passed over) │ rank key content
//!  places  ▲                  ▲                                                 ▲
//! ```
//!
//! Rows are not allocated individually, because one core often frees what another core allocated, and cores would
//! contend for the allocator.

use std::cmp::Ordering;
use std::convert::Infallible;

/// A row of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub rank: &'a [u8],
    pub key: &'a [u8],
    /// The returned content of the object; opaque here.
    pub content: &'a [u8],
}

/// The first `keep` rows of all that were offered.
#[derive(Debug, Clone, Default)]
pub struct TopRows {
    keep: usize,
    bytes: Vec<u8>,
    /// Unordered until the set is full, then a heap with the last row in order at the root.
    places: Vec<EntrySpan>,
    /// The bytes of rows that are no longer kept.
    dead_bytes: usize,
}

/// The rows in result order.
#[derive(Debug)]
pub struct OrderedRows {
    bytes: Vec<u8>,
    places: Vec<EntrySpan>,
}

/// The offset of a row's rank, and the lengths of its parts.
#[derive(Debug, Clone, Copy)]
struct EntrySpan {
    begin: usize,
    rank: u32,
    key: u32,
    content: u32,
}

impl EntrySpan {
    fn size(&self) -> usize {
        self.rank as usize + self.key as usize + self.content as usize
    }

    #[inline]
    fn rank<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.begin..][..self.rank as usize]
    }

    fn entry<'a>(&self, bytes: &'a [u8]) -> Entry<'a> {
        let (rank, rest) = bytes[self.begin..].split_at(self.rank as usize);
        let (key, rest) = rest.split_at(self.key as usize);
        let content = &rest[..self.content as usize];
        Entry { rank, key, content }
    }
}

impl TopRows {
    pub fn new(keep: usize) -> TopRows {
        TopRows {
            keep,
            ..TopRows::default()
        }
    }

    /// Returns the maximum number of rows.
    pub fn keep(&self) -> usize {
        self.keep
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the approximate memory use of the rows, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() - self.dead_bytes + self.places.len() * size_of::<EntrySpan>()
    }

    /// Returns whether the set would keep a row of this rank.
    pub fn would_keep(&self, rank: &[u8]) -> bool {
        self.places.len() < self.keep
            || self
                .places
                .first()
                .is_some_and(|last| rank < last.rank(&self.bytes))
    }

    /// Adds a row if it is among the first, and then removes the last row if there are too many. `put` appends the
    /// content, and is called only if the row is kept.
    ///
    /// # Errors
    /// `put` failed. The set is unchanged.
    pub fn offer<E>(
        &mut self,
        rank: &[u8],
        key: &[u8],
        put: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.would_keep(rank) {
            return Ok(());
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(rank);
        self.bytes.extend_from_slice(key);
        let content = self.bytes.len();
        if let Err(error) = put(&mut self.bytes) {
            self.bytes.truncate(begin);
            return Err(error);
        }
        let length = |bytes: usize| u32::try_from(bytes).expect("an object has less than 4 GiB");
        let place = EntrySpan {
            begin,
            rank: length(rank.len()),
            key: length(key.len()),
            content: length(self.bytes.len() - content),
        };
        if self.places.len() < self.keep {
            self.places.push(place);
            if self.places.len() == self.keep {
                (0..self.keep / 2).rev().for_each(|at| self.sift_down(at));
            }
        } else if let Some(last) = self.places.first_mut() {
            self.dead_bytes += last.size();
            *last = place;
            self.sift_down(0);
            self.compact();
        }
        Ok(())
    }

    /// Adds a row of another set, like [`TopRows::offer`].
    pub fn offer_entry(&mut self, entry: Entry<'_>) {
        let put = infallible(|out| out.extend_from_slice(entry.content));
        let Ok(()) = self.offer(entry.rank, entry.key, put);
    }

    /// Returns the rows, unordered.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.places.iter().map(|place| place.entry(&self.bytes))
    }

    /// Returns the last row in order.
    pub fn last(&self) -> Option<Entry<'_>> {
        if self.places.len() == self.keep {
            Some(self.places.first()?.entry(&self.bytes))
        } else {
            self.iter().max_by_key(|entry| entry.rank)
        }
    }

    /// Returns the rows from `offset`, in order.
    pub fn into_ordered(mut self, offset: usize) -> OrderedRows {
        let bytes = &self.bytes;
        self.places
            .sort_unstable_by(|a, b| a.rank(bytes).cmp(b.rank(bytes)));
        self.places.drain(..offset.min(self.places.len()));
        OrderedRows {
            bytes: self.bytes,
            places: self.places,
        }
    }

    /// Moves an entry of the heap down, below entries that are later in order.
    fn sift_down(&mut self, mut at: usize) {
        let TopRows { bytes, places, .. } = self;
        let compare =
            |a: &EntrySpan, b: &EntrySpan| -> Ordering { a.rank(bytes).cmp(b.rank(bytes)) };
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(mut later) = places.get(left).map(|_| left) else {
                return;
            };
            if places
                .get(right)
                .is_some_and(|it| compare(it, &places[left]).is_gt())
            {
                later = right;
            }
            if compare(&places[later], &places[at]).is_le() {
                return;
            }
            places.swap(at, later);
            at = later;
        }
    }

    /// Compacts the memory when removed rows occupy more than half of it.
    fn compact(&mut self) {
        if self.dead_bytes <= self.bytes.len() / 2 {
            return;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.dead_bytes);
        for place in &mut self.places {
            let begin = bytes.len();
            bytes.extend_from_slice(&self.bytes[place.begin..][..place.size()]);
            place.begin = begin;
        }
        self.bytes = bytes;
        self.dead_bytes = 0;
    }
}

impl OrderedRows {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the total size of all ranks, keys and contents, in bytes.
    pub fn bytes(&self) -> usize {
        self.places.iter().map(EntrySpan::size).sum()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.places.iter().map(|place| place.entry(&self.bytes))
    }
}

/// Converts an infallible content writer for [`TopRows::offer`].
pub fn infallible(
    put: impl FnOnce(&mut Vec<u8>),
) -> impl FnOnce(&mut Vec<u8>) -> Result<(), Infallible> {
    |out| {
        put(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In any order of offers, the first rows are kept, in at most twice the memory that they need.
        #[test]
        fn the_first_rows_are_kept_in_any_order_of_offers(ranks in proptest::collection::hash_set("[a-d]{1,6}", 0..60), keep in 0_usize..12, offset in 0_usize..4) {
            let mut kept = TopRows::new(keep);
            for rank in &ranks {
                let failed = kept.offer(b"", b"gone", |out| {
                    out.push(1);
                    Err(())
                });
                prop_assert_eq!(failed.is_err(), keep > 0);
                let (rank, content) = (rank.as_bytes(), rank.repeat(3));
                kept.offer_entry(Entry { rank, key: &rank[1..], content: content.as_bytes() });
                prop_assert!(kept.len() <= keep);
                prop_assert!(kept.bytes.len() <= 2 * kept.iter().map(|it| it.rank.len() + it.key.len() + it.content.len()).sum::<usize>());
            }
            let mut expected: Vec<_> = ranks.iter().collect();
            expected.sort();
            expected.truncate(keep);
            prop_assert_eq!(kept.last().map(|it| it.rank), expected.last().map(|it| it.as_bytes()));
            let found = kept.into_ordered(offset);
            let expected: Vec<_> = expected.into_iter().skip(offset).collect();
            prop_assert_eq!(found.len(), expected.len());
            for (entry, rank) in found.iter().zip(expected) {
                prop_assert_eq!(entry.rank, rank.as_bytes());
                prop_assert_eq!(entry.key, &rank.as_bytes()[1..]);
                prop_assert_eq!(entry.content.to_vec(), rank.repeat(3).into_bytes());
            }
        }
    }
}
