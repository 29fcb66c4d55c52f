//! The division of a population into the clients' communities (the report's self-contained fragments).
//!
//! Each client acts for the members of one D-Zipfian fragment. Lattice friendships, invitations and walls stay within a
//! community. A client can therefore execute every action on its own members, and the delivered mix does not depend on
//! the number of clients.

use std::sync::Arc;

use crate::model::draw::Distribution;
use crate::model::draw::fragment::{self, Fragment};

/// One community for each client. Determined by the distribution, the number of members and the clients' speeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Communities {
    distribution: Distribution,
    speeds: Vec<f64>,
    fragments: Vec<Arc<Fragment>>,
    /// The community of each member, and the member's index in it.
    places: Vec<(u32, u32)>,
}

impl Communities {
    /// Returns `None` for a single client, whose community is the complete population.
    pub fn new(
        distribution: Distribution,
        members: u32,
        speeds: &[f64],
    ) -> Option<Arc<Communities>> {
        if speeds.len() < 2 {
            return None;
        }
        let fragments = fragment::split(distribution, members, speeds);
        let mut places = vec![(0, 0); members as usize];
        for (community, fragment) in (0..).zip(&fragments) {
            for (index, member) in (0..).zip(fragment.members()) {
                places[*member as usize] = (community, index);
            }
        }
        Some(Arc::new(Communities {
            distribution,
            speeds: speeds.to_vec(),
            fragments: fragments.into_iter().map(Arc::new).collect(),
            places,
        }))
    }

    pub fn distribution(&self) -> Distribution {
        self.distribution
    }

    pub fn speeds(&self) -> &[f64] {
        &self.speeds
    }

    /// Returns the fragments, in the order of the clients.
    pub fn fragments(&self) -> &[Arc<Fragment>] {
        &self.fragments
    }

    /// Returns the number of members of each community, in the order of the clients.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = u32> {
        self.fragments.iter().map(|it| it.members().len() as u32)
    }

    /// Returns the index of a member's community.
    pub fn community_of(&self, member: u32) -> usize {
        self.places[member as usize].0 as usize
    }

    /// Returns a member's community, ascending, and the member's index in it.
    pub fn place(&self, member: u32) -> (&[u32], u32) {
        let (community, index) = self.places[member as usize];
        (self.fragments[community as usize].members(), index)
    }
}
