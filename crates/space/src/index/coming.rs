//! Indexes that a space is to have: built beside those that serve, some rows at a time, from the columns that are here already.
//!
//! ```text
//!  INDEX price ─► Coming: rows below `next` are in it ──take_in──► all rows are ─► it serves; what is not named any more goes
//! ```
//!
//! 1. Of the rows below `next`, what is coming has all that are there, as they are now.
//! 2. No search sees it before it has all rows, and what served before serves until then.

use super::attribute::{AttributeIndex, Leads};
use super::column::Entry;
use super::composite::Composite;
use super::rows::Rows;
use crate::schema::{Attribute, AttributeId, Definition, Kind};

#[derive(Debug)]
pub(super) struct Coming {
    /// By their places in the index: each takes the place of the one that is there.
    attributes: Vec<(usize, AttributeIndex)>,
    composites: Vec<Composite>,
    next: u32,
}

/// The attributes of the indexes of several that a space is to have, by their places.
pub(super) fn composites_of(
    definition: &Definition,
    all: &[AttributeIndex],
    place: impl Fn(AttributeId) -> Option<usize>,
) -> Vec<Vec<usize>> {
    // Texts that are sorted as they are written are in another order than ranges of them.
    let is_ordered = |at: &usize| {
        let Attribute { kind, .. } = &all[*at].attribute;
        !(matches!(kind, Kind::Text { .. }) && all[*at].attribute.sorts_unfolded())
    };
    let lists = definition.layout.indexes.iter().flatten();
    lists
        .filter(|list| list.len() > 1)
        .filter_map(|list| list.iter().map(|id| place(*id)).collect::<Option<Vec<_>>>())
        .filter(|places| places.iter().all(is_ordered))
        .collect()
}

impl Coming {
    /// What is there to be built. `None`: what is there is what is to be.
    pub fn of(
        definition: &Definition,
        attributes: &[AttributeIndex],
        composites: &[Composite],
        wanted: &[Vec<usize>],
        rows: &Rows,
    ) -> Option<Coming> {
        let is_other = |it: &AttributeIndex| it.leads != Leads::of(definition, &it.attribute);
        let others = attributes.iter().enumerate().filter(|(_, it)| is_other(it));
        let attributes: Vec<_> = others
            .map(|(at, it)| (at, AttributeIndex::new(definition, &it.attribute, rows)))
            .collect();
        let is_there = |places: &Vec<usize>| composites.iter().any(|it| it.attributes == *places);
        let is_same = attributes.is_empty()
            && composites.len() == wanted.len()
            && wanted.iter().all(is_there);
        let new = wanted.iter().filter(|places| !is_there(places));
        (!is_same).then(|| Coming {
            attributes,
            composites: new.cloned().map(Composite::new).collect(),
            next: 0,
        })
    }

    pub fn looked_at(&self) -> u32 {
        self.next
    }

    /// Makes room for a row, which has no value.
    pub fn add(&mut self, row: u32, rows: &Rows) {
        for (_, attribute) in &mut self.attributes {
            attribute.add(row, rows);
        }
    }

    /// A row of these values is about to have others, of the attributes at some places; or to go.
    pub fn leave(
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

    /// It has other values now, of the attributes at some places.
    pub fn enter(
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

    /// A row goes that has left.
    pub fn forget(&mut self, row: u32, rows: &Rows) {
        for (_, attribute) in &mut self.attributes {
            if !attribute.data.is_missing(row) {
                attribute.set(row, Entry::Missing, rows);
            }
            attribute.forget(row);
        }
    }

    /// Takes in so many rows; whether it has all.
    pub fn take_in(&mut self, rows_max: usize, all: &[AttributeIndex], rows: &Rows) -> bool {
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

    /// It takes over. `wanted`: the composite indexes that there are to be.
    pub fn serve(
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
