//! Lookups in a version that is in memory.
//!
//! What a lookup costs here is memory: the directory (half a byte a record,
//! mostly in the last-level cache), and the record: of a uniform segment two or three lines, asked for at once, of a varied
//! one a line of its block's head before them, of a sealed one all of its block. A
//! processor runs ahead into the next lookups while it waits, if their work fits into its window.
//! So the filter, which is another line out of memory, is not asked while keys are found: only for
//! some time after one was absent. Then absent keys cost a line each, and present ones what they
//! would without a filter.

use std::cell::Cell;

use larder_types::key_hash;

use super::Value;
use super::segment_file::SegmentFile;
use crate::error::Error;
use crate::segment::block::Varied;
use crate::segment::{Located, Records, prefetch_block};

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
    let found = match doubt > 0 && !segment.index.may_contain(hash) {
        true => Ok(None),
        false => segment.find_mapped(hash, key),
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
    let mut places = [None; BATCH];
    for ((segment, hash), place) in segments.iter().zip(hashes).zip(&mut places) {
        if doubt > 0 && !segment.index.may_contain(hash) {
            continue;
        }
        *place = segment.index.place(hash);
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
    DOUBT.set(match absent {
        true => DOUBTS,
        false => doubt.saturating_sub(keys.len() as u32),
    });
}

/// Asks for what is read next: of varied segments the head alone, since it says where the records are.
#[inline(always)]
pub fn prefetch_records(segment: &SegmentFile, located: &Located) {
    let bytes = segment.mapped(located.range);
    match &segment.index.records {
        Records::Varied(_) => Varied::prefetch_ends(bytes, located.candidates),
        Records::Uniform(uniform) => uniform.prefetch_records(bytes),
        Records::Sealed(_) => prefetch_block(bytes),
    }
}
