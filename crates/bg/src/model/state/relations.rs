//! The relations of one member, and the changes that a trace records.

use crate::model::item::Kind;
use crate::model::population::Population;

/// The relation of another member to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    None,
    Friend,
    /// The other member has invited this one, who has not answered.
    Inviter,
    /// This member has invited the other one, who has not answered.
    Invited,
}

impl Relation {
    /// Returns the relation of this member to the other one.
    pub fn mirrored(self) -> Relation {
        match self {
            Relation::Inviter => Relation::Invited,
            Relation::Invited => Relation::Inviter,
            same => same,
        }
    }
}

/// An element that was added to a list or removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub item: u64,
    pub element: u64,
    pub put: bool,
    /// False if the outcome is unknown.
    pub certain: bool,
}

impl Change {
    /// Returns the changes in the lists of `member` if its relation to `other` changes from `before` to `after`.
    pub fn for_relation(
        member: u32,
        other: u32,
        before: Relation,
        after: Relation,
    ) -> impl Iterator<Item = Change> {
        [
            (Kind::Friends, Relation::Friend),
            (Kind::Invitations, Relation::Inviter),
        ]
        .into_iter()
        .filter(move |(_, relation)| (before == *relation) != (after == *relation))
        .map(move |(kind, relation)| Change {
            item: kind.item(member.into()),
            element: other.into(),
            put: after == relation,
            certain: true,
        })
    }
}

/// All relations of one member. A pair is in at most one list.
#[derive(Clone, Debug, Default)]
pub struct Relations {
    friends: Vec<u32>,
    inviters: Vec<u32>,
    invited: Vec<u32>,
    retired: Vec<RetiredPair>,
}

/// A pair whose last write has an unknown outcome.
#[derive(Clone, Copy, Debug)]
struct RetiredPair {
    other: u32,
    before: Relation,
    after: Relation,
}

impl Relations {
    pub fn initial(population: &Population, member: u32) -> Relations {
        Relations {
            friends: population.friends_of(member).collect(),
            inviters: population.inviters_of(member).collect(),
            invited: population.invited_by(member).collect(),
            retired: Vec::new(),
        }
    }

    /// Returns the members with one relation, unordered; none for [`Relation::None`].
    pub fn members_with(&self, relation: Relation) -> &[u32] {
        match relation {
            Relation::None => &[],
            Relation::Friend => &self.friends,
            Relation::Inviter => &self.inviters,
            Relation::Invited => &self.invited,
        }
    }

    /// Returns whether the pair is related or retired.
    pub fn is_related(&self, other: u32) -> bool {
        self.friends.contains(&other)
            || self.inviters.contains(&other)
            || self.invited.contains(&other)
            || self.retired.iter().any(|retired| retired.other == other)
    }

    /// Returns the members whose relation to this one is uncertain.
    pub fn retired(&self) -> impl Iterator<Item = u32> + '_ {
        self.retired.iter().map(|pair| pair.other)
    }

    /// Changes the relation to `other` from `before` to `after`.
    pub fn set(&mut self, other: u32, before: Relation, after: Relation) {
        if let Some(list) = self.list(before)
            && let Some(index) = list.iter().position(|listed| *listed == other)
        {
            list.swap_remove(index);
        }
        if let Some(list) = self.list(after) {
            list.push(other);
        }
    }

    /// Records that the relation to `other` was `before`, and may or may not become `after`, now or later.
    pub fn retire(&mut self, other: u32, before: Relation, after: Relation) {
        self.set(other, before, Relation::None);
        self.retired.push(RetiredPair {
            other,
            before,
            after,
        });
    }

    /// Passes all differences from the population to `visit`.
    pub fn visit_changes(
        &self,
        population: &Population,
        member: u32,
        visit: &mut dyn FnMut(Change),
    ) {
        for (kind, relation) in [
            (Kind::Friends, Relation::Friend),
            (Kind::Invitations, Relation::Inviter),
        ] {
            let retired_here = self.retired.iter().filter(|pair| pair.before == relation);
            let mut now: Vec<u32> = self.members_with(relation).to_vec();
            now.extend(retired_here.map(|pair| pair.other));
            let mut start: Vec<u32> = match relation {
                Relation::Friend => population.friends_of(member).collect(),
                _ => population.inviters_of(member).collect(),
            };
            now.sort_unstable();
            start.sort_unstable();
            let missing = |of: &[u32], other| of.binary_search(other).is_err();
            let put = now.iter().filter(|other| missing(&start, other));
            let removed_members = start.iter().filter(|other| missing(&now, other));
            for (other, put) in put
                .map(|it| (it, true))
                .chain(removed_members.map(|it| (it, false)))
            {
                visit(Change {
                    item: kind.item(member.into()),
                    element: (*other).into(),
                    put,
                    certain: true,
                });
            }
        }
        for pair in &self.retired {
            for change in Change::for_relation(member, pair.other, pair.before, pair.after) {
                visit(Change {
                    certain: false,
                    ..change
                });
            }
        }
    }

    fn list(&mut self, relation: Relation) -> Option<&mut Vec<u32>> {
        match relation {
            Relation::None => None,
            Relation::Friend => Some(&mut self.friends),
            Relation::Inviter => Some(&mut self.inviters),
            Relation::Invited => Some(&mut self.invited),
        }
    }
}
