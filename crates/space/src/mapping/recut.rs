//! When a subspace is to be cut anew, and what that concerns.

use super::contacts::{CellSet, Contacts};
use super::cut::{Cells, Cut};
use super::subspace::Subspace;
use super::{Attribute, Region};

/// A subspace is cut anew when its fullest region has more than so many times the mean.
pub const RECUT_TIMES_MEAN: f64 = 2.0;

/// With fewer objects to a region than this in the mean, chance alone makes regions uneven, and nothing is gained by moving objects.
pub const RECUT_MEAN_MIN: f64 = 64.0;

/// A cut that is this much above its mean is one that a new cut improves.
const DIMENSION_TIMES_MEAN: f64 = 1.25;

/// How evenly the regions of a subspace are filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    pub fullest: Region,
    pub fullest_objects: u64,
    pub mean: f64,
    /// For each dimension its attribute, and how many times the mean of its cells the fullest one has.
    pub dimensions: Vec<(Attribute, f64)>,
}

impl Balance {
    /// `objects` has the number of objects in each region.
    ///
    /// # Panics
    /// There are not as many numbers as regions.
    pub fn of(subspace: &Subspace, objects: &[u64]) -> Balance {
        assert_eq!(objects.len(), subspace.regions() as usize);
        let total: u64 = objects.iter().sum();
        let fullest = (0..objects.len()).rev().max_by_key(|&at| objects[at]);
        let fullest = fullest.expect("a subspace has a region");
        let mut shift = subspace.bits();
        let dimensions = subspace.dimensions().iter().map(|dimension| {
            let bits = dimension.cut.bits();
            shift -= bits;
            let mut cells = vec![0; 1 << bits];
            for (region, objects) in objects.iter().enumerate() {
                cells[(region >> shift) & ((1 << bits) - 1)] += objects;
            }
            let most = *cells.iter().max().expect("a cut has a cell");
            let times = most as f64 * cells.len() as f64 / total.max(1) as f64;
            (dimension.attribute, times)
        });
        Balance {
            dimensions: dimensions.collect(),
            fullest: Region(fullest as u16),
            fullest_objects: objects[fullest],
            mean: total as f64 / objects.len() as f64,
        }
    }

    pub fn times_mean(&self) -> f64 {
        match self.mean {
            0.0 => 1.0,
            mean => self.fullest_objects as f64 / mean,
        }
    }

    /// The attributes to cut anew: none if the regions are even enough, or too empty to tell, or if each attribute by itself is cut well, so that
    /// only their going together fills some regions (towns and their postcodes): no other cut would change that.
    pub fn to_recut(&self) -> Vec<Attribute> {
        if self.mean < RECUT_MEAN_MIN || self.times_mean() <= RECUT_TIMES_MEAN {
            return Vec::new();
        }
        let uneven = self
            .dimensions
            .iter()
            .filter(|it| it.1 > DIMENSION_TIMES_MEAN);
        uneven.map(|&(attribute, _)| attribute).collect()
    }
}

/// What a new cut of a subspace changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// For each dimension, for each cell that it had, the cells where its values may be now.
    to: Vec<Vec<CellSet>>,
    old_bits: Vec<u8>,
    new_bits: Vec<u8>,
}

impl Difference {
    /// None if the attributes are not the same in the same order: then every object moves, and all regions are concerned.
    pub fn between(old: &Subspace, new: &Subspace) -> Option<Difference> {
        let (old, new) = (old.dimensions(), new.dimensions());
        if !old
            .iter()
            .map(|it| it.attribute)
            .eq(new.iter().map(|it| it.attribute))
        {
            return None;
        }
        let pairs = old.iter().zip(new);
        Some(Difference {
            to: pairs
                .map(|(old, new)| cells_to(&old.cut, &new.cut))
                .collect(),
            old_bits: old.iter().map(|it| it.cut.bits()).collect(),
            new_bits: new.iter().map(|it| it.cut.bits()).collect(),
        })
    }

    /// The regions in the new cut where objects of a region of the old one may be.
    pub fn targets(&self, region: Region) -> Contacts {
        let mut rest = region.0;
        let mut sets = Vec::with_capacity(self.to.len());
        for (at, cells) in self.to.iter().enumerate().rev() {
            let bits = self.old_bits[at];
            let cell = rest & ((1 << bits) - 1);
            rest = rest.checked_shr(bits.into()).unwrap_or(0);
            sets.push((self.new_bits[at], cells[usize::from(cell)].clone()));
        }
        sets.reverse();
        Contacts::new(sets)
    }

    /// Whether objects of this region may move. What comes into a region comes from such ones.
    pub fn concerns(&self, region: Region) -> bool {
        self.old_bits != self.new_bits || self.targets(region).regions().ne([region])
    }

    /// The regions whose objects may move.
    pub fn concerned(&self) -> Vec<Region> {
        let regions = 0..1u32 << self.old_bits.iter().sum::<u8>();
        regions
            .map(|region| Region(region as u16))
            .filter(|&region| self.concerns(region))
            .collect()
    }
}

fn cells_to(old: &Cut, new: &Cut) -> Vec<CellSet> {
    let cells = old.cells() as usize;
    if old.is_by_hash() && new.is_by_hash() {
        // Both are beginnings of the same hash.
        let target = |cell: usize| match new.bits().checked_sub(old.bits()) {
            Some(more) => Cells {
                first: (cell << more) as u16,
                last: (((cell + 1) << more) - 1) as u16,
            },
            None => Cells::one((cell >> (old.bits() - new.bits())) as u16),
        };
        return (0..cells).map(|cell| CellSet::of([target(cell)])).collect();
    }
    if old.is_by_hash() || new.is_by_hash() {
        return vec![CellSet::all(new.bits()); cells];
    }
    let mut to: Vec<Vec<Cells>> = vec![Vec::new(); cells];
    let (olds, news) = (old.intervals(), new.intervals());
    let (mut at, mut of) = (0, 0);
    // Where both intervals begin, whichever later, to where the first of them ends, all values are in both.
    loop {
        let (one, other) = (&olds[at], &news[of]);
        let is_same = one.cells == other.cells;
        for cell in one.cells.first..=one.cells.last {
            // The same key takes the same of as many cells.
            let target = if is_same {
                Cells::one(cell)
            } else {
                other.cells
            };
            to[usize::from(cell)].push(target);
        }
        match (olds.get(at + 1), news.get(of + 1)) {
            (None, None) => break,
            (Some(_), None) => at += 1,
            (None, Some(_)) => of += 1,
            (Some(next_old), Some(next_new)) => {
                let order = next_old.from.cmp(&next_new.from);
                at += usize::from(order.is_le());
                of += usize::from(order.is_ge());
            }
        }
    }
    // A cell that no value was in concerns nobody.
    let stays = |(cell, runs): (usize, Vec<Cells>)| match runs[..] {
        [] if cell >> new.bits() == 0 => CellSet::of([Cells::one(cell as u16)]),
        _ => CellSet::of(runs),
    };
    to.into_iter().enumerate().map(stays).collect()
}
