//! Tags and texts. Each distinct value is stored once, with its *terms* (tags or words), and each term with its
//! postings.
//!
//! 1. A value is stored while a row has it, and a term while a value has it.
//! 2. If the attribute has terms, a row is in the postings of exactly the terms of its value.

use super::Entry;
use super::ids::Ids;
use crate::base::ordered::Scalar;
use crate::base::words::words;
use crate::index::bytes::{Bytes, SearchKey};
use crate::index::postings::Postings;
use crate::index::rows::drop_last;
use crate::index::sorted::Sorted;
use crate::object::ObjectKind;
use crate::schema::Attribute;
use crate::value::{Column, read_bytes};

#[derive(Debug)]
pub(in crate::index) struct Values {
    attribute: Attribute,
    on: ObjectKind,
    pub has_terms: bool,
    /// By row.
    pub codes: Vec<u32>,
    values: Vec<Value>,
    free_values: Vec<u32>,
    by_raw: Ids,
    terms: Vec<Term>,
    free_terms: Vec<u32>,
    by_term: Ids,
    by_bytes: Sorted,
    /// The approximate heap size of values and terms, without these lists.
    long_bytes: usize,
    postings: usize,
    /// The number of values that are more than one tag or text.
    pub multi_valued: usize,
}

#[derive(Debug, Default)]
struct Value {
    /// The stored field of a hash, or the encoded column of a document.
    raw: Bytes,
    rows: u32,
    /// The value is more than one tag or text.
    is_multi_valued: bool,
    terms: Terms,
    sort: Sort,
}

/// The numbers of terms, without duplicates.
#[derive(Debug, Default)]
enum Terms {
    #[default]
    None,
    One(u32),
    Many(Box<[u32]>),
}

/// The sort key of a value.
#[derive(Debug, Default)]
enum Sort {
    #[default]
    Nothing,
    Raw,
    Own(Box<[u8]>),
}

#[derive(Debug, Default)]
struct Term {
    bytes: Bytes,
    rows: Postings,
}

/// The id of a missing value.
pub(in crate::index) const MISSING: u32 = u32::MAX;

impl Terms {
    #[inline]
    fn list(&self) -> &[u32] {
        match self {
            Terms::None => &[],
            Terms::One(term) => std::slice::from_ref(term),
            Terms::Many(terms) => terms,
        }
    }
}

impl Values {
    pub fn new(attribute: Attribute, on: ObjectKind, has_terms: bool) -> Values {
        Values {
            attribute,
            on,
            has_terms,
            codes: Vec::new(),
            values: Vec::new(),
            free_values: Vec::new(),
            by_raw: Ids::default(),
            terms: Vec::new(),
            free_terms: Vec::new(),
            by_term: Ids::default(),
            by_bytes: Sorted::default(),
            long_bytes: 0,
            postings: 0,
            multi_valued: 0,
        }
    }

    pub fn grow(&mut self, rows: usize) {
        self.codes.resize(rows.max(self.codes.len()), MISSING);
    }

    /// Returns the id of the row's value.
    #[inline]
    pub fn id(&self, row: u32) -> u32 {
        self.codes[row as usize]
    }

    fn value(&self, row: u32) -> Option<&Value> {
        match self.id(row) {
            MISSING => None,
            id => Some(&self.values[id as usize]),
        }
    }

    pub fn raw(&self, row: u32) -> Option<&[u8]> {
        self.value(row).map(|value| &value.raw[..])
    }

    /// Returns an upper bound of the ids of values.
    pub fn end(&self) -> usize {
        self.values.len()
    }

    /// Returns the sort key of a row.
    #[inline]
    pub fn sort_bytes(&self, row: u32) -> Option<&[u8]> {
        let value = self.value(row)?;
        match &value.sort {
            Sort::Nothing => None,
            Sort::Raw => Some(&value.raw),
            Sort::Own(bytes) => Some(bytes),
        }
    }

    /// Returns the terms of a value.
    #[inline]
    pub fn terms_of(&self, id: u32) -> &[u32] {
        self.values[id as usize].terms.list()
    }

    pub fn is_multi_valued(&self, id: u32) -> bool {
        self.values[id as usize].is_multi_valued
    }

    /// Decodes a value.
    pub fn column(&self, id: u32) -> Column {
        self.column_of(&self.values[id as usize].raw)
    }

    fn column_of(&self, raw: &[u8]) -> Column {
        match self.on {
            ObjectKind::Hash => read_bytes(&self.attribute, raw).unwrap_or_default(),
            ObjectKind::Json => Column::decode(raw).unwrap_or_default(),
        }
    }

    pub fn set(&mut self, row: u32, entry: Entry<'_>) {
        let before = self.codes[row as usize];
        let now = match entry {
            Entry::Raw(raw) => self.find(&raw).unwrap_or_else(|| self.add(&raw)),
            _ => MISSING,
        };
        let terms_of = |id: u32| match id {
            MISSING => &[][..],
            id => self.values[id as usize].terms.list(),
        };
        let (old, new) = (terms_of(before), terms_of(now));
        let beyond = |terms: &[u32], other: &[u32]| -> Vec<u32> {
            let is_beyond = |term: &&u32| other.binary_search(term).is_err();
            terms.iter().filter(is_beyond).copied().collect()
        };
        let (left, entered) = (beyond(old, new), beyond(new, old));
        for term in &left {
            self.terms[*term as usize].rows.remove(row);
        }
        for term in &entered {
            self.terms[*term as usize].rows.insert(row);
        }
        self.postings = self.postings + entered.len() - left.len();
        self.codes[row as usize] = now;
        if now != MISSING {
            self.values[now as usize].rows += 1;
        }
        if before != MISSING {
            self.remove_row(before);
        }
        for term in left {
            if self.terms[term as usize].rows.len() == 0 {
                self.drop_term(term);
            }
        }
    }

    /// Removes a row from a value. If it was the last one, also removes the value, and terms that no other value has.
    fn remove_row(&mut self, id: u32) {
        self.values[id as usize].rows -= 1;
        if self.values[id as usize].rows > 0 {
            return;
        }
        let Values { values, by_raw, .. } = self;
        by_raw.remove(id, |id| &values[id as usize].raw);
        let value = std::mem::take(&mut self.values[id as usize]);
        self.long_bytes -= value.heap_bytes();
        self.multi_valued -= usize::from(value.is_multi_valued);
        self.free_values.push(id);
    }

    fn drop_term(&mut self, id: u32) {
        let Values {
            terms,
            by_term,
            by_bytes,
            ..
        } = self;
        by_term.remove(id, |id| &terms[id as usize].bytes);
        let bytes = &terms[id as usize].bytes;
        let sought = SearchKey::new(bytes);
        by_bytes.remove(id, |other| terms[other as usize].bytes.is_below(sought));
        let term = std::mem::take(&mut self.terms[id as usize]);
        self.long_bytes -= term.bytes.heap_bytes();
        self.free_terms.push(id);
    }

    fn find(&self, raw: &[u8]) -> Option<u32> {
        self.by_raw.find(raw, |id| &self.values[id as usize].raw)
    }

    fn add(&mut self, raw: &[u8]) -> u32 {
        let column = self.column_of(raw);
        let mut terms: Vec<u32> = Vec::new();
        if self.has_terms {
            let mut add =
                |term: &[u8]| terms.push(self.term(term).unwrap_or_else(|| self.add_term(term)));
            match &column {
                Column::Tags(tags) => tags.iter().for_each(|tag| add(tag)),
                Column::Texts(texts) => texts
                    .iter()
                    .for_each(|text| words(text).for_each(|word| add(&word))),
                _ => {}
            }
            terms.sort_unstable();
            terms.dedup();
        }
        let value = Value {
            raw: Bytes::new(raw),
            rows: 0,
            is_multi_valued: column.scalars().nth(1).is_some(),
            terms: match terms[..] {
                [] => Terms::None,
                [only] => Terms::One(only),
                _ => Terms::Many(terms.into()),
            },
            sort: match column.sort_value(&self.attribute) {
                Some(Scalar::Bytes(bytes)) if bytes == raw => Sort::Raw,
                Some(Scalar::Bytes(bytes)) => Sort::Own(bytes.into()),
                _ => Sort::Nothing,
            },
        };
        self.long_bytes += value.heap_bytes();
        self.multi_valued += usize::from(value.is_multi_valued);
        let id = self.free_values.pop().unwrap_or_else(|| {
            self.values.push(Value::default());
            (self.values.len() - 1) as u32
        });
        self.values[id as usize] = value;
        let Values { values, by_raw, .. } = self;
        by_raw.insert(id, |id| &values[id as usize].raw);
        id
    }

    fn add_term(&mut self, bytes: &[u8]) -> u32 {
        let id = self.free_terms.pop().unwrap_or_else(|| {
            self.terms.push(Term::default());
            (self.terms.len() - 1) as u32
        });
        self.terms[id as usize].bytes = Bytes::new(bytes);
        self.long_bytes += self.terms[id as usize].bytes.heap_bytes();
        let Values {
            terms,
            by_term,
            by_bytes,
            ..
        } = self;
        by_term.insert(id, |id| &terms[id as usize].bytes);
        let sought = SearchKey::new(bytes);
        by_bytes.insert(id, |other| terms[other as usize].bytes.is_below(sought));
        id
    }

    /// Returns the number of a tag or a word.
    pub fn term(&self, bytes: &[u8]) -> Option<u32> {
        self.by_term
            .find(bytes, |id| &self.terms[id as usize].bytes)
    }

    pub fn term_bytes(&self, term: u32) -> &[u8] {
        &self.terms[term as usize].bytes
    }

    pub fn postings(&self, term: u32) -> &Postings {
        &self.terms[term as usize].rows
    }

    pub fn terms(&self) -> usize {
        self.by_bytes.len()
    }

    /// Returns the terms in byte order.
    pub fn by_bytes(&self) -> &Sorted {
        &self.by_bytes
    }

    /// Returns the number of terms that sort before these bytes.
    pub fn rank_of_term(&self, bytes: &[u8]) -> usize {
        let sought = SearchKey::new(bytes);
        self.by_bytes
            .rank(|id| self.terms[id as usize].bytes.is_below(sought))
    }

    /// See [`crate::index::SpaceIndex::free_some`].
    pub fn free_some(&mut self, pieces: &mut usize) {
        drop_last(&mut self.values, pieces);
        drop_last(&mut self.terms, pieces);
    }

    pub fn heap_bytes(&self) -> usize {
        self.codes.capacity() * 4
            + self.values.capacity() * size_of::<Value>()
            + self.terms.capacity() * size_of::<Term>()
            + (self.free_values.capacity() + self.free_terms.capacity()) * 4
            + self.by_raw.heap_bytes()
            + self.by_term.heap_bytes()
            + self.by_bytes.heap_bytes()
            + self.long_bytes
            + self.postings * 5
    }
}

impl Value {
    /// Returns the heap size.
    fn heap_bytes(&self) -> usize {
        let terms = match &self.terms {
            Terms::Many(terms) => 4 * terms.len(),
            _ => 0,
        };
        let sort = match &self.sort {
            Sort::Own(bytes) => bytes.len(),
            _ => 0,
        };
        self.raw.heap_bytes() + terms + sort
    }
}
