//! `top k`: the k greatest (`desc`, the default) or least (`asc`) values of a group, one row each. The output has a
//! slot `<rank:width>` that numbers them from 1; the slots before it are the group. Empty values are not ranked.

use super::ranked::{Candidate, RankOrder, Ranked, id, split_id};
use super::{Argument, Combination, GroupState, OperatorKind, OperatorRow, Shape};
use crate::base::pattern::Element;
use crate::base::rows::Value;

pub const TOP: OperatorRow = OperatorRow {
    name: "top",
    argument: Argument::CountAndOrder,
    kind: OperatorKind::InGroup(|operator| {
        let better = if operator.descending() {
            RankOrder::Greatest
        } else {
            RankOrder::Least
        };
        Box::new(Top(Ranked::new(better, operator.count())))
    }),
    may_have_else: false,
};

#[derive(Debug)]
struct Top(Ranked);

impl GroupState for Top {
    fn apply(
        &mut self,
        shape: &Shape,
        combination: Combination<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let has_rank = |value: &&Value| !value.is_empty();
        let id = id(
            combination.source_key,
            &key_end_after_rank(shape, combination),
        );
        self.0
            .apply(old.filter(has_rank), new.filter(has_rank), &id);
    }

    fn is_drained(&self) -> bool {
        self.0.is_drained()
    }

    fn is_empty(&self) -> bool {
        self.0.best().is_empty()
    }

    fn rows(&self, shape: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        let width = shape.rank.map_or(0, |rank| rank.width);
        let all = self.0.best().iter();
        let all = all.flat_map(|best| std::iter::repeat_n(best, best.times as usize));
        let row = |(number, best): (usize, &Candidate)| {
            let rank = format!("{:0width$}", number + 1);
            let key = [group, rank.as_bytes(), split_id(&best.id).1].concat();
            (Box::<[u8]>::from(key), best.value.clone())
        };
        let shown = all.take(shape.operator.count()).enumerate();
        shown.map(row).collect()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.0.memory_bytes()
    }
}

/// Returns the end of a combination's output keys, after the rank.
fn key_end_after_rank(shape: &Shape, combination: Combination<'_>) -> Vec<u8> {
    let mut rest = Vec::new();
    let first = shape.rank.map_or(0, |rank| rank.element + 1);
    for element in &shape.output.elements[first..] {
        match element {
            Element::Text(text) => rest.extend_from_slice(text),
            Element::Slot(id) => rest.extend_from_slice(combination.binding.get(*id)),
        }
    }
    rest
}
