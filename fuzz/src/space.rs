//! Spaces: any arguments declare a space or are rejected; any query returns the same result as an examination of every
//! object; and any bytes are safe for the decoder of objects.
//!
//! The input is text. The first line contains the arguments of FT.CREATE, separated by spaces. In the other lines, the
//! first character selects the operation:
//!
//! - `+` puts a hash (key, fields and values, separated by tabs), or, if `{` follows the key, a document.
//! - `-` removes a key.
//! - `?` is followed by the arguments of FT.SEARCH, separated by tabs.
//! - `!` is followed by those of FT.AGGREGATE.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::aggregate::{self, Aggregation, Limits};
use larder_space::index::{Objects, SpaceIndex};
use larder_space::object::{Document, Hash, Object};
use larder_space::query::matches;
use larder_space::schema::Definition;
use larder_space::search::partial::rank;
use larder_space::search::{Partial, Search};
use larder_space::value::Row;

/// The maximum number of processed lines after the first.
const LINES_MAX: usize = 64;

struct CollectedRows(BTreeMap<Vec<u8>, Object>);

impl Objects for CollectedRows {
    fn object(&self, _: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        if let Some(object) = self.0.get(key) {
            read(&object.encode());
        }
    }
}

pub fn space(bytes: &[u8]) {
    let _ = Object::decode(bytes);
    searches(bytes);
}

/// Returns the number of executed searches and aggregations. Each is compared with an examination of every object.
pub fn searches(bytes: &[u8]) -> usize {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let words: Vec<&[u8]> = lines
        .next()
        .unwrap_or_default()
        .split(|it| *it == b' ')
        .collect();
    let Ok(space) = Definition::parse_create(&words) else {
        return 0;
    };
    let rendered = space.to_arguments();
    let rendered: Vec<&[u8]> = rendered.iter().map(Vec::as_slice).collect();
    let again = Definition::parse_create(&rendered).expect("written objects can be read");
    assert_eq!(again.attributes, space.attributes);
    let space = Arc::new(space);
    let (mut index, mut kept) = (
        SpaceIndex::new(space.clone()),
        CollectedRows(BTreeMap::new()),
    );
    let mut count = 0;
    for line in lines.take(LINES_MAX) {
        let Some((kind, rest)) = line.split_first() else {
            continue;
        };
        let words: Vec<&[u8]> = rest.split(|byte| *byte == b'\t').collect();
        match kind {
            b'+' => {
                let Some(object) = object(&words[1..]) else {
                    continue;
                };
                index.put(words[0], &object);
                kept.0.insert(words[0].to_vec(), object);
            }
            b'-' => {
                index.remove(words[0]);
                kept.0.remove(words[0]);
            }
            b'?' => {
                if let Ok(search) = Search::parse(&words, &space) {
                    compare(&space, &index, &kept, Arc::new(search));
                    count += 1;
                }
            }
            b'!' => {
                if let Ok(aggregation) = Aggregation::parse(&words, &space) {
                    compare_rows(&space, &index, &kept, Arc::new(aggregation));
                    count += 1;
                }
            }
            _ => {}
        }
    }
    for key in kept.0.keys() {
        index.remove(key);
    }
    assert!(index.is_empty());
    count
}

fn object(words: &[&[u8]]) -> Option<Object> {
    if let [text] = words
        && text.starts_with(b"{")
    {
        return Document::parse(text).ok().map(Object::Json);
    }
    let mut hash = Hash::default();
    for pair in words.chunks_exact(2) {
        hash.set(pair[0], pair[1]);
    }
    Some(Object::Hash(hash))
}

fn compare(space: &Arc<Definition>, index: &SpaceIndex, kept: &CollectedRows, search: Arc<Search>) {
    let mut expected = Partial::new(search.keep());
    for (key, object) in &kept.0 {
        let is_asked = search
            .options
            .keys
            .as_ref()
            .is_none_or(|keys| keys.contains(key));
        let (row, _) = Row::of(space, object);
        if is_asked && space.covers(key, object) && matches(&search.predicate, &row) {
            expected.offer(&rank(&search.order, space, &row, key), key, |_| ());
        }
    }
    let mut run = index.search(search.clone(), usize::MAX);
    while !run.step(index, kept, 0, 3) {}
    let found = run.finish().expect("rows are few");
    if search.options.skips_total {
        assert!(found.total <= expected.total)
    } else {
        assert_eq!(found.total, expected.total)
    }
    let ranks = |partial: Partial| -> Vec<Vec<u8>> {
        let rows = partial.finish(search.offset);
        rows.iter().map(|entry| entry.rank.to_vec()).collect()
    };
    assert_eq!(ranks(found), ranks(expected));
}

fn compare_rows(
    space: &Arc<Definition>,
    index: &SpaceIndex,
    kept: &CollectedRows,
    aggregation: Arc<Aggregation>,
) {
    let limits = Limits::default();
    let mut expected = aggregate::Partial::new(&aggregation, limits);
    for (key, object) in &kept.0 {
        let is_asked = aggregation
            .options
            .keys
            .as_ref()
            .is_none_or(|keys| keys.contains(key));
        let (row, _) = Row::of(space, object);
        if is_asked
            && space.covers(key, object)
            && matches(&aggregation.predicate, &row)
            && expected.add(&aggregation, space, key, object).is_err()
        {
            return;
        }
    }
    let mut run = index.aggregate(aggregation.clone(), limits, None);
    while !run.step(index, kept, 0, 3) {}
    let found = run.finish().expect("as looking at every object");
    let rows = |partial| aggregate::finish(&aggregation, partial, limits, &|| Ok(())).ok();
    assert_eq!(rows(found), rows(expected));
}
