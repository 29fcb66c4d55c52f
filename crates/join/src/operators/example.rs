//! `spread`: the difference between the greatest and the least number of a group. Other values are ignored.

use std::collections::BTreeMap;

use super::{Argument, Combination, GroupState, OperatorKind, OperatorRow, Shape};
use crate::base::number::{self, Billionths};
use crate::base::rows::Value;

pub const SPREAD: OperatorRow = OperatorRow {
    name: "spread",
    argument: Argument::None,
    kind: OperatorKind::InGroup(|_| Box::new(Spread::default())),
    may_have_else: true,
};

#[derive(Debug, Default)]
struct Spread {
    /// The number of source rows with each value.
    times: BTreeMap<Billionths, u32>,
}

impl GroupState for Spread {
    fn apply(&mut self, _: &Shape, _: Combination<'_>, old: Option<&Value>, new: Option<&Value>) {
        let number = |value: &Value| number::parse(value.as_bytes());
        if let Some(number) = new.and_then(number) {
            *self.times.entry(number).or_default() += 1;
        }
        if let Some(number) = old.and_then(number)
            && let Some(times) = self.times.get_mut(&number)
        {
            *times -= 1;
            if *times == 0 {
                self.times.remove(&number);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    fn rows(&self, _: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        let (least, greatest) = (self.times.first_key_value(), self.times.last_key_value());
        let row = least.zip(greatest).map(|((least, _), (greatest, _))| {
            let mut text = Vec::new();
            number::print(greatest - least, &mut text);
            (Box::from(group), Value::new(&text))
        });
        row.into_iter().collect()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.times.len() * 40
    }
}
