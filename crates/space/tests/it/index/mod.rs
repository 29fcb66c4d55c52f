//! The local index, compared with an examination of every object.

mod aggregates;
mod bounded_steps;
mod plans;
mod searches;

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::index::{Objects, SpaceIndex};
use larder_space::object::{Document, Hash, Object, ObjectKind};
use larder_space::query::{Predicate, matches};
use larder_space::schema::Definition;
use larder_space::value::{Column, Columns, Row};
use proptest::prelude::*;
use proptest::sample::select;

use super::space;

const SPACES: [&str; 4] = [
    "s SCHEMA n NUMERIC INDEXMISSING m NUMERIC t TAG SEPARATOR ; c TAG SEPARATOR ; CASESENSITIVE INDEXEMPTY x TEXT y TEXT UNF g GEO at TIMESTAMP b BOOLEAN u NUMERIC NOINDEX",
    "s SCHEMA n NUMERIC SORTABLE INDEXMISSING m NUMERIC SORTABLE t TAG SEPARATOR ; SORTABLE c TAG SEPARATOR ; CASESENSITIVE INDEXEMPTY SORTABLE x TEXT SORTABLE y TEXT SORTABLE UNF g GEO SORTABLE at TIMESTAMP SORTABLE b BOOLEAN SORTABLE u NUMERIC SORTABLE NOINDEX",
    "s INDEX 6 m,n t,m t c,b,at n y SCHEMA n NUMERIC INDEXMISSING m NUMERIC t TAG SEPARATOR ; c TAG SEPARATOR ; CASESENSITIVE INDEXEMPTY x TEXT y TEXT SORTABLE g GEO at TIMESTAMP b BOOLEAN u NUMERIC NOINDEX",
    "s ON JSON INDEX 7 m,n t,m t x n at b SCHEMA $.n AS n NUMERIC INDEXMISSING $.m AS m NUMERIC SORTABLE $.t AS t TAG SORTABLE $.c AS c TAG CASESENSITIVE INDEXEMPTY $.x AS x TEXT $.y AS y TEXT UNF $.g AS g GEO $.at AS at TIMESTAMP $.b AS b BOOLEAN $.u AS u NUMERIC NOINDEX",
];

/// Objects, an index over them, and the expected results without the index.
pub struct Store {
    pub space: Arc<Definition>,
    pub index: SpaceIndex,
    pub objects: BTreeMap<Vec<u8>, Object>,
}

impl Store {
    pub fn new(text: &str) -> Store {
        let space = Arc::new(space(text));
        Store {
            index: SpaceIndex::new(space.clone()),
            space,
            objects: BTreeMap::new(),
        }
    }

    /// If the space covers documents, a hash is converted to a document.
    pub fn put(&mut self, key: &[u8], object: Object) {
        let object = match (self.space.on, object) {
            (ObjectKind::Json, Object::Hash(hash)) => document(&hash),
            (_, object) => object,
        };
        self.index.put(key, &object);
        self.objects.insert(key.to_vec(), object);
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.index.remove(key);
        self.objects.remove(key);
    }

    pub fn change(&mut self, change: &Change) {
        match change {
            Change::Put(key, object) => self.put(&key_of(*key), object.clone()),
            Change::Remove(key) => self.remove(&key_of(*key)),
        }
    }

    /// Checks that the index has the same columns as each object.
    pub fn check_columns(&self) {
        for (key, object) in &self.objects {
            let (row, _) = Row::of(&self.space, object);
            let columns = self.index.columns(key).expect("it exists");
            for attribute in &self.space.attributes {
                let (has, is) = (columns.column(attribute.id), row.column(attribute.id));
                let scalars = |column: &Column| column.scalars().collect::<Vec<_>>();
                assert_eq!(scalars(&has), scalars(&is), "{} of {key:?}", attribute.name);
            }
        }
        assert!(self.index.columns(b"nothing").is_none());
    }

    pub fn holds(&self, predicate: &Predicate, key: &[u8]) -> bool {
        self.objects
            .get(key)
            .is_some_and(|object| matches(predicate, &Row::of(&self.space, object).0))
    }
}

/// Converts fields to JSON, some numbers to arrays of several.
fn document(hash: &Hash) -> Object {
    let mut members = serde_json::Map::new();
    for field in &hash.fields {
        let (name, text) = (
            String::from_utf8(field.name.clone()).unwrap(),
            String::from_utf8(field.value.clone()).unwrap(),
        );
        let value = match (name.as_str(), text.parse::<serde_json::Number>()) {
            ("t" | "c", _) => text.split(';').collect::<Vec<_>>().into(),
            ("x", _) if text.starts_with("sun ") => vec![text.as_str(), "apple"].into(),
            ("b", _) if text != "maybe" => (text == "true").into(),
            ("n" | "m", Ok(_)) if text == "2" => serde_json::json!([2, 3.5, null]),
            ("n" | "m", Ok(_)) if text == "4" => serde_json::json!([]),
            ("n" | "m" | "u" | "at", Ok(number)) => number.into(),
            _ => text.into(),
        };
        members.insert(name, value);
    }
    let text = serde_json::Value::Object(members).to_string();
    Object::Json(Document::parse(text.as_bytes()).unwrap())
}

impl Objects for Store {
    fn object(&self, _: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        if let Some(object) = self.objects.get(key) {
            read(&object.encode());
        }
    }
}

#[derive(Debug, Clone)]
pub enum Change {
    Put(u16, Object),
    Remove(u16),
}

/// Keys in another order than the numbers.
pub fn key_of(number: u16) -> Vec<u8> {
    format!("{:02x}:{number}", number.wrapping_mul(37) as u8).into_bytes()
}

pub fn any_object() -> impl Strategy<Value = Object> {
    let text = |list: &'static [&'static str]| proptest::option::of(select(list));
    let numbers = &[
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "-1.5",
        "2.5",
        "inf",
        "-inf",
        "9007199254740992",
        "9007199254740993",
        "none",
    ];
    let one = (
        text(numbers),
        text(&["1", "1", "1", "2", "2", "3"]),
        text(&["a", "ab", "b;a", "b;c;B", "", "a-b", "zebra;a"]),
        text(&["Rome", "rome", "", "Oslo;Rome", "Bergen"]),
        text(&[
            "Sunny beach",
            "the rain",
            "sun sun rain",
            "",
            "a sunny place by the sea",
        ]),
    );
    let other = (
        text(&["Apple", "banana", "Cherry", "apple pie"]),
        text(&[
            "0,0",
            "0.1,0.1",
            "10,50",
            "179.9,10",
            "-179.9,10",
            "0,85",
            "here",
        ]),
        text(&["0", "1.5", "2024-01-01", "-3", "5"]),
        text(&["true", "false", "maybe"]),
        text(&["1", "7"]),
    );
    (one, other).prop_map(|((n, m, t, c, x), (y, g, at, b, u))| {
        let fields = [
            ("n", n),
            ("m", m),
            ("t", t),
            ("c", c),
            ("x", x),
            ("y", y),
            ("g", g),
            ("at", at),
            ("b", b),
            ("u", u),
        ];
        let mut hash = Hash::default();
        for (name, value) in fields {
            value.map(|value| hash.set(name.as_bytes(), value));
        }
        Object::Hash(hash)
    })
}

pub fn any_change(keys: u16) -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..keys, any_object()).prop_map(|(key, object)| Change::Put(key, object)),
        1 => (0..keys).prop_map(Change::Remove),
    ]
}

pub fn any_query() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        "*",
        "@n:[1 3]",
        "@n:[(1 (3]",
        "@n==2",
        "@n!=2",
        "@n>=2.5",
        "@n<0",
        "@n==9007199254740993",
        "@n:[-inf inf]",
        "@n:[9007199254740992 (9007199254740993]",
        "@m:[1 2]",
        "@m==1",
        "@m==3",
        "@t:{a}",
        "@t:{a|c}",
        "@t:{a*}",
        "@t:{*b}",
        "@t:{*e*}",
        "@t:{w'z?b*'}",
        "@t:{nothing}",
        "@t:[\"a\" (\"b\"]",
        "@t >= \"b\"",
        "@c:{Rome}",
        "@c:{rome|Oslo}",
        "@c:{\"\"}",
        "sunny",
        "sun*",
        "*ny",
        "@x:rain",
        "\"sun rain\"",
        "@y:apple",
        "@y:[\"apple\" \"banana\"]",
        "\"rain\" apple",
        "@g:[0 0 20 km]",
        "@g:[180 10 50 km]",
        "@g:[0 0 30000 km]",
        "@g:[10 50 1 m]",
        "@at:[0 2]",
        "@at>=2024-01-01",
        "@b==true",
        "@b!=true",
        "ismissing(@n)",
    ]);
    leaf.prop_map(str::to_string)
        .prop_recursive(3, 10, 4, |inner| {
            let list = || proptest::collection::vec(inner.clone(), 2..4);
            prop_oneof![
                3 => list().prop_map(|list| format!("({})", list.join(" "))),
                2 => list().prop_map(|list| format!("({})", list.join(" | "))),
                1 => inner.clone().prop_map(|it| format!("-({it})")),
                1 => inner.clone().prop_map(|it| format!("~({it})")),
            ]
        })
}
