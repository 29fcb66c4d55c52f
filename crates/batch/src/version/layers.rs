//! Lookups in a version of several layers: a delta, the deltas below it, and the complete version at the bottom.
//!
//! The newest layer that has the key determines the result: its value, or that the key is removed. A layer whose
//! filter rejects the key is skipped, so a lookup usually reads one record: that of the layer with the key. It reads
//! more only on a false positive; a delta's filter has about 3 per 10,000 absent keys.
//!
//! Each layer costs a lookup one cache line of its filter. All lines are prefetched together before any is read, and
//! the mask is the same for all. A delta's filter is small compared with the base's, and mostly in the processor's
//! caches.

use std::cell::Cell;

use larder_types::key_hash;

use super::memory::{BATCH, prefetch_records};
use super::segment_file::{Attempt, SegmentFile};
use super::{Value, Version, memory};
use crate::delta::{MarkedValue, decode, invalid_marker};
use crate::error::Error;
use crate::segment::block::Varied;
use crate::segment::{RecordLocation, Records, filter_mask, prefetch_block};

/// The segments of one partition.
#[derive(Clone, Copy)]
struct Stack<'a> {
    /// Newest first.
    deltas: &'a [SegmentFile],
    base: &'a SegmentFile,
}

/// The number of lookups that query the base's filter after a miss, as in `memory.rs`.
const FILTERED_LOOKUPS: u32 = 32;

thread_local! {
    static FILTERED_LOOKUPS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Removes the delta marker; `None` for a removed key.
fn unmark<'a>(segment: &SegmentFile, marked: Value<'a>) -> Result<Option<Value<'a>>, Error> {
    match decode(&marked) {
        Some(MarkedValue::Value(_)) => Ok(Some(marked.without_last())),
        Some(MarkedValue::Removed) => Ok(None),
        None => Err(invalid_marker(&segment.place)),
    }
}

impl Stack<'_> {
    fn prefetch(&self, hash: u64, doubts: bool) {
        self.base.index.prefetch_directory(hash);
        for delta in self.deltas {
            delta.index.prefetch_filter(hash);
        }
        if doubts {
            self.base.index.prefetch_filter(hash);
        }
    }
}

/// Looks a key up directly in the maps.
fn find<'a>(
    stack: Stack<'a>,
    deltas: &'a [SegmentFile],
    hash: u64,
    key: &[u8],
) -> Result<Option<Value<'a>>, Error> {
    let mask = filter_mask(hash);
    for delta in deltas {
        if delta.index.may_contain_mask(hash, &mask)
            && let Some(marked) = delta.find_mapped(hash, key)?
        {
            return unmark(delta, marked);
        }
    }
    memory::find(stack.base, hash, key)
}

impl Version {
    fn stack(&self, key: &[u8]) -> Option<Stack<'_>> {
        let at = self.segment_index(key);
        Some(Stack {
            deltas: &self.deltas[at],
            base: self.segments[at].as_ref()?,
        })
    }

    /// Implements [`Version::get`] for a version with layers.
    #[inline(never)]
    pub(super) fn get_layered(&self, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        let hash = key_hash(key);
        let stack = self.stack(key).ok_or_else(|| self.key_not_local(key))?;
        if let Some(found) = self.find_in_maps(stack, hash, key) {
            return found;
        }
        let read =
            |segment: &SegmentFile, located| segment.read(located, hash, key).map(Attempt::Ready);
        match find_first(stack, hash, read)? {
            Attempt::Ready(found) => Ok(found),
            Attempt::WouldBlock => unreachable!("a plain read waits"),
        }
    }

    /// Implements [`Version::try_get`] for a version with layers.
    #[inline(never)]
    pub(super) fn try_get_layered(&self, key: &[u8]) -> Result<Attempt<'_>, Error> {
        let hash = key_hash(key);
        let stack = self.stack(key).ok_or_else(|| self.key_not_local(key))?;
        if let Some(found) = self.find_in_maps(stack, hash, key) {
            return found.map(Attempt::Ready);
        }
        find_first(stack, hash, |segment, located| {
            segment.try_read(located, hash, key)
        })
    }

    fn find_in_maps<'a>(
        &'a self,
        stack: Stack<'a>,
        hash: u64,
        key: &[u8],
    ) -> Option<Result<Option<Value<'a>>, Error>> {
        if !self.is_resident() {
            return None;
        }
        stack.prefetch(hash, false);
        let found = find(stack, stack.deltas, hash, key);
        self.is_intact().then_some(found)
    }

    /// Implements [`Version::get_many`] for a version with layers.
    pub(super) fn get_many_layered<'a>(
        &'a self,
        keys: &[&[u8]],
        out: &mut Vec<Result<Option<Value<'a>>, Error>>,
    ) {
        for batch in keys.chunks(BATCH) {
            let stacks: Option<Vec<Stack<'_>>> = batch.iter().map(|key| self.stack(key)).collect();
            let Some(stacks) = stacks.filter(|_| self.is_resident()) else {
                out.extend(batch.iter().map(|key| self.get_layered(key)));
                continue;
            };
            let before = out.len();
            find_batch(&stacks, batch, out);
            if !self.is_intact() {
                out.truncate(before);
                out.extend(batch.iter().map(|key| self.get_layered(key)));
            }
        }
    }
}

/// Returns the result of the first layer that has the key, using `read`.
fn find_first<'a>(
    stack: Stack<'a>,
    hash: u64,
    read: impl Fn(&'a SegmentFile, RecordLocation) -> Result<Attempt<'a>, Error>,
) -> Result<Attempt<'a>, Error> {
    for delta in stack.deltas {
        let Some(located) = delta.index.locate(hash) else {
            continue;
        };
        match read(delta, located)? {
            Attempt::Ready(None) => {}
            Attempt::Ready(Some(marked)) => return unmark(delta, marked).map(Attempt::Ready),
            Attempt::WouldBlock => return Ok(Attempt::WouldBlock),
        }
    }
    match stack.base.index.locate(hash) {
        None => Ok(Attempt::Ready(None)),
        Some(located) => read(stack.base, located),
    }
}

/// The layer in which a key of a batch is looked up first.
#[derive(Clone, Copy)]
struct LayerChoice<'a> {
    segment: &'a SegmentFile,
    located: Option<RecordLocation>,
    /// The number of deltas that were skipped or are being read.
    deltas_checked: usize,
    is_base: bool,
}

/// Like `memory::find_batch`: each step prefetches all memory before any is read.
fn find_batch<'a>(
    stacks: &[Stack<'a>],
    keys: &[&[u8]],
    out: &mut Vec<Result<Option<Value<'a>>, Error>>,
) {
    let doubt = FILTERED_LOOKUPS_LEFT.get();
    let mut hashes = [0; BATCH];
    for ((stack, key), hash) in stacks.iter().zip(keys).zip(&mut hashes) {
        *hash = key_hash(key);
        stack.prefetch(*hash, doubt > 0);
    }
    let mut picks = [None; BATCH];
    for ((stack, hash), pick) in stacks.iter().zip(hashes).zip(&mut picks) {
        let picked = choose_layer(*stack, hash, doubt > 0);
        if let Some(located) = &picked.located {
            prefetch_records(picked.segment, located);
        }
        *pick = Some(picked);
    }
    for LayerChoice {
        segment, located, ..
    } in picks.iter().flatten()
    {
        if let (Records::Varied(_), Some(located)) = (&segment.index.records, located) {
            let block = Varied::parse(segment.mapped(located.range), located.range.index);
            let records = block.and_then(|block| block.candidates(located.candidates));
            prefetch_block(records.unwrap_or(&[]));
        }
    }
    let mut absent = false;
    for (((stack, key), hash), picked) in stacks
        .iter()
        .zip(keys)
        .zip(hashes)
        .zip(picks.iter().flatten())
    {
        let found = match picked.located {
            None => Ok(None),
            Some(located) => picked.segment.find_located(located, hash, key),
        };
        let found = match found {
            Ok(Some(marked)) if !picked.is_base => unmark(picked.segment, marked),
            Ok(None) if !picked.is_base => {
                find(*stack, &stack.deltas[picked.deltas_checked..], hash, key)
            }
            found => found,
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

fn choose_layer(stack: Stack<'_>, hash: u64, doubts: bool) -> LayerChoice<'_> {
    let mask = filter_mask(hash);
    for (at, delta) in stack.deltas.iter().enumerate() {
        if delta.index.may_contain_mask(hash, &mask)
            && let Some(located) = delta.index.locate_unfiltered(hash)
        {
            return LayerChoice {
                segment: delta,
                located: Some(located),
                deltas_checked: at + 1,
                is_base: false,
            };
        }
    }
    let base = stack.base;
    let is_possible = !doubts || base.index.may_contain_mask(hash, &mask);
    LayerChoice {
        segment: base,
        located: if is_possible {
            base.index.locate_unfiltered(hash)
        } else {
            None
        },
        deltas_checked: stack.deltas.len(),
        is_base: true,
    }
}
