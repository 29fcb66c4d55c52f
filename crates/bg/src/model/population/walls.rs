//! The top resources of every wall, without sorting each wall.
//!
//! Resource `j` is on the wall at a fixed shift from its creator. The creators on a member's wall are therefore the
//! shifts counted backwards from the member. Sorted once, the shifts yield every wall in descending order.

use std::sync::Arc;

use larder_types::mix;

use super::{Population, Ring};

/// Computes [`Population::top_of_wall`] in time proportional to the result.
#[derive(Clone, Debug)]
pub struct Walls {
    population: Arc<Population>,
    /// For each community, the pairs of shift and `j`: shifts ascending, and for equal shifts the higher `j` first.
    shifts: Vec<Vec<(u32, u32)>>,
}

impl Walls {
    pub fn new(population: &Arc<Population>) -> Walls {
        let sizes: Vec<u32> = match &population.communities {
            None => vec![population.members],
            Some(communities) => communities.sizes().collect(),
        };
        let sorted = |size: u32| {
            let all = 0..population.resources;
            let mut shifts: Vec<(u32, u32)> = all.map(|j| (population.shift(j, size), j)).collect();
            shifts.sort_unstable_by_key(|(shift, j)| (*shift, u32::MAX - j));
            shifts
        };
        // A community without members has no walls.
        let sizes = sizes.into_iter().map(|size| size.max(1));
        Walls {
            shifts: sizes.map(sorted).collect(),
            population: population.clone(),
        }
    }

    /// Returns the resources on a member's wall, highest number first.
    pub fn descending(&self, member: u32) -> impl Iterator<Item = u64> + '_ {
        let community = self.population.communities.as_ref();
        let shifts =
            &self.shifts[community.map_or(0, |communities| communities.community_of(member))];
        let (ring, place): (Ring<'_>, u32) = self.population.ring(member);
        // A creator at a higher place than the member comes first: it is reached around the ring, and places are in the
        // order of the numbers.
        let first = shifts.partition_point(|(shift, _)| *shift <= place);
        let (near, far) = shifts.split_at(first);
        far.iter().chain(near).map(move |(shift, j)| {
            let creator = ring.behind(place, *shift);
            u64::from(creator) * u64::from(self.population.resources) + u64::from(*j)
        })
    }

    /// Returns the content that represents the `top` resources of a member's wall in a trace.
    pub fn content(&self, member: u32, top: u32) -> u64 {
        content_of(self.descending(member).take(top as usize))
    }
}

/// Returns the content that represents an ordered list of resources in a trace.
pub fn content_of(resources: impl Iterator<Item = u64>) -> u64 {
    resources.fold(0, |content, resource| mix(content ^ mix(resource + 1)))
}
