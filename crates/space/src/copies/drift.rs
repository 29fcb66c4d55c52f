//! When the subspaces of a space are cut by what its objects have, and when they are cut anew.

use super::regions::Regions;
use crate::mapping::{Attribute, Balance};

/// With fewer objects a space stays cut by hash, as it is declared: samples would tell nothing.
pub const CUT_OBJECTS_MIN: u64 = 1000;

/// The attributes of each subspace that are to be cut by a sample now; `objects` has the number of objects in each region of each subspace. All of a subspace the first
/// time; after that those whose cells have drifted apart, of a subspace that has a region which is too full.
pub fn to_cut(regions: &Regions, objects: &[Vec<u64>]) -> Vec<Vec<Attribute>> {
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
        Balance::of(subspace, objects).to_recut()
    });
    subspaces.collect()
}
