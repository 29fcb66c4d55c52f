//! The top of every wall, without sorting one.
//!
//! Resource `j` stands on the wall that is a fixed shift further than its creator, so the creators on a member's wall are the shifts read
//! backwards from the member: sorted once, they give every wall from the highest number down.

use std::sync::Arc;

use larder_types::mix;

use super::{Population, Ring};

/// Answers what [`Population::top_of_wall`] answers, in time of the answer's size.
#[derive(Clone, Debug)]
pub struct Walls {
    population: Arc<Population>,
    /// For each community, shift and `j`: shifts ascending, for the same shift the higher `j` first.
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
        // A community without members has no wall.
        let sizes = sizes.into_iter().map(|size| size.max(1));
        Walls {
            shifts: sizes.map(sorted).collect(),
            population: population.clone(),
        }
    }

    /// The resources on a member's wall, the highest number first.
    pub fn descending(&self, member: u32) -> impl Iterator<Item = u64> + '_ {
        let community = self.population.communities.as_ref();
        let shifts = &self.shifts[community.map_or(0, |communities| communities.of(member))];
        let (ring, place): (Ring<'_>, u32) = self.population.ring(member);
        // A creator at a higher place than the member comes first: it is reached around the ring, and places are in the order of numbers.
        let first = shifts.partition_point(|(shift, _)| *shift <= place);
        let (near, far) = shifts.split_at(first);
        far.iter().chain(near).map(move |(shift, j)| {
            let creator = ring.behind(place, *shift);
            u64::from(creator) * u64::from(self.population.resources) + u64::from(*j)
        })
    }

    /// What stands for the `top` resources of a member's wall in a trace.
    pub fn content(&self, member: u32, top: u32) -> u64 {
        content_of(self.descending(member).take(top as usize))
    }
}

/// What stands for a list of resources in a trace, in their order.
pub fn content_of(resources: impl Iterator<Item = u64>) -> u64 {
    resources.fold(0, |content, resource| mix(content ^ mix(resource + 1)))
}
