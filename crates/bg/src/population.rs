//! Whom and what there is before the first action: a function of a few numbers and a seed.
//!
//! Every worker and every client computes the same population, alone and in any order. Members are numbered from 0; resource `j` of member `m` is
//! `m * resources + j` and stands on the wall of the member that is the `j`th shift further, so every wall holds as many.

use crate::content::{self, Contents};

/// The numbers of a population.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    pub members: u32,
    /// Confirmed friends of each member: even, below `members`.
    pub friends: u32,
    /// Invitations that each member has not answered; together with `friends` below `members`.
    pub invitations: u32,
    /// Resources that each member created.
    pub resources: u32,
    /// Comments on each resource.
    pub comments: u32,
    /// Bytes of a profile image; without one there are no thumbnails either.
    pub image_size: Option<usize>,
    pub seed: u64,
}

impl Population {
    pub fn contents(&self) -> Contents {
        Contents::new(self.seed)
    }

    /// The confirmed friends of a member: its neighbours on both sides of the report's lattice. Symmetric.
    pub fn friends_of(&self, member: u32) -> impl Iterator<Item = u32> + use<> {
        let (members, half) = (self.members, self.friends / 2);
        (1..=half).flat_map(move |step| {
            [
                (member + step) % members,
                (member + members - step) % members,
            ]
        })
    }

    /// The members who invited this one: those that follow its friends on one side.
    pub fn inviters_of(&self, member: u32) -> impl Iterator<Item = u32> + use<> {
        let (members, half) = (self.members, self.friends / 2);
        (1..=self.invitations).map(move |step| (member + members - half - step) % members)
    }

    /// The resources that a member created.
    pub fn resources_of(&self, member: u32) -> std::ops::Range<u64> {
        let first = u64::from(member) * u64::from(self.resources);
        first..first + u64::from(self.resources)
    }

    pub fn creator(&self, resource: u64) -> u32 {
        (resource / u64::from(self.resources)) as u32
    }

    /// Whose wall a resource stands on.
    pub fn wall(&self, resource: u64) -> u32 {
        let shift = self.shift((resource % u64::from(self.resources)) as u32);
        ((u64::from(self.creator(resource)) + u64::from(shift)) % u64::from(self.members)) as u32
    }

    /// The resources on a member's wall, in no order.
    pub fn wall_of(&self, member: u32) -> impl Iterator<Item = u64> {
        (0..self.resources).map(move |j| {
            let creator = (member + self.members - self.shift(j)) % self.members;
            u64::from(creator) * u64::from(self.resources) + u64::from(j)
        })
    }

    fn shift(&self, j: u32) -> u32 {
        (content::mix(self.seed ^ u64::from(j).wrapping_mul(0x9e37_79b9)) % u64::from(self.members))
            as u32
    }
}
