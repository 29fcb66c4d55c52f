//! The index of one space over the objects of one core.
//!
//! What it costs. An object is a row: 37 bytes with its key, if that has 22 bytes at most, and of each attribute a column and the place in the indexes: a number
//! 9 and 5 bytes, a tag 4 (5 where there are few) and 5, and what distinct tags take once. A change of one attribute reads the object's fields, compares each with its
//! column, and moves the row in that attribute's indexes: two binary searches and two moves of 1 KiB each. A candidate that is looked at takes
//! a memory access for each attribute that is tested, and one for its key if it is returned.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::access::Access;
use super::aggregate_run::AggregateRun;
use super::attribute::AttributeIndex;
use super::column::{Data, Entry};
use super::coming::{Coming, composites_of};
use super::composite::Composite;
use super::failures::Failures;
use super::finder::Finder;
use super::plan::Plan;
use super::rows::Rows;
use super::search_run::SearchRun;
use crate::aggregate::{Aggregation, Limits};
use crate::base::ordered::Scalar;
use crate::object::Object;
use crate::query::Predicate;
use crate::schema::{AttributeId, Definition};
use crate::search::partial::rank_value;
use crate::search::request::SortBy;
use crate::search::{Search, SortKey};
use crate::value::{Column, Columns, Fault};

/// What a put has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed {
    /// The object's row: it keeps this number while it is there.
    pub row: u32,
    /// There was no such object before.
    pub is_new: bool,
    /// The attributes that changed, by their [places](SpaceIndex::attribute_ids), as bits; those beyond the 64th are not told.
    pub places: u64,
}

#[derive(Debug)]
pub struct SpaceIndex {
    definition: Arc<Definition>,
    pub(super) rows: Rows,
    pub(super) attributes: Vec<AttributeIndex>,
    /// By attributes' numbers.
    places: Vec<Option<u16>>,
    pub(super) composites: Vec<Composite>,
    failures: Failures,
    /// Rows that were put before attributes were added, and not since.
    backfill: BTreeSet<u32>,
    /// Indexes that are being built.
    coming: Option<Coming>,
    /// Counts changes.
    clock: u64,
}

/// One object's columns, as the index has them.
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
            places: Vec::new(),
            composites: Vec::new(),
            failures: Failures::default(),
            backfill: BTreeSet::new(),
            coming: None,
            clock: 0,
            definition: definition.clone(),
        };
        index.attributes = definition
            .attributes
            .iter()
            .map(|attribute| AttributeIndex::new(&definition, attribute, &index.rows))
            .collect();
        index.take_places();
        let composites = index.composites_wanted().into_iter();
        index.composites = composites.map(Composite::new).collect();
        index
    }

    fn take_places(&mut self) {
        self.places = vec![None; self.definition.columns()];
        for (at, attribute) in self.attributes.iter().enumerate() {
            self.places[attribute.attribute.id.index()] = Some(at as u16);
        }
    }

    /// The attributes of the indexes of several that there are to be, by their places.
    fn composites_wanted(&self) -> Vec<Vec<usize>> {
        composites_of(&self.definition, &self.attributes, |id| self.place(id))
    }

    /// Where the attribute's index is; None of one that was dropped.
    pub(super) fn place(&self, id: AttributeId) -> Option<usize> {
        let place = self.places.get(id.index()).copied().flatten();
        place.map(usize::from)
    }

    pub(super) fn attribute(&self, id: AttributeId) -> Option<&AttributeIndex> {
        self.place(id).map(|at| &self.attributes[at])
    }

    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// Changes with every change.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// The attributes, by their places.
    pub fn attribute_ids(&self) -> impl Iterator<Item = AttributeId> {
        self.attributes.iter().map(|it| it.attribute.id)
    }

    /// Takes in an object as it is now; what has changed. One that the space does not cover is removed, if it was there: `None`.
    pub fn put(&mut self, key: &[u8], object: &Object) -> Option<Changed> {
        if !self.definition.covers(key, object) {
            self.remove(key);
            return None;
        }
        Some(self.put_covered(key, object))
    }

    /// As [`SpaceIndex::put`] of an object that the space is known to cover.
    pub(crate) fn put_covered(&mut self, key: &[u8], object: &Object) -> Changed {
        let known = self.rows.find(key);
        let row = known.unwrap_or_else(|| self.add(key));
        let mut changes: Vec<(usize, Entry<'_>)> = Vec::new();
        for (at, attribute) in self.attributes.iter().enumerate() {
            let entry = Entry::read(&attribute.attribute, object).unwrap_or_else(|message| {
                let attribute = attribute.attribute.id;
                self.failures.add(key, Fault { attribute, message });
                Entry::Missing
            });
            if !attribute.data.is(row, &entry) {
                changes.push((at, entry));
            }
        }
        self.backfill.remove(&row);
        let places = changes.iter().filter(|(at, _)| *at < 64);
        let changed = Changed {
            row,
            is_new: known.is_none(),
            places: places.fold(0, |set, (at, _)| set | 1 << at),
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
            if let Some(coming) = &mut self.coming {
                coming.leave(row, is_touched, &self.attributes, &self.rows);
            }
        }
        for (at, entry) in changes {
            self.attributes[at].set(row, entry, &self.rows);
        }
        let touched = self.composites.iter_mut().filter(|it| is_touched(it));
        touched.for_each(|it| it.insert(row, &self.attributes, &self.rows));
        if let Some(coming) = &mut self.coming {
            coming.enter(row, &places, is_touched, &self.attributes, &self.rows);
        }
        changed
    }

    fn add(&mut self, key: &[u8]) -> u32 {
        self.clock += 1;
        let row = self.rows.add(key, self.clock);
        for attribute in &mut self.attributes {
            attribute.add(row, &self.rows);
        }
        if let Some(coming) = &mut self.coming {
            coming.add(row, &self.rows);
        }
        row
    }

    pub fn remove(&mut self, key: &[u8]) {
        if let Some(row) = self.rows.find(key) {
            self.remove_row(row);
        }
    }

    /// As [`SpaceIndex::remove`] of the object that has this row.
    pub fn remove_row(&mut self, row: u32) {
        self.clock += 1;
        for composite in &mut self.composites {
            composite.remove(row, &self.attributes, &self.rows);
        }
        if let Some(coming) = &mut self.coming {
            coming.leave(row, |_| true, &self.attributes, &self.rows);
            coming.forget(row, &self.rows);
        }
        for attribute in &mut self.attributes {
            if !attribute.data.is_missing(row) {
                attribute.set(row, Entry::Missing, &self.rows);
            }
            attribute.forget(row);
        }
        self.backfill.remove(&row);
        self.rows.remove(row);
    }

    /// Goes on with a definition in which attributes were added or dropped, or indexes are others. Added attributes are missing in every object until it is put
    /// again; other indexes are built by [`SpaceIndex::build_on`], and those that are here serve until then.
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
        self.take_places();
        // One that was of an attribute that is dropped goes with it.
        let before = std::mem::take(&mut self.composites).into_iter();
        let moved = before.zip(composites).filter_map(|(composite, ids)| {
            let attributes = ids.iter().map(|id| self.place(*id));
            Some(Composite {
                attributes: attributes.collect::<Option<_>>()?,
                ..composite
            })
        });
        self.composites = moved.collect();
        self.coming = Coming::of(
            &self.definition,
            &self.attributes,
            &self.composites,
            &self.composites_wanted(),
            &self.rows,
        );
    }

    /// Takes so many rows into the indexes that are being built; whether there is more to do.
    pub fn build_on(&mut self, rows_max: usize) -> bool {
        let Some(mut coming) = self.coming.take() else {
            return false;
        };
        if coming.take_in(rows_max, &self.attributes, &self.rows) {
            self.clock += 1;
            let wanted = self.composites_wanted();
            coming.serve(wanted, &mut self.attributes, &mut self.composites);
            return false;
        }
        self.coming = Some(coming);
        true
    }

    /// Of how many rows the indexes that are being built have been told, and of how many they will be. `None`: none are being built.
    pub fn building(&self) -> Option<(u64, u64)> {
        let coming = self.coming.as_ref()?;
        Some((coming.looked_at().into(), self.rows.end() as u64))
    }

    /// How many objects were put before attributes were added, and not since.
    pub fn backfill(&self) -> u64 {
        self.backfill.len() as u64
    }

    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// What the object under this key has of each attribute. `None`: there is no such object.
    pub fn columns(&self, key: &[u8]) -> Option<RowColumns<'_>> {
        let row = self.rows.find(key)?;
        Some(RowColumns { index: self, row })
    }

    /// The objects of every so many rows from this one on: the row, the key, and what it has. A row keeps its number while its object is there.
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

    /// The row of the object under this key.
    pub fn row(&self, key: &[u8]) -> Option<u32> {
        self.rows.find(key)
    }

    /// The key of the object that has this row.
    pub fn key(&self, row: u32) -> &[u8] {
        self.rows.key(row)
    }

    /// What the index takes, about, without the objects.
    pub fn memory_bytes(&self) -> usize {
        let attributes: usize = self.attributes.iter().map(AttributeIndex::heap_bytes).sum();
        let composites: usize = self.composites.iter().map(Composite::heap_bytes).sum();
        let coming = self.coming.as_ref().map_or(0, Coming::heap_bytes);
        self.rows.heap_bytes() + attributes + composites + coming
    }

    /// Gives so many pieces of memory back, of an index that nobody uses any more; whether there are more.
    pub fn take_apart(&mut self, mut pieces: usize) -> bool {
        self.rows.take_apart(&mut pieces);
        let attributes = self.attributes.iter_mut();
        attributes.for_each(|attribute| attribute.take_apart(&mut pieces));
        pieces == 0
    }

    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// The distinct tags, or words, of an attribute in order, at most `count`, from the first behind `after` on. None of one without an index.
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

    /// How a search with this predicate and this order is answered now: the first ten, and their number.
    pub fn plan(&self, predicate: &Predicate, order: &[SortKey]) -> Plan {
        let asked = super::finder::Asked {
            order,
            is_counted: true,
            ..super::finder::Asked::new(predicate, 10)
        };
        Finder::new(self, &asked, None).plan(self, &asked)
    }

    /// About how many objects a search looks at, and the attributes whose index leads to them; none if all are looked at one after the other, which costs a
    /// fraction for each.
    pub fn estimate(&self, predicate: &Predicate) -> (f64, Vec<AttributeId>) {
        super::finder::estimate(self, predicate)
    }

    pub(super) fn access(&self, predicate: &Predicate) -> Access {
        Access::of(predicate, self)
    }

    /// As [`crate::search::partial::rank`] has it.
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

    /// Compares two rows as their ranks do.
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
