//! The best source rows of a group, in bounded memory: for `min`, `max`, `top`, and a `copy` of several rows to one.
//! [`Best`] shows one of them, which is enough for most operators.
//!
//! 1. Rows are stored best first. If not all rows of the group are stored, those stored are the best.
//! 2. If removals leave fewer rows than are shown while others may exist, the group is *drained*: it must be computed
//!    again.

use std::cmp::Ordering;

use super::{Combination, GroupState, Shape};
use crate::base::number;
use crate::base::rows::Value;

/// The order of rows. Ties are resolved by the lesser id, so the order is total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankOrder {
    Least,
    Greatest,
    /// The row with the greatest id, whatever its value.
    Last,
}

/// A source row, with the number of combinations of checked rows that it is part of.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub value: Value,
    /// The source key, and the end of the output key (see [`id`]).
    pub id: Box<[u8]>,
    pub times: u32,
}

#[derive(Debug)]
pub struct Ranked {
    order: RankOrder,
    /// Number of rows shown.
    rows_shown: usize,
    best: Vec<Candidate>,
    complete: bool,
}

/// Joins a source key and the end of an output key. Ids are ordered by these two.
pub fn id(source_key: &[u8], rest: &[u8]) -> Box<[u8]> {
    let len = (source_key.len() as u32).to_be_bytes();
    [&len, source_key, rest].concat().into()
}

pub fn split_id(id: &[u8]) -> (&[u8], &[u8]) {
    let (len, both) = id.split_at(4);
    both.split_at(u32::from_be_bytes(len.try_into().expect("four bytes")) as usize)
}

impl RankOrder {
    fn compare(self, a: (&Value, &[u8]), b: (&Value, &[u8])) -> Ordering {
        match self {
            // An empty value is worse than any other.
            RankOrder::Least => (a.0.is_empty().cmp(&b.0.is_empty()))
                .then_with(|| number::compare(a.0.as_bytes(), b.0.as_bytes()))
                .then_with(|| split_id(a.1).cmp(&split_id(b.1))),
            RankOrder::Greatest => (a.0.is_empty().cmp(&b.0.is_empty()))
                .then_with(|| number::compare(b.0.as_bytes(), a.0.as_bytes()))
                .then_with(|| split_id(a.1).cmp(&split_id(b.1))),
            RankOrder::Last => split_id(b.1)
                .cmp(&split_id(a.1))
                .then_with(|| a.0.as_bytes().cmp(b.0.as_bytes())),
        }
    }
}

impl Ranked {
    pub fn new(better: RankOrder, shown: usize) -> Ranked {
        Ranked {
            order: better,
            rows_shown: shown,
            best: Vec::new(),
            complete: true,
        }
    }

    /// The stored rows, best first.
    pub fn best(&self) -> &[Candidate] {
        &self.best
    }

    /// Applies a row that was added, changed or removed.
    pub fn apply(&mut self, old: Option<&Value>, new: Option<&Value>, id: &[u8]) {
        if let Some(value) = old {
            self.remove(value, id);
        }
        if let Some(value) = new {
            self.insert(value, id);
        }
    }

    /// Number of rows to store, such that removals rarely drain the group.
    fn capacity(&self) -> usize {
        self.rows_shown * 2 + 8
    }

    fn insert(&mut self, value: &Value, id: &[u8]) {
        match self.find(value, id) {
            Ok(at) => self.best[at].times += 1,
            Err(at) if at < self.best.len() || self.complete => {
                self.best.insert(
                    at,
                    Candidate {
                        value: value.clone(),
                        id: id.into(),
                        times: 1,
                    },
                );
                if self.best.len() > self.capacity() {
                    self.best.pop();
                    self.complete = false;
                }
            }
            Err(_) => {}
        }
    }

    fn remove(&mut self, value: &Value, id: &[u8]) {
        if let Ok(at) = self.find(value, id) {
            self.best[at].times -= 1;
            if self.best[at].times == 0 {
                self.best.remove(at);
            }
        } else {
            debug_assert!(
                !self.complete,
                "invariant 1: rows that are not stored rank after the stored ones"
            );
        }
    }

    fn find(&self, value: &Value, id: &[u8]) -> Result<usize, usize> {
        let compare = |c: &Candidate| self.order.compare((&c.value, &c.id), (value, id));
        self.best.binary_search_by(compare)
    }

    /// Returns whether the group is drained (invariant 2).
    pub fn is_drained(&self) -> bool {
        !self.complete && self.best.len() < self.rows_shown
    }

    pub fn memory_bytes(&self) -> usize {
        self.best.capacity() * size_of::<Candidate>()
            + self.best.iter().map(|c| c.id.len() + 16).sum::<usize>()
    }
}

/// Shows the value of the best row.
#[derive(Debug)]
pub struct Best(Ranked);

impl Best {
    pub fn new(better: RankOrder) -> Best {
        Best(Ranked::new(better, 1))
    }
}

impl GroupState for Best {
    fn apply(
        &mut self,
        _: &Shape,
        combination: Combination<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        self.0.apply(old, new, &id(combination.source_key, &[]));
    }

    fn is_drained(&self) -> bool {
        self.0.is_drained()
    }

    fn is_empty(&self) -> bool {
        self.0.best.is_empty()
    }

    fn rows(&self, _: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        let best = self.0.best.first();
        let row = best.map(|best| (Box::from(group), best.value.clone()));
        row.into_iter().collect()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.0.memory_bytes()
    }
}
