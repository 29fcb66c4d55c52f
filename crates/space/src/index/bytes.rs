//! Byte strings that are usually short: up to 22 bytes are stored inline, longer ones on the heap. The first seven
//! bytes are always inline, because they distinguish most strings in a lookup.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

const SHORT_MAX: usize = 22;

#[derive(Clone)]
pub(super) enum Bytes {
    Short(u8, [u8; SHORT_MAX]),
    Long([u8; HEAD], Box<[u8]>),
}

const HEAD: usize = 7;
const _: () = assert!(size_of::<Bytes>() == 24);

/// A string that is compared with many others, with its first bytes as a number that sorts like them.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchKey<'a> {
    head: u64,
    bytes: &'a [u8],
}

impl<'a> SearchKey<'a> {
    pub fn new(bytes: &'a [u8]) -> SearchKey<'a> {
        let mut head = [0; HEAD];
        let size = bytes.len().min(HEAD);
        head[..size].copy_from_slice(&bytes[..size]);
        SearchKey {
            head: number_of(head),
            bytes,
        }
    }
}

fn number_of([a, b, c, d, e, f, g]: [u8; HEAD]) -> u64 {
    u64::from_be_bytes([0, a, b, c, d, e, f, g])
}

impl Bytes {
    pub fn new(bytes: &[u8]) -> Bytes {
        if bytes.len() <= SHORT_MAX {
            let mut short = [0; SHORT_MAX];
            short[..bytes.len()].copy_from_slice(bytes);
            Bytes::Short(bytes.len() as u8, short)
        } else {
            let mut head = [0; HEAD];
            head.copy_from_slice(&bytes[..HEAD]);
            Bytes::Long(head, bytes.into())
        }
    }

    /// Compares in byte order.
    #[inline]
    pub fn compare(&self, other: SearchKey<'_>) -> Ordering {
        let head = match self {
            // Shorter strings are padded with zeros.
            Bytes::Short(_, [a, b, c, d, e, f, g, ..]) => [*a, *b, *c, *d, *e, *f, *g],
            Bytes::Long(head, _) => *head,
        };
        let by_head = number_of(head).cmp(&other.head);
        by_head.then_with(|| self[..].cmp(other.bytes))
    }

    /// Returns whether the string sorts before `other`.
    #[inline]
    pub fn is_below(&self, other: SearchKey<'_>) -> bool {
        self.compare(other).is_lt()
    }

    /// Returns the heap size.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Bytes::Short(..) => 0,
            Bytes::Long(_, bytes) => bytes.len(),
        }
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Short(0, [0; SHORT_MAX])
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Short(size, bytes) => &bytes[..usize::from(*size)],
            Bytes::Long(_, bytes) => bytes,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strings_compare_like_slices(a in proptest::collection::vec(0_u8..3, 0..40), b in proptest::collection::vec(0_u8..3, 0..40), both in proptest::collection::vec(any::<u8>(), 0..30)) {
            let (a, b) = ([&both[..], &a].concat(), [&both[..], &b].concat());
            prop_assert_eq!(Bytes::new(&a).compare(SearchKey::new(&b)), a.cmp(&b));
            prop_assert_eq!(Bytes::new(&a).is_below(SearchKey::new(&a)), false);
        }
    }
}
