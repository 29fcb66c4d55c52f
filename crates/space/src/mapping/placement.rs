//! The hash slots of regions. The owner and the replicas of a region are those of its slot, and move with it.
//!
//! The slots of a subspace's regions are equidistant. When the subspace is partitioned, adjacent regions are assigned
//! to slots of the same owner, as many as it has. The first dimension is outermost, so a search that fixes it contacts
//! adjacent regions, and usually one node or two. A search that leaves it free contacts all nodes. (HyperDex places
//! regions in the same way, but sends a message for each region.) Each subspace starts at another slot, usually of
//! another owner.
//!
//! ```text
//!  slots at equal distances     0   1   2   3   4   5   6   7
//!  their owners                 b   a   a   c   b   c   a   b
//!  regions, in their order      0   5   6   3   1   4   7   2        b's, then c's, then a's
//! ```
//!
//! When owners change, the order is kept, because another order would move most regions. The next partitioning uses the
//! owners of that time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use larder_types::SLOTS;

use super::contacts::Contacts;
use super::{REGION_BITS_MAX, Region};

/// The slots of a subspace's regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    regions: u32,
    /// The first of the equidistant slots.
    first: u16,
    /// For each region, the index of its slot. `None`: regions are in the order of the slots.
    order: Option<Arc<[u16]>>,
}

/// A run of consecutive slots of a subspace: the index of the first, and the length.
pub type SlotRun = (u16, u16);

/// The numbers of a node and of one of its cores.
pub type SlotOwner = (u16, u16);

impl Placement {
    /// Places regions in the order of the slots. `subspace` is the number of the subspace in its space; each starts at
    /// another slot.
    ///
    /// # Panics
    /// The number of regions is not a power of two, or exceeds the number of slots.
    pub fn even(regions: u32, subspace: u16) -> Placement {
        let is_count = regions.is_power_of_two() && regions <= 1 << REGION_BITS_MAX;
        assert!(is_count, "{regions} regions: a power of two up to {SLOTS}");
        Placement {
            regions,
            first: first_slot(subspace),
            order: None,
        }
    }

    /// Places regions on the same slots, ordered by owner, starting with the node of the first slot. Keeps the order of
    /// the slots if each owner already has one run of slots, except the owner of both the first and the last slot.
    pub fn ordered_by_owner(self, owner: impl Fn(u16) -> SlotOwner) -> Placement {
        let (first, _) = owner(self.slot_at(0));
        let owners: Vec<SlotOwner> = self.numbers().map(|at| owner(self.slot_at(at))).collect();
        let runs = owners.chunk_by(|one, next| one == next).count();
        let distinct: BTreeSet<SlotOwner> = owners.iter().copied().collect();
        let mut order: Vec<u16> = self.numbers().collect();
        if runs > distinct.len() + 1 {
            order.sort_by_key(|at| {
                let (node, core) = owners[usize::from(*at)];
                (node.wrapping_sub(first), core)
            });
        }
        self.in_order(order)
    }

    /// The inverse of [`Placement::runs`]. Returns `None` if the runs do not contain each slot once.
    pub fn of_runs(regions: u32, subspace: u16, runs: &[SlotRun]) -> Option<Placement> {
        let even = Placement::even(regions, subspace);
        if runs.is_empty() {
            return Some(even);
        }
        let all = runs.iter().map(|run| u64::from(run.1)).sum::<u64>();
        if all != u64::from(regions) {
            return None;
        }
        let order = runs
            .iter()
            .flat_map(|run| (0..run.1).map(|at| run.0.wrapping_add(at)));
        let order: Vec<u16> = order.collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted
            .into_iter()
            .eq(even.numbers())
            .then(|| even.in_order(order))
    }

    /// Returns the order of the regions as runs of slots, or an empty list for the order of the slots.
    pub fn runs(&self) -> Vec<SlotRun> {
        let order = self.order.as_deref().unwrap_or_default();
        let runs = order.chunk_by(|one, next| one + 1 == *next);
        runs.map(|run| (run[0], run.len() as u16)).collect()
    }

    fn in_order(self, order: Vec<u16>) -> Placement {
        let order = (!order.is_sorted()).then(|| order.into());
        Placement { order, ..self }
    }

    /// Returns 0, 1, .., one number for each region.
    fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        (0..self.regions).map(|number| number as u16)
    }

    fn slot_at(&self, number: u16) -> u16 {
        let distance = u32::from(SLOTS) / self.regions;
        let slot = u32::from(self.first) + u32::from(number) * distance;
        (slot % u32::from(SLOTS)) as u16
    }

    /// Returns the hash slot of a region.
    ///
    /// # Panics
    /// The region does not exist.
    pub fn slot(&self, region: Region) -> u16 {
        assert!(u32::from(region.0) < self.regions, "a region of its own");
        let order = self.order.as_ref();
        self.slot_at(order.map_or(region.0, |order| order[usize::from(region.0)]))
    }

    /// Returns the requests of a search: one for each node, with its regions as runs. `None` if there would be
    /// `fewer_than` nodes or more.
    pub fn requests<N: Ord>(
        &self,
        contacts: &Contacts,
        fewer_than: usize,
        owner: impl Fn(u16) -> N,
    ) -> Option<BTreeMap<N, Vec<RangeInclusive<u16>>>> {
        let mut requests: BTreeMap<N, Vec<RangeInclusive<u16>>> = BTreeMap::new();
        let mut add = |owner: N, run: RangeInclusive<u16>| {
            let runs = requests.entry(owner).or_default();
            match runs.last_mut() {
                Some(before) if *before.end() + 1 == *run.start() => {
                    *before = *before.start()..=*run.end();
                }
                _ => runs.push(run),
            }
            requests.len() < fewer_than
        };
        // Adjacent regions usually have the same owner. Merging them first matters, because each search does this for
        // each subspace.
        let mut open: Option<(N, RangeInclusive<u16>)> = None;
        for Region(region) in contacts.regions() {
            let owner = owner(self.slot(Region(region)));
            match &mut open {
                Some((same, run)) if *same == owner && *run.end() + 1 == region => {
                    *run = *run.start()..=region;
                }
                _ => {
                    if let Some((owner, run)) = open.replace((owner, region..=region))
                        && !add(owner, run)
                    {
                        return None;
                    }
                }
            }
        }
        if let Some((owner, run)) = open
            && !add(owner, run)
        {
            return None;
        }
        Some(requests)
    }
}

/// Returns the first slot of a subspace, which is far from those of the previous ones (golden ratio).
fn first_slot(subspace: u16) -> u16 {
    subspace.wrapping_mul(10_125) % SLOTS
}
