//! Half-open ranges of keys.

/// The keys from `lo` (inclusive) to `hi` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    pub lo: Vec<u8>,
    pub hi: Vec<u8>,
}

impl Range {
    pub fn new(lo: &[u8], hi: &[u8]) -> Range {
        Range {
            lo: lo.to_vec(),
            hi: hi.to_vec(),
        }
    }

    /// Returns the range of all keys with a prefix, whose last byte must be less than 0xff.
    pub fn prefix(prefix: &[u8]) -> Range {
        let mut hi = prefix.to_vec();
        if let Some(last) = hi.last_mut() {
            *last += 1;
        }
        Range::new(prefix, &hi)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        *self.lo <= *key && *key < *self.hi
    }

    pub fn covers(&self, other: &Range) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }

    /// Returns the common prefix of all its keys, and whether it contains only the key `lo`.
    pub fn common(&self) -> (&[u8], bool) {
        let (lo, hi) = (&self.lo, &self.hi);
        if hi.len() == lo.len() + 1 && hi.starts_with(lo) && hi[lo.len()] == 0 {
            return (lo, true);
        }
        let mut common = lo.iter().zip(hi).take_while(|(a, b)| a == b).count();
        let steps_up = hi.len() == common + 1
            && lo.len() > common
            && lo[common].checked_add(1) == Some(hi[common]);
        if steps_up {
            common += 1;
        }
        (&lo[..common], false)
    }
}
