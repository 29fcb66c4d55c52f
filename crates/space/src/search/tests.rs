use proptest::prelude::*;

use super::content::content;
use super::partial::{first_sort_value, print_sort_value, rank};
use super::*;
use crate::error::Result;
use crate::object::{Document, Hash, Object};
use crate::query::{explain, matches};
use crate::schema::Definition;
use crate::value::Row;

fn space(text: &str) -> Definition {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    Definition::parse_create(&words).unwrap()
}

/// Splits arguments at spaces. A `_` stands for a space within an argument.
fn search(space: &Definition, text: &str) -> Result<Search> {
    let words: Vec<String> = text.split(' ').map(|word| word.replace('_', " ")).collect();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Search::parse(&words, space)
}

fn assert_rejected(text: &str, expected: &str) {
    let space = space("i SCHEMA t TAG n NUMERIC x TEXT y TEXT g GEO");
    assert_eq!(
        search(&space, text).unwrap_err().to_string(),
        expected,
        "{text}"
    );
}

#[test]
fn arguments_of_stock_clients_are_accepted() {
    let space = space("i SCHEMA t TAG n NUMERIC x TEXT y TEXT g GEO");
    for text in [
        "* DIALECT 2 LIMIT 0 10 PARAMS 2 p 1",
        "* DIALECT 2 NOCONTENT",
        "* LIMIT 0 1000",
        "hello VERBATIM WITHPAYLOADS WITHSORTKEYS TIMEOUT 500",
        "* WITHCOUNT FORMAT STRING INKEYS 2 a b INFIELDS 1 x RETURN 0",
        "* sortby n desc limit 0 5 return 4 n x as name",
    ] {
        search(&space, text).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
    }
    let found = search(
        &space,
        "hello FILTER n (1 +inf GEOFILTER g 1 2 3 km INFIELDS 1 y",
    )
    .unwrap();
    let lines = explain(&found.predicate, &space);
    assert_eq!(
        lines,
        "INTERSECT {\n  @y:hello\n  NUMERIC {1.000000 < @n <= inf}\n  GEO g:{1.000000,2.000000 --> 3.000000 km}\n}\n"
    );
    let found = search(&space, "* SORTBY t ASC n DESC x LIMIT 0 0").unwrap();
    let order: Vec<_> = found.order.iter().map(|key| key.is_descending).collect();
    assert_eq!((order, found.keep()), (vec![false, true, false], 0));
}

#[test]
fn options_that_would_change_the_result_are_rejected() {
    let space = space("i SCHEMA x TEXT");
    for (options, advice) in [
        ("WITHSCORES", "SORTBY"),
        ("SCORER TFIDF", "SORTBY"),
        ("EXPLAINSCORE", "SORTBY"),
        ("PAYLOAD p", "SORTBY"),
        ("LANGUAGE english", "neither stemmed"),
        ("EXPANDER x", "neither stemmed"),
        ("SLOP 2", "in quotes"),
        ("INORDER", "in quotes"),
        ("NOSTOPWORDS", "STOPWORDS 0"),
    ] {
        let refusal = search(&space, &format!("hello {options}")).unwrap_err();
        let is_clear = refusal.message.contains("is not supported");
        assert!(is_clear && refusal.message.contains(advice), "{refusal}");
    }
    let ensured = |text: &str| self::space(text).ensure_effective(None);
    for text in [
        "i SCHEMA x TEXT WEIGHT 2",
        "i LANGUAGE german SCHEMA x TEXT",
        "i SCORE 0.5 SCHEMA x TEXT",
        "i SCORE_FIELD s SCHEMA x TEXT",
        "i PAYLOAD_FIELD p SCHEMA x TEXT",
    ] {
        let refusal = ensured(text).unwrap_err();
        assert!(refusal.message.contains("is not supported"), "{refusal}");
    }
    for text in [
        "i SCORE 1.0 SCHEMA x TEXT WEIGHT 1.0 NOSTEM",
        "i NOFREQS SCHEMA x TEXT",
    ] {
        assert_eq!(ensured(text), Ok(()), "{text}");
    }
}

#[test]
fn errors_name_the_rejected_argument() {
    assert_rejected(
        "* FOO",
        "Unknown argument `FOO` at position 1 for <main> (argument 1)",
    );
    assert_rejected(
        "* LIMIT 1",
        "LIMIT needs two numeric arguments (argument 3)",
    );
    assert_rejected(
        "* LIMIT 5 0",
        "The `offset` of the LIMIT must be 0 when `num` is 0 (argument 3)",
    );
    assert_rejected(
        "* LIMIT 0 1000001",
        "LIMIT exceeds maximum of 1000000: FT.AGGREGATE WITHCURSOR reads any number of rows (argument 3)",
    );
    assert_rejected(
        "* LIMIT 1000001 1",
        "OFFSET exceeds maximum of 1000000: FT.AGGREGATE WITHCURSOR reads any number of rows (argument 3)",
    );
    assert_rejected(
        "* SORTBY t SORTBY n",
        "Multiple SORTBY steps are not allowed: several keys are written SORTBY a ASC b DESC (argument 3)",
    );
    assert_rejected(
        "* SORTBY nosuch",
        "Property `nosuch` not loaded nor in schema: FT.INFO lists the attributes (argument 2)",
    );
    assert_rejected(
        "* FILTER t 1 2",
        "Unknown field `t` for FILTER: the attribute does not support this filter (argument 2)",
    );
    assert_rejected(
        "* FILTER n 1 x",
        "Bad lower or upper range of FILTER: \"x\" is not a number (argument 4)",
    );
    assert_rejected(
        "* HIGHLIGHT",
        "HIGHLIGHT is not supported: texts are returned as they are stored (argument 1)",
    );
    assert_rejected(
        "* PARAMS 1 a",
        "Parameters must be specified in PARAM VALUE pairs (argument 3)",
    );
    assert_rejected("* PARAMS 4 a 1 a 2", "Duplicate parameter `a` (argument 6)");
    assert_rejected(
        "* RETURN 2 n AS",
        "Expected an argument, but none provided: RETURN path AS name - must be accompanied with NAME is missing (argument 3)",
    );
    assert_rejected(
        "@n:[1 DIALECT 9",
        "DIALECT requires a non negative integer >=1 and <= 4, not 9 (argument 2)",
    );
    assert_rejected(
        "@n:[1",
        "Syntax error at offset 5 near the end: a value or a closing ] is expected here (column 6)",
    );
}

#[test]
fn content_is_complete_or_the_returned_fields() {
    let hashes = space("i SCHEMA f AS n NUMERIC");
    let hash = Object::Hash(Hash::from_iter([("f", "1"), ("other", "x")]));
    let shown = |space: &Definition, object: &Object, text: &str| {
        let pairs = content(&search(space, text).unwrap(), space, object);
        let pairs = pairs.iter().map(|(name, value)| {
            format!(
                "{}={}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value)
            )
        });
        pairs.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&hashes, &hash, "*"), "f=1 other=x");
    assert_eq!(
        shown(&hashes, &hash, "* RETURN 5 n other AS o none"),
        "n=1 o=x"
    );
    assert_eq!(shown(&hashes, &hash, "* NOCONTENT RETURN 1 n"), "");
    let jsons = space("i ON JSON SCHEMA $.a[*] AS a NUMERIC");
    let json = Object::Json(Document::parse(br#"{"a": [1, 2], "s": "x"}"#).unwrap());
    assert_eq!(shown(&jsons, &json, "*"), r#"$={"a":[1,2],"s":"x"}"#);
    assert_eq!(
        shown(&jsons, &json, "* SORTBY a"),
        r#"a=1 $={"a":[1,2],"s":"x"}"#
    );
    assert_eq!(
        shown(&jsons, &json, "* RETURN 5 a $.s AS name $.none"),
        "a=1 name=x"
    );
    assert_eq!(shown(&jsons, &json, "* RETURN 1 a DIALECT 3"), "a=[1,2]");
}

type Sample = (Option<i32>, Option<String>);

fn any_objects() -> impl Strategy<Value = Vec<Sample>> {
    proptest::collection::vec(
        (
            proptest::option::of(-2..3),
            proptest::option::of("[abAB]{0,2}"),
        ),
        0..30,
    )
}

proptest! {
    /// However the objects are divided into regions, the result equals sorting all matches.
    #[test]
    fn partial_results_merge_to_the_complete_result(objects in any_objects(), regions in 1_usize..5, offset in 0_u64..6, count in 0_u64..6, order in proptest::sample::select(vec!["", " SORTBY n", " SORTBY n DESC x ASC", " SORTBY x DESC", " SORTBY x ASC n DESC", " SORTBY __key DESC"])) {
        let space = space("i SCHEMA n NUMERIC x TEXT");
        let offset = if count == 0 { 0 } else { offset };
        let order = order.replace("__key", "\u{1}");
        let words: Vec<String> = format!("-@n==1{order} LIMIT {offset} {count}").split(' ').map(|word| word.replace('\u{1}', "__key")).collect();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let search = Search::parse(&words, &space).unwrap();
        let mut parts = vec![Partial::new(search.keep()); regions];
        let mut all = Vec::new();
        for (index, (n, x)) in objects.iter().enumerate() {
            let key = format!("k{index:02}").into_bytes();
            let mut hash = Hash::default();
            n.map(|n| hash.set(b"n", n.to_string()));
            x.as_ref().map(|x| hash.set(b"x", x.as_bytes()));
            let (row, _) = Row::of(&space, &Object::Hash(hash));
            if matches(&search.predicate, &row) {
                let rank = rank(&search.order, &space, &row, &key);
                if let Some(value) = first_sort_value(&rank, &search.order) {
                    prop_assert!(!print_sort_value(&value).is_empty());
                }
                parts[index % regions].offer(&rank, &key, |out| out.extend_from_slice(&key));
                all.push((n, x.as_ref().filter(|x| !x.is_empty()).map(|x| x.to_lowercase()), key));
            }
        }
        let total = all.len() as u64;
        all.sort_by(|a, b| {
            let mut result = std::cmp::Ordering::Equal;
            for key in &search.order {
                let turn = |order: std::cmp::Ordering| if key.is_descending { order.reverse() } else { order };
                let one = match key.by {
                    SortBy::Key => turn(a.2.cmp(&b.2)),
                    SortBy::Attribute(id) if id.0 == 0 => a.0.is_none().cmp(&b.0.is_none()).then(turn(a.0.cmp(b.0))),
                    SortBy::Attribute(_) => a.1.is_none().cmp(&b.1.is_none()).then(turn(a.1.cmp(&b.1))),
                };
                result = result.then(one);
            }
            result.then(a.2.cmp(&b.2))
        });
        let expected: Vec<_> = all.into_iter().skip(offset as usize).take(count as usize).map(|row| row.2).collect();
        let mut merged = Partial::new(search.keep());
        for part in parts {
            merged.merge(Partial::decode(&part.encode()).unwrap());
        }
        prop_assert_eq!(merged.total, total);
        let found: Vec<_> = merged.finish(search.offset).iter().map(|entry| entry.content.to_vec()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn arbitrary_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = Partial::decode(&bytes);
    }
}

#[test]
fn an_object_found_on_two_nodes_is_returned_once() {
    let part = |entries: &[(&str, &str)], total: u64| {
        let mut part = Partial::new(3);
        part.total = total - entries.len() as u64;
        for (rank, key) in entries {
            part.offer(rank.as_bytes(), key.as_bytes(), |_| ());
        }
        part
    };
    // The object was the last row of one region, and is the first row of the other.
    let parts = [
        part(&[("b", "k1"), ("d", "moved"), ("e", "k2")], 5),
        part(&[("a", "moved"), ("c", "k3")], 2),
    ];
    let all = Partial::merge_copies(3, parts);
    assert_eq!(all.total, 6);
    let keys: Vec<Vec<u8>> = all
        .finish(0)
        .iter()
        .map(|entry| entry.key.to_vec())
        .collect();
    assert_eq!(keys, [&b"k1"[..], b"k3", b"moved"]);
}
