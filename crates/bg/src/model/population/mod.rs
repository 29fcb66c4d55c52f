//! The members, friendships, resources and comments before the first action: a function of a few numbers, a seed, and
//! optionally a graph.
//!
//! Every worker and every client computes the same population, independently and in any order. Members are numbered
//! from 0. Resource `j` of member `m` is `m * resources + j`, and is on the wall of the member at the `j`th shift, so
//! every wall has the same number of resources. The comments on a resource are numbered from 0, and later comments
//! continue the numbering.
//!
//! Neighbours are counted around a *ring*: all members in ascending order, or those of one client's community
//! (`communities`).
//!
//! Invariants:
//!
//! 1. Friendship is symmetric, and no member is their own friend.
//! 2. Two members are friends, or one has invited the other, or they are unrelated.
//! 3. Lattice friendships, invitations and walls relate only members of one community. A graph from a file may contain
//!    friendships between communities.

pub mod communities;
pub mod edges;
pub mod graph;
pub mod walls;
pub mod zipfian;

use std::fmt;
use std::sync::Arc;

use larder_types::mix;

use crate::model::content::{self, Contents};
use communities::Communities;
use graph::Graph;

/// The parameters of a population. `Population { members: 500, ..Population::default() }` creates one.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    pub members: u32,
    /// The number of confirmed friends of each member: even, and below `members`. Ignored for a graph.
    pub friends: u32,
    /// The structure of the friendships.
    pub friendships: Friendships,
    /// The clients' communities; `None` for a single client.
    pub communities: Option<Arc<Communities>>,
    /// The number of unanswered invitations of each member. [`check`](Self::check) limits it.
    pub invitations: u32,
    /// The number of resources that each member created.
    pub resources: u32,
    /// The number of comments on each resource.
    pub comments: u32,
    /// The size of a profile image in bytes. `None`: there are no images and no thumbnails.
    pub image_size: Option<usize>,
    /// The number of letters of each attribute of a profile.
    pub attribute_size: usize,
    /// The number of letters of a comment.
    pub comment_size: usize,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Friendships {
    /// The report's structure: the members form a ring, and each is a friend of its `friends / 2` neighbours on both
    /// sides.
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
            communities: None,
            invitations: 0,
            resources: 100,
            comments: 0,
            image_size: None,
            attribute_size: content::ATTRIBUTE_SIZE_DEFAULT,
            comment_size: content::COMMENT_SIZE_DEFAULT,
            seed: 1,
        }
    }
}

/// The reason why a population is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PopulationError {
    NoMembers,
    OddFriends {
        friends: u32,
    },
    /// There are too few members for this number of friends and invitations each.
    TooFewMembers {
        members: u32,
        friends: u32,
        invitations: u32,
    },
    /// A client has too few members for this number of friends and invitations each.
    SmallCommunity {
        /// Counted from 1.
        client: usize,
        clients: usize,
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

impl fmt::Display for PopulationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PopulationError::NoMembers => write!(out, "--members 0: must be at least 1"),
            PopulationError::OddFriends { friends } => write!(
                out,
                "--friends {friends}: must be even, because half of the friends are on each side of the ring"
            ),
            PopulationError::TooFewMembers {
                members,
                friends,
                invitations,
            } if *invitations == 0 => write!(
                out,
                "--friends {friends}: must be less than --members {members}"
            ),
            PopulationError::TooFewMembers {
                members,
                friends,
                invitations,
            } => write!(
                out,
                "--friends {friends} --invitations {invitations}: friends plus twice the invitations must be less than --members {members}"
            ),
            PopulationError::SmallCommunity {
                client,
                clients,
                members,
                friends,
                invitations,
            } => write!(
                out,
                "--friends {friends} --invitations {invitations}: friends plus twice the invitations must be less than the {members} members of client {client} of {clients}; use fewer clients, friends or invitations, or more --members"
            ),
            PopulationError::GraphSize { members, graph } => write!(
                out,
                "--members {members}: the friendship graph has {graph} members"
            ),
            PopulationError::TooManyResources { members, resources } => write!(
                out,
                "--resources {resources}: the total for {members} members exceeds 2^48"
            ),
        }
    }
}

impl std::error::Error for PopulationError {}

impl Population {
    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// [`PopulationError`]: the other methods must not be called.
    pub fn check(&self) -> Result<(), PopulationError> {
        let (members, friends, invitations) = (self.members, self.friends, self.invitations);
        if members == 0 {
            return Err(PopulationError::NoMembers);
        }
        let friends = match &self.friendships {
            Friendships::Lattice if friends % 2 == 1 => {
                return Err(PopulationError::OddFriends { friends });
            }
            Friendships::Lattice => friends,
            Friendships::Graph(graph) if graph.members() != members => {
                return Err(PopulationError::GraphSize {
                    members,
                    graph: graph.members(),
                });
            }
            Friendships::Graph(_) => 0,
        };
        if u64::from(friends) + 2 * u64::from(invitations) >= u64::from(members) {
            return Err(PopulationError::TooFewMembers {
                members,
                friends,
                invitations,
            });
        }
        if let Some(communities) = &self.communities {
            let clients = communities.sizes().len();
            for (index, own) in communities.sizes().enumerate() {
                if u64::from(friends) + 2 * u64::from(invitations) >= u64::from(own) {
                    return Err(PopulationError::SmallCommunity {
                        client: index + 1,
                        clients,
                        members: own,
                        friends,
                        invitations,
                    });
                }
            }
        }
        if u64::from(members) * u64::from(self.resources) > 1 << 48 {
            return Err(PopulationError::TooManyResources {
                members,
                resources: self.resources,
            });
        }
        Ok(())
    }

    pub fn contents(&self) -> Contents {
        Contents::new(self.seed)
    }

    /// Returns the size of a profile: the total of its attributes.
    pub fn profile_size(&self) -> usize {
        content::FIELDS.len() * self.attribute_size
    }

    /// Returns the confirmed friends of a member, each once.
    pub fn friends_of(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        let (ring, place) = self.ring(member);
        let half = self.friends / 2;
        let (steps, neighbours) = match &self.friendships {
            Friendships::Lattice => (1..half + 1, &[][..]),
            Friendships::Graph(graph) => (0..0, graph.friends_of(member)),
        };
        steps
            .flat_map(move |step| [ring.ahead(place, step), ring.behind(place, step)])
            .chain(neighbours.iter().copied())
    }

    pub fn friend_count(&self, member: u32) -> u32 {
        match &self.friendships {
            Friendships::Lattice => self.friends,
            Friendships::Graph(graph) => graph.friends_of(member).len() as u32,
        }
    }

    /// Returns the number of friendships, each counted once.
    pub fn friendship_count(&self) -> u64 {
        match &self.friendships {
            Friendships::Lattice => u64::from(self.members) * u64::from(self.friends) / 2,
            Friendships::Graph(graph) => graph.friendships(),
        }
    }

    /// Returns whether two members are confirmed friends.
    pub fn are_friends(&self, one: u32, other: u32) -> bool {
        match &self.friendships {
            Friendships::Lattice if !self.share_community(one, other) => false,
            Friendships::Lattice => {
                let (ring, place) = self.ring(one);
                let apart = place.abs_diff(self.ring(other).1);
                (1..=self.friends / 2).contains(&apart.min(ring.size() - apart))
            }
            Friendships::Graph(graph) => graph.friends_of(one).binary_search(&other).is_ok(),
        }
    }

    /// Returns the members who invited this one.
    pub fn inviters_of(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        let (ring, place) = self.ring(member);
        self.distances(ring.size())
            .map(move |distance| ring.behind(place, distance))
            .filter(move |inviter| !self.are_friends(*inviter, member))
            .take(self.invitations as usize)
    }

    /// Returns the members that `member` invited.
    pub fn invited_by(&self, member: u32) -> impl Iterator<Item = u32> + '_ {
        let (ring, place) = self.ring(member);
        self.distances(ring.size())
            .map(move |distance| ring.ahead(place, distance))
            .filter(move |invitee| self.inviters_of(*invitee).any(|inviter| inviter == member))
    }

    /// Returns the distances at which an inviter may be behind the invited member in a ring of this size. Each distance
    /// is less than half of the ring, so that no two members invite each other. On the lattice, the distances follow
    /// those of friends. In a graph, friends at these distances are skipped.
    fn distances(&self, ring: u32) -> std::ops::Range<u32> {
        let beyond = ring.saturating_sub(1) / 2;
        match &self.friendships {
            Friendships::Lattice => self.friends / 2 + 1..self.friends / 2 + 1 + self.invitations,
            Friendships::Graph(_) if self.invitations == 0 => 0..0,
            Friendships::Graph(_) => 1..1 + (self.invitations * 4 + 64).min(beyond),
        }
    }

    /// Returns the resources that a member created.
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

    /// Returns the member on whose wall a resource is.
    pub fn wall(&self, resource: u64) -> u32 {
        let (ring, place) = self.ring(self.creator(resource));
        let j = (resource % u64::from(self.resources)) as u32;
        ring.ahead(place, self.shift(j, ring.size()))
    }

    /// Returns the resources on a member's wall, unordered.
    pub fn wall_of(&self, member: u32) -> impl Iterator<Item = u64> {
        let (ring, place) = self.ring(member);
        (0..self.resources).map(move |j| {
            let creator = ring.behind(place, self.shift(j, ring.size()));
            u64::from(creator) * u64::from(self.resources) + u64::from(j)
        })
    }

    /// Returns the `top` resources with the highest numbers on a member's wall, highest first.
    pub fn top_of_wall(&self, member: u32, top: u32) -> Vec<u64> {
        let mut wall: Vec<u64> = self.wall_of(member).collect();
        wall.sort_unstable_by(|a, b| b.cmp(a));
        wall.truncate(top as usize);
        wall
    }

    /// Returns the author of one of the initial comments.
    pub fn commenter(&self, resource: u64, comment: u64) -> u32 {
        (mix(self.seed ^ mix(resource) ^ comment) % u64::from(self.members)) as u32
    }

    /// Returns a member's ring, and its place in it.
    fn ring(&self, member: u32) -> (Ring<'_>, u32) {
        match &self.communities {
            None => (Ring::All(self.members), member),
            Some(communities) => {
                let (members, place) = communities.place(member);
                (Ring::Some(members), place)
            }
        }
    }

    fn share_community(&self, one: u32, other: u32) -> bool {
        let same = |it: &Arc<Communities>| it.community_of(one) == it.community_of(other);
        self.communities.as_ref().is_none_or(same)
    }

    fn shift(&self, j: u32, ring: u32) -> u32 {
        (mix(self.seed ^ u64::from(j).wrapping_mul(0x9e37_79b9)) % u64::from(ring)) as u32
    }
}

/// Members in a circle, with places counted from 0.
#[derive(Clone, Copy)]
enum Ring<'a> {
    /// All members, each at the place of its number.
    All(u32),
    /// Some members, ascending.
    Some(&'a [u32]),
}

impl Ring<'_> {
    fn size(self) -> u32 {
        match self {
            Ring::All(members) => members,
            Ring::Some(members) => members.len() as u32,
        }
    }

    /// Returns the member `steps` places after `place`.
    fn ahead(self, place: u32, steps: u32) -> u32 {
        self.at(u64::from(place) + u64::from(steps))
    }

    /// Returns the member `steps` places before `place`, at most once around the ring.
    fn behind(self, place: u32, steps: u32) -> u32 {
        self.at(u64::from(place) + u64::from(self.size()) - u64::from(steps))
    }

    fn at(self, place: u64) -> u32 {
        let place = (place % u64::from(self.size())) as u32;
        match self {
            Ring::All(_) => place,
            Ring::Some(members) => members[place as usize],
        }
    }
}
