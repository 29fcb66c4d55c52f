//! The scenarios of HyperDex's client tests, as commands of spaces. They use one small store of objects, searched by
//! examining each.

use std::collections::BTreeMap;

use larder_space::object::{Arithmetic, Change, Hash, Object, ObjectKind, Target, apply};
use larder_space::query::{Condition, Params, matches, parse};
use larder_space::schema::Definition;
use larder_space::search::content::content;
use larder_space::search::partial::rank;
use larder_space::search::{Partial, Search};
use larder_space::value::Row;

use super::space;

struct Store {
    space: Definition,
    objects: BTreeMap<Vec<u8>, Object>,
}

impl Store {
    fn new(space_text: &str) -> Store {
        Store {
            space: space(space_text),
            objects: BTreeMap::new(),
        }
    }

    fn put(&mut self, key: &str, fields: &[(&str, &str)]) {
        let object = self
            .objects
            .entry(key.as_bytes().to_vec())
            .or_insert_with(|| Object::Hash(Hash::default()));
        let Object::Hash(hash) = object else {
            panic!("it is a hash")
        };
        for (name, value) in fields {
            hash.set(name.as_bytes(), *value);
        }
    }

    /// A conditional put. Returns whether the condition was met.
    fn put_if(&mut self, key: &str, condition: &Condition, fields: &[(&str, &str)]) -> bool {
        let is_met = condition.is_met(&self.space, self.objects.get(key.as_bytes()));
        if is_met {
            self.put(key, fields);
        }
        is_met
    }

    fn condition(&self, query: &str) -> Condition {
        Condition::Holds(parse(query.as_bytes(), &self.space, &Params::default()).unwrap())
    }

    /// Returns the keys and the returned content of the matches.
    fn search(&self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let search = Search::parse(&words, &self.space).unwrap();
        let mut found = Partial::new(search.keep());
        for (key, object) in &self.objects {
            let (row, _) = Row::of(&self.space, object);
            if self.space.covers(key, object) && matches(&search.predicate, &row) {
                found.offer(&rank(&search.order, &self.space, &row, key), key, |_| ());
            }
        }
        let total = found.total;
        let found = found.finish(search.offset);
        let rows = found.iter().map(|entry| {
            let pairs = content(&search, &self.space, &self.objects[entry.key]);
            let pairs = pairs.iter().map(|(name, value)| {
                format!(
                    " {}={}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value)
                )
            });
            String::from_utf8_lossy(entry.key).into_owned() + &pairs.collect::<String>()
        });
        format!("{total}: {}", rows.collect::<Vec<_>>().join(", "))
    }

    fn keys(&self, query: &str) -> String {
        self.search(&[query, "NOCONTENT", "LIMIT", "0", "100"])
    }

    /// Changes all objects that match a query. Checks the condition again for each change, and returns the number of
    /// changed objects.
    fn change_all(&mut self, query: &str, changes: &[(Target, Change)]) -> usize {
        let condition = self.condition(query);
        let keys: Vec<Vec<u8>> = self.objects.keys().cloned().collect();
        let mut count = 0;
        for key in keys {
            let object = self.objects.get(&key);
            if condition.is_met(&self.space, object)
                && let Ok(changed) = apply(object, ObjectKind::Hash, changes)
            {
                self.objects.insert(key, changed);
                count += 1;
            }
        }
        count
    }
}

fn field(name: &str) -> Target {
    Target {
        field: Some(name.as_bytes().to_vec()),
        path: None,
    }
}

fn add(by: &str) -> Change {
    Change::Number(Arithmetic::Add, by.as_bytes().to_vec())
}

#[test]
fn objects_are_found_by_equality() {
    let mut store = Store::new("kv SCHEMA v TAG");
    assert_eq!(store.keys("@v:{v1}"), "0: ");
    store.put("k1", &[("v", "v1")]);
    assert_eq!(store.search(&["@v:{v1}"]), "1: k1 v=v1");
    store.put("k2", &[("v", "v1")]);
    assert_eq!(store.keys("@v:{v1}"), "2: k1, k2");
    store.objects.remove(&b"k1"[..]);
    assert_eq!(store.keys("@v:{v1}"), "1: k2");
}

#[test]
fn puts_of_some_attributes_keep_the_others() {
    let mut store = Store::new("kv SCHEMA v1 TAG v2 TAG");
    store.put("k", &[("v1", "ABC")]);
    store.put("k", &[("v2", "123")]);
    assert_eq!(store.search(&["@v1:{abc} @v2:{123}"]), "1: k v1=ABC v2=123");
    assert_eq!(store.search(&["*", "RETURN", "1", "v1"]), "1: k v1=ABC");
}

#[test]
fn conditional_puts_check_their_condition() {
    let mut store = Store::new("kv SCHEMA v TAG");
    assert!(
        !store.put_if("k", &store.condition("@v:{v1}"), &[("v", "v2")]),
        "there is no object"
    );
    assert!(store.put_if("k", &Condition::Absent, &[("v", "v1")]));
    assert!(!store.put_if("k", &Condition::Absent, &[("v", "v9")]));
    assert!(!store.put_if("k", &store.condition("@v:{v2}"), &[("v", "v3")]));
    assert!(store.put_if("k", &store.condition("@v:{v1}"), &[("v", "v3")]));
    assert_eq!(store.search(&["*"]), "1: k v=v3");
}

#[test]
fn integers_are_exact_over_their_range() {
    let mut store = Store::new("kv SCHEMA v NUMERIC");
    for (key, value) in [
        ("zero", "0"),
        ("one", "1"),
        ("minus", "-1"),
        ("max", "9223372036854775807"),
        ("min", "-9223372036854775808"),
        ("near", "9223372036854775806"),
    ] {
        store.put(key, &[("v", value)]);
        assert_eq!(store.keys(&format!("@v=={value}")), format!("1: {key}"));
    }
    assert_eq!(
        store.keys("@v:[9223372036854775806 (9223372036854775807]"),
        "1: near"
    );
    assert_eq!(
        store.search(&["*", "SORTBY", "v", "DESC", "NOCONTENT"]),
        "6: max, near, one, zero, minus, min"
    );
    assert_eq!(
        store.change_all("@v>=1", &[(field("v"), add("1"))]),
        2,
        "a value that would overflow stays"
    );
    assert_eq!(
        store.keys("@v:[2 2] | @v==9223372036854775807"),
        "3: max, near, one"
    );
}

#[test]
fn ranges_of_integers_and_texts_are_open_or_closed() {
    let mut store = Store::new("kv SCHEMA n NUMERIC t TAG");
    for (key, n, t) in [
        ("A", "-2", "Aaa"),
        ("B", "-1", "bbb"),
        ("C", "0", "ccc"),
        ("D", "1", "ddd"),
        ("E", "2", "eee"),
    ] {
        store.put(key, &[("n", n), ("t", t)]);
    }
    for (query, expected) in [
        ("@n<=0", "3: A, B, C"),
        ("@n>=0", "3: C, D, E"),
        ("@n<0", "2: A, B"),
        ("@n:[-1 1]", "3: B, C, D"),
        ("@n:[(-1 (1]", "1: C"),
        ("@t <= \"ccc\"", "3: A, B, C"),
        ("@t:[\"B\" (\"ddd\"]", "2: B, C"),
        ("@t > \"ddd\"", "1: E"),
    ] {
        assert_eq!(store.keys(query), expected, "{query}");
    }
}

#[test]
fn lengths_and_patterns_are_wildcards() {
    let mut store = Store::new("kv SCHEMA v TAG");
    for value in ["a", "ab", "abc", "foobar", "barfoo", "a.foo.b"] {
        store.put(value, &[("v", value)]);
    }
    assert_eq!(store.keys("@v:{w'??'}"), "1: ab");
    assert_eq!(
        store.keys("@v:{w'???*'}"),
        "4: a.foo.b, abc, barfoo, foobar"
    );
    assert_eq!(
        (
            store.keys("@v:{foo*}"),
            store.keys("@v:{*foo}"),
            store.keys("@v:{*foo*}")
        ),
        (
            "1: foobar".into(),
            "1: barfoo".into(),
            "3: a.foo.b, barfoo, foobar".into()
        )
    );
}

#[test]
fn all_matching_objects_are_changed_and_counted() {
    let mut store = Store::new("account SCHEMA balance NUMERIC name TAG");
    for (key, balance, name) in [("1", "10", "ann"), ("2", "20", "ann"), ("3", "30", "bob")] {
        store.put(key, &[("balance", balance), ("name", name)]);
    }
    assert_eq!(
        store.change_all(
            "@name:{ann}",
            &[
                (field("balance"), add("5")),
                (field("note"), Change::Append(b"x".to_vec()))
            ]
        ),
        2
    );
    assert_eq!(store.keys("@balance==15 | @balance==25"), "2: 1, 2");
    assert_eq!(
        store.change_all("@name:{nobody}", &[(field("balance"), add("5"))]),
        0
    );
    // All changes or none: a name is not a number.
    assert_eq!(
        store.change_all(
            "*",
            &[(field("balance"), add("1")), (field("name"), add("1"))]
        ),
        0
    );
    assert_eq!(
        store.search(&[
            "*", "SORTBY", "balance", "DESC", "RETURN", "1", "balance", "LIMIT", "0", "2"
        ]),
        "3: 3 balance=30, 2 balance=25"
    );
}
