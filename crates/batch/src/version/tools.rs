//! Whole-version work: verify, warm, iterate, scan, sample.
//!
//! All of it reads through the file in order and may wait for the disk: keep it off the serving
//! threads.

use std::os::unix::fs::FileExt;

use larder_types::{KEY_BYTES_MAX, key_hash};

use super::Version;
use super::segment_file::{SegmentFile, extent};
use crate::error::{Error, show_key};
use crate::manifest::{SegmentDigest, slots_of};
use crate::segment::BlockRange;
use crate::segment::block::{Block, FoundValue};

const READ_BYTES: usize = 1 << 20;

/// A record of a version, in memory of its own.
pub type Record = (Box<[u8]>, Box<[u8]>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyReport {
    pub record_count: u64,
    pub block_count: u64,
    pub size_bytes: u64,
}

/// Some keys of a scan, and where it goes on; 0 when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    pub keys: Vec<Box<[u8]>>,
    pub next_cursor: u64,
}

impl Version {
    /// Reads everything and checks it against every checksum and rule of the format. `progress`
    /// gets the bytes done and says whether to go on.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for the first damage found; [`Error::Cancelled`].
    pub fn verify(&self, progress: &dyn Fn(u64) -> bool) -> Result<VerifyReport, Error> {
        let mut report = VerifyReport::default();
        for (segment, entry) in self.segments.iter().zip(&self.manifest.segments) {
            let mut digest = SegmentDigest::new();
            read_through(segment, &mut |bytes| {
                digest.update(bytes);
                report.size_bytes += bytes.len() as u64;
                progress(report.size_bytes)
            })?;
            let records = self.verify_records(segment)?;
            if records != entry.record_count {
                return Err(Error::corrupted(
                    &segment.place,
                    format!(
                        "it has {records} records, the manifest says {}",
                        entry.record_count
                    ),
                ));
            }
            let digest = digest.finish_hex();
            if digest != entry.digest {
                return Err(Error::corrupted(
                    &segment.place,
                    format!("its digest is {digest}, the manifest says {}", entry.digest),
                ));
            }
            report.record_count += records;
            report.block_count += segment.index.footer.block_count;
        }
        Ok(report)
    }

    fn verify_records(&self, segment: &SegmentFile) -> Result<u64, Error> {
        let footer = &segment.index.footer;
        let (first_slot, last_slot) = slots_of(footer.partition, footer.partitions);
        let mut count = 0;
        for index in 0..footer.block_count {
            let Some(range) = segment.index.block(index) else {
                continue;
            };
            let mut last: Option<(u64, Box<[u8]>)> = None;
            each_record(segment, range, &mut |key, _value| {
                let hash = key_hash(key);
                let wrong = |detail: &str| {
                    Error::corrupted(format!("{}, key {}", segment.place, show_key(key)), detail)
                };
                if segment.index.block_index(hash) != index
                    || segment.index.locate(hash) != Some(range)
                {
                    return Err(wrong("a lookup would not find it where it is"));
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
                last = Some((hash, key.into()));
                count += 1;
                Ok(())
            })?;
        }
        Ok(count)
    }

    /// Brings the version into the page cache and the page table, so that lookups find it in
    /// memory. `progress` gets the bytes done and says whether to go on. Errors are left to the
    /// lookups that meet them.
    pub fn warm(&self, progress: &dyn Fn(u64) -> bool) {
        let mut done = 0;
        for segment in &self.segments {
            let go_on = segment.load(&mut |bytes| {
                done += bytes;
                progress(done)
            });
            if !go_on {
                break;
            }
            segment.populate();
        }
        self.refresh_residency();
    }

    /// Every record, segment by segment, in (hash, key) order. After an error the iterator ends.
    pub fn iter(&self) -> impl Iterator<Item = Result<Record, Error>> + '_ {
        let mut failed = false;
        let ranges = self.segments.iter().flat_map(|segment| {
            (0..segment.index.footer.block_count)
                .filter_map(move |index| Some((segment, segment.index.block(index)?)))
        });
        ranges
            .flat_map(|(segment, range)| match records_of(segment, range) {
                Ok(records) => records.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(error)],
            })
            .take_while(move |record| !std::mem::replace(&mut failed, record.is_err()))
    }

    /// At most `count` records (a few more if a block holds more) from blocks drawn by `seed`.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a block that was drawn is damaged.
    pub fn sample(&self, count: usize, seed: u64) -> Result<Vec<Record>, Error> {
        const TRIES_PER_RECORD: usize = 8;
        let mut records = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for draw in 0..count.saturating_mul(TRIES_PER_RECORD) as u64 {
            if records.len() >= count {
                break;
            }
            let number = key_hash(&[seed.to_le_bytes(), draw.to_le_bytes()].concat());
            let segment = number as usize % self.segments.len();
            let index = self.segments[segment].index.block_index(number);
            if !seen.insert((segment, index)) {
                continue;
            }
            if let Some(range) = self.segments[segment].index.block(index) {
                records.extend(records_of(&self.segments[segment], range)?);
            }
        }
        if records.len() < count && self.manifest.record_count <= count as u64 {
            return self.iter().collect();
        }
        records.truncate(count);
        Ok(records)
    }

    /// Keys from a cursor on, which is 0 at first; at least `count` of them unless the scan ends.
    /// A version does not change, so each key comes exactly once.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for a damaged block; [`Error::Limit`] for a cursor that none was given.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Error> {
        let mut page = ScanPage::default();
        let mut before = 0;
        for segment in &self.segments {
            let block_count = segment.index.footer.block_count;
            for index in cursor.saturating_sub(before)..block_count {
                if page.keys.len() >= count.max(1) {
                    page.next_cursor = before + index;
                    return Ok(page);
                }
                if let Some(range) = segment.index.block(index) {
                    each_record(segment, range, &mut |key, _| {
                        page.keys.push(key.into());
                        Ok(())
                    })?;
                }
            }
            before += block_count;
        }
        if cursor > before {
            return Err(Error::limit(
                "cursor",
                format!("{cursor} is past the end of this version; begin again at 0"),
            ));
        }
        Ok(page)
    }
}

fn records_of(segment: &SegmentFile, range: BlockRange) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    each_record(segment, range, &mut |key, value| {
        records.push((key.into(), value.into()));
        Ok(())
    })?;
    Ok(records)
}

/// Takes a key and its value.
type EachRecord<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Error> + 'a;

fn each_record(
    segment: &SegmentFile,
    range: BlockRange,
    each: &mut EachRecord<'_>,
) -> Result<(), Error> {
    let bytes = segment.mapped(range);
    let place = &segment.place;
    let block = Block::open(place, bytes, range.index, segment.codec())?;
    let mut records = block.records();
    for record in &mut records {
        if record.key.is_empty() || record.key.len() > KEY_BYTES_MAX {
            return Err(Error::corrupted(
                format!("{place}, block {}", range.index),
                "a key's size is impossible",
            ));
        }
        match record.value {
            FoundValue::Inline(value) => each(record.key, value)?,
            FoundValue::Large(large) => {
                let stored = extent(bytes, large.offset, large.stored_size).ok_or_else(|| {
                    Error::corrupted(
                        format!("{place}, block {}", range.index),
                        "a large value lies outside",
                    )
                })?;
                each(
                    record.key,
                    &large.open(place, range.index, stored, segment.codec())?,
                )?;
            }
        }
    }
    if !records.is_whole() {
        return Err(Error::corrupted(
            format!("{place}, block {}", range.index),
            "a record runs over its end",
        ));
    }
    Ok(())
}

fn read_through(segment: &SegmentFile, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = 0;
    while offset < segment.size() {
        let count = (segment.size() - offset).min(READ_BYTES as u64) as usize;
        segment
            .file()
            .read_exact_at(&mut buffer[..count], offset)
            .map_err(Error::io("read", segment.path()))?;
        if !each(&buffer[..count]) {
            return Err(Error::Cancelled);
        }
        offset += count as u64;
    }
    Ok(())
}
