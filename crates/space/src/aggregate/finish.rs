//! Finishes an aggregation on the merged partial results: completes the first stage that needs rows of all regions,
//! then runs the stages after it.

use larder_types::wire::WireReader;

use super::partial::{
    Groups, Limits, Partial, Row, State, add_to_groups, check_limits, rank, run_on_row,
};
use super::reducer::Reducer;
use super::request::{Aggregation, Stage};
use crate::error::{Refusal, Result};
use crate::expression::Cell;

/// Names and values, in order. [`Cell::Null`] is sent as nil; a name without a cell is omitted.
pub type ResultRow = Vec<(Vec<u8>, Cell)>;

/// The number of rows of a stage between two calls of `ensure`.
const ROWS_BETWEEN_CHECKS: usize = 256;

/// A row with its identity: the key of its object, or the key of its group.
type KeyedRow = (Vec<u8>, Row);

/// Returns the rows, and their number before the last SORTBY and LIMIT. Calls `ensure` regularly, and stops with its
/// error.
///
/// # Errors
/// An expression cannot be evaluated, the aggregation exceeds its limits, or a partial result is damaged.
pub fn finish(
    aggregation: &Aggregation,
    partial: Partial,
    limits: Limits,
    ensure: &dyn Fn() -> Result<()>,
) -> Result<(u64, Vec<ResultRow>)> {
    let boundary = aggregation.boundary();
    let (mut total, mut rows) = match (partial.state, aggregation.stages.get(boundary)) {
        (State::Rows(found), _) => {
            let (total, width) = (found.total, aggregation.layouts[0].len());
            let rows: Result<Vec<_>, _> = found
                .finish(0)
                .iter()
                .map(|entry| Ok((entry.key.to_vec(), Row::decode(entry.content, width)?)))
                .collect();
            (total, rows.map_err(decode_error)?)
        }
        (State::Groups(groups), Some(Stage::Group(keys, reducers))) => {
            let rows = group_rows(
                groups,
                keys.len(),
                reducers,
                aggregation.layouts[boundary + 1].len(),
            )?;
            (rows.len() as u64, rows)
        }
        (State::Groups(_), _) => {
            return Err(Refusal::new("a partial result is of another aggregation"));
        }
    };
    for (index, stage) in aggregation.stages.iter().enumerate().skip(boundary) {
        // The partial results already contain the groups, or the sorted and truncated rows. Of the first stage, only
        // the offset of LIMIT remains to be applied.
        if index == boundary && !matches!(stage, Stage::Limit(..)) {
            continue;
        }
        rows = run(aggregation, index, stage, rows, limits, ensure)?;
        if !matches!(stage, Stage::Sort(..) | Stage::Limit(..) | Stage::Apply(..)) {
            total = rows.len() as u64;
        }
    }
    let names = aggregation
        .layouts
        .last()
        .expect("there is a layout after the last stage");
    Ok((
        total,
        rows.into_iter()
            .map(|(_, row)| name_cells(names, row))
            .collect(),
    ))
}

fn decode_error(error: larder_types::wire::Malformed) -> Refusal {
    Refusal::new(format!("a partial result is damaged: {error}"))
}

fn name_cells(names: &[String], row: Row) -> ResultRow {
    let cells = names
        .iter()
        .zip(row.cells)
        .filter_map(|(name, cell)| Some((name.clone().into_bytes(), cell?)));
    cells.chain(row.extra).collect()
}

fn run(
    aggregation: &Aggregation,
    index: usize,
    stage: &Stage,
    mut rows: Vec<KeyedRow>,
    limits: Limits,
    ensure: &dyn Fn() -> Result<()>,
) -> Result<Vec<KeyedRow>> {
    ensure()?;
    match stage {
        Stage::Apply(..) | Stage::Filter(_) => {
            let names = &aggregation.layouts[index];
            let mut out = Vec::with_capacity(rows.len());
            for (at, (identity, mut row)) in rows.into_iter().enumerate() {
                if at % ROWS_BETWEEN_CHECKS == 0 {
                    ensure()?;
                }
                if run_on_row(stage, names, &mut row)? {
                    out.push((identity, row));
                }
            }
            Ok(out)
        }
        Stage::Limit(offset, count) => {
            rows.truncate(offset + count);
            rows.drain(..(*offset).min(rows.len()));
            Ok(rows)
        }
        Stage::Sort(_, keep) => {
            rows.sort_by_cached_key(|(identity, row)| rank(Some(stage), row, identity));
            rows.truncate(*keep);
            Ok(rows)
        }
        Stage::Group(keys, reducers) => {
            let (mut groups, mut bytes) = (Groups::new(), 0);
            for (at, (identity, row)) in rows.iter().enumerate() {
                if at % ROWS_BETWEEN_CHECKS == 0 {
                    ensure()?;
                }
                bytes += add_to_groups(&mut groups, keys, reducers, row, identity)?;
                check_limits(groups.len() as u64, bytes, limits)?;
            }
            group_rows(
                groups,
                keys.len(),
                reducers,
                aggregation.layouts[index + 1].len(),
            )
        }
    }
}

fn group_rows(
    groups: Groups,
    keys: usize,
    reducers: &[Reducer],
    width: usize,
) -> Result<Vec<KeyedRow>> {
    let rows = groups.into_iter().map(|(identity, accumulators)| {
        let mut reader = WireReader::new(&identity);
        let mut cells = Vec::with_capacity(width);
        for _ in 0..keys {
            cells.push(Some(Cell::decode(&mut reader)?));
        }
        cells.extend(
            reducers
                .iter()
                .zip(accumulators)
                .map(|(reducer, of)| Some(reducer.finish(of))),
        );
        cells.resize(width, None);
        Ok((
            identity,
            Row {
                cells,
                extra: Vec::new(),
            },
        ))
    });
    rows.collect::<Result<_, _>>().map_err(decode_error)
}
