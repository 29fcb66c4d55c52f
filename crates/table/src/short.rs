//! Inlined copies and comparisons of a few bytes, which are cheaper than a call.

/// Copies `len` bytes.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller; each arm stays within `len` bytes and may copy some twice.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                *to = *from;
                *to.add(len / 2) = *from.add(len / 2);
                *to.add(len - 1) = *from.add(len - 1);
            }
            4..=7 => {
                let (low, high) = (word32(from), word32(from.add(len - 4)));
                to.cast::<u32>().write_unaligned(low);
                to.add(len - 4).cast::<u32>().write_unaligned(high);
            }
            8..=16 => {
                let (low, high) = (word64(from), word64(from.add(len - 8)));
                to.cast::<u64>().write_unaligned(low);
                to.add(len - 8).cast::<u64>().write_unaligned(high);
            }
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Returns whether two byte strings are equal.
#[inline]
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    let len = a.len();
    if len != b.len() {
        return false;
    }
    let (x, y) = (a.as_ptr(), b.as_ptr());
    // SAFETY: each arm reads within `len` bytes of both.
    unsafe {
        match len {
            4..=7 => word32(x) == word32(y) && word32(x.add(len - 4)) == word32(y.add(len - 4)),
            8..=16 => word64(x) == word64(y) && word64(x.add(len - 8)) == word64(y.add(len - 8)),
            _ => a == b,
        }
    }
}

/// # Safety
///
/// Four bytes must be readable.
#[inline]
unsafe fn word32(at: *const u8) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// # Safety
///
/// Eight bytes must be readable.
#[inline]
unsafe fn word64(at: *const u8) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { at.cast::<u64>().read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_compared_completely() {
        let from: Vec<u8> = (1..=40).collect();
        for len in 0..=40 {
            let mut to = vec![0; 41];
            // SAFETY: both have room for 40 bytes.
            unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|&byte| byte == 0));
            assert!(equal(&from[..len], &to[..len]));
            for at in 0..len {
                to[at] ^= 1;
                assert!(!equal(&from[..len], &to[..len]));
                to[at] ^= 1;
            }
            assert!(!equal(&from[..len], &to[..len + 1]));
        }
    }
}
