//! *Bundles* of rows: a byte string with many rows of one partition. A foreign engine that shuffles rows by partition
//! moves one bundle instead of many rows.
//!
//! | bytes | part of a row |
//! |---|---|
//! | 4 | length of the key |
//! | | the key |
//! | 4 | length of the value |
//! | | the value |
//!
//! A bundle is a sequence of rows; numbers are little-endian. A bundle lives only as long as its job, and writer and
//! reader are of the same release, so it has no format number.

use larder_types::wire::{Malformed, WireReader, put_bytes};

/// The size of a row in addition to its key and value.
pub(crate) const ROW_OVERHEAD_BYTES: usize = 8;

/// Appends a row whose value `write` appends.
///
/// # Panics
/// If the key or the value has 4 GiB or more.
pub(crate) fn push_row(out: &mut Vec<u8>, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    put_bytes(out, key);
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let size = u32::try_from(out.len() - begin - 4).expect("a value is far below 4 GiB");
    out[begin..begin + 4].copy_from_slice(&size.to_le_bytes());
}

/// Iterates over the rows of a bundle, as key and value. The iterator ends after an error.
pub fn rows_of_bundle(bytes: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Malformed>> {
    let mut reader = WireReader::new(bytes);
    let mut is_damaged = false;
    std::iter::from_fn(move || {
        if is_damaged || reader.rest().is_empty() {
            return None;
        }
        let row = reader.bytes().and_then(|key| Ok((key, reader.bytes()?)));
        is_damaged = row.is_err();
        Some(row)
    })
}

/// Returns a bundle of these rows.
pub fn bundle_of<'r>(rows: impl IntoIterator<Item = (&'r [u8], &'r [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in rows {
        push_row(&mut out, key, |out| out.extend_from_slice(value));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_round_trips() {
        let rows: [(&[u8], &[u8]); 3] = [(b"k1", b"v1"), (b"k2", b""), (b"", &[7; 70_000])];
        let bundle = bundle_of(rows);
        let back: Result<Vec<_>, _> = rows_of_bundle(&bundle).collect();
        assert_eq!(back.expect("as they were written"), rows);
        assert_eq!(rows_of_bundle(&[]).count(), 0);
    }

    #[test]
    fn a_truncated_bundle_ends_with_an_error() {
        let rows: [(&[u8], &[u8]); 2] = [(b"k1", b"v1"), (b"k2", b"v2")];
        let bundle = bundle_of(rows);
        for size in (1..bundle.len()).filter(|size| *size != bundle.len() / 2) {
            let read: Vec<_> = rows_of_bundle(&bundle[..size]).collect();
            assert!(read.last().is_some_and(Result::is_err), "{size} bytes");
            assert!(read.len() <= 2);
        }
    }
}
