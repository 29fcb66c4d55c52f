//! An aggregation that runs in steps.

use std::sync::Arc;

use super::finder::{Event, Finder, FinderQuery, StepBudget};
use super::plan::Profile;
use super::step_bytes::StepBytes;
use super::{Objects, SpaceIndex};
use crate::aggregate::{Aggregation, Limits, Partial};
use crate::error::{Refusal, Result};
use crate::expression::Cell;
use crate::object::Object;

/// A running aggregation. It borrows nothing, so the index may change between two steps.
#[derive(Debug)]
pub struct AggregateRun {
    aggregation: Arc<Aggregation>,
    finder: Finder,
    limits: Limits,
    partial: Partial,
    /// The number of rows after which the run ends. A cursor continues there.
    rows_max: usize,
    step_bytes: StepBytes,
    refusal: Option<Refusal>,
    profile: Profile,
    batch: Vec<u32>,
}

fn finder_query(aggregation: &Aggregation, rows_max: usize) -> FinderQuery<'_> {
    FinderQuery {
        keys: aggregation.options.keys.as_ref(),
        ..FinderQuery::new(&aggregation.predicate, rows_max)
    }
}

impl AggregateRun {
    pub(super) fn new(
        index: &SpaceIndex,
        aggregation: Arc<Aggregation>,
        limits: Limits,
        after: Option<&[u8]>,
    ) -> AggregateRun {
        let continues =
            aggregation.is_streamed() && (aggregation.cursor.is_some() || after.is_some());
        let rows_max = if continues {
            // An additional row shows that there are more.
            limits.rows_max.max(1).saturating_add(1)
        } else {
            usize::MAX
        };
        let query = finder_query(&aggregation, rows_max);
        let finder = Finder::new(index, &query, after.map(<[u8]>::to_vec));
        let mut profile = Profile::new(finder.plan(index, &query));
        profile.record_effort(finder.planning_effort());
        AggregateRun {
            profile,
            finder,
            partial: Partial::new(&aggregation, limits),
            limits,
            rows_max,
            step_bytes: StepBytes::new(),
            refusal: None,
            batch: Vec::new(),
            aggregation,
        }
    }

    /// Examines objects within this [effort](super::effort): at least one, and fewer if objects are long. Returns
    /// whether the run is complete.
    pub fn step(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        effort: usize,
    ) -> bool {
        let aggregation = self.aggregation.clone();
        let query = finder_query(&aggregation, self.rows_max);
        // The work for each matching row is part of a step too.
        let row_work = aggregation.row_work();
        let mut left = self.step_bytes.begin(effort, row_work);
        self.profile.steps += 1;
        let is_done = self.run(index, objects, now_ms, &query, &mut left);
        self.profile.record_effort(left.spent() * row_work);
        is_done
    }

    /// Examines objects until none are left or the effort is spent. Returns whether the run is complete.
    fn run(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        query: &FinderQuery<'_>,
        left: &mut StepBudget,
    ) -> bool {
        while self.refusal.is_none() {
            let kept = if self.rows_max == usize::MAX {
                0
            } else {
                self.partial.total() as usize
            };
            let mut batch = std::mem::take(&mut self.batch);
            let event = self.finder.next(index, query, kept, left, &mut batch);
            self.profile.record_work(self.finder.work);
            match event {
                Event::Found => {
                    for row in batch.iter().copied() {
                        if let Err(refusal) = self.add(index, objects, now_ms, row) {
                            self.refusal = Some(refusal);
                            break;
                        }
                    }
                }
                Event::Restarted => self.partial = Partial::new(&self.aggregation, self.limits),
                Event::Paused => return false,
                Event::Done => return true,
            }
            self.batch = batch;
            if self.step_bytes.is_exhausted() {
                return self.refusal.is_some();
            }
        }
        true
    }

    fn add(
        &mut self,
        index: &SpaceIndex,
        objects: &dyn Objects,
        now_ms: u64,
        row: u32,
    ) -> Result<()> {
        let (aggregation, key) = (&*self.aggregation, index.rows.key(row));
        let cells = aggregation.load_from(|name| index.cell(row, name));
        if let Some(cells) = cells {
            return self.partial.add_loaded(aggregation, key, cells);
        }
        let mut found = None;
        let step_bytes = &mut self.step_bytes;
        objects.object(row, key, &mut |bytes| {
            step_bytes.add_read(bytes.len());
            found = Object::decode(bytes).ok();
        });
        self.profile.objects_read += 1;
        let Some(mut object) = found else {
            return Ok(());
        };
        if let Object::Hash(hash) = &mut object {
            hash.expire(now_ms);
        }
        self.partial
            .add(aggregation, index.definition(), key, &object)
    }

    /// Returns the approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Returns the error that ended the run early.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the partial result.
    ///
    /// # Errors
    /// An expression could not be evaluated, or the aggregation exceeded its limits.
    pub fn finish(self) -> Result<Partial> {
        match self.refusal {
            None => Ok(self.partial),
            Some(refusal) => Err(refusal),
        }
    }
}

impl SpaceIndex {
    /// Returns the value of a name in an aggregation, if the index contains it as it is stored.
    fn cell(&self, row: u32, name: &str) -> Option<Cell> {
        use super::column::{Data, codes};
        use crate::base::instant;
        use crate::base::number::Number;
        use crate::object::ObjectKind;
        use crate::value::Column;
        if name == "__key" {
            return Some(Cell::text(self.rows.key(row)));
        }
        // The field of a document may have any type.
        if self.definition().on != ObjectKind::Hash {
            return None;
        }
        let definition = self.definition();
        let attribute = self.attribute(definition.by_name(name)?.id)?;
        Some(match &attribute.data {
            data if data.is_missing(row) => Cell::Null,
            Data::Numbers(codes) if codes.get(row) < codes::OTHER => {
                Cell::Number(Number::from_ordered_code(codes.get(row))?)
            }
            Data::Numbers(codes) => match codes.others.get(&row)? {
                Column::Numbers(list) => Cell::Number(*list.first()?),
                _ => return None,
            },
            Data::Instants(codes) if codes.get(row) < codes::OTHER => {
                Cell::Number(instant::seconds(codes::instant(codes.get(row))))
            }
            Data::Values(values) => Cell::text(values.raw(row)?),
            _ => return None,
        })
    }
}
