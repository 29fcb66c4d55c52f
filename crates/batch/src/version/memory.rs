//! Lookups in a version that is in memory.
//!
//! The cost of a lookup is its cache misses: the directory (half a byte per record, mostly in the last-level cache)
//! and the record. In a uniform segment, the record takes two or three lines that are fetched together; in a varied
//! one, a line of its block's header comes before them; in a sealed one, it takes the complete block. A processor
//! executes the next lookups speculatively while it waits, if their work fits into its window. The filter would be
//! another cache miss, so it is not queried while keys are found, but only for some lookups after a miss. Absent keys
//! then cost one line each, and present keys cost the same as without a filter.

use std::cell::Cell;

use larder_types::key_hash;

use super::Value;
use super::segment_file::SegmentFile;
use crate::error::Error;
use crate::segment::block::Varied;
use crate::segment::{RecordLocation, Records, prefetch_block};

/// The number of concurrent lookups in a batch: enough to keep the memory busy, few enough that prefetched lines stay
/// in the second-level cache.
pub const BATCH: usize = 16;

/// The number of lookups that query the filter after a miss.
const FILTERED_LOOKUPS: u32 = 32;

thread_local! {
    /// The number of this thread's next lookups that query the filter.
    static FILTERED_LOOKUPS_LEFT: Cell<u32> = const { Cell::new(0) };
}

#[inline]
pub fn find<'a>(
    segment: &'a SegmentFile,
    hash: u64,
    key: &[u8],
) -> Result<Option<Value<'a>>, Error> {
    let doubt = FILTERED_LOOKUPS_LEFT.get();
    let found = if doubt > 0 && !segment.index.may_contain(hash) {
        Ok(None)
    } else {
        segment.find_mapped(hash, key)
    };
    match found {
        Ok(None) => FILTERED_LOOKUPS_LEFT.set(FILTERED_LOOKUPS),
        _ if doubt > 0 => FILTERED_LOOKUPS_LEFT.set(doubt - 1),
        _ => {}
    }
    found
}

/// Like [`find`] for each of at most [`BATCH`] keys, each in its segment; all memory is prefetched before any is
/// read.
pub fn find_batch<'a>(
    segments: &[&'a SegmentFile],
    keys: &[&[u8]],
    out: &mut Vec<Result<Option<Value<'a>>, Error>>,
) {
    let doubt = FILTERED_LOOKUPS_LEFT.get();
    let mut hashes = [0; BATCH];
    for ((segment, key), hash) in segments.iter().zip(keys).zip(&mut hashes) {
        *hash = key_hash(key);
        segment.index.prefetch_directory(*hash);
        if doubt > 0 {
            segment.index.prefetch_filter(*hash);
        }
    }
    let mut places = [None; BATCH];
    for ((segment, hash), place) in segments.iter().zip(hashes).zip(&mut places) {
        if doubt > 0 && !segment.index.may_contain(hash) {
            continue;
        }
        *place = segment.index.locate_unfiltered(hash);
        if let Some(located) = place {
            prefetch_records(segment, located);
        }
    }
    for (segment, place) in segments.iter().zip(&places) {
        if let (Records::Varied(_), Some(located)) = (&segment.index.records, place) {
            let block = Varied::parse(segment.mapped(located.range), located.range.index);
            let records = block.and_then(|block| block.candidates(located.candidates));
            prefetch_block(records.unwrap_or(&[]));
        }
    }
    let mut absent = false;
    for (((segment, key), hash), place) in segments.iter().zip(keys).zip(hashes).zip(places) {
        let found = match place {
            None => Ok(None),
            Some(located) => segment.find_located(located, hash, key),
        };
        absent |= matches!(found, Ok(None));
        out.push(found);
    }
    FILTERED_LOOKUPS_LEFT.set(if absent {
        FILTERED_LOOKUPS
    } else {
        doubt.saturating_sub(keys.len() as u32)
    });
}

/// Prefetches what is read next. For varied segments that is only the block header, which locates the records.
#[inline(always)]
pub fn prefetch_records(segment: &SegmentFile, located: &RecordLocation) {
    let bytes = segment.mapped(located.range);
    match &segment.index.records {
        Records::Varied(_) => Varied::prefetch_ends(bytes, located.candidates),
        Records::Uniform(uniform) => uniform.prefetch_records(bytes),
        Records::Sealed(_) => prefetch_block(bytes),
    }
}
