//! The request of a holder to an owner of objects, and the kinds of updates that follow it.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | space | bytes | the name of the space |
//! | version | 8 | the id of the subspace: `Regions::id` |
//! | subspace | 2 | the number of the subspace: `Regions::number` |
//! | serial | 8 | unique among the requests of a holder |
//! | regions, slots | runs | the count (4), then the first and the last (2 each) of each run, ascending |

use std::ops::RangeInclusive;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::regions::RegionChange;
use crate::mapping::Region;

pub(super) type Run = RangeInclusive<u16>;

/// The objects of some regions of one subspace whose keys are in some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRequest {
    pub space: String,
    /// The id of the subspace: [`Regions::id`](super::Regions::id).
    pub version: u64,
    /// The number of the subspace: [`Regions::number`](super::Regions::number).
    pub subspace: u16,
    /// Unique among the requests of a holder.
    pub serial: u64,
    pub regions: Vec<Run>,
    /// The slots of keys that the owner has and the holder lacks.
    pub slots: Vec<Run>,
}

/// The kind of update that a holder receives for a changed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyUpdate {
    /// The update contains the current object.
    Upsert,
    /// The object has left the regions of the request.
    Delete,
}

impl CopyRequest {
    pub fn has_region(&self, region: Region) -> bool {
        contains(&self.regions, region.0)
    }

    pub fn has_slot(&self, slot: u16) -> bool {
        contains(&self.slots, slot)
    }

    /// Returns the update that the holder receives for a change, or `None` if it needs none.
    pub fn update_for(&self, moved: RegionChange) -> Option<CopyUpdate> {
        let has = |region: Option<Region>| region.is_some_and(|region| self.has_region(region));
        match (has(moved.before), has(moved.after)) {
            (_, true) => Some(CopyUpdate::Upsert),
            (true, false) => Some(CopyUpdate::Delete),
            (false, false) => None,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, self.space.as_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.subspace.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        put_runs(&mut out, &self.regions);
        put_runs(&mut out, &self.slots);
        out
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are not an encoded request.
    pub fn decode(bytes: &[u8]) -> Result<CopyRequest, Malformed> {
        let mut reader = WireReader::new(bytes);
        let space = std::str::from_utf8(reader.bytes()?)
            .map_err(|_| Malformed("the name of a space is not UTF-8"))?;
        let part = CopyRequest {
            space: space.to_owned(),
            version: reader.u64()?,
            subspace: reader.u16()?,
            serial: reader.u64()?,
            regions: take_runs(&mut reader)?,
            slots: take_runs(&mut reader)?,
        };
        reader.end()?;
        Ok(part)
    }
}

/// Groups ascending numbers into runs.
pub(super) fn runs(numbers: impl Iterator<Item = u16>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end().checked_add(1) == Some(number) => {
                *run = *run.start()..=number;
            }
            _ => runs.push(number..=number),
        }
    }
    runs
}

pub(super) fn contains(runs: &[Run], number: u16) -> bool {
    let after = runs.partition_point(|run| *run.start() <= number);
    after > 0 && runs[after - 1].contains(&number)
}

pub(super) fn put_runs(out: &mut Vec<u8>, runs: &[Run]) {
    put_count(out, runs.len());
    for run in runs {
        out.extend_from_slice(&run.start().to_le_bytes());
        out.extend_from_slice(&run.end().to_le_bytes());
    }
}

pub(super) fn take_runs(reader: &mut WireReader<'_>) -> Result<Vec<Run>, Malformed> {
    let count = reader.count(4)?;
    let mut runs: Vec<Run> = Vec::with_capacity(count);
    for _ in 0..count {
        let (first, last) = (reader.u16()?, reader.u16()?);
        let is_after = runs.last().is_none_or(|before| *before.end() < first);
        if first > last || !is_after {
            return Err(Malformed("runs of numbers do not ascend"));
        }
        runs.push(first..=last);
    }
    Ok(runs)
}
