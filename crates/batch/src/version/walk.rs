//! Sequential reading of records in block order, with positioned reads: no page faults occur, and the memory is
//! limited to a window of the file, one block's records, and one large value.

use std::borrow::{Borrow, Cow};
use std::collections::VecDeque;
use std::ops::Range;

use larder_types::{KEY_BYTES_MAX, key_hash};

use super::Version;
use super::segment_file::SegmentFile;
use crate::delta::{MarkedValue, decode, invalid_marker};
use crate::error::Error;
use crate::segment::block::{Block, FoundValue, LargeRef, Varied};
use crate::segment::{BlockRange, RecordRef, Records};

/// A record of a version, as owned memory.
pub type Record = (Box<[u8]>, Box<[u8]>);

/// The read size for consecutive blocks.
pub const WINDOW_BYTES: usize = 256 << 10;
/// A block with its extents up to this size is read in one step; of a larger one, the block is read first.
const WHOLE_READ_BYTES_MAX: u64 = 64 << 10;

/// Reads blocks of one segment. In sequential order, this takes one read per window.
pub struct BlockReader<'a> {
    segment: &'a SegmentFile,
    window_bytes: usize,
    window: Vec<u8>,
    /// The position of the window in the file.
    start: u64,
}

impl<'a> BlockReader<'a> {
    /// Creates a reader. With `window_bytes` of 0 there is no read-ahead, for blocks at random positions.
    pub fn new(segment: &'a SegmentFile, window_bytes: usize) -> BlockReader<'a> {
        BlockReader {
            segment,
            window_bytes,
            window: Vec::new(),
            start: 0,
        }
    }

    /// Calls `each` with the records of a block, in order.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for damage, [`Error::Io`], and those of `each`.
    pub fn each_record(
        &mut self,
        range: BlockRange,
        each: &mut dyn FnMut(WalkedRecord<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let segment = self.segment;
        match &segment.index.records {
            Records::Sealed(_) => self.each_sealed(range, each),
            Records::Uniform(uniform) => {
                let first = uniform.number_at(range.start);
                let bytes = self.bytes(range.start, range.end - range.start)?;
                for (number, bytes) in uniform.each(bytes, first) {
                    let record = uniform
                        .record(bytes, number)
                        .ok_or_else(|| uniform.damaged(&segment.place, number, bytes))?;
                    let value = FoundValue::Inline(record.value);
                    let record = RecordRef {
                        key: record.key,
                        value,
                    };
                    each(found(segment, range, number - first, None, record)?)?;
                }
                Ok(())
            }
            Records::Varied(blocks) => {
                let count = blocks.count(range.index);
                let wrong = |detail| segment.damaged_block(range, detail);
                let bytes = self.front(range)?;
                let block = Varied::parse(bytes, range.index);
                let block =
                    block.filter(|block| block.has_intact_head() && block.count() as u64 == count);
                let block =
                    block.ok_or_else(|| wrong("the checksum of its header does not match"))?;
                let mut end = block.size().unwrap_or(0) as u64;
                for number in 0..count as u32 {
                    let record = block
                        .record(number)
                        .ok_or_else(|| wrong("a record's checksum does not match"))?;
                    if let FoundValue::Large(large) = record.value {
                        end = end.max(large.offset.saturating_add(large.stored_size));
                    }
                    each(found(segment, range, u64::from(number), None, record)?)?;
                }
                if end != range.end - range.start {
                    return Err(wrong("it does not end where the next one begins"));
                }
                Ok(())
            }
        }
    }

    fn each_sealed(
        &mut self,
        range: BlockRange,
        each: &mut dyn FnMut(WalkedRecord<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let segment = self.segment;
        let bytes = self.front(range)?;
        let block = Block::open(&segment.place, bytes, range.index, segment.codec())?;
        let mut records = block.records();
        let mut number = 0;
        while let Some(record) = records.next() {
            each(found(segment, range, number, records.last_tag(), record)?)?;
            number += 1;
        }
        if !records.is_complete() {
            return Err(segment.damaged_block(range, "a record runs over its end"));
        }
        Ok(())
    }

    /// Returns the block at the front of `range`, and the part of its extents that was read with it.
    fn front(&mut self, range: BlockRange) -> Result<&[u8], Error> {
        let complete = range.end - range.start;
        let mut size = complete.min(WHOLE_READ_BYTES_MAX);
        loop {
            let segment = self.segment;
            let needed = segment.size_needed(self.bytes(range.start, size)?, complete);
            // A damaged size is detected by its checksum, or by `Block::open`, which then lacks bytes.
            if needed <= size || size == complete {
                return self.bytes(range.start, size);
            }
            size = needed.min(complete);
        }
    }

    fn bytes(&mut self, start: u64, size: u64) -> Result<&[u8], Error> {
        let has = self.start..self.start + self.window.len() as u64;
        if !(has.contains(&start) && start + size <= has.end) {
            let ahead = size.max(self.window_bytes as u64);
            let size = ahead.min(self.segment.size() - start) as usize;
            // The window is valid only after the complete read.
            self.window.clear();
            let mut window = std::mem::take(&mut self.window);
            window.resize(size, 0);
            self.segment.read_at(start, &mut window)?;
            (self.window, self.start) = (window, start);
        }
        let at = (start - self.start) as usize;
        Ok(&self.window[at..at + size as usize])
    }
}

/// Returns a record, or an error if it is invalid.
fn found<'a>(
    segment: &'a SegmentFile,
    range: BlockRange,
    number: u64,
    tag: Option<u8>,
    record: RecordRef<'a>,
) -> Result<WalkedRecord<'a>, Error> {
    let key = record.key;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(segment.damaged_block(range, "a key's size is impossible"));
    }
    let value = match record.value {
        FoundValue::Inline(value) => ValueLocation::Here(value),
        FoundValue::Large(large) => {
            let end = large.offset.checked_add(large.stored_size);
            if end.is_none_or(|end| end > range.end - range.start) {
                return Err(segment.damaged_block(range, "a large value is out of bounds"));
            }
            ValueLocation::Apart(LargeAt { range, large })
        }
    };
    Ok(WalkedRecord {
        key,
        number,
        tag,
        value,
        segment,
    })
}

/// A record during a walk. Large values are read only on request.
pub struct WalkedRecord<'a> {
    pub key: &'a [u8],
    /// The record's number in its block.
    pub number: u64,
    /// The hash byte that a sealed block stores for the record.
    pub tag: Option<u8>,
    value: ValueLocation<'a>,
    segment: &'a SegmentFile,
}

enum ValueLocation<'a> {
    Here(&'a [u8]),
    Apart(LargeAt),
}

#[derive(Clone, Copy)]
struct LargeAt {
    range: BlockRange,
    large: LargeRef,
}

impl<'a> WalkedRecord<'a> {
    pub fn value_size(&self) -> u64 {
        match &self.value {
            ValueLocation::Here(value) => value.len() as u64,
            ValueLocation::Apart(apart) => apart.large.size,
        }
    }

    /// # Errors
    /// [`Error::Corrupted`] if a large value is damaged, [`Error::Io`].
    pub fn value(&self) -> Result<Cow<'a, [u8]>, Error> {
        match &self.value {
            ValueLocation::Here(value) => Ok(Cow::Borrowed(value)),
            ValueLocation::Apart(apart) => apart.read(self.segment).map(Cow::Owned),
        }
    }
}

impl LargeAt {
    fn read(&self, segment: &SegmentFile) -> Result<Vec<u8>, Error> {
        let LargeAt { range, large } = self;
        let mut stored = vec![0; large.stored_size as usize];
        segment.read_at(range.start + large.offset, &mut stored)?;
        match large.open(&segment.place, range.index, &stored, segment.codec())? {
            Cow::Owned(value) => Ok(value),
            Cow::Borrowed(_) => Ok(stored),
        }
    }
}

/// Iterates over every record of a version or of some of its partitions, partition by partition, in (hash, key)
/// order. The iterator ends after an error.
///
/// A version with layers is merged: each layer is read sequentially, and the newest layer's record of a key is
/// returned.
pub struct Walk<V> {
    version: V,
    partition: usize,
    /// The partition at which the walk ends (exclusive).
    end: usize,
    /// One cursor per layer of the partition, newest first; empty before the partition is started.
    cursors: Vec<Cursor>,
    /// Records with lower hashes in the first partition are skipped.
    from_hash: u64,
    window_bytes: usize,
    failed: bool,
}

/// The read position in one segment.
#[derive(Default)]
struct Cursor {
    block: u64,
    /// The rest of the segment's window.
    window: Vec<u8>,
    window_start: u64,
    /// Records of the last block that was read.
    pending: VecDeque<Pending>,
}

struct Pending {
    /// Computed only to merge layers or to start at a hash.
    hash: u64,
    key: Box<[u8]>,
    value: PendingValue,
}

enum PendingValue {
    Here(Box<[u8]>),
    Apart(LargeAt),
}

/// A record whose value may not have been read yet.
pub(super) struct WalkStep {
    /// As in [`Pending`].
    pub hash: u64,
    pub key: Box<[u8]>,
    partition: usize,
    /// 0 is the newest.
    layer: usize,
    value: PendingValue,
}

impl Cursor {
    /// Reads blocks until a record is pending or the segment ends. With `hashed`, computes hashes and skips records
    /// below that one.
    fn fill(
        &mut self,
        segment: &SegmentFile,
        hashed: Option<u64>,
        window_bytes: usize,
    ) -> Result<(), Error> {
        while self.pending.is_empty() {
            if self.block == segment.index.footer.block_count {
                self.window = Vec::new();
                return Ok(());
            }
            self.block += 1;
            let Some(range) = segment.index.block(self.block - 1) else {
                continue;
            };
            let mut reader = BlockReader {
                segment,
                window_bytes,
                window: std::mem::take(&mut self.window),
                start: self.window_start,
            };
            let pending = &mut self.pending;
            reader.each_record(range, &mut |found| {
                let hash = hashed.map_or(0, |_| key_hash(found.key));
                if hashed.is_some_and(|from| hash < from) {
                    return Ok(());
                }
                let value = match &found.value {
                    ValueLocation::Here(value) => PendingValue::Here((*value).into()),
                    ValueLocation::Apart(apart) => PendingValue::Apart(*apart),
                };
                let key = found.key.into();
                pending.push_back(Pending { hash, key, value });
                Ok(())
            })?;
            (self.window, self.window_start) = (reader.window, reader.start);
        }
        Ok(())
    }
}

impl<V: Borrow<Version>> Walk<V> {
    pub fn new(version: V) -> Walk<V> {
        let end = version.borrow().segments.len();
        Walk::of_partitions(version, 0..end)
    }

    /// Walks a range of partitions of the version.
    pub fn of_partitions(version: V, partitions: Range<usize>) -> Walk<V> {
        Walk {
            version,
            partition: partitions.start,
            end: partitions.end,
            cursors: Vec::new(),
            from_hash: 0,
            window_bytes: WINDOW_BYTES,
            failed: false,
        }
    }

    /// Walks one partition from a hash on, with this read size.
    pub(super) fn from_hash(
        version: V,
        partition: usize,
        from_hash: u64,
        window_bytes: usize,
    ) -> Walk<V> {
        Walk {
            from_hash,
            window_bytes,
            ..Walk::of_partitions(version, partition..partition + 1)
        }
    }

    /// Returns the next record; a large value is not read yet.
    pub(super) fn step(&mut self) -> Result<Option<WalkStep>, Error> {
        while self.partition < self.end {
            let version: &Version = self.version.borrow();
            let layers = version.layers_of(self.partition)?;
            if self.cursors.is_empty() {
                let started = version.layers_of(self.partition)?;
                self.cursors = started
                    .map(|segment| Cursor {
                        block: segment.index.block_index(self.from_hash),
                        ..Cursor::default()
                    })
                    .collect();
            }
            let is_hashed = self.cursors.len() > 1 || self.from_hash > 0;
            let hashed = is_hashed.then_some(self.from_hash);
            let mut first: Option<(usize, u64, &[u8])> = None;
            for (cursor, segment) in self.cursors.iter_mut().zip(layers) {
                cursor.fill(segment, hashed, self.window_bytes)?;
            }
            for (layer, cursor) in self.cursors.iter().enumerate() {
                let Some(head) = cursor.pending.front() else {
                    continue;
                };
                let is_first =
                    |(_, hash, key): (usize, u64, &[u8])| (head.hash, &head.key[..]) < (hash, key);
                if first.is_none_or(is_first) {
                    first = Some((layer, head.hash, &head.key));
                }
            }
            let Some((layer, ..)) = first else {
                (self.partition, self.from_hash) = (self.partition + 1, 0);
                self.cursors.clear();
                continue;
            };
            let taken = self.cursors[layer]
                .pending
                .pop_front()
                .expect("a head was seen");
            for below in &mut self.cursors[layer + 1..] {
                if below
                    .pending
                    .front()
                    .is_some_and(|head| head.hash == taken.hash && head.key == taken.key)
                {
                    below.pending.pop_front();
                }
            }
            let Pending {
                hash,
                key,
                mut value,
            } = taken;
            if layer + 1 < self.cursors.len()
                && let PendingValue::Here(marked) = &value
            {
                match decode(marked) {
                    Some(MarkedValue::Value(plain)) => value = PendingValue::Here(plain.into()),
                    Some(MarkedValue::Removed) => continue,
                    None => {
                        let place = version.layers_of(self.partition)?.nth(layer);
                        return Err(invalid_marker(place.map_or("a segment", |it| &it.place)));
                    }
                }
            }
            return Ok(Some(WalkStep {
                hash,
                key,
                partition: self.partition,
                layer,
                value,
            }));
        }
        Ok(None)
    }

    fn record(&mut self) -> Result<Option<Record>, Error> {
        match self.step()? {
            None => Ok(None),
            Some(stepped) => stepped.read(self.version.borrow()).map(Some),
        }
    }
}

impl WalkStep {
    pub fn value_size(&self) -> u64 {
        match &self.value {
            PendingValue::Here(value) => value.len() as u64,
            PendingValue::Apart(apart) => apart.large.size,
        }
    }

    /// Reads the value. `version` must be the one that contains the record.
    pub fn read(self, version: &Version) -> Result<Record, Error> {
        let apart = match self.value {
            PendingValue::Here(value) => return Ok((self.key, value)),
            PendingValue::Apart(apart) => apart,
        };
        let mut layers = version.layers_of(self.partition)?;
        let segment = layers.nth(self.layer).expect("it was read from");
        let mut value = apart.read(segment)?;
        if segment.index.footer.is_delta {
            match decode(&value) {
                Some(MarkedValue::Value(_)) => value.pop(),
                _ => return Err(invalid_marker(&segment.place)),
            };
        }
        Ok((self.key, value.into()))
    }
}

impl<V: Borrow<Version>> Iterator for Walk<V> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Result<Record, Error>> {
        if self.failed {
            return None;
        }
        let record = self.record();
        self.failed = record.is_err();
        record.transpose()
    }
}
