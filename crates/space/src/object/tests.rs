use proptest::prelude::*;
use serde_json::{Value, json};

use super::change::{Arithmetic, Change, ChangeError, Target, apply};
use super::document::{self, SetRule, Spacing};
use super::*;

fn doc(text: &str) -> Document {
    Document::parse(text.as_bytes()).unwrap()
}

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

fn set(before: Option<&str>, at: &str, value: &str, rule: SetRule) -> String {
    let before = before.map(doc);
    match Document::set(
        before.as_ref(),
        &path(at),
        serde_json::from_str(value).unwrap(),
        rule,
    ) {
        Ok(Some(document)) => String::from_utf8(document.print()).unwrap(),
        Ok(None) => "nil".to_string(),
        Err(refusal) => format!("! {refusal}"),
    }
}

#[test]
fn documents_are_set_by_path() {
    use SetRule::{Absent, Always, Present};
    assert_eq!(set(None, "$", "1", Always), "1");
    assert_eq!(set(None, "$", "1", Present), "nil");
    assert_eq!(
        set(None, "$.a", "1", Always),
        "! new objects must be created at the root: give $ as the path"
    );
    let before = Some(r#"{"a":{"x":1},"b":[1,{"x":2}]}"#);
    assert_eq!(
        set(before, "$.a.x", "9", Always),
        r#"{"a":{"x":9},"b":[1,{"x":2}]}"#
    );
    assert_eq!(
        set(before, "$.a.y", "9", Always),
        r#"{"a":{"x":1,"y":9},"b":[1,{"x":2}]}"#
    );
    assert_eq!(
        set(before, "$..x", "9", Always),
        r#"{"a":{"x":9},"b":[1,{"x":9}]}"#
    );
    assert_eq!(
        set(before, ".a.y", "9", Absent),
        r#"{"a":{"x":1,"y":9},"b":[1,{"x":2}]}"#
    );
    assert_eq!(set(before, "$.a.x", "9", Absent), "nil");
    assert_eq!(set(before, "$.a.y", "9", Present), "nil");
    assert_eq!(set(before, "$.none.y", "9", Always), "nil");
    assert_eq!(set(before, "$.b[7]", "9", Always), "nil");
    assert_eq!(
        set(before, "$.b[-1]", "9", Always),
        r#"{"a":{"x":1},"b":[1,9]}"#
    );
}

#[test]
fn documents_are_read_by_path() {
    let document = doc(r#"{"a":{"x":1},"b":[1,{"x":"é"}]}"#);
    let get = |text: &str| match document.get(&path(text)) {
        Ok(value) => value.to_string(),
        Err(refusal) => format!("! {refusal}"),
    };
    assert_eq!(get("$..x"), r#"[1,"é"]"#);
    assert_eq!(get("a.x"), "1");
    assert_eq!(get("."), r#"{"a":{"x":1},"b":[1,{"x":"é"}]}"#);
    assert_eq!(get("$.none"), "[]");
    assert_eq!(get("none"), "! Path 'none' does not exist");
    let each = document.get_each(&[path("$.a.x"), path("b[0]")]).unwrap();
    assert_eq!(each.to_string(), r#"{"$.a.x":[1],"b[0]":[1]}"#);
    let each = document.get_each(&[path("a.x"), path("b[0]")]).unwrap();
    assert_eq!(each.to_string(), r#"{"a.x":1,"b[0]":1}"#);
    assert_eq!(document.types(&path("$.*")), ["object", "array"]);
    let spacing = Spacing {
        indent: b"  ",
        newline: b"\n",
        space: b" ",
    };
    let spaced = document::print_spaced(&json!({"a": [1, {}], "b": []}), spacing);
    assert_eq!(
        String::from_utf8(spaced).unwrap(),
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
    );
    assert_eq!(
        document.lengths(&path("$.*"), "an array").unwrap(),
        [None, Some(2)]
    );
    assert_eq!(
        document.lengths(&path("b[1].x"), "a string").unwrap(),
        [Some(2)]
    );
    assert!(document.lengths(&path("a"), "an array").is_err());
    assert_eq!(
        document.names(&path("$")).unwrap(),
        [Some(vec!["a".to_string(), "b".to_string()])]
    );
    assert_eq!(
        document
            .index_of_element(&path("$.b"), &json!(1), 0, 0)
            .unwrap(),
        [Some(0)]
    );
    assert_eq!(
        document
            .index_of_element(&path("$.b"), &json!(1), 1, 0)
            .unwrap(),
        [Some(-1)]
    );
}

#[test]
fn documents_are_changed_by_path() {
    let mut document = doc(r#"{"n":[1,2.5,"x"],"s":"ab","t":true,"o":{"k":1}}"#);
    let by = |b: i64| move |a| document::add(a, Number::Int(b));
    use crate::base::number::Number;
    let numbers = document.change_numbers(&path("$.n[*]"), by(2)).unwrap();
    assert_eq!(numbers, [Some(json!(3)), Some(json!(4.5)), None]);
    assert!(document.change_numbers(&path("s"), by(2)).is_err());
    let times = |a| document::multiply(a, Number::Int(i64::MAX));
    assert_eq!(
        document.change_numbers(&path("o.k"), times).unwrap(),
        [Some(json!(i64::MAX))]
    );
    assert_eq!(
        document.change_numbers(&path("o.k"), by(-1)).unwrap(),
        [Some(json!(i64::MAX - 1))]
    );
    assert_eq!(
        document.append_string(&path("$.s"), "c").unwrap(),
        [Some(3)]
    );
    assert_eq!(
        document.toggle(&path("$.*")).unwrap(),
        [None, None, Some(false), None]
    );
    assert_eq!(
        document
            .append_elements(&path("$.n"), &[json!(7), json!(8)])
            .unwrap(),
        [Some(5)]
    );
    assert_eq!(
        document
            .insert_elements(&path("$.n"), -1, &[json!(0)])
            .unwrap(),
        [Some(6)]
    );
    assert!(
        document
            .insert_elements(&path("$.n"), 9, &[json!(0)])
            .is_err()
    );
    assert_eq!(
        document.pop_elements(&path("$.n"), -1).unwrap(),
        [Some(Some(json!(8)))]
    );
    assert_eq!(
        document.pop_elements(&path("$.n"), 99).unwrap(),
        [Some(Some(json!(0)))]
    );
    assert_eq!(
        document.trim_elements(&path("$.n"), 1, -2).unwrap(),
        [Some(2)]
    );
    assert_eq!(document.root["n"], json!([4.5, "x"]));
    assert_eq!(document.delete(&path("$.n[0,1]")), 2);
    assert_eq!(
        document.pop_elements(&path("$.n"), 0).unwrap(),
        [Some(None)]
    );
    assert_eq!(document.clear(&path("$.*")), 1);
    assert_eq!(
        document.root,
        json!({"n": [], "s": "abc", "t": false, "o": {}})
    );
}

#[test]
fn nested_values_are_removed_once() {
    let mut document = doc(r#"{"a":{"a":{"a":1},"b":[1,2,3]}}"#);
    assert_eq!(document.delete(&path("$..a")), 3);
    assert_eq!(document.root, json!({}));
    let mut document = doc("[1,2,3,4]");
    assert_eq!(document.delete(&path("$[0,2,0]")), 2);
    assert_eq!(document.root, json!([2, 4]));
}

/// No command creates a value that could not be parsed again.
#[test]
fn document_depth_is_limited() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(Document::parse(nested(document::DEPTH_MAX).as_bytes()).is_ok());
    assert!(Document::parse(nested(document::DEPTH_MAX + 1).as_bytes()).is_err());
    let before = doc(r#"{"a":[]}"#);
    let set = |depth: usize| {
        let value = document::parse(nested(depth).as_bytes()).unwrap();
        let set = Document::set(
            Some(&before),
            &path("$.a[0]"),
            value.clone(),
            SetRule::Always,
        );
        assert_eq!(set, Ok(None), "there is no such element");
        Document::set(Some(&before), &path("$.a"), value, SetRule::Always)
    };
    let deepest = set(document::DEPTH_MAX - 1).unwrap().unwrap();
    assert_eq!(Document::parse(&deepest.print()).unwrap(), deepest);
    assert!(
        set(document::DEPTH_MAX)
            .unwrap_err()
            .message
            .contains("deeper than 127")
    );
    let mut deeper = deepest.clone();
    assert!(
        deeper
            .append_elements(&path("$.a"), std::slice::from_ref(&deepest.root))
            .is_err()
    );
    assert_eq!(deeper, deepest);
    let push = Change::PushLeft(deepest.root.clone());
    let object = Object::Hash(Hash::from_iter([("l", "[]")]));
    assert!(apply(Some(&object), ObjectKind::Hash, &[(field("l"), push)]).is_err());
}

#[test]
fn a_merge_adds_replaces_and_removes() {
    let before = doc(r#"{"a":{"x":1,"y":2},"b":1}"#);
    let merged = |at: &str, patch: Value| {
        Document::merge(Some(&before), &path(at), &patch)
            .unwrap()
            .unwrap()
            .root
    };
    assert_eq!(
        merged(
            "$",
            json!({"a": {"x": null, "z": 3}, "c": {"d": null, "e": 1}})
        ),
        json!({"a": {"y": 2, "z": 3}, "b": 1, "c": {"e": 1}})
    );
    assert_eq!(merged("$.a", json!(null)), json!({"b": 1}));
    assert_eq!(
        merged("$.n", json!({"k": 1})),
        json!({"a": {"x": 1, "y": 2}, "b": 1, "n": {"k": 1}})
    );
}

fn field(name: &str) -> Target {
    Target {
        field: Some(name.as_bytes().to_vec()),
        path: None,
    }
}

fn within(name: &str, at: &str) -> Target {
    Target {
        field: Some(name.as_bytes().to_vec()),
        path: Some(path(at)),
    }
}

fn number(operation: Arithmetic, by: &str) -> Change {
    Change::Number(operation, by.as_bytes().to_vec())
}

#[track_caller]
fn check(before: &[(&str, &str)], changes: &[(Target, Change)], expected: &str) {
    let before = Object::Hash(Hash::from_iter(before.iter().copied()));
    let shown = match apply(Some(&before), ObjectKind::Hash, changes) {
        Ok(Object::Hash(hash)) => {
            let fields = hash.fields.iter().map(|field| {
                format!(
                    "{}={}",
                    String::from_utf8_lossy(&field.name),
                    String::from_utf8_lossy(&field.value)
                )
            });
            fields.collect::<Vec<_>>().join(" ")
        }
        Ok(Object::Json(_)) => "a document".to_string(),
        Err(error) => format!("! {error}"),
    };
    assert_eq!(shown, expected);
}

#[test]
fn numbers_change_or_fail() {
    use Arithmetic::{Add, And, Divide, Max, Min, Multiply, Or, Remainder, Subtract, Xor};
    let one = |before: &str, operation, by: &str, expected: &str| {
        check(
            &[("n", before)],
            &[(field("n"), number(operation, by))],
            expected,
        )
    };
    one("7", Add, "3", "n=10");
    one("7", Subtract, "9", "n=-2");
    one("7", Multiply, "-3", "n=-21");
    one("-7", Divide, "2", "n=-3");
    one("7", Remainder, "4", "n=3");
    one("6", And, "3", "n=2");
    one("6", Or, "3", "n=7");
    one("6", Xor, "3", "n=5");
    one("6", Min, "3", "n=3");
    one("6", Max, "3.5", "n=6");
    one("7.5", Add, "0.5", "n=8.0");
    one("8.0", Divide, "16", "n=0.5");
    one("0.1", Add, "0.2", "n=0.3");
    one(
        "123456789012345678.5",
        Subtract,
        "0.5",
        "n=123456789012345678.0",
    );
    one(
        "123456789012345678.5",
        Min,
        "200000000000000000.5",
        "n=123456789012345678.5",
    );
    one(
        "123456789012345678.5",
        Max,
        "200000000000000000.25",
        "n=200000000000000000.25",
    );
    one(
        "9223372036854775807",
        Add,
        "1",
        "! field \"n\" would overflow 64 bits, or be infinite: nothing was changed",
    );
    one(
        "-9223372036854775808",
        Divide,
        "-1",
        "! field \"n\" would overflow 64 bits, or be infinite: nothing was changed",
    );
    one(
        "1e308",
        Multiply,
        "10.5",
        "! field \"n\" would overflow 64 bits, or be infinite: nothing was changed",
    );
    one(
        "1",
        Divide,
        "0",
        "! field \"n\" would be divided by zero: nothing was changed",
    );
    one(
        "1.5",
        Remainder,
        "0",
        "! field \"n\" would be divided by zero: nothing was changed",
    );
    one(
        "1.5",
        And,
        "1",
        "! field \"n\" is not an integer: nothing was changed",
    );
    one(
        "x",
        Add,
        "1",
        "! field \"n\" is not a number: nothing was changed",
    );
    check(&[], &[(field("n"), number(Subtract, "3"))], "n=-3");
}

#[test]
fn strings_lists_sets_and_maps_change() {
    let put = |text: &str| text.as_bytes().to_vec();
    check(
        &[("s", "bc")],
        &[
            (field("s"), Change::Prepend(put("a"))),
            (field("s"), Change::Append(put("d"))),
        ],
        "s=abcd",
    );
    check(
        &[("s", "abc")],
        &[
            (field("s"), Change::TrimLeft(1)),
            (field("s"), Change::TrimRight(1)),
        ],
        "s=b",
    );
    check(&[("s", "ab")], &[(field("s"), Change::TrimRight(5))], "s=");
    check(
        &[],
        &[
            (field("l"), Change::PushRight(json!(2))),
            (field("l"), Change::PushLeft(json!("a"))),
        ],
        r#"l=["a",2]"#,
    );
    check(
        &[("s", "[1,2]")],
        &[
            (field("s"), Change::SetAdd(json!(2))),
            (field("s"), Change::SetUnion(vec![json!(3), json!(1)])),
        ],
        "s=[1,2,3]",
    );
    check(
        &[("s", "[1,2,3]")],
        &[
            (field("s"), Change::SetIntersect(vec![json!(3), json!(1)])),
            (field("s"), Change::SetRemove(json!(1))),
        ],
        "s=[3]",
    );
    check(
        &[],
        &[
            (field("m"), Change::MapAdd("k".into(), json!(1))),
            (within("m", "$.k"), number(Arithmetic::Add, "4")),
        ],
        r#"m={"k":5}"#,
    );
    check(
        &[("m", r#"{"k":1}"#)],
        &[(field("m"), Change::MapRemove("k".into()))],
        "m={}",
    );
    check(
        &[("l", "x")],
        &[(field("l"), Change::PushRight(json!(2)))],
        "! field \"l\" is not a list, set or map: nothing was changed",
    );
    check(
        &[("l", "{}")],
        &[(field("l"), Change::PushRight(json!(2)))],
        "! field \"l\" is not a list or set: nothing was changed",
    );
}

#[test]
fn documents_in_fields_grow_along_paths() {
    let put = |text: &str| Change::Put(text.as_bytes().to_vec());
    check(
        &[],
        &[
            (within("d", "$.a.b"), number(Arithmetic::Add, "1")),
            (within("d", "a.c"), Change::Append(b"x".to_vec())),
        ],
        r#"d={"a":{"b":1,"c":"x"}}"#,
    );
    check(
        &[("d", r#"{"a":{"b":1}}"#)],
        &[
            (within("d", "$.a.b"), Change::Rename(b"c".to_vec())),
            (within("d", "$.z"), put("[1]")),
        ],
        r#"d={"a":{"c":1},"z":[1]}"#,
    );
    check(
        &[("d", r#"{"a":1}"#)],
        &[(within("d", "$.a"), Change::Unset)],
        "d={}",
    );
    check(
        &[("d", r#"{"a":"x"}"#)],
        &[(within("d", "$.a"), number(Arithmetic::Add, "1"))],
        "! field \"d\" at $.a is not a number: nothing was changed",
    );
    check(
        &[("d", r#"{"a":1}"#)],
        &[(within("d", "$.a.b"), put("1"))],
        "! field \"d\" at $.a.b: it leads through a value that is not an object, or to an absent element; nothing was changed",
    );
    check(
        &[("d", "{}")],
        &[(within("d", "$..a"), put("1"))],
        "! field \"d\" at $..a: it may select several values; nothing was changed",
    );
    check(
        &[("d", "{}")],
        &[(within("d", "$.a"), put("{"))],
        "! this is not valid JSON: EOF while parsing an object at line 1 column 1 (column 1)",
    );
    check(
        &[("a", "1"), ("b", "2")],
        &[(field("a"), Change::Rename(b"b".to_vec()))],
        "b=1",
    );
}

#[test]
fn an_absent_object_can_only_be_put() {
    let add = (field("n"), number(Arithmetic::Add, "1"));
    assert_eq!(
        apply(None, ObjectKind::Hash, std::slice::from_ref(&add)),
        Err(ChangeError::NotFound)
    );
    let put = (field("m"), Change::Put(b"x".to_vec()));
    assert_eq!(
        apply(None, ObjectKind::Hash, &[put, add.clone()]),
        Ok(Object::Hash(Hash::from_iter([("m", "x"), ("n", "1")])))
    );
    let json = Object::Json(doc("{}"));
    assert_eq!(
        apply(Some(&json), ObjectKind::Hash, std::slice::from_ref(&add)),
        Err(ChangeError::WrongKind)
    );
    assert!(apply(Some(&json), ObjectKind::Json, &[add]).is_err());
    let at = Target {
        field: None,
        path: Some(path("$.n")),
    };
    let changed = apply(
        Some(&json),
        ObjectKind::Json,
        &[(at, number(Arithmetic::Add, "1"))],
    );
    assert_eq!(changed, Ok(Object::Json(doc(r#"{"n":1}"#))));
}

fn any_change() -> impl Strategy<Value = (Target, Change)> {
    let name = proptest::sample::select(vec!["a", "b"]);
    let change = prop_oneof![
        (-5_i64..5).prop_map(|by| number(Arithmetic::Add, &by.to_string())),
        (-2_i64..3).prop_map(|by| number(Arithmetic::Divide, &by.to_string())),
        "[0-9]{0,2}".prop_map(|text| Change::Append(text.into_bytes())),
        "[0-9]{0,2}".prop_map(|text| Change::Put(text.into_bytes())),
        Just(Change::Unset),
        Just(Change::TrimLeft(1)),
        (0..3).prop_map(|element| Change::SetAdd(json!(element))),
    ];
    (name, change).prop_map(|(name, change)| (field(name), change))
}

proptest! {
    /// Several changes in one step have the effect of the same changes in sequence, or no effect.
    #[test]
    fn changes_are_atomic(changes in proptest::collection::vec(any_change(), 0..6)) {
        let before = Object::Hash(Hash::from_iter([("a", "1"), ("b", "[2]")]));
        let mut stepwise = Ok(before.clone());
        for change in &changes {
            stepwise = stepwise.and_then(|object| apply(Some(&object), ObjectKind::Hash, std::slice::from_ref(change)));
        }
        prop_assert_eq!(apply(Some(&before), ObjectKind::Hash, &changes), stepwise);
    }

    /// A set in JSON behaves like a set in memory.
    #[test]
    fn sets_are_sets(changes in proptest::collection::vec((0..4_u8, proptest::collection::btree_set(0..5_i64, 0..4)), 0..8)) {
        let mut oracle = std::collections::BTreeSet::new();
        let mut object = Object::Hash(Hash::from_iter([("s", "[]")]));
        for (kind, operand) in changes {
            let first = operand.iter().next().copied().unwrap_or(0);
            let list = operand.iter().map(|it| json!(it)).collect();
            let change = match kind {
                0 => { oracle.insert(first); Change::SetAdd(json!(first)) }
                1 => { oracle.remove(&first); Change::SetRemove(json!(first)) }
                2 => { oracle.retain(|it| operand.contains(it)); Change::SetIntersect(list) }
                _ => { oracle.extend(operand); Change::SetUnion(list) }
            };
            object = apply(Some(&object), ObjectKind::Hash, &[(field("s"), change)]).unwrap();
        }
        let Object::Hash(hash) = &object else { panic!("it is a hash") };
        let mut found: Vec<i64> = serde_json::from_slice(hash.get(b"s").unwrap()).unwrap();
        found.sort_unstable();
        prop_assert!(found.into_iter().eq(oracle));
    }
}
