//! The index of one space over the objects of one core.
//!
//! - Memory per object: 37 bytes including its key, if that has at most 22 bytes, plus a column and an index entry for
//!   each attribute. A number takes 9 and 5 bytes. A tag takes 4 bytes (5 if there are few distinct ones) and 5, plus
//!   the distinct tags once.
//! - A change of one attribute reads the object's fields, compares each with its column, and moves the row in that
//!   attribute's indexes: two binary searches, and two moves of 1 KiB each.
//! - Examining a candidate takes one memory access for each tested attribute, and one for its key if it is returned.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::access::Access;
use super::attribute::AttributeIndex;
use super::column::{Data, Entry};
use super::composite::Composite;
use super::failures::Failures;
use super::finder::Finder;
use super::index_build::{IndexBuild, composites_of};
use super::plan::Plan;
use super::rows::Rows;
use crate::base::ordered::Scalar;
use crate::object::Object;
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};
use crate::search::SortKey;
use crate::search::partial::rank_value;
use crate::search::request::SortBy;
use crate::value::{Column, Columns, Fault};

/// The effect of a put.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutEffect {
    /// The row of the object, which is constant while the object exists.
    pub row: u32,
    /// The object did not exist before.
    pub is_new: bool,
    /// The changed attributes as bits, by [position](SpaceIndex::attribute_ids). Attributes after the 64th are not
    /// reported.
    pub changed_attributes: u64,
}

#[derive(Debug)]
pub struct SpaceIndex {
    definition: Arc<Definition>,
    pub(super) rows: Rows,
    pub(super) attributes: Vec<AttributeIndex>,
    /// By attribute id.
    positions: Vec<Option<u16>>,
    pub(super) composites: Vec<Composite>,
    failures: Failures,
    /// The rows that have not been put since attributes were added.
    backfill: BTreeSet<u32>,
    /// The indexes that are being built.
    index_build: Option<IndexBuild>,
    /// Incremented by each change.
    clock: u64,
}

/// The columns of one object, read from the index.
#[derive(Debug, Clone, Copy)]
pub struct RowColumns<'a> {
    index: &'a SpaceIndex,
    row: u32,
}

impl Columns for RowColumns<'_> {
    fn column(&self, attribute: AttributeId) -> Cow<'_, Column> {
        match self.index.attribute(attribute) {
            Some(attribute) => attribute.data.column(self.row),
            None => Cow::Owned(Column::Missing),
        }
    }
}

impl SpaceIndex {
    pub fn new(definition: Arc<Definition>) -> SpaceIndex {
        let mut index = SpaceIndex {
            rows: Rows::default(),
            attributes: Vec::new(),
            positions: Vec::new(),
            composites: Vec::new(),
            failures: Failures::default(),
            backfill: BTreeSet::new(),
            index_build: None,
            clock: 0,
            definition: definition.clone(),
        };
        index.attributes = definition
            .attributes
            .iter()
            .map(|attribute| AttributeIndex::new(&definition, attribute, &index.rows))
            .collect();
        index.assign_positions();
        let composites = index.declared_composites().into_iter();
        index.composites = composites.map(Composite::new).collect();
        index
    }

    fn assign_positions(&mut self) {
        self.positions = vec![None; self.definition.columns()];
        for (at, attribute) in self.attributes.iter().enumerate() {
            self.positions[attribute.attribute.id.index()] = Some(at as u16);
        }
    }

    /// Returns the declared composite indexes, as positions of their attributes.
    fn declared_composites(&self) -> Vec<Vec<usize>> {
        composites_of(&self.definition, &self.attributes, |id| self.position(id))
    }

    /// Returns the position of an attribute's index, or `None` if the attribute was dropped.
    pub(super) fn position(&self, id: AttributeId) -> Option<usize> {
        let place = self.positions.get(id.index()).copied().flatten();
        place.map(usize::from)
    }

    pub(super) fn attribute(&self, id: AttributeId) -> Option<&AttributeIndex> {
        self.position(id).map(|at| &self.attributes[at])
    }

    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// Returns a number that increases with every change.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns the attributes, by position.
    pub fn attribute_ids(&self) -> impl Iterator<Item = AttributeId> {
        self.attributes.iter().map(|it| it.attribute.id)
    }

    /// Indexes the current state of an object. If the space does not cover it, removes it and returns `None`.
    pub fn put(&mut self, key: &[u8], object: &Object) -> Option<PutEffect> {
        if !self.definition.covers(key, object) {
            self.remove(key);
            return None;
        }
        Some(self.put_covered(key, object))
    }

    /// Like [`SpaceIndex::put`], for an object that the space is known to cover.
    pub(crate) fn put_covered(&mut self, key: &[u8], object: &Object) -> PutEffect {
        let known = self.rows.find(key);
        let row = known.unwrap_or_else(|| self.add(key));
        let mut changes: Vec<(usize, Entry<'_>)> = Vec::new();
        for (at, attribute) in self.attributes.iter().enumerate() {
            let entry = Entry::read(&attribute.attribute, object).unwrap_or_else(|message| {
                let attribute = attribute.attribute.id;
                self.failures.add(key, Fault { attribute, message });
                Entry::Missing
            });
            if !attribute.data.has_value(row, &entry) {
                changes.push((at, entry));
            }
        }
        self.backfill.remove(&row);
        let places = changes.iter().filter(|(at, _)| *at < 64);
        let changed = PutEffect {
            row,
            is_new: known.is_none(),
            changed_attributes: places.fold(0, |set, (at, _)| set | 1 << at),
        };
        if changes.is_empty() && known.is_some() {
            return changed;
        }
        self.clock += 1;
        let places: Vec<usize> = changes.iter().map(|(at, _)| *at).collect();
        let is_touched = |composite: &Composite| {
            known.is_none() || places.iter().any(|at| composite.attributes.contains(at))
        };
        if known.is_some() {
            let touched = self.composites.iter_mut().filter(|it| is_touched(it));
            touched.for_each(|it| it.remove(row, &self.attributes, &self.rows));
            if let Some(coming) = &mut self.index_build {
                coming.remove_from_composites(row, is_touched, &self.attributes, &self.rows);
            }
        }
        for (at, entry) in changes {
            self.attributes[at].set(row, entry, &self.rows);
        }
        let touched = self.composites.iter_mut().filter(|it| is_touched(it));
        touched.for_each(|it| it.insert(row, &self.attributes, &self.rows));
        if let Some(coming) = &mut self.index_build {
            coming.add_changed(row, &places, is_touched, &self.attributes, &self.rows);
        }
        changed
    }

    fn add(&mut self, key: &[u8]) -> u32 {
        self.clock += 1;
        let row = self.rows.add(key, self.clock);
        for attribute in &mut self.attributes {
            attribute.add(row, &self.rows);
        }
        if let Some(coming) = &mut self.index_build {
            coming.add(row, &self.rows);
        }
        row
    }

    pub fn remove(&mut self, key: &[u8]) {
        if let Some(row) = self.rows.find(key) {
            self.remove_row(row);
        }
    }

    /// Like [`SpaceIndex::remove`], for the object of this row.
    pub fn remove_row(&mut self, row: u32) {
        self.clock += 1;
        for composite in &mut self.composites {
            composite.remove(row, &self.attributes, &self.rows);
        }
        if let Some(coming) = &mut self.index_build {
            coming.remove_from_composites(row, |_| true, &self.attributes, &self.rows);
            coming.remove(row, &self.rows);
        }
        for attribute in &mut self.attributes {
            if !attribute.data.is_missing(row) {
                attribute.set(row, Entry::Missing, &self.rows);
            }
            attribute.remove(row);
        }
        self.backfill.remove(&row);
        self.rows.remove(row);
    }

    /// Applies a definition with added or dropped attributes, or other indexes. An added attribute is missing in every
    /// object until the object is put again. [`SpaceIndex::build_some`] builds new indexes, and the current ones serve
    /// until then.
    pub fn alter(&mut self, definition: Arc<Definition>) {
        self.clock += 1;
        let failures = &mut self.failures;
        let composites: Vec<Vec<AttributeId>> = self
            .composites
            .iter()
            .map(|composite| {
                let ids = composite.attributes.iter();
                ids.map(|at| self.attributes[*at].attribute.id).collect()
            })
            .collect();
        self.attributes.retain(|attribute| {
            let id = attribute.attribute.id;
            let stays = definition.attribute(id).is_some();
            if !stays {
                failures.drop_attribute(id);
            }
            stays
        });
        let mut is_longer = false;
        for attribute in &definition.attributes {
            let is_known = |known: &AttributeIndex| known.attribute.id == attribute.id;
            if !self.attributes.iter().any(is_known) {
                is_longer = true;
                let added = AttributeIndex::new(&definition, attribute, &self.rows);
                self.attributes.push(added);
            }
        }
        if is_longer {
            self.backfill = self.rows.iter().collect();
        }
        self.definition = definition;
        self.assign_positions();
        // A composite index is dropped with any of its attributes.
        let before = std::mem::take(&mut self.composites).into_iter();
        let moved = before.zip(composites).filter_map(|(composite, ids)| {
            let attributes = ids.iter().map(|id| self.position(*id));
            Some(Composite {
                attributes: attributes.collect::<Option<_>>()?,
                ..composite
            })
        });
        self.composites = moved.collect();
        self.index_build = IndexBuild::of(
            &self.definition,
            &self.attributes,
            &self.composites,
            &self.declared_composites(),
            &self.rows,
        );
    }

    /// Adds at most `rows_max` rows to the indexes being built. Returns whether there are more.
    pub fn build_some(&mut self, rows_max: usize) -> bool {
        let Some(mut coming) = self.index_build.take() else {
            return false;
        };
        if coming.add_rows(rows_max, &self.attributes, &self.rows) {
            self.clock += 1;
            let wanted = self.declared_composites();
            coming.install(wanted, &mut self.attributes, &mut self.composites);
            return false;
        }
        self.index_build = Some(coming);
        true
    }

    /// Returns how many rows the indexes being built have processed, and the total. `None` if none are being built.
    pub fn building(&self) -> Option<(u64, u64)> {
        let build = self.index_build.as_ref()?;
        Some((build.rows_processed().into(), self.rows.end() as u64))
    }

    /// Returns the number of objects that have not been put since attributes were added.
    pub fn backfill(&self) -> u64 {
        self.backfill.len() as u64
    }

    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Returns the columns of the object under this key, or `None` if there is none.
    pub fn columns(&self, key: &[u8]) -> Option<RowColumns<'_>> {
        let row = self.rows.find(key)?;
        Some(RowColumns { index: self, row })
    }

    /// Returns every `every`-th object from this row: row, key and columns. A row is constant while its object exists.
    pub fn objects_from(
        &self,
        row: u32,
        every: usize,
    ) -> impl Iterator<Item = (u32, &[u8], RowColumns<'_>)> + '_ {
        let rows = (row..self.rows.end() as u32).step_by(every.max(1));
        let alive = rows.filter(|row| self.rows.is_alive(*row));
        alive.map(|row| (row, self.rows.key(row), RowColumns { index: self, row }))
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.row(key).is_some()
    }

    /// Returns the row of the object under this key.
    pub fn row(&self, key: &[u8]) -> Option<u32> {
        self.rows.find(key)
    }

    /// Returns the key of the object in this row.
    pub fn key(&self, row: u32) -> &[u8] {
        self.rows.key(row)
    }

    /// Returns the approximate memory use of the index, without the objects, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let attributes: usize = self.attributes.iter().map(AttributeIndex::heap_bytes).sum();
        let composites: usize = self.composites.iter().map(Composite::heap_bytes).sum();
        let build = self.index_build.as_ref().map_or(0, IndexBuild::heap_bytes);
        self.rows.heap_bytes() + attributes + composites + build
    }

    /// Frees at most `pieces` allocations of an index that is no longer in use. Returns whether there are more.
    pub fn free_some(&mut self, mut pieces: usize) -> bool {
        self.rows.free_some(&mut pieces);
        let attributes = self.attributes.iter_mut();
        attributes.for_each(|attribute| attribute.free_some(&mut pieces));
        pieces == 0
    }

    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Returns at most `count` distinct tags or words of an attribute, in order, starting after `after`. Empty for an
    /// attribute without terms.
    pub fn tag_values(
        &self,
        attribute: AttributeId,
        after: Option<&[u8]>,
        count: usize,
    ) -> Vec<Vec<u8>> {
        let Some(Data::Values(values)) = self.attribute(attribute).map(|it| &it.data) else {
            return Vec::new();
        };
        let begin = after.map_or(0, |after| {
            let rank = values.rank_of_term(after);
            rank + usize::from(values.term(after).is_some())
        });
        let terms = values
            .by_bytes()
            .between(begin, begin.saturating_add(count));
        terms.map(|term| values.term_bytes(term).to_vec()).collect()
    }

    /// Returns the current plan of a search with this predicate and order, for the first ten rows and the total.
    pub fn plan(&self, predicate: &Predicate, order: &[SortKey]) -> Plan {
        let query = super::finder::FinderQuery {
            order,
            is_counted: true,
            ..super::finder::FinderQuery::new(predicate, 10)
        };
        Finder::new(self, &query, None).plan(self, &query)
    }

    /// Returns the approximate number of objects that a search examines, and the attributes whose index yields them.
    /// There are none for a scan, where the cost of an object is a fraction.
    pub fn estimate(&self, predicate: &Predicate) -> (f64, Vec<AttributeId>) {
        super::finder::estimate(self, predicate)
    }

    pub(super) fn access(&self, predicate: &Predicate) -> Access {
        Access::of(predicate, self)
    }

    /// Appends the rank of a row; see [`crate::search::partial::rank`].
    pub(super) fn put_rank(&self, order: &[SortKey], row: u32, out: &mut Vec<u8>) {
        let key = self.rows.key(row);
        for sort_key in order {
            let value = match sort_key.by {
                SortBy::Key => Some(Scalar::Bytes(key.to_vec())),
                SortBy::Attribute(id) => self
                    .attribute(id)
                    .and_then(|it| it.data.sort_value(row, &it.attribute)),
            };
            rank_value(value.as_ref(), sort_key.is_descending, out);
        }
        out.extend_from_slice(key);
    }

    /// Compares two rows like their ranks.
    pub(super) fn compare_ranks(&self, order: &[SortKey], a: u32, b: u32) -> std::cmp::Ordering {
        for sort_key in order {
            let by = match sort_key.by {
                SortBy::Key if sort_key.is_descending => self.rows.key(b).cmp(self.rows.key(a)),
                SortBy::Key => self.rows.key(a).cmp(self.rows.key(b)),
                SortBy::Attribute(id) => match self.attribute(id) {
                    None => std::cmp::Ordering::Equal,
                    Some(it) => it
                        .data
                        .compare_sort(a, b, sort_key.is_descending, &it.attribute),
                },
            };
            if by.is_ne() {
                return by;
            }
        }
        self.rows.key(a).cmp(self.rows.key(b))
    }
}
