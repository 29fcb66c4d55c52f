//! The aggregation result of one region: rows or groups. Partial results merge to the same result in any order.

use std::collections::BTreeMap;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::reducer::{Accumulator, Reducer, rank_cell};
use super::request::{Aggregation, Stage};
use crate::base::instant;
use crate::base::number::Number;
use crate::error::{Refusal, Result};
use crate::expression::{Cell, Expression};
use crate::object::Object;
use crate::schema::{AttributeKind, Definition};
use crate::search;
use crate::value::read_column;

/// The memory limits of an aggregation.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub groups_max: usize,
    pub bytes_max: usize,
    /// The maximum number of rows, for an aggregation without its own limit. It keeps the first rows by key, and a
    /// cursor continues after them.
    pub rows_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            groups_max: 1_000_000,
            bytes_max: 1 << 30,
            rows_max: 1_000_000,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// The cells by position. `None`: no stage has set the name.
    pub cells: Vec<Option<Cell>>,
    /// The additional fields that LOAD * found.
    pub extra: Vec<(Vec<u8>, Cell)>,
}

pub(super) type Groups = BTreeMap<Vec<u8>, Vec<Accumulator>>;

#[derive(Debug, Clone)]
pub(super) enum State {
    Rows(search::Partial),
    /// Keyed by the encoded cells of the grouping keys.
    Groups(Groups),
}

#[derive(Debug, Clone)]
pub struct Partial {
    pub(super) state: State,
    limits: Limits,
    bytes: usize,
}

impl Partial {
    pub fn new(aggregation: &Aggregation, limits: Limits) -> Partial {
        let keep = match aggregation.stages.get(aggregation.boundary()) {
            Some(Stage::Group(..)) => None,
            Some(Stage::Sort(_, keep)) => Some(*keep),
            Some(Stage::Limit(offset, count)) if *count > 0 => Some(offset + count),
            Some(Stage::Limit(..)) => Some(0),
            _ => Some(limits.rows_max),
        };
        let state = match keep {
            None => State::Groups(Groups::new()),
            Some(keep) => State::Rows(search::Partial::new(keep)),
        };
        Partial {
            state,
            limits,
            bytes: 0,
        }
    }

    /// Returns the approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.state {
            State::Rows(rows) => rows.bytes(),
            State::Groups(_) => self.bytes,
        }
    }

    /// Returns the current number of rows or groups.
    pub fn total(&self) -> u64 {
        match &self.state {
            State::Rows(rows) => rows.total,
            State::Groups(groups) => groups.len() as u64,
        }
    }

    /// Returns the key of the last kept row of a [streamed](Aggregation::is_streamed) aggregation. A cursor continues
    /// after it.
    pub fn last_key(&self) -> Option<&[u8]> {
        match &self.state {
            State::Rows(rows) => rows.last_key(),
            State::Groups(_) => None,
        }
    }

    /// Adds an object that matches the query.
    ///
    /// # Errors
    /// An expression cannot be evaluated, or the aggregation exceeds its limits.
    pub fn add(
        &mut self,
        aggregation: &Aggregation,
        definition: &Definition,
        key: &[u8],
        object: &Object,
    ) -> Result<()> {
        self.add_row(aggregation, key, load(aggregation, definition, key, object))
    }

    /// Adds an object whose needed cells [`Aggregation::load_from`] has loaded.
    ///
    /// # Errors
    /// See [`Partial::add`].
    pub(crate) fn add_loaded(
        &mut self,
        aggregation: &Aggregation,
        key: &[u8],
        loaded: Vec<Option<Cell>>,
    ) -> Result<()> {
        let row = Row {
            cells: loaded,
            extra: Vec::new(),
        };
        self.add_row(aggregation, key, row)
    }

    fn add_row(&mut self, aggregation: &Aggregation, key: &[u8], mut row: Row) -> Result<()> {
        let boundary = aggregation.boundary();
        for (stage, names) in aggregation.stages[..boundary]
            .iter()
            .zip(&aggregation.layouts)
        {
            if !run_on_row(stage, names, &mut row)? {
                return Ok(());
            }
        }
        match (&mut self.state, aggregation.stages.get(boundary)) {
            (State::Groups(groups), Some(Stage::Group(keys, reducers))) => {
                self.bytes += add_to_groups(groups, keys, reducers, &row, key)?;
                self.check()
            }
            (State::Rows(rows), stage) => {
                let rank = rank(stage, &row, key);
                rows.offer(&rank, key, |out| row.encode(out));
                self.check()
            }
            (State::Groups(_), _) => unreachable!("groups are kept for GROUPBY alone"),
        }
    }

    fn check(&self) -> Result<()> {
        let groups = match &self.state {
            State::Rows(rows) if rows.bytes() > self.limits.bytes_max => {
                return Err(Refusal::new(format!(
                    "rows take more than {} bytes: request fewer with LIMIT or MAX, or read them with WITHCURSOR",
                    self.limits.bytes_max
                )));
            }
            State::Rows(_) => return Ok(()),
            State::Groups(groups) => groups.len(),
        };
        check_limits(groups as u64, self.bytes, self.limits)
    }

    /// Merges the partial result of another region for the same aggregation.
    ///
    /// # Errors
    /// The aggregation exceeds its limits.
    pub fn merge(&mut self, aggregation: &Aggregation, other: Partial) -> Result<()> {
        match (&mut self.state, other.state) {
            (State::Rows(rows), State::Rows(others)) => rows.merge(others),
            (State::Groups(groups), State::Groups(others)) => {
                let Some(Stage::Group(_, reducers)) =
                    aggregation.stages.get(aggregation.boundary())
                else {
                    return Err(Refusal::new("partial results are of another aggregation"));
                };
                for (key, accumulators) in others {
                    let size = key.len();
                    let group = groups.entry(key).or_insert_with(|| {
                        self.bytes += size + GROUP_BYTES;
                        reducers.iter().map(Reducer::start).collect()
                    });
                    for ((reducer, to), other) in reducers.iter().zip(group).zip(accumulators) {
                        self.bytes += reducer.merge(to, other);
                    }
                }
            }
            _ => return Err(Refusal::new("partial results are of another aggregation")),
        }
        self.check()
    }

    /// Merges results from copies in several regions. For rows, see [`search::Partial::merge_copies`].
    ///
    /// # Errors
    /// See [`Partial::merge`].
    pub fn merge_copies(
        aggregation: &Aggregation,
        limits: Limits,
        parts: Vec<Partial>,
    ) -> Result<Partial> {
        let mut all = Partial::new(aggregation, limits);
        match &mut all.state {
            State::Rows(rows) => {
                let parts = parts.into_iter().filter_map(|part| match part.state {
                    State::Rows(rows) => Some(rows),
                    State::Groups(_) => None,
                });
                *rows = search::Partial::merge_copies(rows.keep(), parts);
                all.check()?;
            }
            State::Groups(_) => {
                for part in parts {
                    all.merge(aggregation, part)?;
                }
            }
        }
        Ok(all)
    }

    pub fn encode(&self) -> Vec<u8> {
        match &self.state {
            State::Rows(rows) => [&[0][..], &rows.encode()].concat(),
            State::Groups(groups) => {
                let mut out = vec![1];
                put_count(&mut out, groups.len());
                for (key, accumulators) in groups {
                    put_bytes(&mut out, key);
                    accumulators
                        .iter()
                        .for_each(|accumulator| accumulator.encode(&mut out));
                }
                out
            }
        }
    }

    /// Decodes a partial result.
    ///
    /// # Errors
    /// The bytes are not an encoded partial result of this aggregation.
    pub fn decode(
        bytes: &[u8],
        aggregation: &Aggregation,
        limits: Limits,
    ) -> Result<Partial, Malformed> {
        const OTHER: Malformed = Malformed("a partial result is of another aggregation");
        let mut partial = Partial::new(aggregation, limits);
        let (kind, rest) = bytes.split_first().ok_or(OTHER)?;
        match (
            kind,
            &mut partial.state,
            aggregation.stages.get(aggregation.boundary()),
        ) {
            (0, State::Rows(rows), _) => *rows = search::Partial::decode(rest)?,
            (1, State::Groups(groups), Some(Stage::Group(_, reducers))) => {
                let mut reader = WireReader::new(rest);
                partial.bytes = rest.len();
                for _ in 0..reader.count(4)? {
                    partial.bytes += GROUP_BYTES;
                    let key = reader.bytes()?.to_vec();
                    let accumulators = reducers.iter().map(|reducer| reducer.decode(&mut reader));
                    groups.insert(key, accumulators.collect::<Result<_, _>>()?);
                }
                reader.end()?;
            }
            _ => return Err(OTHER),
        }
        Ok(partial)
    }
}

/// The maximum number of groups of one row, if its keys are lists.
const GROUPS_OF_ROW_MAX: usize = 4096;

/// The overhead of a group, in addition to its key and the state of its reducers.
const GROUP_BYTES: usize = 128;

pub(super) fn check_limits(groups: u64, bytes: usize, limits: Limits) -> Result<()> {
    if groups > limits.groups_max as u64 {
        return Err(Refusal::new(format!(
            "GROUPBY makes more than {} groups: narrow the query, or group by fewer values",
            limits.groups_max
        )));
    }
    if bytes > limits.bytes_max {
        return Err(Refusal::new(format!(
            "groups take more than {} bytes: narrow the query, or leave out TOLIST, COUNT_DISTINCT and QUANTILE",
            limits.bytes_max
        )));
    }
    Ok(())
}

/// Returns the rank of a row: the sort keys, then the row's identity.
pub(super) fn rank(stage: Option<&Stage>, row: &Row, identity: &[u8]) -> Vec<u8> {
    let mut rank = Vec::new();
    if let Some(Stage::Sort(keys, _)) = stage {
        for (column, is_descending) in keys {
            rank_cell(row.cells[*column].as_ref(), *is_descending, &mut rank);
        }
    }
    rank.extend_from_slice(identity);
    rank
}

/// Adds a row to its group. If a key is a list, adds it to the group of each element. Returns the approximate number of
/// additional bytes.
///
/// # Errors
/// The row is in more than [`GROUPS_OF_ROW_MAX`] groups.
pub(super) fn add_to_groups(
    groups: &mut Groups,
    keys: &[usize],
    reducers: &[Reducer],
    row: &Row,
    identity: &[u8],
) -> Result<usize> {
    let mut prefixes = vec![Vec::new()];
    for column in keys {
        let cell = row.cells[*column].clone().unwrap_or(Cell::Null);
        let cells = match cell {
            Cell::List(cells) if cells.is_empty() => vec![Cell::Null],
            Cell::List(cells) => cells,
            cell => vec![cell],
        };
        if prefixes.len() * cells.len() > GROUPS_OF_ROW_MAX {
            return Err(Refusal::new(format!(
                "GROUPBY puts one row into more than {GROUPS_OF_ROW_MAX} groups: its keys are long lists"
            )));
        }
        let longer = prefixes.iter().flat_map(|prefix: &Vec<u8>| {
            cells.iter().map(move |cell| {
                let mut longer = prefix.clone();
                cell.encode(&mut longer);
                longer
            })
        });
        prefixes = longer.collect();
    }
    prefixes.sort();
    prefixes.dedup();
    let mut bytes = 0;
    for key in prefixes {
        let size = key.len();
        let group = groups.entry(key).or_insert_with(|| {
            bytes += size + GROUP_BYTES;
            reducers.iter().map(Reducer::start).collect()
        });
        for (reducer, to) in reducers.iter().zip(group) {
            bytes += reducer.add(to, &row.cells, identity);
        }
    }
    Ok(bytes)
}

/// Applies APPLY or FILTER. Returns whether the row passes.
pub(super) fn run_on_row(stage: &Stage, names: &[String], row: &mut Row) -> Result<bool> {
    let evaluate = |expression: &Expression, row: &Row| {
        expression.evaluate(&|name: &str| {
            let place = names.iter().position(|known| known == name);
            place
                .and_then(|place| row.cells[place].clone())
                .unwrap_or(Cell::Null)
        })
    };
    match stage {
        Stage::Apply(expression, place) => {
            row.cells[*place] = Some(evaluate(expression, row)?);
            Ok(true)
        }
        Stage::Filter(expression) => Ok(evaluate(expression, row)?.is_true()),
        Stage::Group(..) | Stage::Sort(..) | Stage::Limit(..) => Ok(true),
    }
}

fn load(aggregation: &Aggregation, definition: &Definition, key: &[u8], object: &Object) -> Row {
    let width = aggregation.layouts.first().map_or(0, |names| names.len());
    let mut row = Row {
        cells: vec![None; width],
        extra: Vec::new(),
    };
    for (place, name) in &aggregation.loads {
        row.cells[*place] = match cell(definition, key, object, name) {
            Cell::Null => None,
            cell => Some(cell),
        };
    }
    if aggregation.loads_all {
        let named = |name: &[u8]| {
            aggregation.layouts[0]
                .iter()
                .any(|known| known.as_bytes() == name)
        };
        match object {
            Object::Hash(hash) => {
                let others = hash.fields.iter().filter(|field| !named(&field.name));
                row.extra
                    .extend(others.map(|field| (field.name.clone(), Cell::text(&field.value[..]))));
            }
            Object::Json(document) => row
                .extra
                .push((b"$".to_vec(), Cell::Text(document.print()))),
        }
    }
    row
}

/// Returns the value of a name in an object. As in queries, an attribute is null if it is missing or if its field has
/// the wrong type. Numbers are returned as numbers, and instants as seconds. Other attributes are returned as stored.
fn cell(definition: &Definition, key: &[u8], object: &Object, name: &str) -> Cell {
    let stored = definition.stored_cell(key, object, name);
    let Some(attribute) = definition.by_name(name) else {
        return stored;
    };
    let is_text = matches!(
        attribute.kind,
        AttributeKind::Tag { .. } | AttributeKind::Text { .. }
    );
    // Every field of a hash is a valid text.
    let always_fits = is_text && attribute.path.is_none();
    if !always_fits && read_column(attribute, object).map_or(true, |column| column.is_missing()) {
        return Cell::Null;
    }
    let typed = |cell: Cell| match (&attribute.kind, &cell) {
        (AttributeKind::Numeric, Cell::Text(text)) => {
            Number::parse(text).map_or(cell, Cell::Number)
        }
        (AttributeKind::Timestamp, Cell::Text(text)) => match instant::parse(text) {
            Some(micros) => Cell::Number(instant::seconds(micros)),
            None => cell,
        },
        _ => cell,
    };
    match stored {
        Cell::List(list) => Cell::List(list.into_iter().map(typed).collect()),
        stored => typed(stored),
    }
}

impl Row {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_count(out, self.cells.len());
        for cell in &self.cells {
            out.push(u8::from(cell.is_some()));
            cell.iter().for_each(|cell| cell.encode(out));
        }
        put_count(out, self.extra.len());
        for (name, cell) in &self.extra {
            put_bytes(out, name);
            cell.encode(out);
        }
    }

    /// Decodes a row.
    ///
    /// # Errors
    /// The bytes are not an encoded row of `width` columns.
    pub fn decode(bytes: &[u8], width: usize) -> Result<Row, Malformed> {
        let mut reader = WireReader::new(bytes);
        if reader.count(1)? != width {
            return Err(Malformed("a row has other columns than the aggregation"));
        }
        let mut row = Row {
            cells: Vec::with_capacity(width),
            extra: Vec::new(),
        };
        for _ in 0..width {
            row.cells.push(if reader.flag()? {
                Some(Cell::decode(&mut reader)?)
            } else {
                None
            });
        }
        for _ in 0..reader.count(5)? {
            row.extra
                .push((reader.bytes()?.to_vec(), Cell::decode(&mut reader)?));
        }
        reader.end()?;
        Ok(row)
    }
}
