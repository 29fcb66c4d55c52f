//! Regions on hash slots. A region's owner and replicas are those of its slot, and move with it.
//!
//! The regions of a subspace lie at equal distances over all slots, in their order. As nodes own runs of slots and the first dimension is outermost, a search that
//! fixes it contacts adjacent regions, and so one node or two; a search that leaves it free contacts all nodes. (HyperDex places regions so, too, with a message for
//! each region all the same.) Another subspace begins at another slot.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use larder_types::SLOTS;

use super::contacts::Contacts;
use super::{REGION_BITS_MAX, Region};

/// Where the regions of a subspace lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    regions: u32,
    /// Region 0 has this slot, and every other one is as far behind the one before it.
    first: u16,
}

impl Placement {
    /// `subspace` is its number in its space: each begins elsewhere.
    ///
    /// # Panics
    /// There are more regions than slots, or not a power of two of them.
    pub fn even(regions: u32, subspace: u16) -> Placement {
        let is_count = regions.is_power_of_two() && regions <= 1 << REGION_BITS_MAX;
        assert!(is_count, "{regions} regions: a power of two up to {SLOTS}");
        Placement {
            regions,
            first: turned(subspace),
        }
    }

    /// The hash slot of a region.
    ///
    /// # Panics
    /// There is no such region.
    pub fn slot(&self, region: Region) -> u16 {
        assert!(u32::from(region.0) < self.regions, "a region of its own");
        let distance = u32::from(SLOTS) / self.regions;
        let slot = u32::from(self.first) + u32::from(region.0) * distance;
        (slot % u32::from(SLOTS)) as u16
    }

    /// What each node is asked for in a search: one request for each, with the regions of its own as runs.
    pub fn requests<N: Ord>(
        &self,
        contacts: &Contacts,
        owner: impl Fn(u16) -> N,
    ) -> BTreeMap<N, Vec<RangeInclusive<u16>>> {
        let mut requests: BTreeMap<N, Vec<RangeInclusive<u16>>> = BTreeMap::new();
        let mut add = |owner: N, run: RangeInclusive<u16>| {
            let runs = requests.entry(owner).or_default();
            match runs.last_mut() {
                Some(before) if *before.end() + 1 == *run.start() => {
                    *before = *before.start()..=*run.end();
                }
                _ => runs.push(run),
            }
        };
        // Neighbours are mostly of one owner: each search does this for each subspace.
        let mut open: Option<(N, RangeInclusive<u16>)> = None;
        for Region(region) in contacts.regions() {
            let owner = owner(self.slot(Region(region)));
            match &mut open {
                Some((same, run)) if *same == owner && *run.end() + 1 == region => {
                    *run = *run.start()..=region;
                }
                _ => {
                    if let Some((owner, run)) = open.replace((owner, region..=region)) {
                        add(owner, run);
                    }
                }
            }
        }
        if let Some((owner, run)) = open {
            add(owner, run);
        }
        requests
    }
}

/// Where a subspace begins: far from the ones before it, by the golden ratio.
fn turned(subspace: u16) -> u16 {
    subspace.wrapping_mul(10_125) % SLOTS
}
