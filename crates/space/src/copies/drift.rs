//! Decides when the subspaces of a space are partitioned by samples of their values, for the first time or again.

use super::regions::Regions;
use crate::mapping::{Attribute, Balance};

/// The minimum number of objects for partitioning by samples. A smaller sample has no meaning, so such a space stays
/// partitioned by hash.
pub const CUT_OBJECTS_MIN: u64 = 1000;

/// Returns the attributes of each subspace that must be partitioned by a sample now. `objects` is the number of objects
/// in each region of each subspace. The first time, these are all attributes of a subspace. Later, they are the
/// unevenly divided attributes of a subspace with an overfull region.
pub fn select_recuts(regions: &Regions, objects: &[Vec<u64>]) -> Vec<Vec<Attribute>> {
    let subspaces = (0..regions.count()).map(|number| {
        let (Some(subspace), Some(objects)) = (regions.subspace(number), objects.get(number))
        else {
            return Vec::new();
        };
        if !regions.is_cut(number) {
            let is_enough = objects.iter().sum::<u64>() >= CUT_OBJECTS_MIN;
            let attributes = subspace.dimensions().iter().map(|it| it.attribute);
            return attributes.filter(|_| is_enough).collect();
        }
        Balance::of(subspace, objects).attributes_to_recut()
    });
    subspaces.collect()
}
