//! The model: base rows in a map; every read recomputes the join from its sources by the simplest means. It shares only
//! the parser of definitions with the engine.

use std::collections::{BTreeMap, BTreeSet};

use larder_join::grammar::{self, JoinMode, Operator, Part, Syntax, Test};

pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// `None` for an invalid aggregate.
pub type Computed = BTreeMap<Vec<u8>, Option<Vec<u8>>>;
type Slots = BTreeMap<String, Vec<u8>>;

#[derive(Default, Clone)]
pub struct Model {
    pub base: Rows,
    pub joins: Vec<(String, Syntax)>,
}

struct Combination {
    slots: Slots,
    source_key: Vec<u8>,
    value: Vec<u8>,
}

impl Model {
    pub fn create(&mut self, name: &str, definition: &str) {
        self.joins
            .push((name.to_string(), grammar::parse(definition).unwrap()));
    }

    pub fn drop_join(&mut self, name: &str) {
        self.joins.retain(|(n, _)| n != name);
    }

    /// Returns all visible rows of a table. `table` is its name with the separator.
    pub fn table(&self, table: &str) -> Computed {
        let mut rows: Computed = self
            .base
            .iter()
            .filter(|(k, _)| k.starts_with(table.as_bytes()))
            .map(|(k, v)| (k.clone(), Some(v.clone())))
            .collect();
        for (_, join) in &self.joins {
            if table_of(&join.output.text) == table {
                for (key, value) in self.compute(join) {
                    rows.entry(key).or_insert(value);
                }
            }
        }
        rows
    }

    pub fn mode(&self, table: &str) -> Option<JoinMode> {
        self.joins
            .iter()
            .find(|(_, j)| table_of(&j.output.text) == table)
            .map(|(_, j)| j.mode)
    }

    fn compute(&self, join: &Syntax) -> Computed {
        let (widths, stops) = widths(join);
        let mut found: Vec<Combination> = vec![Combination {
            slots: Slots::new(),
            source_key: Vec::new(),
            value: Vec::new(),
        }];
        for clause in &join.clauses {
            let rows = self.table(&table_of(&clause.source.text));
            let mut next = Vec::new();
            for combination in &found {
                for (key, value) in &rows {
                    let Some(value) = value else { continue };
                    let mut slots = combination.slots.clone();
                    if !match_parts(&clause.source.parts, key, &widths, &stops, &mut slots) {
                        continue;
                    }
                    let holds = clause.conditions.iter().all(|c| match &c.slot {
                        Some(slot) => c.test.holds(slots[slot].as_slice().cmp(&c.literal)),
                        None => value_holds(c.test, value, &c.literal),
                    });
                    if !holds {
                        continue;
                    }
                    let is_value = clause.operator.name() != "check";
                    next.push(Combination {
                        slots,
                        source_key: if is_value {
                            key.clone()
                        } else {
                            combination.source_key.clone()
                        },
                        value: if is_value {
                            value.clone()
                        } else {
                            combination.value.clone()
                        },
                    });
                }
            }
            found = next;
        }
        let operator = join
            .clauses
            .iter()
            .map(|c| c.operator)
            .find(|o| o.name() != "check")
            .unwrap();
        let mut groups: BTreeMap<Vec<u8>, Vec<Combination>> = BTreeMap::new();
        for combination in found {
            groups
                .entry(write_key(&join.output.parts, &combination.slots, None).0)
                .or_default()
                .push(combination);
        }
        let mut rows = Computed::new();
        for (group, combinations) in groups {
            aggregate(join, operator, group, combinations, &mut rows);
        }
        rows
    }
}

fn aggregate(
    join: &Syntax,
    operator: Operator,
    group: Vec<u8>,
    mut of: Vec<Combination>,
    rows: &mut Computed,
) {
    // Empty values are ignored.
    let values: Vec<&Vec<u8>> = of
        .iter()
        .map(|c| &c.value)
        .filter(|v| !v.is_empty())
        .collect();
    let numbers: Option<Vec<i128>> = values.iter().map(|value| decimal(value)).collect();
    let or_none = |value: Option<&&Vec<u8>>| value.map_or(Vec::new(), |value| value.to_vec());
    let value = match operator.name() {
        "copy" => Some(
            of.iter()
                .max_by_key(|c| &c.source_key)
                .unwrap()
                .value
                .clone(),
        ),
        "count" => Some(of.len().to_string().into_bytes()),
        "sum" | "avg" if values.is_empty() => Some(Vec::new()),
        "sum" => numbers.map(|n| spell(n.iter().sum())),
        "avg" => numbers.map(|n| {
            let sum: i128 = n.iter().sum();
            let divisor = n.len() as i128 * 1000;
            let rounded = (sum.abs() * 2 + divisor) / (2 * divisor) * 1000;
            spell(if sum < 0 { -rounded } else { rounded })
        }),
        "min" => Some(or_none(values.iter().min_by(|a, b| order(a, b)))),
        "max" => Some(or_none(values.iter().max_by(|a, b| order(a, b)))),
        "distinct" => {
            let distinct: BTreeSet<_> = values.into_iter().collect();
            Some(distinct.len().to_string().into_bytes())
        }
        "top" => {
            of.retain(|c| !c.value.is_empty());
            of.sort_by(|a, b| {
                let by_value = order(&a.value, &b.value);
                let by_value = if operator.descending() {
                    by_value.reverse()
                } else {
                    by_value
                };
                by_value
                    .then_with(|| a.source_key.cmp(&b.source_key))
                    .then_with(|| {
                        write_key(&join.output.parts, &a.slots, Some(1))
                            .0
                            .cmp(&write_key(&join.output.parts, &b.slots, Some(1)).0)
                    })
            });
            for (rank, c) in of.iter().take(operator.count()).enumerate() {
                rows.insert(
                    write_key(&join.output.parts, &c.slots, Some(rank + 1)).0,
                    Some(c.value.clone()),
                );
            }
            return;
        }
        other => panic!("the model does not know {other}"),
    };
    rows.insert(group, value);
}

pub fn table_of(text: &str) -> String {
    text[..=text.find(['|', ':']).unwrap()].to_string()
}

type Widths = BTreeMap<String, usize>;
type Stops = BTreeMap<String, BTreeSet<u8>>;

fn widths(join: &Syntax) -> (Widths, Stops) {
    let mut widths = Widths::new();
    let mut stops = Stops::new();
    for pattern in join.clauses.iter().map(|c| &c.source).chain([&join.output]) {
        for (at, part) in pattern.parts.iter().enumerate() {
            let Part::Slot { name, width, .. } = part else {
                continue;
            };
            if let Some(width) = width {
                widths.insert(name.clone(), *width);
            }
            let stops = stops.entry(name.clone()).or_default();
            stops.insert(b'|');
            if let Some(Part::Text(text)) = pattern.parts.get(at + 1) {
                stops.insert(text[0]);
            }
        }
    }
    (widths, stops)
}

/// Splits a key into slots by trying every length for every slot.
fn match_parts(
    parts: &[Part],
    key: &[u8],
    widths: &Widths,
    stops: &Stops,
    slots: &mut Slots,
) -> bool {
    let Some((first, rest)) = parts.split_first() else {
        return key.is_empty();
    };
    match first {
        Part::Text(text) => {
            key.starts_with(text) && match_parts(rest, &key[text.len()..], widths, stops, slots)
        }
        Part::Slot { name, .. } => {
            for len in 1..=key.len() {
                let value = &key[..len];
                let fits = match widths.get(name) {
                    Some(width) => len == *width,
                    None => !value.iter().any(|b| stops[name].contains(b)),
                };
                if !fits || slots.get(name).is_some_and(|v| v != value) {
                    continue;
                }
                let before = slots.clone();
                slots.insert(name.clone(), value.to_vec());
                if match_parts(rest, &key[len..], widths, stops, slots) {
                    return true;
                }
                *slots = before;
            }
            false
        }
    }
}

/// Writes a key; without a rank, only the part before it.
fn write_key(parts: &[Part], slots: &Slots, rank: Option<usize>) -> (Vec<u8>, bool) {
    let mut key = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => key.extend_from_slice(text),
            Part::Slot { name, width, .. } if name == "rank" && !slots.contains_key("rank") => {
                match rank {
                    None => return (key, false),
                    Some(rank) => key.extend_from_slice(
                        format!("{rank:0width$}", width = width.unwrap()).as_bytes(),
                    ),
                }
            }
            Part::Slot { name, .. } => key.extend_from_slice(&slots[name]),
        }
    }
    (key, true)
}

fn decimal(value: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole_number: i128 = whole.parse().ok()?;
    let part: i128 = format!("{fraction:0<9}").parse().ok()?;
    Some(whole_number * 1_000_000_000 + if whole.starts_with('-') { -part } else { part })
}

fn spell(value: i128) -> Vec<u8> {
    let text = format!(
        "{}{}.{:09}",
        if value < 0 { "-" } else { "" },
        value.abs() / 1_000_000_000,
        value.abs() % 1_000_000_000
    );
    text.trim_end_matches('0')
        .trim_end_matches('.')
        .as_bytes()
        .to_vec()
}

fn order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let key = |v: &[u8]| (decimal(v).is_none(), decimal(v).unwrap_or(0), v.to_vec());
    key(a).cmp(&key(b))
}

fn value_holds(test: Test, value: &[u8], literal: &[u8]) -> bool {
    match decimal(literal) {
        _ if value.is_empty() => false,
        Some(bound) => decimal(value).is_some_and(|v| test.holds(v.cmp(&bound))),
        None => test.holds(value.cmp(literal)),
    }
}
