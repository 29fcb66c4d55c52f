use proptest::prelude::*;

use super::*;
use crate::error::Result;
use crate::object::{Document, Hash, Object};

pub(crate) fn definition(text: &str) -> Result<Definition> {
    let words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    Definition::parse_create(&words)
}

fn rendered(definition: &Definition) -> String {
    let words = definition.to_arguments();
    words
        .iter()
        .map(|word| String::from_utf8_lossy(word))
        .collect::<Vec<_>>()
        .join(" ")
}

fn check(text: &str, expected: &str) {
    let shown = match definition(text) {
        Ok(definition) => rendered(&definition),
        Err(refusal) => format!("! {refusal}"),
    };
    assert_eq!(shown, expected, "{text}");
}

#[test]
fn options_stand_in_any_order() {
    check("i SCHEMA t TEXT", "i ON HASH SCHEMA t TEXT");
    check(
        "i prefix 2 a: b: on hash score 1.0 stopwords 0 filter @a>1 schema t text weight 1.0 nostem sortable n NUMERIC SORTABLE g GEO NOINDEX",
        "i ON HASH PREFIX 2 a: b: FILTER @a>1 STOPWORDS 0 SCORE 1.0 SCHEMA t TEXT NOSTEM SORTABLE n NUMERIC SORTABLE UNF g GEO NOINDEX",
    );
    check(
        "i SCHEMA t TAG NOINDEX INDEXEMPTY SORTABLE UNF SEPARATOR ; CASESENSITIVE u TAG SEPARATOR ,",
        "i ON HASH SCHEMA t TAG SEPARATOR ; CASESENSITIVE INDEXEMPTY SORTABLE UNF NOINDEX u TAG",
    );
    check(
        "i ON JSON SCHEMA $.name AS name TAG SEPARATOR | $.name AS name_fts TEXT $.at AS at TIMESTAMP $..ok BOOLEAN INDEXMISSING",
        "i ON JSON SCHEMA $.name AS name TAG SEPARATOR | $.name AS name_fts TEXT $.at AS at TIMESTAMP $..ok BOOLEAN INDEXMISSING",
    );
    check(
        "h ON HASH SUBSPACES 2 city:4,price price:8 REPLICAS 2 REGIONS 1024 INDEX 2 city,price stars SCHEMA city TAG price NUMERIC stars NUMERIC",
        "h ON HASH SUBSPACES 2 city:4,price price:8 REPLICAS 2 REGIONS 1024 INDEX 2 city,price stars SCHEMA city TAG price NUMERIC stars NUMERIC",
    );
}

#[test]
fn a_tag_without_a_separator_is_the_complete_field() {
    let words = "i SCHEMA t TAG SEPARATOR _ u TAG".split(' ');
    let words: Vec<&[u8]> = words
        .map(|word| {
            if word == "_" {
                &b""[..]
            } else {
                word.as_bytes()
            }
        })
        .collect();
    let definition = Definition::parse_create(&words).expect("a valid definition");
    let single = |name: &str| {
        let mut all = definition.attributes.iter();
        all.find(|it| it.name == name)
            .map(Attribute::is_single_valued)
    };
    assert_eq!((single("t"), single("u")), (Some(true), Some(false)));
    let arguments = definition.to_arguments();
    let again: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let again = Definition::parse_create(&again).expect("it was one");
    assert_eq!(again.to_arguments(), arguments);
    assert!(again.attributes.iter().any(Attribute::is_single_valued));
}

#[test]
fn errors_name_the_rejected_argument() {
    check(
        "i",
        "! No schema found: write SCHEMA and the attributes, such as SCHEMA city TAG price NUMERIC (argument 1)",
    );
    check(
        "i SCHEMA",
        "! Fields arguments are missing: after SCHEMA write a name and a type, such as price NUMERIC (argument 2)",
    );
    check(
        "i FOO SCHEMA t TEXT",
        "! Unknown argument `FOO`: here an option of FT.CREATE or SCHEMA is expected (argument 1)",
    );
    check(
        "i ON SET SCHEMA t TEXT",
        "! Invalid rule type: \"SET\"; a space is ON HASH or ON JSON (argument 2)",
    );
    check(
        "i SCHEMA t TEXT t TAG",
        "! Duplicate field in schema - t: name it otherwise with AS (argument 4)",
    );
    check(
        "i SCHEMA v VECTOR FLAT 6",
        "! VECTOR is not supported: attributes are TAG, TEXT, NUMERIC, GEO, TIMESTAMP or BOOLEAN (argument 3)",
    );
    check(
        "i SCHEMA t TEXT PHONETIC dm:en",
        "! PHONETIC is not supported: texts are searched by exact words, prefixes and parts (argument 4)",
    );
    check(
        "i TEMPORARY 5 SCHEMA t TEXT",
        "! TEMPORARY is not supported: a space stays until FT.DROPINDEX removes it (argument 1)",
    );
    check(
        "i SCHEMA t TAG SEPARATOR ab",
        "! Tag separator must be a single character, or none ('') where each value is one tag: \"ab\" is neither (argument 5)",
    );
    check(
        "i PREFIX 3 a SCHEMA t TAG",
        "! Unknown argument `TAG`: here an option of FT.CREATE or SCHEMA is expected (argument 6)",
    );
    check(
        "i PREFIX 9 a SCHEMA t TAG",
        "! Bad arguments for PREFIX: 9 arguments should follow, and 4 do (argument 2)",
    );
    check(
        "i ON JSON SCHEMA $.a[?(@.b)] AS b TAG",
        "! Invalid JSONPath '$.a[?(@.b)]' in attribute: invalid JSON path \"$.a[?(@.b)]\": filters are not supported; search finds documents by their attributes (column 5) (argument 4)",
    );
    check(
        "i SUBSPACES 1 town SCHEMA city TAG",
        "! \"town\" is not an attribute of the schema (argument 3)",
    );
    check(
        "i SUBSPACES 1 city,city:2 SCHEMA city TAG",
        "! \"city:2\" occurs twice in one subspace (argument 3)",
    );
    check(
        "i SUBSPACES 2 city city SCHEMA city TAG",
        "! subspace \"city\" occurs twice (argument 4)",
    );
    check(
        "i REPLICAS 17 SCHEMA city TAG",
        "! Bad arguments for REPLICAS: \"17\" is not a number from 1 to 16 (argument 2)",
    );
    check(
        "i SUBSPACES 1 city:9 SCHEMA city TAG",
        "! \"9\" is not a number of bits from 1 to 8: write, for example, city:4 for sixteen parts (argument 3)",
    );
    check(
        "i SUBSPACES 1 a:5,b:5 SCHEMA a TAG b TAG",
        "! 10 bits make more than 256 regions: give fewer bits, or raise REGIONS (argument 3)",
    );
    check(
        "i SUBSPACES 1 at SCHEMA at GEO",
        "! \"at\" is GEO: a radius has neither one value nor a range, so that it cannot be cut or indexed in order (argument 3)",
    );
    check(
        "i INDEX 1 a SCHEMA a TAG NOINDEX",
        "! \"a\" is NOINDEX: searches cannot use it (argument 3)",
    );
    check(
        "i REGIONS 100 SCHEMA a TAG",
        "! Bad arguments for REGIONS: 100 is not a power of two (argument 2)",
    );
    check(
        "i FILTER @a> SCHEMA a TAG",
        "! Syntax error at offset 3 near \"\": a value is missing at the end (column 4)",
    );
}

fn altered(definition: &Definition, text: &str) -> Result<Definition> {
    let words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    definition
        .parse_alter(&words)
        .map(|(definition, _)| definition)
}

#[test]
fn attributes_keep_their_ids_when_others_are_added_and_dropped() {
    let before = definition("i SUBSPACES 1 b SCHEMA a TAG b NUMERIC c TEXT").unwrap();
    let after = altered(&before, "SCHEMA DROP a").unwrap();
    let after = altered(&after, "SKIPINITIALSCAN SCHEMA ADD a GEO d TAG").unwrap();
    assert_eq!(
        rendered(&after),
        "i ON HASH SUBSPACES 1 b SCHEMA b NUMERIC c TEXT a GEO d TAG"
    );
    let ids: Vec<u16> = after
        .attributes
        .iter()
        .map(|attribute| attribute.id.0)
        .collect();
    assert_eq!((ids, after.columns()), (vec![1, 2, 3, 4], 5));
    let again = Definition::decode(&after.encode()).unwrap();
    assert_eq!(
        (again.attributes, again.next_id, again.layout),
        (
            after.attributes.clone(),
            after.next_id,
            after.layout.clone()
        )
    );
    for (text, expected) in [
        ("ADD a TAG", "ALTER must be followed by SCHEMA"),
        ("SCHEMA PUT a TAG", "Unknown action passed to ALTER SCHEMA"),
        ("SCHEMA ADD", "No fields provided"),
        ("SCHEMA ADD b TAG", "Duplicate field in schema - b"),
        ("SCHEMA DROP x", "\"x\" is not an attribute of \"i\""),
        (
            "SCHEMA DROP b",
            "attribute \"b\" cannot be dropped: a subspace uses it",
        ),
    ] {
        let message = altered(&after, text).unwrap_err().message;
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    let one = definition("i SCHEMA a TAG").unwrap();
    assert!(
        altered(&one, "SCHEMA DROP a")
            .unwrap_err()
            .message
            .contains("FT.DROPINDEX")
    );
}

#[test]
fn indexes_of_a_space_can_be_changed() {
    let before = definition("i INDEX 2 a b,a SCHEMA a TAG b NUMERIC c TEXT d GEO").unwrap();
    let after = altered(&before, "INDEX 2 b c,a").unwrap();
    assert_eq!(
        rendered(&after),
        "i ON HASH INDEX 2 b c,a SCHEMA a TAG b NUMERIC c TEXT d GEO"
    );
    let none = altered(&after, "index 0").unwrap();
    assert_eq!(
        rendered(&none),
        "i ON HASH INDEX 0 SCHEMA a TAG b NUMERIC c TEXT d GEO"
    );
    let all = altered(&none, "INDEX DEFAULT").unwrap();
    assert_eq!(
        rendered(&all),
        "i ON HASH SCHEMA a TAG b NUMERIC c TEXT d GEO"
    );
    altered(&before, "SCHEMA DROP c").expect("no index is of it");
    for (text, expected) in [
        ("INDEX", "Expected an argument"),
        ("INDEX x", "Bad arguments for INDEX"),
        ("INDEX 2 a", "Bad arguments for INDEX: 2 arguments should"),
        ("INDEX 1 a b", "Unknown argument `b`: nothing may follow"),
        ("INDEX DEFAULT b", "Unknown argument `b`"),
        ("INDEX 1 e", "\"e\" is not an attribute of the schema"),
        ("INDEX 1 a,a", "\"a\" occurs twice in one index"),
        ("INDEX 1 d", "\"d\" is GEO"),
        ("INDEX 2 a b,a", "the space already has these indexes"),
        (
            "SCHEMA DROP b",
            "attribute \"b\" cannot be dropped: an INDEX uses it; FT.ALTER",
        ),
    ] {
        let message = altered(&before, text).unwrap_err().message;
        assert!(message.starts_with(expected), "{text}: {message}");
    }
}

#[test]
fn ambiguous_names_round_trip_or_are_rejected() {
    let before = definition("i SCHEMA a TAG SORTABLE AS SORTABLE TEXT").unwrap();
    assert_eq!(
        rendered(&before),
        "i ON HASH SCHEMA a TAG SORTABLE AS SORTABLE TEXT"
    );
    let after = altered(&before, "SCHEMA ADD weight NUMERIC").unwrap();
    assert_eq!(
        rendered(&after),
        "i ON HASH SCHEMA a TAG SORTABLE AS SORTABLE TEXT weight AS weight NUMERIC"
    );
    assert_eq!(
        Definition::decode(&after.encode()).unwrap().attributes,
        after.attributes
    );
    check(
        "i SCHEMA AS TAG",
        "! a field called AS cannot be an attribute: AS precedes the name of another (argument 2)",
    );
    check(
        "i SCHEMA a:3 TAG",
        "! \"a:3\" looks like a cut of SUBSPACES, name:bits: name it otherwise with AS (argument 2)",
    );
}

#[test]
fn a_space_covers_its_kind_prefixes_and_filter() {
    let space = definition(
        "i PREFIX 1 user: FILTER @age>=16&&startswith(@__key,'user:') SCHEMA age NUMERIC",
    )
    .unwrap();
    let user = |age: &str| Object::Hash(Hash::from_iter([("age", age)]));
    assert!(space.covers(b"user:1", &user("16")));
    assert!(!space.covers(b"user:1", &user("15")));
    assert!(!space.covers(b"item:1", &user("16")));
    assert!(
        !space.covers(b"user:1", &Object::Hash(Hash::default())),
        "a filter over a missing field does not hold"
    );
    let json = |text: &str| Object::Json(Document::parse(text.as_bytes()).unwrap());
    assert!(!space.covers(b"user:1", &json(r#"{"age":16}"#)));
    let space = definition("i ON JSON FILTER @$.a.b=='x'&&@n>1 SCHEMA $.n AS n NUMERIC").unwrap();
    assert!(space.covers(b"k", &json(r#"{"n":2,"a":{"b":"x"}}"#)));
    assert!(!space.covers(b"k", &json(r#"{"n":1,"a":{"b":"x"}}"#)));
}

fn any_definition() -> impl Strategy<Value = String> {
    let kind = proptest::sample::select(vec![
        "TAG",
        "TAG SEPARATOR ;",
        "TAG CASESENSITIVE INDEXEMPTY",
        "TEXT",
        "TEXT NOSTEM WEIGHT 2.5",
        "NUMERIC",
        "NUMERIC SORTABLE",
        "TIMESTAMP INDEXMISSING",
        "BOOLEAN UNF SORTABLE",
        "TAG WITHSUFFIXTRIE",
    ]);
    let head = proptest::sample::select(vec![
        "",
        "ON HASH",
        "PREFIX 2 a b",
        "STOPWORDS 1 the",
        "SKIPINITIALSCAN NOHL",
        "FILTER @a",
        "REGIONS 1024",
        "REPLICAS 3",
        "SUBSPACES 2 f0:3 f0",
        "INDEX 1 f0",
        "INDEX 0",
        "LANGUAGE german",
    ]);
    (
        proptest::collection::vec(head, 0..4),
        proptest::collection::vec(kind, 1..5),
    )
        .prop_map(|(heads, kinds)| {
            let fields = kinds
                .iter()
                .enumerate()
                .map(|(index, kind)| format!("x{index} AS f{index} {kind}"));
            format!(
                "i {} SCHEMA {}",
                heads.join(" "),
                fields.collect::<Vec<_>>().join(" ")
            )
        })
}

proptest! {
    #[test]
    fn a_definition_round_trips(text in any_definition()) {
        let made = definition(&text).unwrap();
        let again = definition(&rendered(&made)).unwrap();
        prop_assert_eq!(rendered(&again), rendered(&made));
        prop_assert_eq!(&again.attributes, &made.attributes);
        prop_assert_eq!(&again.layout, &made.layout);
        let bytes = made.encode();
        prop_assert_eq!(Definition::decode(&bytes).unwrap().encode(), bytes.clone());
        for cut in 0..bytes.len() {
            prop_assert!(Definition::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn any_arguments_are_a_definition_or_rejected(words in proptest::collection::vec(proptest::sample::select(vec![
        "i", "ON", "JSON", "PREFIX", "1", "2", "SCHEMA", "$.a", "a", "AS", "TAG", "TEXT", "SEPARATOR", "WEIGHT", "SUBSPACES", "a:1",
        "INDEX", "REGIONS", "STOPWORDS", "SORTABLE", "FILTER", "NUMERIC",
    ]), 0..16)) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let _ = Definition::parse_create(&words);
    }
}

#[test]
fn an_older_space_with_a_duplicate_subspace_is_accepted() {
    let words: Vec<&[u8]> = "i SUBSPACES 2 city city SCHEMA city TAG"
        .split(' ')
        .map(str::as_bytes)
        .collect();
    let known = Definition::parse_existing(&words).expect("it was declared");
    let again = Definition::decode(&known.encode()).expect("it is kept");
    assert_eq!(again.layout.subspaces.len(), 2);
}

#[test]
fn an_invalid_subspaces_argument_has_a_one_sentence_error() {
    let known = definition("i SCHEMA city TAG").expect("a valid definition");
    let refused = known.parse_subspaces(&[b"SUBSPACES", b"x"]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Bad arguments for SUBSPACES: \"x\" is neither the number of lists of attributes that follow, nor SWITCH, nor CANCEL (argument 1)"
    );
}
