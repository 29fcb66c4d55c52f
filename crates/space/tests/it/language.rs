//! The query language, compared with an independent oracle. Random questions are answered by examining every object.
//! They are also written as queries, parsed, and answered by the regions that the search contacts.

use std::collections::BTreeMap;

use larder_space::base::number::Number;
use larder_space::base::ordered::Scalar;
use larder_space::mapping::{Attribute, Cut, Dimension, Subspace};
use larder_space::object::{Hash, Object};
use larder_space::query::matches;
use larder_space::search::partial::rank;
use larder_space::search::regions::{contacts, region};
use larder_space::search::{Partial, Search};
use larder_space::value::{Row, RowView};
use proptest::prelude::*;
use proptest::sample::select;

use super::space;

#[derive(Debug, Clone)]
enum TestQuery {
    All,
    Missing,
    /// In quarters: low, whether it is exclusive, high, whether it is exclusive.
    Between(i32, bool, i32, bool),
    Compare(&'static str, i32),
    /// Tags, each with a flag for a prefix.
    Tags(Vec<(&'static str, bool)>),
    TagsFrom(&'static str),
    Word(&'static str),
    Prefix(&'static str),
    Phrase(Vec<&'static str>),
    And(Vec<TestQuery>),
    Or(Vec<TestQuery>),
    Not(Box<TestQuery>),
    Maybe(Box<TestQuery>),
}

#[derive(Debug, Clone)]
struct TestObject {
    /// In quarters.
    n: Option<i32>,
    tags: Option<Vec<&'static str>>,
    words: Option<Vec<&'static str>>,
}

const TAGS: [&str; 7] = ["a", "ab", "Ab", "a-b", "a b", "x@y.z", "b|c"];
const WORDS: [&str; 5] = ["sun", "Sun", "sunny", "rain", "the"];

fn is_text(word: &str) -> bool {
    word != "the"
}

fn quarter(n: i32) -> String {
    format!("{}", f64::from(n) / 4.0)
}

impl TestQuery {
    /// `level` is 0 if an OR may be written without parentheses, 1 if only an AND may, and 2 if neither may.
    fn write(&self, level: u8, style: usize, out: &mut String) {
        let open = match self {
            TestQuery::Or(parts) if parts.len() > 1 => level > 0,
            TestQuery::And(parts) if parts.len() > 1 => level > 1,
            _ => false,
        };
        out.push_str(if open { "(" } else { "" });
        match self {
            TestQuery::All => out.push('*'),
            TestQuery::Missing => out.push_str("ismissing(@n)"),
            TestQuery::Between(low, no_low, high, no_high) => {
                let sign = |is_out: bool| if is_out { "(" } else { "" };
                let blank = [" ", ",", " , "][style % 3];
                out.push_str(&format!(
                    "@n:[{}{}{blank}{}{}]",
                    sign(*no_low),
                    quarter(*low),
                    sign(*no_high),
                    quarter(*high)
                ));
            }
            TestQuery::Compare(test, n) => out.push_str(&format!("@n{test}{}", quarter(*n))),
            TestQuery::Tags(tags) => {
                let tags = tags
                    .iter()
                    .map(|(tag, is_prefix)| write_tag(tag, *is_prefix, style));
                out.push_str(&format!(
                    "@t:{{{}}}",
                    tags.collect::<Vec<_>>().join([" | ", "|"][style % 2])
                ));
            }
            TestQuery::TagsFrom(tag) => out.push_str(&format!("@t:[\"{tag}\" +inf]")),
            TestQuery::Word(word) => out.push_str(&format!("{}{word}", ["", "@x:"][style % 2])),
            TestQuery::Prefix(word) => out.push_str(&format!("{}{word}*", ["", "@x:"][style % 2])),
            TestQuery::Phrase(words) => {
                out.push_str(&format!("\"{}\"", words.join([" ", ", "][style % 2])))
            }
            // A single part is written like the list.
            TestQuery::And(parts) | TestQuery::Or(parts) if parts.len() == 1 => {
                parts[0].write(level, style, out);
            }
            TestQuery::And(parts) => write_all(parts, 2, " ", style, out),
            TestQuery::Or(parts) => write_all(parts, 1, ["|", " | "][style % 2], style, out),
            TestQuery::Not(inner) => {
                out.push('-');
                inner.write(2, style, out);
            }
            TestQuery::Maybe(inner) => {
                out.push('~');
                inner.write(2, style, out);
            }
        }
        out.push_str(if open { ")" } else { "" });
    }

    /// Returns `None` for a question with only stopwords.
    fn holds(&self, thing: &TestObject) -> Option<bool> {
        let number = |test: &dyn Fn(i32) -> bool| Some(thing.n.is_some_and(test));
        let tags: Vec<String> = thing
            .tags
            .iter()
            .flatten()
            .map(|tag| tag.to_lowercase())
            .collect();
        let words: Vec<String> = thing
            .words
            .iter()
            .flatten()
            .filter(|word| is_text(word))
            .map(|word| word.to_lowercase())
            .collect();
        match self {
            TestQuery::All => Some(true),
            TestQuery::Missing => Some(thing.n.is_none()),
            TestQuery::Between(low, no_low, high, no_high) => {
                number(&|n| n >= *low + i32::from(*no_low) && n <= *high - i32::from(*no_high))
            }
            TestQuery::Compare(test, other) => match *test {
                "==" => number(&|n| n == *other),
                "!=" => Some(thing.n != Some(*other)),
                ">=" => number(&|n| n >= *other),
                "<=" => number(&|n| n <= *other),
                ">" => number(&|n| n > *other),
                _ => number(&|n| n < *other),
            },
            TestQuery::Tags(asked) => Some(asked.iter().any(|(tag, is_prefix)| {
                let tag = tag.to_lowercase();
                tags.iter().any(|it| {
                    if *is_prefix {
                        it.starts_with(&tag)
                    } else {
                        *it == tag
                    }
                })
            })),
            TestQuery::TagsFrom(low) => Some(tags.iter().any(|tag| **tag >= *low.to_lowercase())),
            TestQuery::Word(word) => is_text(word).then(|| words.contains(&word.to_lowercase())),
            TestQuery::Prefix(word) => {
                Some(words.iter().any(|it| it.starts_with(&word.to_lowercase())))
            }
            TestQuery::Phrase(asked) => {
                let asked: Vec<String> = asked
                    .iter()
                    .filter(|word| is_text(word))
                    .map(|word| word.to_lowercase())
                    .collect();
                (!asked.is_empty())
                    .then(|| words.windows(asked.len()).any(|window| window == asked))
            }
            TestQuery::And(parts) => {
                let parts: Vec<bool> = parts.iter().filter_map(|part| part.holds(thing)).collect();
                (!parts.is_empty()).then(|| parts.iter().all(|it| *it))
            }
            TestQuery::Or(parts) => {
                let parts: Vec<bool> = parts.iter().filter_map(|part| part.holds(thing)).collect();
                (!parts.is_empty()).then(|| parts.iter().any(|it| *it))
            }
            TestQuery::Not(inner) => inner.holds(thing).map(|holds| !holds),
            TestQuery::Maybe(inner) => inner.holds(thing).map(|_| true),
        }
    }
}

fn write_all(parts: &[TestQuery], level: u8, between: &str, style: usize, out: &mut String) {
    for (index, part) in parts.iter().enumerate() {
        out.push_str(if index > 0 { between } else { "" });
        part.write(level, style + index, out);
    }
}

fn write_tag(tag: &str, is_prefix: bool, style: usize) -> String {
    let escaped = tag.chars().map(|sign| {
        if sign.is_alphanumeric() {
            sign.to_string()
        } else {
            format!("\\{sign}")
        }
    });
    let star = if is_prefix { "*" } else { "" };
    match style % 3 {
        0 if !is_prefix => format!("\"{tag}\""),
        1 if !tag.contains('|') => format!("{tag}{star}"),
        _ => escaped.collect::<String>() + star,
    }
}

fn any_query() -> impl Strategy<Value = TestQuery> {
    let leaf = prop_oneof![
        Just(TestQuery::All),
        Just(TestQuery::Missing),
        (-8..8, any::<bool>(), 0..9, any::<bool>()).prop_map(|(low, no_low, width, no_high)| {
            TestQuery::Between(low, no_low, low + width, no_high)
        }),
        (select(vec!["==", "!=", ">=", "<=", ">", "<"]), -8..8)
            .prop_map(|(test, n)| TestQuery::Compare(test, n)),
        proptest::collection::vec((select(&TAGS[..]), any::<bool>()), 1..3)
            .prop_map(TestQuery::Tags),
        select(&TAGS[..]).prop_map(TestQuery::TagsFrom),
        select(&WORDS[..]).prop_map(TestQuery::Word),
        select(vec!["su", "SUN", "r"]).prop_map(TestQuery::Prefix),
        proptest::collection::vec(select(&WORDS[..]), 1..4).prop_map(TestQuery::Phrase),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(TestQuery::And),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(TestQuery::Or),
            inner.clone().prop_map(|it| TestQuery::Not(Box::new(it))),
            inner.prop_map(|it| TestQuery::Maybe(Box::new(it))),
        ]
    })
}

fn any_object() -> impl Strategy<Value = TestObject> {
    let tags = proptest::collection::vec(select(&TAGS[..]), 1..3);
    let words = proptest::collection::vec(select(&WORDS[..]), 1..5);
    (
        proptest::option::of(-8..8),
        proptest::option::of(tags),
        proptest::option::of(words),
    )
        .prop_map(|(n, tags, words)| TestObject { n, tags, words })
}

fn object(thing: &TestObject) -> Object {
    let mut hash = Hash::default();
    thing.n.map(|n| hash.set(b"n", quarter(n)));
    thing
        .tags
        .as_ref()
        .map(|tags| hash.set(b"t", tags.join(";")));
    thing
        .words
        .as_ref()
        .map(|words| hash.set(b"x", words.join(", ")));
    Object::Hash(hash)
}

fn subspace(bits: (u8, u8)) -> Subspace {
    let numbers: Vec<Vec<u8>> = (-8..8)
        .filter_map(|n| Number::from_f64(f64::from(n) / 4.0))
        .map(|n| Scalar::Number(n).encoded())
        .collect();
    let weights: Vec<(&[u8], u64)> = numbers.iter().map(|value| (&value[..], 1)).collect();
    let n = Dimension {
        attribute: Attribute(0),
        cut: Cut::by_weights(bits.0, &weights).unwrap(),
    };
    let t = Dimension {
        attribute: Attribute(1),
        cut: Cut::by_hash(bits.1).unwrap(),
    };
    Subspace::new(vec![n, t]).unwrap()
}

proptest! {
    #[test]
    fn a_search_of_the_contacted_regions_agrees_with_a_scan_of_all_objects(
        ask in any_query(), style in 0_usize..6, things in proptest::collection::vec(any_object(), 0..24), bits in (0_u8..4, 0_u8..3),
    ) {
        let space = space("s SCHEMA n NUMERIC INDEXMISSING t TAG SEPARATOR ; x TEXT");
        let mut text = String::new();
        ask.write(0, style, &mut text);
        let search = Search::parse(&[text.as_bytes(), b"LIMIT", b"0", b"100"], &space);
        let search = search.unwrap_or_else(|refusal| panic!("{text}: {refusal}"));

        // Each object is in the region of its values.
        let subspace = subspace(bits);
        let mut regions: BTreeMap<_, Vec<(Vec<u8>, Vec<u8>)>> = BTreeMap::new();
        for (index, thing) in things.iter().enumerate() {
            let key = format!("k{index:02}").into_bytes();
            let (row, faults) = Row::of(&space, &object(thing));
            prop_assert!(faults.is_empty());
            regions.entry(region(&subspace, &row, &key)).or_default().push((key, row.encode()));
        }
        let mut merged = Partial::new(search.keep());
        for region in contacts(&subspace, &search.predicate, &space).regions() {
            let mut part = Partial::new(search.keep());
            for (key, row) in regions.get(&region).into_iter().flatten() {
                let view = RowView::new(row).unwrap();
                if matches(&search.predicate, &view) {
                    part.offer(&rank(&search.order, &space, &view, key), key, |_| ());
                }
            }
            merged.merge(part);
        }
        let expected: Vec<String> = things.iter().enumerate()
            .filter(|(_, thing)| ask.holds(thing).unwrap_or(false))
            .map(|(index, _)| format!("k{index:02}"))
            .collect();
        prop_assert_eq!(merged.total, expected.len() as u64, "{}", &text);
        let found: Vec<String> = merged.finish(0).iter().map(|entry| String::from_utf8(entry.key.to_vec()).unwrap()).collect();
        prop_assert_eq!(found, expected, "{}", text);
    }
}
