//! The check of one record, of format 2: the first three bytes of it, over the rest.
//!
//! It is made of the lowest 24 bits of [`checksum32`], seeded with where the record belongs. So a record that is read at
//! a wrong place, or with a wrong size, is found out as a changed one is: what led there needs no check of its own.

use larder_types::checksum32;

pub const CHECK_SIZE: usize = 3;

const MASK: u32 = 0xff_ffff;

/// Writes the check over the first bytes of `record`, which are kept free for it.
pub fn seal(record: &mut [u8], seed: u64) {
    let check = checksum32(&record[CHECK_SIZE..], seed).to_le_bytes();
    record[..CHECK_SIZE].copy_from_slice(&check[..CHECK_SIZE]);
}

#[inline(always)]
pub fn is_intact(record: &[u8], seed: u64) -> bool {
    match record.first_chunk::<4>() {
        Some(first) => {
            (checksum32(&record[CHECK_SIZE..], seed) ^ u32::from_le_bytes(*first)) & MASK == 0
        }
        // No record is that short: it has a key.
        None => false,
    }
}
