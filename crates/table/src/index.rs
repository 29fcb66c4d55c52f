//! A hash index from a group's prefix to its number.
//!
//! Extendible hashing (Fagin et al., 1979): the hash's high bits select a segment from a directory, and its low bits
//! a slot of that segment. Collisions are resolved by linear probing. A segment doubles up to 4,096 slots and then
//! splits in two, so a put never rehashes the complete index.
//!
//! 1. A slot is zero, or holds the hash's 32 bits and the group's number plus one.
//! 2. No slot between an entry's home slot and the slot that holds it is empty: a removal moves later entries back.
//! 3. A segment is at most half full, so a failed lookup probes two or three slots.

use crate::page::build::Account;
use larder_types::fetch;

const SLOTS_MIN: usize = 8;
const SLOTS_MAX: usize = 4096;
/// Maximum directory depth, as a power of two. With more equal hash prefixes than that, segments grow instead.
const DEPTH_MAX: u32 = 20;

pub(crate) struct Index {
    directory: Vec<u32>,
    segments: Vec<Segment>,
    depth: u32,
}

struct Segment {
    slots: Box<[u64]>,
    used: u32,
    depth: u32,
}

impl Index {
    /// Creates an empty index without allocating.
    pub(crate) fn new() -> Index {
        Index {
            directory: Vec::new(),
            segments: Vec::new(),
            depth: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.directory.capacity() * size_of::<u32>()
            + self.segments.capacity() * size_of::<Segment>()
    }

    #[inline]
    fn segment(&self, hash: u32) -> Option<usize> {
        if self.depth == 0 {
            return (!self.segments.is_empty()).then_some(0);
        }
        let at = (u64::from(hash) >> (32 - self.depth)) as usize;
        self.directory.get(at).map(|&segment| segment as usize)
    }

    /// Returns the number of an entry that has this hash and satisfies `same`.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let slots = &*self.segments[self.segment(hash)?].slots;
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = slots[at & mask];
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == hash && same(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
            at = (at + 1) & mask;
        }
    }

    /// Prefetches the slot at which a lookup of the hash starts.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(segment) = self.segment(hash) {
            let slots = &*self.segments[segment].slots;
            let at = hash as usize & (slots.len() - 1);
            fetch(slots.as_ptr().wrapping_add(at).cast());
        }
    }

    pub(crate) fn insert(&mut self, account: &mut Account, hash: u32, number: u32) {
        if self.directory.is_empty() {
            self.segments.push(Segment::new(account, SLOTS_MIN, 0));
            self.directory.push(0);
            account.bytes += self.bytes();
        }
        loop {
            let at = self.segment(hash).expect("the directory is not empty");
            let segment = &mut self.segments[at];
            if (segment.used as usize + 1) * 2 <= segment.slots.len() {
                segment.insert(u64::from(hash) << 32 | u64::from(number + 1));
                return;
            }
            if segment.slots.len() < SLOTS_MAX || segment.depth == DEPTH_MAX {
                let mut larger = Segment::new(account, segment.slots.len() * 2, segment.depth);
                segment
                    .slots
                    .iter()
                    .filter(|&&slot| slot != 0)
                    .for_each(|&slot| larger.insert(slot));
                account.bytes -= size_of_val(&*segment.slots);
                *segment = larger;
            } else {
                self.split(account, at, hash);
            }
        }
    }

    /// Splits the segment of this hash by one more bit.
    fn split(&mut self, account: &mut Account, at: usize, hash: u32) {
        account.bytes -= self.bytes();
        if self.segments[at].depth == self.depth {
            self.directory = self
                .directory
                .iter()
                .flat_map(|&segment| [segment, segment])
                .collect();
            self.depth += 1;
        }
        let segment = &mut self.segments[at];
        let depth = segment.depth + 1;
        let size = segment.slots.len();
        let (mut low, mut high) = (
            Segment::new(account, size, depth),
            Segment::new(account, size, depth),
        );
        for &slot in segment.slots.iter().filter(|&&slot| slot != 0) {
            if slot >> (64 - depth) & 1 == 0 {
                low.insert(slot)
            } else {
                high.insert(slot)
            }
        }
        account.bytes -= size_of_val(&*segment.slots);
        *segment = low;
        let other = self.segments.len() as u32;
        self.segments.push(high);
        // The directory entries with this segment's bits followed by a one.
        let ones = (u64::from(hash) >> (32 - depth)) | 1;
        let spread = self.depth - depth;
        let from = (ones << spread) as usize;
        self.directory[from..from + (1 << spread)].fill(other);
        account.bytes += self.bytes();
    }

    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let at = self
            .segment(hash)
            .expect("a group that is removed is in the index");
        self.segments[at].remove(u64::from(hash) << 32 | u64::from(number + 1));
    }

    /// Removes all entries and frees the memory.
    pub(crate) fn clear(&mut self, account: &mut Account) {
        account.bytes -= self.bytes()
            + self
                .segments
                .iter()
                .map(|s| size_of_val(&*s.slots))
                .sum::<usize>();
        *self = Index::new();
    }
}

impl Segment {
    fn new(account: &mut Account, slots: usize, depth: u32) -> Segment {
        account.bytes += slots * size_of::<u64>();
        Segment {
            slots: vec![0; slots].into_boxed_slice(),
            used: 0,
            depth,
        }
    }

    fn insert(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut at = (slot >> 32) as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
        self.used += 1;
    }

    /// Removes a slot with Knuth's algorithm R (volume 3, section 6.4).
    fn remove(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut hole = (slot >> 32) as usize & mask;
        while self.slots[hole] != slot {
            assert_ne!(
                self.slots[hole], 0,
                "a group that is removed is in the index"
            );
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.slots[at];
            if next == 0 {
                break;
            }
            let home = (next >> 32) as usize & mask;
            // An entry may move to the hole unless its home slot lies after the hole.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = next;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.used -= 1;
    }
}

/// Returns a 32-bit hash: folded 64 by 64 bit products, as in Wang Yi's wyhash.
#[inline]
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u32 {
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }
    fn word(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }
    fn half(bytes: &[u8]) -> u64 {
        u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }
    const A: u64 = 0xa076_1d64_78bd_642f;
    const B: u64 = 0xe703_7ed1_a0b4_28db;
    let mut state = seed ^ A;
    let mut rest = bytes;
    while rest.len() > 16 {
        state = fold(word(&rest[..8]) ^ state, word(&rest[8..16]) ^ B) ^ A;
        rest = &rest[16..];
    }
    let len = rest.len();
    let (low, high) = match len {
        8.. => (word(&rest[..8]), word(&rest[len - 8..])),
        4..8 => (half(&rest[..4]), half(&rest[len - 4..])),
        _ => (rest.iter().fold(0, |low, &b| low << 8 | u64::from(b)), 0),
    };
    // Different strings of the same length have different words; the length distinguishes the others.
    let state = fold(low ^ state, high ^ B ^ (bytes.len() as u64) << 56);
    (fold(state ^ A, B) >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_entries_are_found_until_they_are_removed() {
        let mut account = Account::default();
        let mut index = Index::new();
        let key = |n: u32| hash(7, &n.to_le_bytes()) & !0x7;
        for n in 0..50_000 {
            index.insert(&mut account, key(n), n);
        }
        for n in (0..50_000).step_by(2) {
            index.remove(key(n), n);
        }
        for n in 0..50_000 {
            assert_eq!(
                index.find(key(n), |found| found == n),
                (n % 2 == 1).then_some(n)
            );
        }
        assert!(account.bytes < 50_000 * 24);
        index.clear(&mut account);
        assert_eq!(account.bytes, 0);
    }

    #[test]
    fn entries_with_equal_hashes_are_distinguished() {
        let mut account = Account::default();
        let mut index = Index::new();
        for n in 0..5_000 {
            index.insert(&mut account, 0xffff_ffff, n);
        }
        for n in [0, 2_500, 4_999] {
            assert_eq!(index.find(0xffff_ffff, |found| found == n), Some(n));
            index.remove(0xffff_ffff, n);
            assert_eq!(index.find(0xffff_ffff, |found| found == n), None);
        }
        index.clear(&mut account);
        assert_eq!(account.bytes, 0);
    }
}
