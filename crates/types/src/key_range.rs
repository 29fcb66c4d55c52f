//! Half-open ranges of keys.

/// The keys from `lo` (inclusive) to `hi` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    pub lo: Box<[u8]>,
    pub hi: Box<[u8]>,
}

impl KeyRange {
    pub fn new(lo: &[u8], hi: &[u8]) -> Self {
        Self {
            lo: lo.into(),
            hi: hi.into(),
        }
    }

    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            lo: prefix.into(),
            hi: successor(prefix).into(),
        }
    }

    /// Returns the range that contains only `key`.
    pub fn point(key: &[u8]) -> Self {
        let mut hi = key.to_vec();
        hi.push(0);
        Self {
            lo: key.into(),
            hi: hi.into(),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        *self.lo <= *key && *key < *self.hi
    }

    pub fn is_empty(&self) -> bool {
        self.lo >= self.hi
    }

    /// Returns whether all keys of `other` are in this range.
    pub fn covers(&self, other: &KeyRange) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }

    pub fn overlaps(&self, other: &KeyRange) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }
}

/// Returns the least key greater than all keys with this prefix. The prefix must contain a byte below 0xff; a table's
/// name does.
pub fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut next = prefix.to_vec();
    step_up(&mut next);
    next
}

/// Returns whether `key` is the successor of a prefix whose last byte is below 0xff.
pub fn is_successor(prefix: &[u8], key: &[u8]) -> bool {
    let (Some((last, start)), Some((key_last, key_start))) =
        (prefix.split_last(), key.split_last())
    else {
        return false;
    };
    last.checked_add(1) == Some(*key_last) && start == key_start
}

/// Replaces a prefix by its successor.
pub fn step_up(prefix: &mut Vec<u8>) {
    while let Some(last) = prefix.last_mut() {
        if *last < 0xff {
            *last += 1;
            return;
        }
        prefix.pop();
    }
}

/// Returns the longest common prefix of all keys in `lo..hi`, and whether the range contains only the key `lo`.
pub fn common_prefix<'a>(lo: &'a [u8], hi: &[u8]) -> (&'a [u8], bool) {
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
