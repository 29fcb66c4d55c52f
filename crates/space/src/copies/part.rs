//! A part: what a holder asks an owner of objects for, and what it is told of a change.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | space | bytes | its name |
//! | version | 8 | of the subspace: `Regions::id` |
//! | subspace | 2 | its number: `Regions::number` |
//! | serial | 8 | no two questions of a holder have the same |
//! | regions, slots | runs | count (4), then first and last (2 each) of each, ascending |

use std::ops::RangeInclusive;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::regions::Moved;
use crate::mapping::Region;

pub(super) type Run = RangeInclusive<u16>;

/// Objects of some regions of one subspace, whose keys are of some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub space: String,
    /// Of the subspace: [`Regions::id`](super::Regions::id).
    pub version: u64,
    /// Its number: [`Regions::number`](super::Regions::number).
    pub subspace: u16,
    /// No two questions of a holder have the same.
    pub serial: u64,
    pub regions: Vec<Run>,
    /// The keys' slots: those that the owner has and the holder lacks.
    pub slots: Vec<Run>,
}

/// What a holder is told of a changed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The object as it is now.
    Is,
    /// It is none of these regions any more.
    Gone,
}

impl Part {
    pub fn has_region(&self, region: Region) -> bool {
        contains(&self.regions, region.0)
    }

    pub fn has_slot(&self, slot: u16) -> bool {
        contains(&self.slots, slot)
    }

    /// What its holder is told of a change; None: it is not concerned.
    pub fn told(&self, moved: Moved) -> Option<Told> {
        let has = |region: Option<Region>| region.is_some_and(|region| self.has_region(region));
        match (has(moved.before), has(moved.after)) {
            (_, true) => Some(Told::Is),
            (true, false) => Some(Told::Gone),
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

    /// # Errors
    /// [`Part::encode`] does not write such bytes.
    pub fn decode(bytes: &[u8]) -> Result<Part, Malformed> {
        let mut reader = WireReader::new(bytes);
        let space = std::str::from_utf8(reader.bytes()?)
            .map_err(|_| Malformed("the name of a space is no UTF-8"))?;
        let part = Part {
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

/// Ascending numbers as runs.
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
        let is_behind = runs.last().is_none_or(|before| *before.end() < first);
        if first > last || !is_behind {
            return Err(Malformed("runs of numbers do not ascend"));
        }
        runs.push(first..=last);
    }
    Ok(runs)
}
