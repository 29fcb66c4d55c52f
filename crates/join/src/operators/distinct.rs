//! `distinct`: the number of different values in a group. Empty values are not counted.
//!
//! The state holds all values, each with the number of combinations that have it.

use std::collections::BTreeMap;

use super::{Argument, Combination, GroupState, OperatorKind, OperatorRow, Shape};
use crate::base::number;
use crate::base::rows::Value;

pub const DISTINCT: OperatorRow = OperatorRow {
    name: "distinct",
    argument: Argument::None,
    kind: OperatorKind::InGroup(|_| Box::new(Distinct::default())),
    may_have_else: true,
};

/// Memory of a value, besides its bytes.
const VALUE_BYTES: usize = 40;

#[derive(Debug, Default)]
struct Distinct {
    times: BTreeMap<Box<[u8]>, u32>,
    value_bytes: usize,
}

impl GroupState for Distinct {
    fn apply(&mut self, _: &Shape, _: Combination<'_>, old: Option<&Value>, new: Option<&Value>) {
        if let Some(value) = new {
            let times = self.times.entry(value.as_bytes().into()).or_insert(0);
            *times += 1;
            if *times == 1 {
                self.value_bytes += value.len() + VALUE_BYTES;
            }
        }
        if let Some(value) = old
            && let Some(times) = self.times.get_mut(value.as_bytes())
        {
            *times -= 1;
            if *times == 0 {
                self.times.remove(value.as_bytes());
                self.value_bytes -= value.len() + VALUE_BYTES;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    fn rows(&self, _: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        if self.times.is_empty() {
            return Vec::new();
        }
        let empties = usize::from(self.times.contains_key(&[][..]));
        let mut text = Vec::new();
        number::print_count((self.times.len() - empties) as u64, &mut text);
        vec![(group.into(), Value::new(&text))]
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.value_bytes
    }
}
