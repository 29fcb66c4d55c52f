//! Groups that a `top` join ranks, found by the key prefix before the rank.

use crate::base::pattern::{Binding, Element};
use crate::engine::Engine;
use crate::join::Join;

/// A group of ranked rows. A key consists of `prefix`, the rank and the member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    pub prefix: Vec<u8>,
    /// Offset of the member in a key; `None` if the output has no slot after the rank.
    pub member_at: Option<usize>,
    /// True if rank 1 is the greatest value.
    pub descending: bool,
}

impl Engine {
    /// Returns the ranking of a group, such as `leaders|chess` for `leaders|<game>|<rank:2>|<user>`, or `None` if no
    /// join ranks it.
    pub fn ranking(&self, group: &[u8]) -> Option<Ranking> {
        let separators: [&[u8]; 2] = [b"|", b":"];
        separators.iter().find_map(|separator| {
            let prefix = [group, separator].concat();
            let table = &self.tables[self.tables.of_key(&prefix)?];
            let mut makers = table.makers.iter();
            makers.find_map(|id| ranking_of(self.joins.get(*id)?, &prefix))
        })
    }
}

fn ranking_of(join: &Join, prefix: &[u8]) -> Option<Ranking> {
    let (shape, slots) = (&join.definition.shape, &join.definition.slots);
    let rank = shape.rank?;
    let (before, after) = shape.output.elements.split_at(rank.element);
    let mut group = shape.output.clone();
    (group.elements, group.key_len) = (before.to_vec(), None);
    if !group.matches(prefix, slots, &mut Binding::default()) {
        return None;
    }
    let member_at = match &after[1..] {
        [Element::Text(separator), _, ..] => Some(prefix.len() + rank.width + separator.len()),
        [Element::Slot(_), ..] => Some(prefix.len() + rank.width),
        _ => None,
    };
    Some(Ranking {
        prefix: prefix.to_vec(),
        member_at,
        descending: shape.operator.descending(),
    })
}
