//! New indexes of a space. They are built in steps from the existing columns, while the current indexes serve searches.
//!
//! ```text
//!  INDEX price ─► IndexBuild: contains the rows below `next` ──add_rows──► contains all rows ─► replaces the indexes no longer declared
//! ```
//!
//! 1. Of the rows below `next`, the new indexes contain all existing ones, with their current values.
//! 2. No search uses a new index before it contains all rows. The previous indexes serve until then.

use super::attribute::{AttributeIndex, IndexStructures};
use super::column::Entry;
use super::composite::Composite;
use super::rows::Rows;
use crate::schema::{Attribute, AttributeId, AttributeKind, Definition};

#[derive(Debug)]
pub(super) struct IndexBuild {
    /// By position in the index. Each replaces the current index at its position.
    attributes: Vec<(usize, AttributeIndex)>,
    composites: Vec<Composite>,
    next: u32,
}

/// Returns the declared composite indexes, as positions of their attributes.
pub(super) fn composites_of(
    definition: &Definition,
    all: &[AttributeIndex],
    place: impl Fn(AttributeId) -> Option<usize>,
) -> Vec<Vec<usize>> {
    // The sort order of unfolded texts differs from the order of their ranges.
    let is_ordered = |at: &usize| {
        let Attribute { kind, .. } = &all[*at].attribute;
        !(matches!(kind, AttributeKind::Text { .. }) && all[*at].attribute.sorts_unfolded())
    };
    let lists = definition.layout.indexes.iter().flatten();
    lists
        .filter(|list| list.len() > 1)
        .filter_map(|list| list.iter().map(|id| place(*id)).collect::<Option<Vec<_>>>())
        .filter(|places| places.iter().all(is_ordered))
        .collect()
}

impl IndexBuild {
    /// Returns the indexes to build, or `None` if the current ones are as declared.
    pub fn of(
        definition: &Definition,
        attributes: &[AttributeIndex],
        composites: &[Composite],
        wanted: &[Vec<usize>],
        rows: &Rows,
    ) -> Option<IndexBuild> {
        let is_other =
            |it: &AttributeIndex| it.structures != IndexStructures::of(definition, &it.attribute);
        let others = attributes.iter().enumerate().filter(|(_, it)| is_other(it));
        let attributes: Vec<_> = others
            .map(|(at, it)| (at, AttributeIndex::new(definition, &it.attribute, rows)))
            .collect();
        let is_kept = |places: &Vec<usize>| composites.iter().any(|it| it.attributes == *places);
        let is_same =
            attributes.is_empty() && composites.len() == wanted.len() && wanted.iter().all(is_kept);
        let new = wanted.iter().filter(|places| !is_kept(places));
        (!is_same).then(|| IndexBuild {
            attributes,
            composites: new.cloned().map(Composite::new).collect(),
            next: 0,
        })
    }

    pub fn rows_processed(&self) -> u32 {
        self.next
    }

    /// Adds a row without a value.
    pub fn add(&mut self, row: u32, rows: &Rows) {
        for (_, attribute) in &mut self.attributes {
            attribute.add(row, rows);
        }
    }

    /// Removes a row that is about to change attributes, or to be deleted, from the affected composite indexes.
    pub fn remove_from_composites(
        &mut self,
        row: u32,
        is_touched: impl Fn(&Composite) -> bool,
        all: &[AttributeIndex],
        rows: &Rows,
    ) {
        if row < self.next {
            let touched = self.composites.iter_mut().filter(|it| is_touched(it));
            touched.for_each(|it| it.remove(row, all, rows));
        }
    }

    /// Adds a row again after the attributes at these positions have changed.
    pub fn add_changed(
        &mut self,
        row: u32,
        places: &[usize],
        is_touched: impl Fn(&Composite) -> bool,
        all: &[AttributeIndex],
        rows: &Rows,
    ) {
        if row < self.next {
            for (at, attribute) in &mut self.attributes {
                if places.contains(at) {
                    attribute.set(row, all[*at].data.entry(row), rows);
                }
            }
            let touched = self.composites.iter_mut().filter(|it| is_touched(it));
            touched.for_each(|it| it.insert(row, all, rows));
        }
    }

    /// Removes a deleted row, after `leave`.
    pub fn remove(&mut self, row: u32, rows: &Rows) {
        for (_, attribute) in &mut self.attributes {
            if !attribute.data.is_missing(row) {
                attribute.set(row, Entry::Missing, rows);
            }
            attribute.remove(row);
        }
    }

    /// Adds at most `rows_max` rows. Returns whether all rows have been added.
    pub fn add_rows(&mut self, rows_max: usize, all: &[AttributeIndex], rows: &Rows) -> bool {
        let end = rows.end() as u32;
        let stop = end.min(self.next.saturating_add(rows_max as u32));
        for row in (self.next..stop).filter(|row| rows.is_alive(*row)) {
            for (at, attribute) in &mut self.attributes {
                let data = &all[*at].data;
                if !data.is_missing(row) {
                    attribute.set(row, data.entry(row), rows);
                }
            }
            for composite in &mut self.composites {
                composite.insert(row, all, rows);
            }
        }
        self.next = stop;
        stop == end
    }

    /// Replaces the current indexes. `wanted` contains the declared composite indexes.
    pub fn install(
        self,
        wanted: Vec<Vec<usize>>,
        attributes: &mut [AttributeIndex],
        composites: &mut Vec<Composite>,
    ) {
        for (at, attribute) in self.attributes {
            attributes[at] = attribute;
        }
        let mut known = std::mem::take(composites);
        known.extend(self.composites);
        let take = |places: Vec<usize>| {
            let at = known.iter().position(|it| it.attributes == places);
            Some(known.swap_remove(at?))
        };
        *composites = wanted.into_iter().filter_map(take).collect();
    }

    pub fn heap_bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|it| it.1.heap_bytes());
        let composites = self.composites.iter().map(Composite::heap_bytes);
        attributes.chain(composites).sum()
    }
}
