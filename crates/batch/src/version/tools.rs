//! Operations on a complete version: verify, warm, iterate, scan, sample.
//!
//! They use positioned reads of the files and may block on the disk: run them off the serving threads.

use larder_types::key_hash;

use super::segment_file::SegmentFile;
use super::walk::{BlockReader, Record, WINDOW_BYTES, Walk};
use super::{Partitions, Version};
use crate::delta::decode;
use crate::error::{Error, show_key};
use crate::manifest::{SegmentEntry, slots_of};

const READ_BYTES: usize = 1 << 20;
/// A scan reads few keys per call.
pub(super) const SCAN_WINDOW_BYTES: usize = 16 << 10;
/// The number of low bits of a scan's cursor that hold a block's number in its partition. The partition's number is
/// above them, so a node that has the partition can continue the scan without the others.
pub(super) const CURSOR_BLOCK_BITS: u32 = 33;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyReport {
    pub record_count: u64,
    pub block_count: u64,
    pub size_bytes: u64,
}

/// Sampled records, and whether the byte limit cut the sample short.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sampled {
    pub records: Vec<Record>,
    pub is_truncated: bool,
}

/// Keys of a scan, and the cursor at which it continues; 0 at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    pub keys: Vec<Box<[u8]>>,
    pub next_cursor: u64,
}

/// The number of records between two checks for cancellation.
const CANCEL_CHECK_RECORDS: u64 = 4096;

impl Version {
    /// Reads everything that is present and checks it against every checksum and rule of the format. `progress` is
    /// called with the bytes done and returns whether to continue.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for the first damage found; [`Error::Cancelled`].
    pub fn verify(&self, progress: &dyn Fn(u64) -> bool) -> Result<VerifyReport, Error> {
        self.verify_partitions(&self.local_partitions(), progress)
    }

    /// Like [`Version::verify`], restricted to some partitions.
    ///
    /// # Errors
    /// Like [`Version::verify`]; [`Error::NotHere`] for a partition that is not present.
    pub fn verify_partitions(
        &self,
        partitions: &Partitions,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<VerifyReport, Error> {
        let report = self.verify_files(partitions, &|_| true, progress)?;
        let is_all = partitions.len() == self.segments.len();
        if is_all && report.record_count != self.manifest.record_count {
            return Err(Error::corrupted(
                format!("version {}", self.path.display()),
                format!(
                    "it has {} records, the manifest lists {}",
                    report.record_count, self.manifest.record_count
                ),
            ));
        }
        Ok(report)
    }

    /// Like [`Version::verify_partitions`], restricted to the segments that `is_wanted` selects. The records of a
    /// version with layers are counted only if all segments of a partition are selected.
    ///
    /// # Errors
    /// Like [`Version::verify_partitions`].
    pub fn verify_files(
        &self,
        partitions: &Partitions,
        is_wanted: &dyn Fn(&SegmentEntry) -> bool,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<VerifyReport, Error> {
        let mut report = VerifyReport::default();
        for partition in partitions.iter() {
            let entries: Vec<&SegmentEntry> = self.manifest.partition_entries(partition).collect();
            let segments: Vec<&SegmentFile> = self.layers_of(partition as usize)?.collect();
            let selected: Vec<_> = (entries.iter().zip(segments.iter().rev()))
                .filter(|(entry, _)| is_wanted(entry))
                .collect();
            let mut records = 0;
            for (entry, segment) in &selected {
                records = self.verify_segment(entry, segment, &mut report, progress)?;
            }
            report.record_count += if selected.len() == entries.len() && self.has_layers() {
                self.count_merged(partition as usize, &|| progress(report.size_bytes))?
            } else {
                records
            };
        }
        Ok(report)
    }

    fn count_merged(&self, partition: usize, go_on: &dyn Fn() -> bool) -> Result<u64, Error> {
        let mut walk = Walk::of_partitions(self, partition..partition + 1);
        let mut count = 0;
        while walk.step()?.is_some() {
            count += 1;
            if count % CANCEL_CHECK_RECORDS == 0 && !go_on() {
                return Err(Error::Cancelled);
            }
        }
        Ok(count)
    }

    /// Verifies a segment and returns its number of records.
    fn verify_segment(
        &self,
        entry: &SegmentEntry,
        segment: &SegmentFile,
        report: &mut VerifyReport,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<u64, Error> {
        let mut digest = entry.begin_digest();
        read_file(segment, &mut |bytes| {
            digest.update(bytes);
            report.size_bytes += bytes.len() as u64;
            progress(report.size_bytes)
        })?;
        let done = report.size_bytes;
        let records = self.verify_records(segment, &|| progress(done))?;
        if records != entry.record_count {
            return Err(Error::corrupted(
                &segment.place,
                format!(
                    "it has {records} records, the manifest lists {}",
                    entry.record_count
                ),
            ));
        }
        let digest = digest.finish_hex();
        if digest != entry.digest {
            return Err(Error::corrupted(
                &segment.place,
                format!(
                    "its digest is {digest}, the manifest lists {}",
                    entry.digest
                ),
            ));
        }
        report.block_count += segment.index.footer.block_count;
        Ok(records)
    }

    /// Verifies the records of a segment and returns their number. `go_on` is called periodically.
    fn verify_records(
        &self,
        segment: &SegmentFile,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64, Error> {
        let footer = &segment.index.footer;
        let (first_slot, last_slot) = slots_of(footer.partition, footer.partitions);
        let mut count = 0;
        let mut blocks = BlockReader::new(segment, WINDOW_BYTES);
        let mut checked_at = 0;
        for index in 0..footer.block_count {
            if count - checked_at >= CANCEL_CHECK_RECORDS {
                checked_at = count;
                if !go_on() {
                    return Err(Error::Cancelled);
                }
            }
            let Some(range) = segment.index.block(index) else {
                continue;
            };
            let mut last: Option<(u64, Box<[u8]>)> = None;
            blocks.each_record(range, &mut |found| {
                let key = found.key;
                let hash = key_hash(key);
                let wrong = |detail: &str| {
                    Error::corrupted(format!("{}, key {}", segment.place, show_key(key)), detail)
                };
                if segment.index.block_index(hash) != index
                    || !segment.index.would_read(hash, range, found.number)
                    || found.tag.is_some_and(|tag| tag != hash as u8)
                {
                    return Err(wrong("a lookup would not find it at its position"));
                }
                let slot = self.slots.slot(key);
                if footer.partitions > 1 && !(first_slot..=last_slot).contains(&slot) {
                    return Err(wrong("it belongs to another partition"));
                }
                if last
                    .as_ref()
                    .is_some_and(|(last_hash, last_key)| (*last_hash, &last_key[..]) >= (hash, key))
                {
                    return Err(wrong("it is out of order"));
                }
                let value = found.value()?;
                if footer.is_delta && decode(&value).is_none() {
                    return Err(crate::delta::invalid_marker(&segment.place));
                }
                last = Some((hash, key.into()));
                count += 1;
                Ok(())
            })?;
        }
        Ok(count)
    }

    /// Loads the version into the page cache and the page table, so that lookups find it in memory. `progress` is
    /// called with the bytes done and returns whether to continue. Errors are left to the lookups that meet them.
    pub fn warm(&self, progress: &dyn Fn(u64) -> bool) {
        let mut done = 0;
        for segment in self.local_segments() {
            let should_continue = segment.load(&mut |bytes| {
                done += bytes;
                progress(done)
            });
            if !should_continue {
                break;
            }
            if !segment.populate(&mut || progress(done)) {
                break;
            }
        }
        self.refresh_residency();
    }

    /// Releases the memory in pieces and calls `step` after each. This includes the page cache of unlinked files.
    pub fn release(self, step: &dyn Fn()) {
        for segment in self.local_segments() {
            segment.release(step);
        }
    }

    /// Iterates over every record, segment by segment, in (hash, key) order. The iterator ends after an error. A
    /// partition that is not present is an error.
    pub fn iter(&self) -> Walk<&Version> {
        Walk::new(self)
    }

    /// Returns records from blocks that `seed` selects among those present: at most `count`, and at most `bytes` of
    /// keys and values. Records that alone are larger are skipped.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a selected block is damaged.
    pub fn sample(&self, count: usize, bytes: u64, seed: u64) -> Result<Sampled, Error> {
        const TRIES_PER_RECORD: usize = 8;
        let mut sample = Sampled::default();
        let mut left = bytes;
        let mut seen = std::collections::HashSet::new();
        if self.has_layers() {
            return self.sample_layered(count, bytes, seed);
        }
        let here: Vec<&SegmentFile> = self.local_segments().collect();
        let records_here: u64 = here.iter().map(|it| it.index.footer.record_count).sum();
        let few = records_here <= count as u64;
        let tries = if few {
            0
        } else {
            count.saturating_mul(TRIES_PER_RECORD) as u64
        };
        let mut take = |sample: &mut Sampled, segment, range| {
            BlockReader::new(segment, 0).each_record(range, &mut |found| {
                let size = found.key.len() as u64 + found.value_size();
                if sample.records.len() == count {
                    return Ok(());
                }
                if size > left {
                    sample.is_truncated = true;
                    return Ok(());
                }
                left -= size;
                let value = found.value()?;
                sample.records.push((found.key.into(), (*value).into()));
                Ok(())
            })
        };
        for draw in 0..tries {
            let is_full = sample.is_truncated && !sample.records.is_empty();
            if sample.records.len() >= count || is_full {
                break;
            }
            let number = key_hash(&[seed.to_le_bytes(), draw.to_le_bytes()].concat());
            let segment = number as usize % here.len();
            let index = here[segment].index.block_index(number);
            if !seen.insert((segment, index)) {
                continue;
            }
            if let Some(range) = here[segment].index.block(index) {
                take(&mut sample, here[segment], range)?;
            }
        }
        if few {
            for segment in here {
                let blocks = 0..segment.index.footer.block_count;
                for range in blocks.filter_map(|index| segment.index.block(index)) {
                    take(&mut sample, segment, range)?;
                }
            }
        }
        Ok(sample)
    }

    /// Returns keys from a cursor on, which is 0 at first: at least `count`, unless the scan ends or reaches a
    /// partition that is not present. A version does not change, so each key is returned exactly once, whichever
    /// nodes have the partitions.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for a damaged block; [`Error::Limit`] for an invalid cursor; [`Error::NotHere`] if the
    /// cursor's partition is not present.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Error> {
        self.scan_partitions(cursor, count, &|_| true)
    }

    /// Like [`Version::scan`], restricted to the partitions that `is_wanted` selects.
    pub fn scan_partitions(
        &self,
        cursor: u64,
        count: usize,
        is_wanted: &dyn Fn(u32) -> bool,
    ) -> Result<ScanPage, Error> {
        if self.has_layers() {
            return self.scan_layered(cursor, count, is_wanted);
        }
        let mut page = ScanPage::default();
        let past_end = || {
            Error::limit(
                "cursor",
                format!("{cursor} is past the end of this version; begin again at 0"),
            )
        };
        let first = usize::try_from(cursor >> CURSOR_BLOCK_BITS).unwrap_or(usize::MAX);
        let mut from = cursor & ((1 << CURSOR_BLOCK_BITS) - 1);
        let rest = self.segments.get(first..).filter(|rest| !rest.is_empty());
        for (at, segment) in (first..).zip(rest.ok_or_else(past_end)?) {
            if !is_wanted(at as u32) {
                from = 0;
                continue;
            }
            let Some(segment) = segment else {
                if at == first {
                    return Err(self.partition_not_local(at));
                }
                page.next_cursor = (at as u64) << CURSOR_BLOCK_BITS;
                return Ok(page);
            };
            let block_count = segment.index.footer.block_count;
            if from > block_count {
                return Err(past_end());
            }
            let mut blocks = BlockReader::new(segment, SCAN_WINDOW_BYTES);
            for index in std::mem::take(&mut from)..block_count {
                if page.keys.len() >= count.max(1) {
                    page.next_cursor = (at as u64) << CURSOR_BLOCK_BITS | index;
                    return Ok(page);
                }
                if let Some(range) = segment.index.block(index) {
                    blocks.each_record(range, &mut |found| {
                        page.keys.push(found.key.into());
                        Ok(())
                    })?;
                }
            }
        }
        Ok(page)
    }
}

fn read_file(segment: &SegmentFile, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = 0;
    while offset < segment.size() {
        let count = (segment.size() - offset).min(READ_BYTES as u64) as usize;
        segment.read_at(offset, &mut buffer[..count])?;
        if !each(&buffer[..count]) {
            return Err(Error::Cancelled);
        }
        offset += count as u64;
    }
    Ok(())
}
