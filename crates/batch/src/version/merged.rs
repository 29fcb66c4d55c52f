//! Scans and samples of a version with several layers.
//!
//! Its layers have different numbers of blocks. A *grain* takes the place of a block: one of the equal hash ranges
//! into which the layer with the most blocks is divided. A scan's cursor counts grains, so it depends only on the
//! version.

use std::collections::HashSet;

use larder_types::key_hash;

use super::Version;
use super::tools::{CURSOR_BLOCK_BITS, SCAN_WINDOW_BYTES, Sampled, ScanPage};
use super::walk::Walk;
use crate::error::Error;
use crate::segment::block_index;

impl Version {
    /// Returns the number of grains of a partition.
    fn grains(&self, partition: usize) -> Result<u64, Error> {
        let counts = self
            .layers_of(partition)?
            .map(|layer| layer.index.footer.block_count);
        Ok(counts.max().unwrap_or(1))
    }

    pub(super) fn scan_layered(
        &self,
        cursor: u64,
        count: usize,
        is_wanted: &dyn Fn(u32) -> bool,
    ) -> Result<ScanPage, Error> {
        let mut page = ScanPage::default();
        let past_end = || {
            Error::limit(
                "cursor",
                format!("{cursor} is past the end of this version; begin again at 0"),
            )
        };
        let partitions = self.segments.len();
        let first = usize::try_from(cursor >> CURSOR_BLOCK_BITS).unwrap_or(usize::MAX);
        if first >= partitions {
            return Err(past_end());
        }
        let mut from = cursor & ((1 << CURSOR_BLOCK_BITS) - 1);
        for partition in first..partitions {
            if !is_wanted(partition as u32) {
                from = 0;
                continue;
            }
            let begin = (partition as u64) << CURSOR_BLOCK_BITS;
            if self.segments[partition].is_none() && partition > first {
                page.next_cursor = begin;
                return Ok(page);
            }
            let grains = self.grains(partition)?;
            if from > grains {
                return Err(past_end());
            }
            let grain_from = std::mem::take(&mut from);
            if grain_from == grains {
                continue;
            }
            let hash = first_hash(grain_from, grains);
            let mut walk = Walk::from_hash(self, partition, hash, SCAN_WINDOW_BYTES);
            let mut last = grain_from;
            while let Some(stepped) = walk.step()? {
                let grain = block_index(stepped.hash, grains);
                if grain > last && page.keys.len() >= count.max(1) {
                    page.next_cursor = begin | grain;
                    return Ok(page);
                }
                last = grain;
                page.keys.push(stepped.key);
            }
            if page.keys.len() >= count.max(1) && partition + 1 < partitions {
                page.next_cursor = begin + (1 << CURSOR_BLOCK_BITS);
                return Ok(page);
            }
        }
        Ok(page)
    }

    pub(super) fn sample_layered(
        &self,
        count: usize,
        bytes: u64,
        seed: u64,
    ) -> Result<Sampled, Error> {
        const TRIES_PER_RECORD: usize = 8;
        let mut sample = Sampled::default();
        let mut left = bytes;
        let here: Vec<u32> = self.local_partitions().iter().collect();
        let records: u64 = self
            .local_segments()
            .map(|it| it.index.footer.record_count)
            .sum();
        let mut take = |sample: &mut Sampled, stepped: super::walk::WalkStep| {
            let size = stepped.key.len() as u64 + stepped.value_size();
            if sample.records.len() == count {
                return Ok(());
            }
            if size > left {
                sample.is_truncated = true;
                return Ok(());
            }
            left -= size;
            sample.records.push(stepped.read(self)?);
            Ok::<_, Error>(())
        };
        if records <= count as u64 {
            for partition in here.iter().map(|it| *it as usize) {
                let mut walk = Walk::of_partitions(self, partition..partition + 1);
                while let Some(stepped) = walk.step()? {
                    take(&mut sample, stepped)?;
                }
            }
            return Ok(sample);
        }
        let mut seen = HashSet::new();
        for draw in 0..count.saturating_mul(TRIES_PER_RECORD) as u64 {
            let is_full = sample.is_truncated && !sample.records.is_empty();
            if sample.records.len() >= count || is_full {
                break;
            }
            let number = key_hash(&[seed.to_le_bytes(), draw.to_le_bytes()].concat());
            let partition = here[number as usize % here.len()] as usize;
            let grains = self.grains(partition)?;
            let grain = block_index(number, grains);
            if !seen.insert((partition, grain)) {
                continue;
            }
            let mut walk = Walk::from_hash(self, partition, first_hash(grain, grains), 0);
            while let Some(stepped) = walk.step()? {
                if block_index(stepped.hash, grains) != grain {
                    break;
                }
                take(&mut sample, stepped)?;
            }
        }
        Ok(sample)
    }
}

/// Returns the lowest hash of a grain.
fn first_hash(grain: u64, grains: u64) -> u64 {
    ((u128::from(grain) << 64).div_ceil(u128::from(grains))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grain_begins_at_its_lowest_hash() {
        for grains in [1, 2, 3, 7, 1000, (1 << 33) - 1] {
            for grain in [0, 1, grains / 2, grains - 1] {
                let grain = grain.min(grains - 1);
                let hash = first_hash(grain, grains);
                assert_eq!(block_index(hash, grains), grain);
                assert!(hash == 0 || block_index(hash - 1, grains) < grain || grain == 0);
            }
        }
    }
}
