//! The differences between two versions.

use larder_types::SlotSet;

use crate::error::Error;
use crate::manifest::slots_of;
use crate::version::{Record, Version, Walk};

/// A key whose record differs between the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    Added(&'a [u8]),
    Removed(&'a [u8]),
    Changed(&'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiffSummary {
    pub added: u64,
    pub removed: u64,
    pub changed: u64,
    pub unchanged: u64,
}

/// Compares two versions and calls `each` with every change; it returns whether to continue. Each version is read in
/// its own order while the other is looked up. Both are in hash order, so the lookups move forward too.
///
/// # Errors
/// [`Error::Corrupted`] if either is damaged; [`Error::Cancelled`].
pub fn diff(
    old: &Version,
    new: &Version,
    each: &mut dyn FnMut(Change<'_>) -> bool,
) -> Result<DiffSummary, Error> {
    diff_slots(&SlotSet::all(), old, new, each)
}

/// Like [`diff`], restricted to the keys of some slots. The partitions of other slots need not be present.
///
/// # Errors
/// Like [`diff`]; [`Error::NotHere`] for a required partition that is not present.
pub fn diff_slots(
    slots: &SlotSet,
    old: &Version,
    new: &Version,
    each: &mut dyn FnMut(Change<'_>) -> bool,
) -> Result<DiffSummary, Error> {
    let mut summary = DiffSummary::default();
    for record in records_in_slots(slots, old) {
        let (key, value) = record?;
        let now = new.get(&key)?;
        let is_same = now.as_ref().map(|now| **now == *value);
        if now.is_some_and(|now| now.is_borrowed()) && !new.is_intact() {
            return Err(new.lost_pages_error());
        }
        let should_continue = match is_same {
            None => {
                summary.removed += 1;
                each(Change::Removed(&key))
            }
            Some(false) => {
                summary.changed += 1;
                each(Change::Changed(&key))
            }
            Some(true) => {
                summary.unchanged += 1;
                true
            }
        };
        if !should_continue {
            return Err(Error::Cancelled);
        }
    }
    for record in records_in_slots(slots, new) {
        let (key, _) = record?;
        if old.get(&key)?.is_none() {
            summary.added += 1;
            if !each(Change::Added(&key)) {
                return Err(Error::Cancelled);
            }
        }
    }
    Ok(summary)
}

fn records_in_slots(
    slots: &SlotSet,
    version: &Version,
) -> impl Iterator<Item = Result<Record, Error>> {
    let count = version.manifest().partitions;
    let selected = (0..count).filter(move |partition| {
        let (first, last) = slots_of(*partition, count);
        (first..=last).any(|slot| slots.contains(slot))
    });
    let walk = move |partition: u32| {
        let partition = partition as usize;
        Walk::of_partitions(version, partition..partition + 1)
    };
    let is_wanted = move |record: &Result<Record, Error>| match record {
        Ok((key, _)) => slots.contains(version.slot_of(key)),
        Err(_) => true,
    };
    selected.flat_map(walk).filter(is_wanted)
}
