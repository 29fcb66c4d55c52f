//! Lookups in a version that is in memory.
//!
//! What a lookup costs here is memory: the directory (a fifth of a byte to half a byte a record,
//! mostly in the last-level cache), and the block (some ten lines, all asked for at once). A
//! processor runs ahead into the next lookups while it waits, if their work fits into its window.
//! So the filter, which is another line out of memory, is not asked while keys are found: only for
//! some time after one was absent. Then absent keys cost a line each, and present ones what they
//! would without a filter.

use std::cell::Cell;

use larder_types::key_hash;

use super::Value;
use super::segment_file::SegmentFile;
use crate::error::Error;
use crate::segment::{BlockRange, prefetch_block};

/// Lookups that a batch has under way at once: enough to keep the memory busy, few enough that
/// what is fetched ahead stays in the second-level cache.
pub const BATCH: usize = 16;

/// Lookups that still ask the filter after one that found nothing.
const DOUBTS: u32 = 32;

thread_local! {
    /// How many of this thread's next lookups ask the filter.
    static DOUBT: Cell<u32> = const { Cell::new(0) };
}

#[inline]
pub fn find<'a>(
    segment: &'a SegmentFile,
    hash: u64,
    key: &[u8],
) -> Result<Option<Value<'a>>, Error> {
    let doubt = DOUBT.get();
    let found = match locate(segment, hash, doubt > 0) {
        None => Ok(None),
        Some(range) => segment.find_mapped(range, hash, key),
    };
    match found {
        Ok(None) => DOUBT.set(DOUBTS),
        _ if doubt > 0 => DOUBT.set(doubt - 1),
        _ => {}
    }
    found
}

/// As [`find`] for each of at most [`BATCH`] keys, in its segment; all memory is asked for before
/// any is read.
pub fn find_batch<'a>(
    segments: &[&'a SegmentFile],
    keys: &[&[u8]],
    out: &mut Vec<Result<Option<Value<'a>>, Error>>,
) {
    let doubt = DOUBT.get();
    let mut hashes = [0; BATCH];
    for ((segment, key), hash) in segments.iter().zip(keys).zip(&mut hashes) {
        *hash = key_hash(key);
        segment.index.prefetch_directory(*hash);
        if doubt > 0 {
            segment.index.prefetch_filter(*hash);
        }
    }
    let mut ranges = [None; BATCH];
    for ((segment, hash), range) in segments.iter().zip(hashes).zip(&mut ranges) {
        *range = locate(segment, hash, doubt > 0);
        if let Some(range) = range {
            prefetch_block(segment.mapped(*range));
        }
    }
    let mut absent = false;
    for (((segment, key), hash), range) in segments.iter().zip(keys).zip(hashes).zip(ranges) {
        let found = match range {
            None => Ok(None),
            Some(range) => segment.find_mapped(range, hash, key),
        };
        absent |= matches!(found, Ok(None));
        out.push(found);
    }
    DOUBT.set(match absent {
        true => DOUBTS,
        false => doubt.saturating_sub(keys.len() as u32),
    });
}

#[inline(always)]
fn locate(segment: &SegmentFile, hash: u64, ask_filter: bool) -> Option<BlockRange> {
    if ask_filter && !segment.index.may_contain(hash) {
        return None;
    }
    segment.index.block(segment.index.block_index(hash))
}
