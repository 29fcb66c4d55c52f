//! Bytes that are mostly short: up to 22 of them lie where they are held, longer ones in a place of their own.

use std::fmt;
use std::ops::Deref;

const SHORT_MAX: usize = 22;

#[derive(Clone)]
pub(super) enum Bytes {
    Short(u8, [u8; SHORT_MAX]),
    Long(Box<[u8]>),
}

impl Bytes {
    pub fn new(bytes: &[u8]) -> Bytes {
        match bytes.len() <= SHORT_MAX {
            true => {
                let mut short = [0; SHORT_MAX];
                short[..bytes.len()].copy_from_slice(bytes);
                Bytes::Short(bytes.len() as u8, short)
            }
            false => Bytes::Long(bytes.into()),
        }
    }

    /// What it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Bytes::Short(..) => 0,
            Bytes::Long(bytes) => bytes.len(),
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
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self))
    }
}
