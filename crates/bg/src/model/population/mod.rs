//! Whom and what there is before the first action: a function of a few numbers, a seed, and perhaps a graph.
//!
//! Every worker and every client computes the same population, alone and in any order. Members are numbered from 0; resource `j` of member `m` is
//! `m * resources + j` and stands on the wall of the member that is the `j`th shift further, so every wall holds as many. The comments on
//! a resource are numbered from 0, those posted later go on from there.
//!
//! Invariants:
//!
//! 1. Friendship is symmetric, and nobody is their own friend.
//! 2. Two members are related in at most one way: friends, one invited the other, or not at all.

pub mod edges;
pub mod graph;
pub mod walls;
pub mod zipfian;

use std::fmt;
use std::sync::Arc;

use larder_types::mix;

use crate::model::content::Contents;
use graph::Graph;

/// The numbers of a population. `Population { members: 500, ..Population::default() }` makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    pub members: u32,
    /// Confirmed friends of each member: even, below `members`. A graph has its own.
    pub friends: u32,
    /// Who is whose friend.
    pub friendships: Friendships,
    /// Invitations that each member has not answered; see [`check`](Self::check) for how many there may be.
    pub invitations: u32,
    /// Resources that each member created.
    pub resources: u32,
    /// Comments on each resource.
    pub comments: u32,
    /// Bytes of a profile image; without one there are no thumbnails either.
    pub image_size: Option<usize>,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Friendships {
    /// The report's: the members in a ring, each a friend of its `friends / 2` neighbours on both sides.
    Lattice,
    Graph(Arc<Graph>),
}

/// The report's population without images: 10,000 members with 100 friends and 100 resources.
impl Default for Population {
    fn default() -> Population {
        Population {
            members: 10_000,
            friends: 100,
            friendships: Friendships::Lattice,
            invitations: 0,
            resources: 100,
            comments: 0,
            image_size: None,
            seed: 1,
        }
    }
}

/// Why there can be no such population.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Impossible {
    NoMembers,
    OddFriends {
        friends: u32,
    },
    /// Members who are not enough for so many friends and invitations each.
    TooFewMembers {
        members: u32,
        friends: u32,
        invitations: u32,
    },
    GraphSize {
        members: u32,
        graph: u32,
    },
    TooManyResources {
        members: u32,
        resources: u32,
    },
}

impl fmt::Display for Impossible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Impossible::NoMembers => write!(out, "--members 0: there must be one at least"),
            Impossible::OddFriends { friends } => write!(
                out,
                "--friends {friends}: must be even, half of them on each side of the ring"
            ),
            Impossible::TooFewMembers {
                members,
                friends,
                invitations,
            } if *invitations == 0 => write!(
                out,
                "--friends {friends}: must be fewer than --members {members}; take fewer friends or more members"
            ),
            Impossible::TooFewMembers {
                members,
                friends,
                invitations,
            } => write!(
                out,
                "--friends {friends} --invitations {invitations}: the friends and twice the invitations must be fewer than --members {members}"
            ),
            Impossible::GraphSize { members, graph } => write!(
                out,
                "--members {members}: the friendships are of {graph} members"
            ),
            Impossible::TooManyResources { members, resources } => write!(
                out,
                "--resources {resources}: {members} members with as many each are more than 2^48"
            ),
        }
    }
}

impl std::error::Error for Impossible {}

impl Population {
    /// # Errors
    ///
    /// [`Impossible`]: nothing else may be asked of such a population.
    pub fn check(&self) -> Result<(), Impossible> {
        let (members, friends, invitations) = (self.members, self.friends, self.invitations);
        if members == 0 {
            return Err(Impossible::NoMembers);
        }
        let friends = match &self.friendships {
            Friendships::Lattice if friends % 2 == 1 => {
                return Err(Impossible::OddFriends { friends });
            }
            Friendships::Lattice => friends,
            Friendships::Graph(graph) if graph.members() != members => {
                return Err(Impossible::GraphSize {
                    members,
                    graph: graph.members(),
                });
            }
            Friendships::Graph(_) => 0,
        };
        if u64::from(friends) + 2 * u64::from(invitations) >= u64::from(members) {
            return Err(Impossible::TooFewMembers {
                members,
                friends,
                invitations,
            });
        }
        if u64::from(members) * u64::from(self.resources) > 1 << 48 {
            return Err(Impossible::TooManyResources {
                members,
                resources: self.resources,
            });
        }
        Ok(())
    }

    pub fn contents(&self) -> Contents {
        Contents::new(self.seed)
    }

    /// The confirmed friends of a member, each once.
    pub fn friends_of(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        let (members, half) = (self.members, self.friends / 2);
        let (ring, neighbours) = match &self.friendships {
            Friendships::Lattice => (1..half + 1, &[][..]),
            Friendships::Graph(graph) => (0..0, graph.friends_of(member)),
        };
        ring.flat_map(move |step| {
            [
                (member + step) % members,
                (member + members - step) % members,
            ]
        })
        .chain(neighbours.iter().copied())
    }

    pub fn friend_count(&self, member: u32) -> u32 {
        match &self.friendships {
            Friendships::Lattice => self.friends,
            Friendships::Graph(graph) => graph.friends_of(member).len() as u32,
        }
    }

    /// Each friendship once.
    pub fn friendship_count(&self) -> u64 {
        match &self.friendships {
            Friendships::Lattice => u64::from(self.members) * u64::from(self.friends) / 2,
            Friendships::Graph(graph) => graph.friendships(),
        }
    }

    /// Whether two members are confirmed friends.
    pub fn are_friends(&self, one: u32, other: u32) -> bool {
        match &self.friendships {
            Friendships::Lattice => {
                let apart = one.abs_diff(other);
                (1..=self.friends / 2).contains(&apart.min(self.members - apart))
            }
            Friendships::Graph(graph) => graph.friends_of(one).binary_search(&other).is_ok(),
        }
    }

    /// The members who invited this one.
    pub fn inviters_of(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        self.distances()
            .map(move |distance| (member + self.members - distance) % self.members)
            .filter(move |inviter| !self.are_friends(*inviter, member))
            .take(self.invitations as usize)
    }

    /// The members whom this one invited.
    pub fn invited_by(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        self.distances()
            .map(move |distance| (member + distance) % self.members)
            .filter(move |invitee| self.inviters_of(*invitee).any(|inviter| inviter == member))
    }

    /// How far around the ring an inviter may be behind whom it invites: each less than half of the ring, so that nobody is invited by
    /// whom they invited. On the lattice those that follow the friends; in a graph some of these are friends and left out.
    fn distances(&self) -> std::ops::Range<u32> {
        let beyond = (self.members - 1) / 2;
        match &self.friendships {
            Friendships::Lattice => self.friends / 2 + 1..self.friends / 2 + 1 + self.invitations,
            Friendships::Graph(_) if self.invitations == 0 => 0..0,
            Friendships::Graph(_) => 1..1 + (self.invitations * 4 + 64).min(beyond),
        }
    }

    /// The resources that a member created.
    pub fn resources_of(&self, member: u32) -> std::ops::Range<u64> {
        let first = u64::from(member) * u64::from(self.resources);
        first..first + u64::from(self.resources)
    }

    pub fn resource_count(&self) -> u64 {
        u64::from(self.members) * u64::from(self.resources)
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

    /// The `top` resources with the highest numbers on a member's wall, highest first.
    pub fn top_of_wall(&self, member: u32, top: u32) -> Vec<u64> {
        let mut wall: Vec<u64> = self.wall_of(member).collect();
        wall.sort_unstable_by(|a, b| b.cmp(a));
        wall.truncate(top as usize);
        wall
    }

    /// Who wrote one of the comments that are there at the start.
    pub fn commenter(&self, resource: u64, comment: u64) -> u32 {
        (mix(self.seed ^ mix(resource) ^ comment) % u64::from(self.members)) as u32
    }

    fn shift(&self, j: u32) -> u32 {
        (mix(self.seed ^ u64::from(j).wrapping_mul(0x9e37_79b9)) % u64::from(self.members)) as u32
    }
}
