//! The checksum of one record of format 2: its first three bytes, over the rest.
//!
//! It consists of the low 24 bits of [`checksum32`], seeded with the record's position. It therefore also detects a
//! record that is read at a wrong position or with a wrong size, and the structures that led to the record need no
//! verification.

use larder_types::checksum32;

pub const CHECK_SIZE: usize = 3;

const MASK: u32 = 0xff_ffff;

/// Writes the checksum into the first bytes of `record`, which are reserved for it.
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
        // A record has a key, so it cannot be that short.
        None => false,
    }
}
