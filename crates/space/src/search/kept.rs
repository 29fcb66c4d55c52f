//! The first rows of an answer, in one piece of memory.
//!
//! ```text
//!  bytes   rank key content │ rank key content │ (a row that was passed over) │ rank key content
//!  places  ▲                  ▲                                                 ▲
//! ```
//!
//! A row takes no allocation of its own: what one core has found another core gives back, and cores may wait for each other there.

use std::cmp::Ordering;
use std::convert::Infallible;

/// A row of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub rank: &'a [u8],
    pub key: &'a [u8],
    /// What whoever searches wants of the object; nothing here looks at it.
    pub content: &'a [u8],
}

/// The first so many rows of all that were offered.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    keep: usize,
    bytes: Vec<u8>,
    /// In no order; when all places are taken, a heap with the last row in order first.
    places: Vec<Place>,
    /// Bytes of rows that are no longer kept.
    passed_over: usize,
}

/// Rows in the order of the answer.
#[derive(Debug)]
pub struct InOrder {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Where a row's rank begins, and the lengths of its parts.
#[derive(Debug, Clone, Copy)]
struct Place {
    begin: usize,
    rank: u32,
    key: u32,
    content: u32,
}

impl Place {
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

impl Kept {
    pub fn new(keep: usize) -> Kept {
        Kept {
            keep,
            ..Kept::default()
        }
    }

    /// How many rows it keeps at most.
    pub fn keep(&self) -> usize {
        self.keep
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// What the rows take in memory, about.
    pub fn bytes(&self) -> usize {
        self.bytes.len() - self.passed_over + self.places.len() * size_of::<Place>()
    }

    /// Whether a row of this rank would be kept now.
    pub fn would_keep(&self, rank: &[u8]) -> bool {
        self.places.len() < self.keep
            || self
                .places
                .first()
                .is_some_and(|last| rank < last.rank(&self.bytes))
    }

    /// Keeps a row if it is one of the first; only then its content is asked for, which `put` appends. The last row goes if there are too many.
    ///
    /// # Errors
    /// `put` failed; nothing has changed.
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
        let place = Place {
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
            self.passed_over += last.size();
            *last = place;
            self.sift_down(0);
            self.close_up();
        }
        Ok(())
    }

    /// As [`Kept::offer`], of a row of another answer.
    pub fn offer_entry(&mut self, entry: Entry<'_>) {
        let put = infallible(|out| out.extend_from_slice(entry.content));
        let Ok(()) = self.offer(entry.rank, entry.key, put);
    }

    /// In no order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.places.iter().map(|place| place.entry(&self.bytes))
    }

    /// The last row in order.
    pub fn last(&self) -> Option<Entry<'_>> {
        match self.places.len() == self.keep {
            true => Some(self.places.first()?.entry(&self.bytes)),
            false => self.iter().max_by_key(|entry| entry.rank),
        }
    }

    /// The rows from `offset` on.
    pub fn in_order(mut self, offset: usize) -> InOrder {
        let bytes = &self.bytes;
        self.places
            .sort_unstable_by(|a, b| a.rank(bytes).cmp(b.rank(bytes)));
        self.places.drain(..offset.min(self.places.len()));
        InOrder {
            bytes: self.bytes,
            places: self.places,
        }
    }

    /// Lets a place of the heap go down below those that come later in order.
    fn sift_down(&mut self, mut at: usize) {
        let Kept { bytes, places, .. } = self;
        let compare = |a: &Place, b: &Place| -> Ordering { a.rank(bytes).cmp(b.rank(bytes)) };
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

    /// Gives back what rows took that are no longer kept, when it is more than the others take.
    fn close_up(&mut self) {
        if self.passed_over <= self.bytes.len() / 2 {
            return;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.passed_over);
        for place in &mut self.places {
            let begin = bytes.len();
            bytes.extend_from_slice(&self.bytes[place.begin..][..place.size()]);
            place.begin = begin;
        }
        self.bytes = bytes;
        self.passed_over = 0;
    }
}

impl InOrder {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Of all ranks, keys and contents.
    pub fn bytes(&self) -> usize {
        self.places.iter().map(Place::size).sum()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.places.iter().map(|place| place.entry(&self.bytes))
    }
}

/// What appends the content of a row and cannot fail.
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
        /// Whatever is offered in whatever order, the first are kept, and not more memory than twice what they take.
        #[test]
        fn the_first_rows_are_kept(ranks in proptest::collection::hash_set("[a-d]{1,6}", 0..60), keep in 0_usize..12, offset in 0_usize..4) {
            let mut kept = Kept::new(keep);
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
            let found = kept.in_order(offset);
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
