//! Regions on hash slots. A region's owner and replicas are those of its slot, and move with it.
//!
//! The regions of a subspace are dealt to the nodes in runs: a node has adjacent regions, in proportion to the slots it owns. As the first
//! dimension is outermost, a search that fixes it contacts adjacent regions, and so one node or two; a search that leaves it free contacts
//! all nodes. (HyperDex places regions so, too, with a message for each region all the same.)
//!
//! A node's run lies in several blocks of its slots, in pieces: a node that joins takes over some blocks of each other node, and so about its
//! share of the regions. Placements move blocks of 16 adjacent slots or more, so a piece moves as a whole. Another subspace begins at
//! another node and other blocks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use larder_types::SLOTS;

use super::contacts::Contacts;
use super::{REGION_BITS_MAX, Region};

/// Slots that one node owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOwner<N> {
    pub slots: RangeInclusive<u16>,
    pub node: N,
}

/// Where the regions of a subspace lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    regions: u32,
    pieces: Pieces,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pieces {
    /// Region 0 has this slot, and every other one is as far behind the one before it.
    Even(u16),
    /// The first region of each piece and its slot, ascending in regions. Those that follow lie in the same block.
    Blocks(Vec<(Region, u16)>),
}

/// Slots that always move together.
const BLOCK: u16 = 16;

/// How many pieces a node's regions are in, if it owns as many blocks.
const PIECES: usize = 8;

impl Placement {
    /// The regions at equal distances over all slots, where it does not matter or is not known who owns them. `subspace` is its number in its
    /// space: each begins elsewhere.
    ///
    /// # Panics
    /// There are more regions than slots, or not a power of two of them.
    pub fn even(regions: u32, subspace: u16) -> Placement {
        check(regions);
        Placement {
            regions,
            pieces: Pieces::Even(turned(subspace)),
        }
    }

    /// The regions dealt to those who own slots. With no owner at all they are placed evenly.
    ///
    /// A node has its share of the regions by slots owned, rounded up or down.
    ///
    /// # Panics
    /// As [`Placement::even`].
    pub fn balanced<N: Ord + Copy>(
        regions: u32,
        subspace: u16,
        owners: &[SlotOwner<N>],
    ) -> Placement {
        check(regions);
        let mut blocks: BTreeMap<N, Vec<u16>> = BTreeMap::new();
        let mut owned: BTreeMap<N, u64> = BTreeMap::new();
        for owner in owners {
            let (from, to) = (*owner.slots.start(), *owner.slots.end());
            *owned.entry(owner.node).or_default() += u64::from(to - from) + 1;
            let whole = from.div_ceil(BLOCK)..(to + 1) / BLOCK;
            let blocks = blocks.entry(owner.node).or_default();
            // What is less than a block is used only by who has nothing else.
            blocks.extend(whole.map(|block| block * BLOCK));
            if blocks.is_empty() {
                blocks.push(from);
            }
        }
        let total: u64 = owned.values().sum();
        if total == 0 {
            return Placement::even(regions, subspace);
        }
        let mut nodes: Vec<(N, Vec<u16>)> = blocks.into_iter().collect();
        let count = nodes.len();
        nodes.rotate_left(usize::from(subspace) % count);
        let mut pieces = Vec::new();
        let (mut before, mut first) = (0, 0);
        for (node, mut blocks) in nodes {
            before += owned[&node];
            let end = (u64::from(regions) * before + total / 2) / total;
            blocks.sort_unstable();
            let turn = usize::from(turned(subspace)) * blocks.len() / usize::from(SLOTS);
            blocks.rotate_left(turn);
            let run = end as usize - first;
            let parts = PIECES.min(blocks.len()).min(run);
            for part in 0..parts {
                let region = Region((first + run * part / parts) as u16);
                pieces.push((region, blocks[blocks.len() * part / parts]));
            }
            first = end as usize;
        }
        Placement {
            regions,
            pieces: Pieces::Blocks(pieces),
        }
    }

    /// A placement as it was kept, from [`Placement::pieces`].
    ///
    /// None if it is none: pieces that do not ascend from region 0, or regions or slots that there are not.
    pub fn from_pieces(regions: u32, pieces: Vec<(Region, u16)>) -> Option<Placement> {
        let is_ok = is_count(regions)
            && pieces.first()?.0 == Region(0)
            && pieces.is_sorted_by(|one, other| one.0 < other.0)
            && u32::from(pieces.last()?.0.0) < regions
            && pieces.iter().all(|piece| piece.1 < SLOTS);
        is_ok.then_some(Placement {
            regions,
            pieces: Pieces::Blocks(pieces),
        })
    }

    /// What to keep of a placement: the first region of each piece, and its slot.
    pub fn pieces(&self) -> Vec<(Region, u16)> {
        match &self.pieces {
            Pieces::Blocks(pieces) => pieces.clone(),
            Pieces::Even(_) => {
                let regions = (0..self.regions).map(|region| Region(region as u16));
                regions.map(|region| (region, self.slot(region))).collect()
            }
        }
    }

    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// The hash slot of a region, in steps that grow with the logarithm of the pieces.
    ///
    /// # Panics
    /// There is no such region.
    pub fn slot(&self, region: Region) -> u16 {
        assert!(u32::from(region.0) < self.regions, "a region of its own");
        match &self.pieces {
            Pieces::Even(first) => {
                let distance = u32::from(SLOTS) / self.regions;
                let slot = u32::from(*first) + u32::from(region.0) * distance;
                (slot % u32::from(SLOTS)) as u16
            }
            Pieces::Blocks(pieces) => {
                let after = pieces.partition_point(|piece| piece.0 <= region);
                let (first, slot) = pieces[after - 1];
                let within = (slot % BLOCK + (region.0 - first.0) % BLOCK) % BLOCK;
                slot - slot % BLOCK + within
            }
        }
    }

    /// What each node is asked for in a search: one request for each, with the regions of its own as runs.
    pub fn requests<N: Ord>(
        &self,
        contacts: &Contacts,
        owner: impl Fn(u16) -> N,
    ) -> BTreeMap<N, Vec<RangeInclusive<u16>>> {
        let mut requests: BTreeMap<N, Vec<RangeInclusive<u16>>> = BTreeMap::new();
        for region in contacts.regions() {
            let runs = requests.entry(owner(self.slot(region))).or_default();
            match runs.last_mut() {
                Some(run) if *run.end() + 1 == region.0 => *run = *run.start()..=region.0,
                _ => runs.push(region.0..=region.0),
            }
        }
        requests
    }
}

fn check(regions: u32) {
    assert!(
        is_count(regions),
        "{regions} regions: a power of two up to {SLOTS}"
    );
}

fn is_count(regions: u32) -> bool {
    regions.is_power_of_two() && regions <= 1 << REGION_BITS_MAX
}

/// Where a subspace begins: far from the ones before it, by the golden ratio.
fn turned(subspace: u16) -> u16 {
    subspace.wrapping_mul(10_125) % SLOTS
}
