//! The top of every wall, without sorting one.
//!
//! Resource `j` stands on the wall that is a fixed shift further than its creator, so the creators on a member's wall are the shifts read
//! backwards from the member: sorted once, they give every wall from the highest number down.

use larder_types::mix;

use super::Population;

/// Answers what [`Population::top_of_wall`] answers, in time of the answer's size.
#[derive(Clone, Debug)]
pub struct Walls {
    members: u32,
    resources: u32,
    /// Shift and `j`: shifts ascending, for the same shift the higher `j` first.
    shifts: Vec<(u32, u32)>,
}

impl Walls {
    pub fn new(population: &Population) -> Walls {
        let mut shifts: Vec<(u32, u32)> = (0..population.resources)
            .map(|j| (population.shift(j), j))
            .collect();
        shifts.sort_unstable_by_key(|(shift, j)| (*shift, u32::MAX - j));
        Walls {
            members: population.members,
            resources: population.resources,
            shifts,
        }
    }

    /// The resources on a member's wall, the highest number first.
    pub fn descending(&self, member: u32) -> impl Iterator<Item = u64> + '_ {
        // A creator behind the member's number is one of the highest: it is reached around the ring.
        let first = self.shifts.partition_point(|(shift, _)| *shift <= member);
        let (near, far) = self.shifts.split_at(first);
        far.iter().chain(near).map(move |(shift, j)| {
            let creator = (member + self.members - shift) % self.members;
            u64::from(creator) * u64::from(self.resources) + u64::from(*j)
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
