//! Whom one member is related to, and how a change of it is told to a trace.

use crate::model::item::Kind;
use crate::model::population::Population;

/// What another is to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    None,
    Friend,
    /// Invited this member, who has not answered.
    Inviter,
    /// Was invited by this member, and has not answered.
    Invited,
}

impl Relation {
    /// What this member is to the other.
    pub fn mirrored(self) -> Relation {
        match self {
            Relation::Inviter => Relation::Invited,
            Relation::Invited => Relation::Inviter,
            same => same,
        }
    }
}

/// One element put into a list or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub item: u64,
    pub element: u64,
    pub put: bool,
    /// False if nobody knows whether it happened.
    pub certain: bool,
}

impl Change {
    /// What `other` becoming `after` instead of `before` changes in the lists of `member`.
    pub fn of(
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
            item: kind.of(member.into()),
            element: other.into(),
            put: after == relation,
            certain: true,
        })
    }
}

/// All of one member's relations; a pair is in one list at most.
#[derive(Clone, Debug, Default)]
pub struct Relations {
    friends: Vec<u32>,
    inviters: Vec<u32>,
    invited: Vec<u32>,
    retired: Vec<Retired>,
}

/// A pair whose last write nobody knows the outcome of.
#[derive(Clone, Copy, Debug)]
struct Retired {
    other: u32,
    before: Relation,
    after: Relation,
}

impl Relations {
    pub fn at_start(population: &Population, member: u32) -> Relations {
        Relations {
            friends: population.friends_of(member).collect(),
            inviters: population.inviters_of(member).collect(),
            invited: population.invited_by(member).collect(),
            retired: Vec::new(),
        }
    }

    /// Those of one relation, in no order; none for [`Relation::None`].
    pub fn with(&self, relation: Relation) -> &[u32] {
        match relation {
            Relation::None => &[],
            Relation::Friend => &self.friends,
            Relation::Inviter => &self.inviters,
            Relation::Invited => &self.invited,
        }
    }

    /// Whether the pair is related or was retired.
    pub fn knows(&self, other: u32) -> bool {
        self.friends.contains(&other)
            || self.inviters.contains(&other)
            || self.invited.contains(&other)
            || self.retired.iter().any(|retired| retired.other == other)
    }

    /// Those of whom nobody knows what they are to this member.
    pub fn retired(&self) -> impl Iterator<Item = u32> + '_ {
        self.retired.iter().map(|pair| pair.other)
    }

    /// `other` was `before` and is `after`.
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

    /// `other` was `before`, and may or may not be `after`, now or later.
    pub fn retire(&mut self, other: u32, before: Relation, after: Relation) {
        self.set(other, before, Relation::None);
        self.retired.push(Retired {
            other,
            before,
            after,
        });
    }

    /// Tells what is not as in the population.
    pub fn changes(&self, population: &Population, member: u32, tell: &mut dyn FnMut(Change)) {
        for (kind, relation) in [
            (Kind::Friends, Relation::Friend),
            (Kind::Invitations, Relation::Inviter),
        ] {
            let kept = self.retired.iter().filter(|pair| pair.before == relation);
            let mut now: Vec<u32> = self.with(relation).to_vec();
            now.extend(kept.map(|pair| pair.other));
            let mut start: Vec<u32> = match relation {
                Relation::Friend => population.friends_of(member).collect(),
                _ => population.inviters_of(member).collect(),
            };
            now.sort_unstable();
            start.sort_unstable();
            let missing = |of: &[u32], other| of.binary_search(other).is_err();
            let put = now.iter().filter(|other| missing(&start, other));
            let gone = start.iter().filter(|other| missing(&now, other));
            for (other, put) in put.map(|it| (it, true)).chain(gone.map(|it| (it, false))) {
                tell(Change {
                    item: kind.of(member.into()),
                    element: (*other).into(),
                    put,
                    certain: true,
                });
            }
        }
        for pair in &self.retired {
            for change in Change::of(member, pair.other, pair.before, pair.after) {
                tell(Change {
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
