use proptest::prelude::*;

use super::*;
use crate::base::ordered::Scalar;
use crate::object::{Document, Hash, Object};
use crate::schema::Definition;
use crate::value::Row;

const SPACE: &str = "i STOPWORDS 2 the of SCHEMA t TAG INDEXMISSING n NUMERIC INDEXMISSING x TEXT b TEXT at TIMESTAMP ok BOOLEAN g GEO c TAG CASESENSITIVE SEPARATOR ; e TAG INDEXEMPTY h TAG NOINDEX";

fn space(text: &str) -> Definition {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    Definition::parse_create(&words).unwrap()
}

fn params() -> Params {
    let pairs = [
        ("p", "5"),
        ("word", "Hello"),
        ("two", "hello world"),
        ("tag", "a b|c"),
        ("empty", ""),
        ("lon", "2.35"),
    ];
    Params(
        pairs
            .into_iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect(),
    )
}

fn check(query: &str, expected: &str) {
    let space = space(SPACE);
    let shown = match parse(query.as_bytes(), &space, &params()) {
        Err(refusal) => format!("! {refusal}"),
        Ok(predicate) => {
            let lines = explain(&predicate, &space);
            lines.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    };
    assert_eq!(shown, expected, "{query}");
}

#[test]
fn infinite_bounds_have_their_side_in_ranges_of_every_kind() {
    let order = |name: &str, column: usize| {
        format!(
            "! Invalid numeric range (min > max): the lesser bound of @{name} comes first (column {column})"
        )
    };
    for (name, value) in [
        ("at", "\"2023-01-01\""),
        ("t", "a"),
        ("x", "a"),
        ("ok", "true"),
        ("n", "5"),
    ] {
        let column = name.len() + 3;
        check(&format!("@{name}:[+inf {value}]"), &order(name, column));
        check(&format!("@{name}:[{value} -inf]"), &order(name, column));
        check(&format!("@{name}:[inf -inf]"), &order(name, column));
    }
    for query in ["@at:[inf inf]", "@t:[-inf (-inf]", "@x:[+inf inf]"] {
        check(query, "<empty>");
    }
}

#[test]
fn errors_point_at_missing_parts() {
    let missing = "near the end: a term or a clause is missing here";
    check(
        "hello -",
        &format!("! Syntax error at offset 7 {missing} (column 8)"),
    );
    check(
        "@x:",
        &format!("! Syntax error at offset 3 {missing} (column 4)"),
    );
    let name = "the name of a parameter is missing after $: write \\$ for the sign itself";
    check(
        "$",
        &format!("! Syntax error at offset 0 near $: {name} (column 1)"),
    );
    check(
        "@t:{$}",
        &format!("! Syntax error at offset 4 near $}}: {name} (column 5)"),
    );
}

#[test]
fn signs_bind_from_tight_to_loose() {
    check("a b | c", "UNION { INTERSECT { a b } c }");
    check("-a b", "INTERSECT { NOT{ a } b }");
    check(
        "-(a b)|~c",
        "UNION { NOT{ INTERSECT { a b } } OPTIONAL{ c } }",
    );
    check("@x:a b", "INTERSECT { @x:a b }");
    check("@x:(a b)", "INTERSECT { @x:a @x:b }");
    check("@x|b:(a | -c)", "UNION { @x|b:a NOT{ @x|b:c } }");
    check(
        "-@n:[0 10] @t:{v}",
        "INTERSECT { NOT{ NUMERIC {0.000000 <= @n <= 10.000000} } TAG:@t { v } }",
    );
    check(
        "(@n:[5 5])=>{$weight: 1; $inorder:false;} a",
        "INTERSECT { NUMERIC {5.000000 <= @n <= 5.000000} a }",
    );
    check("*", "<WILDCARD>");
    check("(*)", "<WILDCARD>");
    check("", "<empty>");
    check("  ", "<empty>");
    check("(the|of)", "<empty>");
    check("the cat", "cat");
    check("-the cat", "cat");
}

#[test]
fn terms_are_words_prefixes_and_parts() {
    check("Hello", "hello");
    check(
        "hel* *llo *ell*",
        "INTERSECT { PREFIX{hel*} SUFFIX{*llo} INFIX{*ell*} }",
    );
    check(
        "w'h?l*' @x:w'a'",
        "INTERSECT { WILDCARD{h?l*} @x:WILDCARD{a} }",
    );
    check(
        "\"Hello, the World\" 'x y'",
        "INTERSECT { EXACT { hello world } EXACT { x y } }",
    );
    check("\"hello\"", "hello");
    check(r"e\-mail \@home", "INTERSECT { e-mail @home }");
    check(
        "$word $word* *$p @x:$two",
        "INTERSECT { hello PREFIX{hello*} SUFFIX{*5} @x:EXACT { @x:hello @x:world } }",
    );
    check("ismissing(@t)", "ISMISSING{t}");
}

#[test]
fn punctuation_separates_words_as_it_does_in_texts() {
    check("hello, world", "INTERSECT { hello world }");
    check("C++", "c");
    check("c++ & rust", "INTERSECT { c rust }");
    check("don't", "INTERSECT { don t }");
    check("dogs' bone", "INTERSECT { dogs bone }");
    check("what? why!", "INTERSECT { what why }");
    check("100%", "100");
    check("100 % sure", "INTERSECT { 100 sure }");
    check("ann@x.org", "INTERSECT { ann x org }");
    check("5$ a/b;c", "INTERSECT { 5 a b c }");
    check("http://x.org", "INTERSECT { http x org }");
    check("a = b", "INTERSECT { a b }");
    check("...", "<empty>");
    check("(hello, | world.)", "UNION { hello world }");
    check("@x:(hello, world)", "INTERSECT { @x:hello @x:world }");
    check("\"heavy-duty\"", "EXACT { heavy duty }");
    // Characters with a meaning keep it.
    check("'x y' -z", "INTERSECT { EXACT { x y } NOT{ z } }");
    check("hel*, wor*", "INTERSECT { PREFIX{hel*} PREFIX{wor*} }");
    check(
        "a@n:[1 2]",
        "INTERSECT { a NUMERIC {1.000000 <= @n <= 2.000000} }",
    );
    // A final sigma in a prefix is folded, because longer words contain a regular one.
    check("ΟΔΟΣ*", "PREFIX{οδοσ*}");
}

#[test]
fn a_field_without_an_index_matches_nothing() {
    check("@h:{a}", "<empty>");
    check("@h<\"b\" a", "INTERSECT { <empty> a }");
}

#[test]
fn tags_are_escaped_quoted_or_plain() {
    check(
        "@t:{a | B c|\"x-y.z|\" | 'it\\'s'}",
        "TAG:@t { a b c x-y.z| it's }",
    );
    check(
        "@t:{ann@x.org | 10-20 | a/b}",
        "TAG:@t { ann@x.org 10-20 a/b }",
    );
    check(
        r"@t:{Albert\ Einstein | a\|b | x\}}",
        "TAG:@t { albert einstein a|b x} }",
    );
    check(
        "@t:{pre* | *suf | *in* | w'a?b*' | app\\*}",
        "TAG:@t { PREFIX{pre*} SUFFIX{*suf} INFIX{*in*} WILDCARD{a?b*} app* }",
    );
    check("@t:{$tag | $word*}", "TAG:@t { a b|c PREFIX{hello*} }");
    check("@c:{Aa}", "TAG:@c { Aa }");
    check("@e:{\"\"}", "TAG:@e { }");
    check(
        "@ok:{true | 0}",
        "UNION { BOOLEAN {true <= @ok <= true} BOOLEAN {false <= @ok <= false} }",
    );
}

#[test]
fn ranges_have_bounds_of_their_kind() {
    check("@n:[1,2]", "NUMERIC {1.000000 <= @n <= 2.000000}");
    check("@n:[(1 (2.5]", "NUMERIC {1.000000 < @n < 2.500000}");
    check(
        "@n:[-inf +inf] @n:[7]",
        "INTERSECT { NUMERIC {-inf <= @n <= inf} NUMERIC {7.000000 <= @n <= 7.000000} }",
    );
    check("@n:[-$p ($p]", "NUMERIC {-5.000000 <= @n < 5.000000}");
    check(
        "@n:[9007199254740993 9007199254740993]",
        "NUMERIC {9007199254740993.000000 <= @n <= 9007199254740993.000000}",
    );
    check(
        "@n==5 @n!=6 @n>=-1.5 @n<$p",
        "INTERSECT { NUMERIC {5.000000 <= @n <= 5.000000} NOT{ NUMERIC {6.000000 <= @n <= 6.000000} } NUMERIC {-1.500000 <= @n <= inf} NUMERIC {-inf <= @n < 5.000000} }",
    );
    check(
        "@t:[\"a b\" (\"c\"] @x >= \"M\"",
        "INTERSECT { RANGE {\"a b\" <= @t < \"c\"} RANGE {\"m\" <= @x <= inf} }",
    );
    check("@t:[a +inf]", "RANGE {\"a\" <= @t <= inf}");
    check(
        "@at:[2024-01-01 (2024-02-01T12:30:00+01:00]",
        "TIMESTAMP {2024-01-01T00:00:00Z <= @at < 2024-02-01T11:30:00Z}",
    );
    check(
        "@g:[$lon 48.85 10 KM]",
        "GEO g:{2.350000,48.850000 --> 10.000000 km}",
    );
}

#[test]
fn errors_point_at_invalid_parts() {
    check(
        "(a",
        "! Syntax error at offset 2 near the end: a closing ) is expected here (column 3)",
    );
    check(
        "a)",
        "! Syntax error at offset 1 near ): this closes nothing (column 2)",
    );
    check(
        "a |",
        "! Syntax error at offset 3 near the end: a term or a clause is missing here (column 4)",
    );
    check(
        "()",
        "! Syntax error at offset 1 near ): a term or a clause is missing here (column 2)",
    );
    check(
        "heavy-duty",
        "! Syntax error at offset 5 near -duty: a - inside a word is ambiguous: put the words in quotes, such as \"heavy-duty\", or a blank before the - for a negation (column 6)",
    );
    check(
        "t:{a}",
        "! Syntax error at offset 1 near :{a}: this character has no meaning here: put the text in quotes, or write \\ before the character if the texts contain it (column 2)",
    );
    check(
        "%hello%",
        "! Syntax error at offset 0 near %hello%: fuzzy terms are not supported: use a prefix such as hel*, or w'h?llo' (column 1)",
    );
    check(
        "*=>[KNN 10 @v $blob]",
        "! Syntax error at offset 3 near [KNN 10 @v $blob]: vectors are not supported: after => write attributes such as {$weight: 2} (column 4)",
    );
    check(
        "a=>{$boost: 2}",
        "! Invalid attribute boost: there are $weight, $slop, $inorder and $phonetic (column 6)",
    );
    check(
        "@nosuch:a",
        "! Unknown field at offset 1 near nosuch:a: FT.INFO lists the attributes of the space (column 2)",
    );
    check(
        "a=>{$weight: 2}",
        "! $weight: 2 is not supported: searches do not score; search for adjacent words in quotes (column 6)",
    );
    check(
        "a=>{$slop: 1}",
        "! $slop: 1 is not supported: searches do not score; search for adjacent words in quotes (column 6)",
    );
    check(
        "@t:a",
        "! Expected a TEXT field at offset 0 near @t:a: t is TAG: write @t:{..} (column 1)",
    );
    check(
        "@x:{a}",
        "! Expected a TAG field at offset 3 near {a}: x is TEXT (column 4)",
    );
    check(
        "@x:(@n:[0 10])",
        "! Syntax error at offset 4 near @n:[0 10]): the parentheses of a text contain only terms: put this clause outside (column 5)",
    );
    check(
        "@t:{a",
        "! Syntax error at offset 5 near the end: here | or a closing } is expected (column 6)",
    );
    check(
        "@t:{}",
        "! Syntax error at offset 4 near }: a tag is expected here; an empty one is written \"\" (column 5)",
    );
    check(
        "@t:{\"\"}",
        "! Use `INDEXEMPTY` in field creation in order to index and query for empty strings: t has none (column 5)",
    );
    check(
        "@t:{a*b}",
        "! Syntax error at offset 4 near a*b}: a * may only begin or end a tag: for patterns write w'a*b', for the sign itself \\* (column 5)",
    );
    check(
        "@n:[5 1]",
        "! Invalid numeric range (min > max): the lesser bound of @n comes first (column 4)",
    );
    check(
        "@n:[nan 1]",
        "! Syntax error at offset 4 near nan 1]: \"nan\" is not a number (column 5)",
    );
    check(
        "@n:[$empty 1]",
        "! Syntax error at offset 4 near $empty 1]: \"\" is not a number (column 5)",
    );
    check(
        "@n:[1 2",
        "! Syntax error at offset 7 near the end: a value or a closing ] is expected here (column 8)",
    );
    check(
        "@n:[]",
        "! Syntax error at offset 3 near []: a range is [value] or [from to], with ( before an excluded bound (column 4)",
    );
    check(
        "@n 5",
        "! Syntax error at offset 3 near 5: the name of a field is followed by : and a clause, or by one of == != > >= < <= (column 4)",
    );
    check(
        "@n:[0 $q]",
        "! Parameter not found `q`: give it with PARAMS 2 q value, or write \\$ for the sign itself (column 7)",
    );
    check(
        "@g:[1 91 5 km]",
        "! Syntax error at offset 3 near [1 91 5 km]: Invalid GeoFilter lon/lat: longitude lies within 180, latitude within 85.05 (column 4)",
    );
    check(
        "@g:[1 2 5 yd]",
        "! Syntax error at offset 3 near [1 2 5 yd]: Invalid GeoFilter unit: it is m, km, ft or mi (column 4)",
    );
    check(
        "ismissing(@x)",
        "! 'ismissing' requires defining the field with 'INDEXMISSING': x is not (column 1)",
    );
    check(
        "\"abc",
        "! Syntax error at offset 0 near \"abc: the quote that opens here is not closed (column 1)",
    );
    let space = space(SPACE);
    assert!(
        parse(b"a \xff", &space, &params())
            .unwrap_err()
            .message
            .contains("is not UTF-8")
    );
    let deep = parse("(".repeat(1000).as_bytes(), &space, &params()).unwrap_err();
    assert!(deep.message.contains("100 deep"), "{deep}");
    let deep = parse("-".repeat(1000).as_bytes(), &space, &params()).unwrap_err();
    assert!(deep.message.contains("100 deep"), "{deep}");
}

fn found(query: &str, fields: &[(&str, &str)]) -> bool {
    let space = space(SPACE);
    let (row, faults) = Row::of(
        &space,
        &Object::Hash(Hash::from_iter(fields.iter().copied())),
    );
    assert_eq!(faults.len(), usize::from(fields.contains(&("n", "bad"))));
    let predicate = parse(query.as_bytes(), &space, &params()).unwrap();
    let bytes = row.encode();
    let view = crate::value::RowView::new(&bytes).unwrap();
    let found = matches(&predicate, &row);
    assert_eq!(matches(&predicate, &view), found);
    found
}

#[test]
fn objects_are_found_by_their_values() {
    let hotel = [
        ("t", "pool, Sea View"),
        ("n", "120"),
        ("x", "The Grand Hotel of Rome"),
        ("at", "2024-02-29"),
        ("ok", "true"),
        ("g", "2.35,48.85"),
    ];
    for query in [
        "*",
        "grand hotel",
        "\"hotel rome\"",
        "@x:gra*",
        "*ote*",
        "@t:{sea view}",
        "@t:{spa | pool}",
        "@t:{sea*}",
        "@n:[100 (121]",
        "@n > 119",
        "@at:[2024-02-01 2024-03-01]",
        "@ok:{true}",
        "@g:[2.3 48.8 10 km]",
        "-@t:{spa}",
        "-@c:{x}",
        "~nothing",
        "(spa|@n==120)",
        "@t:[\"sea\" \"seb\"]",
        "@x:[\"the grand\" \"the h\"]",
        "grand -motel",
        "$word | hotel",
        "@t != \"spa\"",
        "w'h?tel'",
        "@ok == true",
    ] {
        assert!(found(query, &hotel), "{query}");
    }
    for query in [
        "",
        "grand motel",
        "\"grand rome\"",
        "@b:grand",
        "@x:rand*",
        "@t:{sea}",
        "@t:{pool} @t:{spa}",
        "@n:[(120 200]",
        "@n < 120",
        "@ok:{false}",
        "@g:[0 0 10 km]",
        "-grand",
        "@c:{x}",
        "ismissing(@t)",
        "@at > 2024-03-01",
    ] {
        assert!(!found(query, &hotel), "{query}");
    }
    // A field of the wrong type is missing. Other fields are found.
    let broken = [("t", "pool"), ("n", "bad")];
    assert!(
        found("@t:{pool} ismissing(@n)", &broken)
            && found("-@n:[0 10]", &broken)
            && !found("@n:[-inf inf]", &broken)
    );
}

#[test]
fn conditions_gate_writes() {
    let space = space(SPACE);
    let hotel = Object::Hash(Hash::from_iter([("n", "3")]));
    let predicate = |text: &str| parse(text.as_bytes(), &space, &params()).unwrap();
    let (yes, no) = (predicate("@n==3"), predicate("@n>3"));
    for (condition, there, absent) in [
        (Condition::Always, true, true),
        (Condition::Absent, false, true),
        (Condition::Present, true, false),
        (Condition::Holds(yes.clone()), true, false),
        (Condition::Holds(no.clone()), false, false),
        (Condition::HoldsOrAbsent(yes), true, true),
        (Condition::HoldsOrAbsent(no), false, true),
    ] {
        assert_eq!(
            condition.is_met(&space, Some(&hotel)),
            there,
            "{condition:?}"
        );
        assert_eq!(condition.is_met(&space, None), absent, "{condition:?}");
    }
}

#[test]
fn all_elements_of_arrays_are_found() {
    let space = space("i ON JSON SCHEMA $.p AS p NUMERIC");
    let object = Object::Json(Document::parse(br#"{"p":[1,9]}"#).unwrap());
    let (row, _) = Row::of(&space, &object);
    let predicate = parse(b"@p:[0 2] @p:[8 10]", &space, &params()).unwrap();
    assert!(matches(&predicate, &row));
    let domain = value_domain(&predicate, &space.attributes[0]);
    assert!(
        !domain.spans.is_empty(),
        "bounds of different elements are not intersected"
    );
}

#[test]
fn a_value_domain_has_values_and_ranges() {
    let space = space(SPACE);
    let check = |query: &str, name: &str, expected: &str| {
        let predicate = parse(query.as_bytes(), &space, &params()).unwrap();
        let domain = value_domain(&predicate, space.by_name(name).unwrap());
        let shown: Vec<_> = domain
            .spans
            .iter()
            .map(|span| format!("{:?}..{:?}", span.low, span.high))
            .collect();
        let shown = shown.join(" ") + if domain.missing { " missing" } else { "" };
        let shown = shown
            .replace("Number(Int(", "")
            .replace("Bytes(", "")
            .replace(")", "")
            .replace("Included(", "=")
            .replace("Excluded(", "")
            .replace("Unbounded", "");
        assert_eq!(shown, expected, "{query}");
    };
    check("@n:[1 5] @n:[3 9] a", "n", "=3..=5");
    check("@n:[1 5] | @n:[(5 9] | @n==20", "n", "=1..=9 =20..=20");
    check("@n:[1 5] | a", "n", ".. missing");
    check("-@n:[1 5]", "n", "..1 5.. missing");
    check("@n:[1 5] -@n==3", "n", "=1..3 3..=5");
    check("@n:[1 2] @n:[4 5]", "n", "");
    check("ismissing(@n)", "n", " missing");
    check("@t:{b | a}", "t", "=[97]..=[97] =[98]..=[98]");
    check("@t:{a*}", "t", "=[97]..[98]");
    check("-@t:{a}", "t", ".. missing");
}

fn any_query() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (-3_i32..4, -3_i32..4).prop_map(|(a, b)| format!("@n:[{} ({}]", a.min(b), a.max(b))),
        (-3..4).prop_map(|a| format!("@n=={a}")),
        (-3..4).prop_map(|a| format!("@n!={a}")),
        "@t:\\{[ab]{1,2}\\*?\\}".prop_map(|tag| tag),
        Just("ismissing(@n)".to_string()),
        Just("ismissing(@t)".to_string()),
        "[ab]{1,2}".prop_map(|word| word),
        Just("*".to_string()),
        "@t:\\[\"[ab]\" inf\\]".prop_map(|range| range),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4)
                .prop_map(|parts| format!("({})", parts.join(" "))),
            proptest::collection::vec(inner.clone(), 1..4)
                .prop_map(|parts| format!("({})", parts.join("|"))),
            inner.clone().prop_map(|part| format!("-{part}")),
            inner.prop_map(|part| format!("~{part}")),
        ]
    })
}

proptest! {
    #[test]
    fn unconstrained_attributes_allow_every_value(query in any_query()) {
        let space = space(SPACE);
        let predicate = parse(query.as_bytes(), &space, &Params::default()).unwrap();
        for attribute in &space.attributes {
            let is_free = is_unconstrained(&predicate, attribute.id);
            prop_assert!(!is_free || value_domain(&predicate, attribute).is_all(), "{}", attribute.name);
        }
    }

    /// A search restricted to the value domain finds every matching object.
    #[test]
    fn matching_objects_are_in_the_value_domain(query in any_query(), n in proptest::option::of(-4_i32..5), t in proptest::option::of("[ab]{0,2}(,[ab]{1,2})?"), x in "[ab]{0,2}") {
        let space = space(SPACE);
        let mut hash = Hash::default();
        n.map(|n| hash.set(b"n", n.to_string()));
        t.as_ref().map(|t| hash.set(b"t", t.as_bytes()));
        hash.set(b"x", x.as_bytes());
        let (row, _) = Row::of(&space, &Object::Hash(hash));
        let predicate = parse(query.as_bytes(), &space, &Params::default()).unwrap();
        if matches(&predicate, &row) {
            for name in ["n", "t", "x"] {
                let attribute = space.by_name(name).unwrap();
                let domain = value_domain(&predicate, attribute);
                let values: Vec<Scalar> = row.columns[attribute.id.index()].scalars().collect();
                let is_allowed = values.iter().any(|value| domain.contains(Some(value))) || (values.is_empty() && domain.contains(None));
                prop_assert!(is_allowed, "{name}: {domain:?}");
                let touching = domain.spans.windows(2).any(|two| two[0].high == two[1].low);
                prop_assert!(!touching || domain.spans.windows(2).all(|two| !matches!(two[0].high, std::ops::Bound::Included(_)) || two[0].high != two[1].low));
            }
        }
    }

    #[test]
    fn any_text_is_a_query_or_rejected(query in r#"[ab1 @tnx:{}\[\]()|*~$'"=>!-]{0,24}"#) {
        let space = space(SPACE);
        if let Ok(predicate) = parse(query.as_bytes(), &space, &params()) {
            let _ = explain(&predicate, &space);
            let _ = matches(&predicate, &Row::default());
        }
    }
}
