//! The index of one space over the objects of one core.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::aggregate_run::AggregateRun;
use super::failures::Failures;
use super::plan::Plan;
use super::search_run::SearchRun;
use crate::aggregate::{Aggregation, Limits};
use crate::object::Object;
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};
use crate::search::{Search, SortKey};
use crate::value::{Column, Row};

#[derive(Debug)]
pub struct SpaceIndex {
    definition: Arc<Definition>,
    pub(super) rows: BTreeMap<Vec<u8>, Row>,
    failures: Failures,
    /// Keys of objects that were put before attributes were added, and not since.
    backfill: BTreeSet<Vec<u8>>,
}

impl SpaceIndex {
    pub fn new(definition: Arc<Definition>) -> SpaceIndex {
        SpaceIndex {
            definition,
            rows: BTreeMap::new(),
            failures: Failures::default(),
            backfill: BTreeSet::new(),
        }
    }

    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// Takes in an object as it is now. One that the space does not cover is removed, if it was there.
    pub fn put(&mut self, key: &[u8], object: &Object) {
        if !self.definition.covers(key, object) {
            return self.remove(key);
        }
        let (row, faults) = Row::of(&self.definition, object);
        for fault in faults {
            self.failures.add(key, fault);
        }
        self.backfill.remove(key);
        self.rows.insert(key.to_vec(), row);
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.rows.remove(key);
        self.backfill.remove(key);
    }

    /// Goes on with a definition in which attributes were added or dropped. Added ones are missing in every object until it is put again.
    pub fn alter(&mut self, definition: Arc<Definition>) {
        for attribute in &self.definition.attributes {
            if definition.attribute(attribute.id).is_none() {
                self.failures.drop_attribute(attribute.id);
                for row in self.rows.values_mut() {
                    if let Some(column) = row.columns.get_mut(attribute.id.index()) {
                        *column = Column::Missing;
                    }
                }
            }
        }
        if definition.next_id != self.definition.next_id {
            self.backfill = self.rows.keys().cloned().collect();
        }
        self.definition = definition;
    }

    /// How many objects were put before attributes were added, and not since.
    pub fn backfill(&self) -> u64 {
        self.backfill.len() as u64
    }

    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.rows.contains_key(key)
    }

    /// What the index takes, about, without the objects.
    pub fn memory_bytes(&self) -> usize {
        0
    }

    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// The distinct tags of an attribute in order, at most `count`, from the first behind `after` on.
    pub fn tag_values(
        &self,
        attribute: AttributeId,
        after: Option<&[u8]>,
        count: usize,
    ) -> Vec<Vec<u8>> {
        let mut values = BTreeSet::new();
        for row in self.rows.values() {
            if let Some(Column::Tags(tags)) = row.columns.get(attribute.index()) {
                values.extend(tags.iter());
            }
        }
        values
            .into_iter()
            .filter(|value| after.is_none_or(|after| value.as_slice() > after))
            .take(count)
            .cloned()
            .collect()
    }

    /// How a search with this predicate and this order is answered now.
    pub fn plan(&self, _predicate: &Predicate, _order: &[SortKey]) -> Plan {
        Plan {
            access: "all objects by key".to_string(),
            candidates_estimated: self.len(),
            filter: "the query".to_string(),
        }
    }

    /// A search, to be run in steps. It keeps rows of `bytes_max` bytes at most.
    pub fn search(&self, search: Arc<Search>, bytes_max: usize) -> SearchRun {
        SearchRun::new(self, search, bytes_max)
    }

    /// An aggregation, to be run in steps. `after`: only objects with keys behind this one, as a cursor goes on with
    /// [an aggregation that is streamed](Aggregation::is_streamed).
    pub fn aggregate(
        &self,
        aggregation: Arc<Aggregation>,
        limits: Limits,
        after: Option<&[u8]>,
    ) -> AggregateRun {
        AggregateRun::new(self, aggregation, limits, after)
    }
}
