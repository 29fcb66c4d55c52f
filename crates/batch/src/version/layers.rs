//! Lookups in a version of several layers: a delta, the deltas below it, and the whole version at the bottom.
//!
//! The newest layer that has the key answers: its value, or that the key is removed. A layer whose filter does not know the
//! key is passed over, so a lookup reads one record: that of the layer which has the key. Two or more only where a filter is
//! wrong, which that of a delta is for some 3 of 10,000 keys that it lacks.
//!
//! What a layer costs a lookup in memory is a line of its filter. The lines are asked for at once, before any is looked at,
//! and the bits to look for are the same in all; a delta's filter is small beside the base's, and mostly in the processor's caches.

use std::cell::Cell;

use larder_types::key_hash;

use super::memory::{BATCH, prefetch_records};
use super::segment_file::{Attempt, SegmentFile};
use super::{Value, Version, memory};
use crate::delta::{Said, said, wrong};
use crate::error::Error;
use crate::segment::block::Varied;
use crate::segment::{Located, Records, filter_mask, prefetch_block};

/// The segments of one partition.
#[derive(Clone, Copy)]
struct Stack<'a> {
    /// The newest first.
    deltas: &'a [SegmentFile],
    base: &'a SegmentFile,
}

/// As in `memory.rs`: lookups that still ask the base's filter after one that found nothing.
const DOUBTS: u32 = 32;

thread_local! {
    static DOUBT: Cell<u32> = const { Cell::new(0) };
}

/// What a delta's value says; `None` for a removed key.
fn unmark<'a>(segment: &SegmentFile, marked: Value<'a>) -> Result<Option<Value<'a>>, Error> {
    match said(&marked) {
        Some(Said::Value(_)) => Ok(Some(marked.without_last())),
        Some(Said::Removed) => Ok(None),
        None => Err(wrong(&segment.place)),
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

/// Straight from the maps.
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

    /// As [`Version::get`], of a version that has layers.
    #[inline(never)]
    pub(super) fn get_layered(&self, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        let hash = key_hash(key);
        let stack = self.stack(key).ok_or_else(|| self.not_here(key))?;
        if let Some(found) = self.find_in_maps(stack, hash, key) {
            return found;
        }
        let read =
            |segment: &SegmentFile, located| segment.read(located, hash, key).map(Attempt::Ready);
        match first_of(stack, hash, read)? {
            Attempt::Ready(found) => Ok(found),
            Attempt::WouldBlock => unreachable!("a plain read waits"),
        }
    }

    /// As [`Version::try_get`], of a version that has layers.
    #[inline(never)]
    pub(super) fn try_get_layered(&self, key: &[u8]) -> Result<Attempt<'_>, Error> {
        let hash = key_hash(key);
        let stack = self.stack(key).ok_or_else(|| self.not_here(key))?;
        if let Some(found) = self.find_in_maps(stack, hash, key) {
            return found.map(Attempt::Ready);
        }
        first_of(stack, hash, |segment, located| {
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
        self.is_whole().then_some(found)
    }

    /// As [`Version::get_many`], of a version that has layers.
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
            if !self.is_whole() {
                out.truncate(before);
                out.extend(batch.iter().map(|key| self.get_layered(key)));
            }
        }
    }
}

/// The answer of the first layer that has the key, by `read`.
fn first_of<'a>(
    stack: Stack<'a>,
    hash: u64,
    read: impl Fn(&'a SegmentFile, Located) -> Result<Attempt<'a>, Error>,
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

/// Where a key of a batch is looked for first.
#[derive(Clone, Copy)]
struct Picked<'a> {
    segment: &'a SegmentFile,
    located: Option<Located>,
    /// How many deltas have been passed over or are being asked.
    asked: usize,
    is_base: bool,
}

/// As `memory::find_batch`: all memory of a step is asked for before any of it is read.
fn find_batch<'a>(
    stacks: &[Stack<'a>],
    keys: &[&[u8]],
    out: &mut Vec<Result<Option<Value<'a>>, Error>>,
) {
    let doubt = DOUBT.get();
    let mut hashes = [0; BATCH];
    for ((stack, key), hash) in stacks.iter().zip(keys).zip(&mut hashes) {
        *hash = key_hash(key);
        stack.prefetch(*hash, doubt > 0);
    }
    let mut picks = [None; BATCH];
    for ((stack, hash), pick) in stacks.iter().zip(hashes).zip(&mut picks) {
        let picked = first_pick(*stack, hash, doubt > 0);
        if let Some(located) = &picked.located {
            prefetch_records(picked.segment, located);
        }
        *pick = Some(picked);
    }
    for Picked {
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
            Ok(None) if !picked.is_base => find(*stack, &stack.deltas[picked.asked..], hash, key),
            found => found,
        };
        absent |= matches!(found, Ok(None));
        out.push(found);
    }
    DOUBT.set(match absent {
        true => DOUBTS,
        false => doubt.saturating_sub(keys.len() as u32),
    });
}

fn first_pick(stack: Stack<'_>, hash: u64, doubts: bool) -> Picked<'_> {
    let mask = filter_mask(hash);
    for (at, delta) in stack.deltas.iter().enumerate() {
        if delta.index.may_contain_mask(hash, &mask)
            && let Some(located) = delta.index.place(hash)
        {
            return Picked {
                segment: delta,
                located: Some(located),
                asked: at + 1,
                is_base: false,
            };
        }
    }
    let base = stack.base;
    let is_possible = !doubts || base.index.may_contain_mask(hash, &mask);
    Picked {
        segment: base,
        located: if is_possible {
            base.index.place(hash)
        } else {
            None
        },
        asked: stack.deltas.len(),
        is_base: true,
    }
}
