//! The best source rows of a group, in bounded memory: for `min`, `max`, `top`, and a `copy` of several rows to one.
//!
//! 1. Rows are kept best first. Where not all of the group's rows are kept, those kept are the best ones.
//! 2. When removals have left fewer than are shown and others may exist, the group is *drained*: it must be read again.

use std::cmp::Ordering;

use crate::base::number;
use crate::base::rows::Value;

/// What makes a row better than another. Ties go to the lesser id, so the order is total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Least,
    Greatest,
    /// The row with the last id, whatever its value.
    Last,
}

/// A contribution: a source row, as often as combinations of checked rows lead to it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub value: Value,
    /// The source key, and how the output key ends (see [`id`]).
    pub id: Box<[u8]>,
    pub times: u32,
}

#[derive(Debug)]
pub struct Ranked {
    pub best: Vec<Candidate>,
    complete: bool,
}

/// Joins a source key and the end of an output key; ids come in the order of these two.
pub fn id(source_key: &[u8], rest: &[u8]) -> Box<[u8]> {
    let len = (source_key.len() as u32).to_be_bytes();
    [&len, source_key, rest].concat().into()
}

pub fn split_id(id: &[u8]) -> (&[u8], &[u8]) {
    let (len, both) = id.split_at(4);
    both.split_at(u32::from_be_bytes(len.try_into().expect("four bytes")) as usize)
}

impl Better {
    fn compare(self, a: (&Value, &[u8]), b: (&Value, &[u8])) -> Ordering {
        match self {
            // An empty value is none: any other is better.
            Better::Least => (a.0.is_empty().cmp(&b.0.is_empty()))
                .then_with(|| number::compare(a.0.as_bytes(), b.0.as_bytes()))
                .then_with(|| split_id(a.1).cmp(&split_id(b.1))),
            Better::Greatest => (a.0.is_empty().cmp(&b.0.is_empty()))
                .then_with(|| number::compare(b.0.as_bytes(), a.0.as_bytes()))
                .then_with(|| split_id(a.1).cmp(&split_id(b.1))),
            Better::Last => split_id(b.1)
                .cmp(&split_id(a.1))
                .then_with(|| a.0.as_bytes().cmp(b.0.as_bytes())),
        }
    }
}

impl Default for Ranked {
    fn default() -> Self {
        Ranked {
            best: Vec::new(),
            complete: true,
        }
    }
}

impl Ranked {
    /// How many rows to keep where `shown` are shown: enough that removals rarely drain the group.
    pub fn room(shown: usize) -> usize {
        shown * 2 + 8
    }

    pub fn insert(&mut self, better: Better, room: usize, value: &Value, id: &[u8]) {
        match self.find(better, value, id) {
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
                if self.best.len() > room {
                    self.best.pop();
                    self.complete = false;
                }
            }
            Err(_) => {}
        }
    }

    pub fn remove(&mut self, better: Better, value: &Value, id: &[u8]) {
        if let Ok(at) = self.find(better, value, id) {
            self.best[at].times -= 1;
            if self.best[at].times == 0 {
                self.best.remove(at);
            }
        } else {
            debug_assert!(
                !self.complete,
                "invariant 1: a row that is not kept is worse than those that are"
            );
        }
    }

    fn find(&self, better: Better, value: &Value, id: &[u8]) -> Result<usize, usize> {
        self.best
            .binary_search_by(|c| better.compare((&c.value, &c.id), (value, id)))
    }

    /// Invariant 2.
    pub fn is_drained(&self, shown: usize) -> bool {
        !self.complete && self.best.len() < shown
    }

    pub fn is_empty(&self) -> bool {
        self.best.is_empty()
    }

    pub fn memory_bytes(&self) -> usize {
        self.best.capacity() * size_of::<Candidate>()
            + self.best.iter().map(|c| c.id.len() + 16).sum::<usize>()
    }
}
