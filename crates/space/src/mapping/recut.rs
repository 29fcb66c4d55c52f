//! Decides when a subspace must be partitioned again.

use super::subspace::Subspace;
use super::{Attribute, Region};

/// A subspace is partitioned again when its fullest region has more than this multiple of the mean number of objects.
pub const RECUT_TIMES_MEAN: f64 = 2.0;

/// The minimum mean number of objects in a region. Below it, regions are uneven by chance, and moving objects gains
/// nothing.
pub const RECUT_MEAN_MIN: f64 = 64.0;

/// A dimension whose fullest cell exceeds this multiple of its mean benefits from a new cut.
const DIMENSION_TIMES_MEAN: f64 = 1.25;

/// The distribution of objects over the regions of a subspace.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    pub fullest: Region,
    pub fullest_objects: u64,
    pub mean: f64,
    /// For each dimension its attribute, and the number of objects in its fullest cell as a multiple of the mean.
    pub dimensions: Vec<(Attribute, f64)>,
}

impl Balance {
    /// Computes the balance. `objects` is the number of objects in each region.
    ///
    /// # Panics
    /// The length of `objects` is not the number of regions.
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

    /// Returns the attributes to partition again. There are none in three cases:
    ///
    /// - The regions are even enough.
    /// - The regions have too few objects to judge.
    /// - Each attribute by itself is divided well, and only the correlation between attributes fills some regions
    ///   (towns and their postcodes). No other cut would change that.
    pub fn attributes_to_recut(&self) -> Vec<Attribute> {
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
