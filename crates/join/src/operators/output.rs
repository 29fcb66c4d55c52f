//! The rows that a join has made, and what is remembered to keep them right.
//!
//! A combination of source rows that appears, changes or goes is *applied*: what it means depends on the operator.
//!
//! | rows are | of | an application |
//! |---|---|---|
//! | copies | a one-to-one `copy` | puts or removes the row |
//! | totals | `count sum avg` | adds to or takes from the row itself (see `totals`) |
//! | shown  | `min max top distinct`, and a `copy` of several to one | changes the group; the rows that show it follow in [`Output::show`] |

use std::collections::{BTreeMap, BTreeSet};

use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::rows::{Rows, Value};
use crate::language::definition::Definition;
use crate::language::grammar::Operator;
use crate::language::pattern::{Binding, Element};
use crate::operators::ranked::{self, Better, Ranked};
use crate::operators::totals::{Totals, is_totals};

#[derive(Default)]
pub struct Output {
    pub rows: Rows,
    pub groups: BTreeMap<Box<[u8]>, Group>,
    pub group_bytes: usize,
}

/// What a group's rows are made from.
#[derive(Debug)]
pub enum Group {
    Ranked(Ranked),
    Distinct(BTreeMap<Box<[u8]>, u32>),
}

/// What an operation did to the output, for those who read the output in turn.
#[derive(Debug, Default)]
pub struct Effects {
    /// Whether anyone does.
    pub wanted: bool,
    pub changes: Vec<Shown>,
    /// Groups that changed, with their fills; their rows are not yet as they should be.
    pub touched: BTreeSet<(u32, Box<[u8]>)>,
}

/// A visible row that changed.
#[derive(Debug)]
pub struct Shown {
    pub key: Box<[u8]>,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

/// One combination of source rows.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// The output key; of `top`, the group's prefix of it.
    pub key: &'a [u8],
    pub source_key: &'a [u8],
    pub binding: &'a Binding,
    pub fill: u32,
}

impl Output {
    pub fn apply(
        &mut self,
        definition: &Definition,
        row: Row<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        effects: &mut Effects,
    ) {
        if definition.copies_rows() {
            if effects.wanted {
                let before = match new {
                    Some(value) => self.rows.replace(row.key, value),
                    None => self.rows.remove(row.key),
                };
                effects.changes.push(Shown {
                    key: row.key.into(),
                    old: before,
                    new: new.cloned(),
                });
            } else if let Some(value) = new {
                self.rows.put(row.key, value);
            } else {
                self.rows.remove(row.key);
            }
            return;
        }
        match definition.operator {
            Operator::Count if old.is_some() == new.is_some() => {}
            Operator::Count | Operator::Sum | Operator::Avg => {
                self.total(definition.operator, row.key, old, new, effects)
            }
            operator => {
                self.regroup(definition, operator, row, old, new);
                effects.touched.insert((row.fill, row.key.into()));
            }
        }
    }

    fn total(
        &mut self,
        operator: Operator,
        key: &[u8],
        old: Option<&Value>,
        new: Option<&Value>,
        effects: &mut Effects,
    ) {
        let follow = |before: Totals| {
            let mut after = before;
            if let Some(value) = new {
                after.add(operator, value.as_bytes());
            }
            if let Some(value) = old {
                after.subtract(operator, value.as_bytes());
            }
            after
        };
        let edited = self.rows.edit(key, |field| {
            let before = Totals::decode(field);
            let after = follow(before);
            let mut bytes = [0; 32];
            let len = after.encode(operator, &mut bytes);
            field.copy_from_slice(&bytes[..len]);
            (Some(before), after)
        });
        let (before, after) = edited.unwrap_or_else(|| (None, follow(Totals::default())));
        if before.is_none() || after.rows == 0 {
            self.put_totals(operator, key, &after);
        }
        if effects.wanted {
            let after = (after.rows > 0).then_some(after);
            effects.changes.push(Shown {
                key: key.into(),
                old: before.and_then(|t| printed(operator, &t)),
                new: after.and_then(|t| printed(operator, &t)),
            });
        }
    }

    fn put_totals(&mut self, operator: Operator, key: &[u8], totals: &Totals) {
        if totals.rows == 0 {
            self.rows.remove(key);
        } else {
            let mut field = [0; 32];
            let len = totals.encode(operator, &mut field);
            self.rows.put_bytes(key, &field[..len]);
        }
    }

    fn regroup(
        &mut self,
        definition: &Definition,
        operator: Operator,
        row: Row<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        if !self.groups.contains_key(row.key) {
            let group = match operator {
                Operator::Distinct => Group::Distinct(BTreeMap::new()),
                _ => Group::Ranked(Ranked::default()),
            };
            self.groups.insert(row.key.into(), group);
            self.group_bytes += group_cost(row.key);
        }
        let group = self.groups.get_mut(row.key).expect("just made");
        match group {
            Group::Distinct(values) => {
                if let Some(value) = new {
                    let times = values.entry(value.as_bytes().into()).or_insert(0);
                    *times += 1;
                    if *times == 1 {
                        self.group_bytes += value.len() + DISTINCT_BYTES;
                    }
                }
                if let Some(value) = old
                    && let Some(times) = values.get_mut(value.as_bytes())
                {
                    *times -= 1;
                    if *times == 0 {
                        values.remove(value.as_bytes());
                        self.group_bytes -= value.len() + DISTINCT_BYTES;
                    }
                }
            }
            Group::Ranked(ranked) => {
                // No value has no rank.
                let has_rank = |value: &&Value| definition.rank.is_none() || !value.is_empty();
                let (old, new) = (old.filter(has_rank), new.filter(has_rank));
                let bytes_before = ranked.memory_bytes();
                let better = better(operator);
                let id = candidate_id(definition, row);
                if let Some(value) = old {
                    ranked.remove(better, value, &id);
                }
                if let Some(value) = new {
                    ranked.insert(better, Ranked::room(shown_rows(operator)), value, &id);
                }
                self.group_bytes = self.group_bytes + ranked.memory_bytes() - bytes_before;
            }
        }
    }

    /// Whether a group must be read again before it can be shown.
    pub fn is_drained(&self, definition: &Definition, group: &[u8]) -> bool {
        match self.groups.get(group) {
            Some(Group::Ranked(ranked)) => ranked.is_drained(shown_rows(definition.operator)),
            _ => false,
        }
    }

    /// Puts a group's state in place of what was.
    pub fn replace(&mut self, key: &[u8], group: Option<Group>) {
        self.drop_group(key);
        if let Some(group) = group {
            self.group_bytes += group.memory_bytes() + group_cost(key);
            self.groups.insert(key.into(), group);
        }
    }

    fn drop_group(&mut self, key: &[u8]) {
        if let Some(group) = self.groups.remove(key) {
            self.group_bytes -= group.memory_bytes() + group_cost(key);
        }
    }

    /// Makes a group's rows show its state.
    pub fn show(&mut self, definition: &Definition, group: &[u8], effects: &mut Effects) {
        let (wanted, is_empty) = match self.groups.get(group) {
            None => (Vec::new(), true),
            Some(Group::Distinct(values)) => {
                let empties = usize::from(values.contains_key(&[][..]));
                let totals = Totals {
                    rows: (values.len() - empties) as u64,
                    ..Totals::default()
                };
                let mut field = [0; 32];
                let len = totals.encode(Operator::Distinct, &mut field);
                let row =
                    (!values.is_empty()).then(|| (Box::from(group), Value::new(&field[..len])));
                (row.into_iter().collect(), values.is_empty())
            }
            Some(Group::Ranked(ranked)) => (ranks(definition, group, ranked), ranked.is_empty()),
        };
        if is_empty {
            self.drop_group(group);
        }
        let shown = self.shown(definition, group);
        self.put_differences(definition.operator, shown, wanted, effects);
    }

    /// A group's rows as they are.
    fn shown(&self, definition: &Definition, group: &[u8]) -> Vec<(Box<[u8]>, Value)> {
        let mut rows = Vec::new();
        if definition.rank.is_none() {
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
        operator: Operator,
        shown: Vec<(Box<[u8]>, Value)>,
        wanted: Vec<(Box<[u8]>, Value)>,
        effects: &mut Effects,
    ) {
        let spell = |v: Value| match operator {
            Operator::Distinct => printed(operator, &Totals::decode(v.as_bytes())).unwrap_or(v),
            _ => v,
        };
        for (key, value) in &wanted {
            let old = shown.iter().find(|(k, _)| k == key).map(|(_, v)| v);
            if old.is_some_and(|v| v.as_bytes() == value.as_bytes()) {
                continue;
            }
            self.rows.put(key, value);
            if effects.wanted {
                let old = old.cloned().map(spell);
                effects.changes.push(Shown {
                    key: key.clone(),
                    old,
                    new: Some(spell(value.clone())),
                });
            }
        }
        for (key, value) in shown {
            if !wanted.iter().any(|(k, _)| *k == key) {
                self.rows.remove(&key);
                if effects.wanted {
                    effects.changes.push(Shown {
                        key,
                        old: Some(spell(value)),
                        new: None,
                    });
                }
            }
        }
    }

    /// Forgets all rows and groups in a range.
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

/// What a distinct value costs beside its bytes.
const DISTINCT_BYTES: usize = 40;

impl Group {
    fn memory_bytes(&self) -> usize {
        match self {
            Group::Ranked(ranked) => ranked.memory_bytes(),
            Group::Distinct(values) => values.keys().map(|v| v.len() + DISTINCT_BYTES).sum(),
        }
    }
}

fn group_cost(key: &[u8]) -> usize {
    key.len() + size_of::<Group>() + 32
}

/// The visible value of a row's totals; `None` where they do not add up.
pub fn printed(operator: Operator, totals: &Totals) -> Option<Value> {
    let mut text = Vec::with_capacity(20);
    totals
        .print(operator, &mut text)
        .ok()
        .map(|()| Value::new(&text))
}

/// Whether rows must be spelled out when they are read.
pub fn is_spelled_out(definition: &Definition) -> bool {
    is_totals(definition.operator)
}

fn better(operator: Operator) -> Better {
    match operator {
        Operator::Min
        | Operator::Top {
            descending: false, ..
        } => Better::Least,
        Operator::Max | Operator::Top { .. } => Better::Greatest,
        _ => Better::Last,
    }
}

fn shown_rows(operator: Operator) -> usize {
    match operator {
        Operator::Top { k, .. } => k,
        _ => 1,
    }
}

/// A source row's key and, for `top`, how the output keys of its rows end.
fn candidate_id(definition: &Definition, row: Row<'_>) -> Box<[u8]> {
    let mut rest = Vec::new();
    if let Some(rank) = definition.rank {
        for element in &definition.output.elements[rank.element + 1..] {
            match element {
                Element::Text(text) => rest.extend_from_slice(text),
                Element::Slot(id) => rest.extend_from_slice(row.binding.get(*id)),
            }
        }
    }
    ranked::id(row.source_key, &rest)
}

/// The rows that show a ranked group.
fn ranks(definition: &Definition, group: &[u8], ranked: &Ranked) -> Vec<(Box<[u8]>, Value)> {
    let Some(rank) = definition.rank else {
        return ranked
            .best
            .first()
            .map(|c| (Box::from(group), c.value.clone()))
            .into_iter()
            .collect();
    };
    let mut rows = Vec::new();
    let shown = shown_rows(definition.operator);
    let repeated = ranked
        .best
        .iter()
        .flat_map(|c| (0..c.times).map(move |_| c));
    for (number, candidate) in repeated.take(shown).enumerate() {
        let mut key = group.to_vec();
        key.extend_from_slice(format!("{:0width$}", number + 1, width = rank.width).as_bytes());
        key.extend_from_slice(ranked::split_id(&candidate.id).1);
        rows.push((key.into(), candidate.value.clone()));
    }
    rows
}
