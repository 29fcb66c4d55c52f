//! The output rows of a join, and the state needed to maintain them.
//!
//! A combination of source rows that is added, changed or removed is *applied*. The effect depends on the operator (see
//! [`OperatorKind`](super::OperatorKind)).
//!
//! | rows are | effect of an application |
//! |---|---|
//! | copies | puts or removes the row |
//! | states | changes the row itself |
//! | of a group | changes the group's state; [`Output::update_group_rows`] updates the rows later |

use std::collections::{BTreeMap, BTreeSet};

use super::{Combination, GroupState, RowState, STATE_BYTES, Shape};
use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::rows::{Rows, Value};

#[derive(Default)]
pub struct Output {
    pub rows: Rows,
    groups: BTreeMap<Box<[u8]>, Box<dyn GroupState>>,
    group_bytes: usize,
}

/// The effects of an operation on the output, for the joins and subscriptions that depend on it.
#[derive(Debug, Default)]
pub struct Effects {
    /// True if there are any such joins or subscriptions.
    pub is_recorded: bool,
    pub changes: Vec<OutputChange>,
    /// Changed groups, with their fills. Their rows have not been updated yet.
    pub touched: BTreeSet<(u32, Box<[u8]>)>,
}

/// A visible row that changed.
#[derive(Debug)]
pub struct OutputChange {
    pub key: Box<[u8]>,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

impl Output {
    pub fn new(rows: Rows) -> Output {
        Output {
            rows,
            ..Output::default()
        }
    }

    pub fn apply(
        &mut self,
        shape: &Shape,
        combination: Combination<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        effects: &mut Effects,
    ) {
        if shape.copies_rows() {
            self.copy(combination.key, new, effects);
        } else if let Some(state) = shape.row_state() {
            self.update_row_state(state, combination.key, old, new, effects);
        } else {
            self.change_group(shape, combination, old, new);
            effects
                .touched
                .insert((combination.fill, combination.key.into()));
        }
    }

    fn copy(&mut self, key: &[u8], new: Option<&Value>, effects: &mut Effects) {
        if effects.is_recorded {
            let before = match new {
                Some(value) => self.rows.replace(key, value),
                None => self.rows.remove(key),
            };
            effects.changes.push(OutputChange {
                key: key.into(),
                old: before,
                new: new.cloned(),
            });
        } else if let Some(value) = new {
            self.rows.put(key, value);
        } else {
            self.rows.remove(key);
        }
    }

    /// Changes the state in a row.
    fn update_row_state(
        &mut self,
        state: &dyn RowState,
        key: &[u8],
        old: Option<&Value>,
        new: Option<&Value>,
        effects: &mut Effects,
    ) {
        if state.ignores_values() && old.is_some() == new.is_some() {
            return;
        }
        let (old, new) = (old.map(Value::as_bytes), new.map(Value::as_bytes));
        let is_recorded = effects.is_recorded;
        let mut after = [0; STATE_BYTES];
        let edited = self.rows.edit(key, |field| {
            let before = is_recorded.then(|| format_state(state, field)).flatten();
            let len = state.update_state(Some(&*field), old, new, &mut after);
            if len > 0 {
                field.copy_from_slice(&after[..len]);
            }
            (before, len)
        });
        let (before, len) = match edited {
            Some((before, 0)) => {
                self.rows.remove(key);
                (before, 0)
            }
            Some(edited) => edited,
            None => {
                let len = state.update_state(None, old, new, &mut after);
                if len > 0 {
                    self.rows.put_bytes(key, &after[..len]);
                }
                (None, len)
            }
        };
        if is_recorded {
            effects.changes.push(OutputChange {
                key: key.into(),
                old: before,
                new: (len > 0)
                    .then(|| format_state(state, &after[..len]))
                    .flatten(),
            });
        }
    }

    fn change_group(
        &mut self,
        shape: &Shape,
        combination: Combination<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        if let Some(group) = self.groups.get_mut(combination.key) {
            let before = group.memory_bytes();
            group.apply(shape, combination, old, new);
            self.group_bytes = self.group_bytes + group.memory_bytes() - before;
        } else if let Some(mut group) = shape.operator.new_group() {
            group.apply(shape, combination, old, new);
            self.group_bytes += group.memory_bytes() + group_cost(combination.key);
            self.groups.insert(combination.key.into(), group);
        }
    }

    /// Returns whether a group must be computed again before its rows can be updated.
    pub fn is_drained(&self, group: &[u8]) -> bool {
        let group = self.groups.get(group);
        group.is_some_and(|group| group.is_drained())
    }

    /// Replaces a group's state by the one in another output.
    pub fn replace_group(&mut self, key: &[u8], from: &mut Output) {
        self.drop_group(key);
        if let Some(group) = from.groups.remove(key) {
            self.group_bytes += group.memory_bytes() + group_cost(key);
            self.groups.insert(key.into(), group);
        }
    }

    fn drop_group(&mut self, key: &[u8]) {
        if let Some(group) = self.groups.remove(key) {
            self.group_bytes -= group.memory_bytes() + group_cost(key);
        }
    }

    /// Updates a group's rows to show its state.
    pub fn update_group_rows(&mut self, shape: &Shape, group: &[u8], effects: &mut Effects) {
        let (rows, is_empty) = match self.groups.get(group) {
            None => (Vec::new(), true),
            Some(state) => (state.rows(shape, group), state.is_empty()),
        };
        if is_empty {
            self.drop_group(group);
        }
        let old_rows = self.current_rows(shape, group);
        self.put_differences(old_rows, rows, effects);
    }

    /// Returns a group's current rows.
    fn current_rows(&self, shape: &Shape, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        let mut rows = Vec::new();
        if shape.rank.is_none() {
            rows.extend(self.rows.value(group).map(|v| (Box::from(group), v)));
        } else {
            let _ = self
                .rows
                .scan(group, &successor(group), false, &mut |key, value| {
                    rows.push((key.into(), value.clone()));
                    Flow::Continue(())
                });
        }
        rows
    }

    fn put_differences(
        &mut self,
        old_rows: Vec<(Box<[u8]>, Value)>,
        new_rows: Vec<(Box<[u8]>, Value)>,
        effects: &mut Effects,
    ) {
        for (key, value) in &new_rows {
            let old = old_rows.iter().find(|(k, _)| k == key).map(|(_, v)| v);
            if old.is_some_and(|v| v.as_bytes() == value.as_bytes()) {
                continue;
            }
            self.rows.put(key, value);
            if effects.is_recorded {
                effects.changes.push(OutputChange {
                    key: key.clone(),
                    old: old.cloned(),
                    new: Some(value.clone()),
                });
            }
        }
        for (key, value) in old_rows {
            if !new_rows.iter().any(|(k, _)| *k == key) {
                self.rows.remove(&key);
                if effects.is_recorded {
                    effects.changes.push(OutputChange {
                        key,
                        old: Some(value),
                        new: None,
                    });
                }
            }
        }
    }

    /// Removes all rows and groups in a range.
    pub fn remove_range(&mut self, range: &KeyRange) {
        self.rows.remove_range(&range.lo, &range.hi);
        if self.groups.is_empty() {
            return;
        }
        let keys: Vec<Box<[u8]>> = self
            .groups
            .range(range.lo.clone()..range.hi.clone())
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.drop_group(&key);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + self.group_bytes
    }
}

/// Memory of a group, besides its state.
fn group_cost(key: &[u8]) -> usize {
    key.len() + size_of::<Box<dyn GroupState>>() + 32
}

/// Formats a state as a visible value; `None` if it has none.
pub fn format_state(state: &dyn RowState, bytes: &[u8]) -> Option<Value> {
    let mut text = Vec::with_capacity(20);
    let formatted = state.format(bytes, &mut text);
    formatted.ok().map(|()| Value::new(&text))
}
