//! When a subspace is to be cut anew.

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
