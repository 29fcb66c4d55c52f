use proptest::prelude::*;

use super::*;
use crate::error::Result;
use crate::object::{Document, Hash, Object};
use crate::query::matches;
use crate::schema::Definition;
use crate::value::Row;

fn space(text: &str) -> Definition {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    Definition::parse_create(&words).unwrap()
}

/// Splits arguments at spaces. A `_` stands for a space within an argument.
fn parse(space: &Definition, text: &str) -> Result<Aggregation> {
    let words: Vec<String> = text
        .split(' ')
        .map(|word| word.replace('_', " ").replace('\u{1}', "_"))
        .collect();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Aggregation::parse(&words, space)
}

/// Aggregates objects that are divided into this many regions, and merges the partial results in turn.
fn run(
    space: &Definition,
    objects: &[(String, Object)],
    text: &str,
    regions: usize,
    limits: Limits,
) -> Result<(u64, Vec<ResultRow>)> {
    let aggregation = parse(space, text)?;
    let mut parts = vec![Partial::new(&aggregation, limits); regions];
    for (index, (key, object)) in objects.iter().enumerate() {
        if matches(&aggregation.predicate, &Row::of(space, object).0) {
            parts[index * 7 % regions].add(&aggregation, space, key.as_bytes(), object)?;
        }
    }
    let mut merged = Partial::new(&aggregation, limits);
    for part in parts {
        merged.merge(
            &aggregation,
            Partial::decode(&part.encode(), &aggregation, limits).unwrap(),
        )?;
    }
    finish(&aggregation, merged, limits, &|| Ok(()))
}

fn shown(result: Result<(u64, Vec<ResultRow>)>) -> String {
    match result {
        Err(refusal) => format!("! {refusal}"),
        Ok((total, rows)) => {
            let row = |row: ResultRow| {
                let pairs = row.into_iter().map(|(name, cell)| {
                    let value = if cell == crate::expression::Cell::Null {
                        b"nil".to_vec()
                    } else {
                        cell.print()
                    };
                    format!(
                        "{}={}",
                        String::from_utf8_lossy(&name),
                        String::from_utf8_lossy(&value)
                    )
                });
                pairs.collect::<Vec<_>>().join(",")
            };
            let rows: Vec<String> = rows.into_iter().map(row).collect();
            format!("{total}: {}", rows.join(" | "))
        }
    }
}

const HOTELS: [(&str, &str, &str, &str); 5] = [
    ("h1", "Rome", "120", "pool,spa"),
    ("h2", "Rome", "80.5", "pool"),
    ("h3", "Oslo", "200", ""),
    ("h4", "Oslo", "", "spa"),
    ("h5", "", "9007199254740993", "bar"),
];

fn hotels() -> Vec<(String, Object)> {
    let hotel = |(key, city, price, tags): (&str, &str, &str, &str)| {
        let mut hash = Hash::default();
        for (name, value) in [
            ("city", city),
            ("price", price),
            ("tags", tags),
            ("extra", "x"),
        ] {
            if !value.is_empty() {
                hash.set(name.as_bytes(), value);
            }
        }
        (key.to_string(), Object::Hash(hash))
    };
    HOTELS.into_iter().map(hotel).collect()
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let space = space("i SCHEMA city TAG price NUMERIC tags TAG at TIMESTAMP");
    for regions in [1, 3] {
        assert_eq!(
            shown(run(&space, &hotels(), text, regions, Limits::default())),
            expected,
            "{text}"
        );
    }
}

#[test]
fn stages_run_in_their_order() {
    check("*", "5:  |  |  |  | ");
    check(
        "@city:{rome} LOAD 2 @city @price",
        "2: city=Rome,price=120 | city=Rome,price=80.5",
    );
    check(
        "@city:{rome} LOAD 3 @city AS town APPLY upper(@town)",
        "2: town=Rome,upper(@town)=ROME | town=Rome,upper(@town)=ROME",
    );
    check(
        "@price>100 APPLY @price*2 AS twice LIMIT 0 1",
        "3: price=120,twice=240",
    );
    check(
        "* LOAD 1 @\u{1}\u{1}key FILTER exists(@price)&&@price<100",
        "1: __key=h2,price=80.5",
    );
    check(
        "@city:{oslo} LOAD *",
        "2: city=Oslo,price=200,extra=x | city=Oslo,tags=spa,extra=x",
    );
    check(
        "* SORTBY 2 @price DESC MAX 2 LOAD 1 @city",
        "5: price=9007199254740993 | price=200,city=Oslo",
    );
    check(
        "* SORTBY 4 @city ASC @price DESC LIMIT 1 3",
        "5: city=Oslo | city=Rome,price=120 | city=Rome,price=80.5",
    );
    check("* SORTBY 3 @price MAX 1", "5: price=80.5");
    check("* SORTBY 0 LIMIT 0 0", "5: ");
}

#[test]
fn groups_are_reduced() {
    check(
        "* GROUPBY 1 @city REDUCE COUNT 0 AS n REDUCE SUM 1 @price SORTBY 2 @n DESC",
        "3: city=Oslo,n=2,__generated_aliassumprice=200 | city=Rome,n=2,__generated_aliassumprice=200.5 | city=nil,n=1,__generated_aliassumprice=9007199254740993",
    );
    check(
        "@city:{rome} GROUPBY 0 REDUCE AVG 1 @price AS a REDUCE MIN 1 @price AS b REDUCE MAX 1 @price AS c REDUCE STDDEV 1 @price AS d",
        "1: a=100.25,b=80.5,c=120,d=27.9307178569",
    );
    check(
        "* GROUPBY 0 REDUCE QUANTILE 2 @price 0.5 AS m REDUCE COUNT\u{1}DISTINCT 1 @city AS c REDUCE TOLIST 1 @city AS l",
        "1: m=120,c=2,l=Oslo Rome",
    );
    check(
        "* GROUPBY 0 REDUCE FIRST\u{1}VALUE 1 @city AS f REDUCE FIRST\u{1}VALUE 4 @city BY @price DESC AS g REDUCE FIRST\u{1}VALUE 3 @city BY @price AS h",
        "1: f=Rome,g=Oslo,h=Rome",
    );
    check("@city:{none} GROUPBY 0 REDUCE COUNT 0", "0: ");
    check(
        "@city:{oslo} GROUPBY 1 @city REDUCE SUM 1 @tags AS s REDUCE MIN 1 @tags AS a REDUCE MAX 1 @tags AS b REDUCE AVG 1 @tags AS c REDUCE STDDEV 1 @tags AS d REDUCE QUANTILE 2 @tags 0.5 AS q",
        "1: city=Oslo,s=nan,a=inf,b=-inf,c=nan,d=0,q=nan",
    );
    check(
        "* APPLY split(@city,'') AS c",
        "5: city=Rome,c=Rome | city=Rome,c=Rome | city=Oslo,c=Oslo | city=Oslo,c=Oslo | c=nil",
    );
    check(
        "@tags:{*o*|*a*} APPLY split(@tags) AS t GROUPBY 1 @t REDUCE COUNT 0 AS n SORTBY 4 @n DESC @t ASC",
        "3: t=pool,n=2 | t=spa,n=2 | t=bar,n=1",
    );
    check(
        "* GROUPBY 1 @city REDUCE COUNT 0 AS n GROUPBY 1 @n REDUCE COUNT 0 AS groups APPLY @n*10 AS t FILTER @groups>1",
        "1: n=2,groups=2,t=20",
    );
    check(
        "* GROUPBY 1 @city REDUCE RANDOM\u{1}SAMPLE 2 @price 5 AS s FILTER @city=='Oslo'",
        "1: city=Oslo,s=200",
    );
    check(
        "@city:{oslo} GROUPBY 1 @city REDUCE RANDOM\u{1}SAMPLE 2 @price 5 AS s",
        "1: city=Oslo,s=200",
    );
}

#[test]
fn a_value_of_the_wrong_type_is_null() {
    let space = space("i SCHEMA n NUMERIC INDEXMISSING t TAG at TIMESTAMP ok BOOLEAN");
    let hash = |fields: &[(&str, &str)]| Object::Hash(Hash::from_iter(fields.iter().copied()));
    let objects = [
        (
            "a".to_owned(),
            hash(&[
                ("n", "abc"),
                ("t", "x"),
                ("at", "some day"),
                ("ok", "perhaps"),
            ]),
        ),
        (
            "b".to_owned(),
            hash(&[("n", "5"), ("t", "x"), ("at", "0"), ("ok", "1")]),
        ),
    ];
    let check = |text: &str, expected: &str| {
        for regions in [1, 3] {
            let shown = shown(run(&space, &objects, text, regions, Limits::default()));
            assert_eq!(shown, expected, "{text}");
        }
    };
    check("* FILTER @n>3 LOAD 1 @\u{1}\u{1}key", "1: n=5,__key=b");
    check("* APPLY @n*2 AS d", "2: d=nil | n=5,d=10");
    check(
        "* APPLY exists(@n) AS e APPLY exists(@at)+exists(@ok) AS f LOAD 1 @t",
        "2: e=0,f=0,t=x | n=5,e=1,at=0,ok=1,f=2,t=x",
    );
    check("ismissing(@n) APPLY exists(@n) AS e", "1: e=0");
    check(
        "* SORTBY 2 @n ASC LOAD 1 @\u{1}\u{1}key",
        "2: n=5,__key=b | __key=a",
    );
    check(
        "* GROUPBY 1 @t REDUCE COUNT\u{1}DISTINCT 1 @n AS d REDUCE SUM 1 @n AS s REDUCE TOLIST 1 @n AS l",
        "1: t=x,d=1,s=5,l=5",
    );
    check(
        "* GROUPBY 1 @n REDUCE COUNT 0 AS c",
        "2: n=nil,c=1 | n=5,c=1",
    );
}

#[test]
fn reducers_accept_properties_without_at_sign_and_sorting_loads_paths() {
    let space = space("i SCHEMA n NUMERIC t TAG");
    let objects = [(
        "k".to_owned(),
        Object::Hash(Hash::from_iter([("n", "5"), ("t", "x")])),
    )];
    let grouped = "* GROUPBY 1 @t REDUCE MAX 1 n AS m REDUCE FIRST\u{1}VALUE 3 n BY n AS f";
    let shown = shown(run(&space, &objects, grouped, 1, Limits::default()));
    assert_eq!(shown, "1: t=x,m=5,f=5");
    assert!(parse(&space, "* GROUPBY 1 t").is_err());
    let documents = self::space("i ON JSON SCHEMA $.t AS t TAG");
    let sorted = parse(&documents, "* SORTBY 2 @$.prod:price DESC");
    assert!(sorted.is_ok(), "{sorted:?}");
}

#[test]
fn arguments_of_stock_clients_are_accepted() {
    let space = space("i SCHEMA city TAG price NUMERIC");
    let taken = parse(&space, "* SCORER TFIDF DIALECT 2 WITHCURSOR COUNT 5 MAXIDLE 10000.0 GROUPBY 1 @city REDUCE COUNT 0 TIMEOUT 5 PARAMS 2 a b").unwrap();
    assert_eq!(
        taken.cursor,
        Some(Cursor {
            count: 5,
            idle_ms_max: Some(10_000)
        })
    );
    let taken = parse(&space, "* SORTBY 2 @price DESC LIMIT 0 5 WITHCURSOR").unwrap();
    assert_eq!(
        taken.cursor,
        Some(Cursor {
            count: 1000,
            idle_ms_max: None
        })
    );
    assert!(!taken.is_streamed());
    let streamed = parse(&space, "* APPLY 1 AS a FILTER @a WITHCURSOR").unwrap();
    assert!(streamed.is_streamed());
}

#[test]
fn errors_name_the_rejected_argument() {
    check(
        "* FOO",
        "! Unknown argument `FOO` at position 1 for <main> (argument 1)",
    );
    check(
        "* GROUPBY 1 city",
        "! Bad arguments: `city` is not a property: write @city (argument 3)",
    );
    check(
        "* GROUPBY 1 @nosuch",
        "! Property `nosuch` not loaded nor in schema: LOAD it, or make it with APPLY or REDUCE .. AS (argument 3)",
    );
    check(
        "* GROUPBY 1 @city REDUCE FOO 0",
        "! No such reducer: FOO (argument 6)",
    );
    check(
        "* GROUPBY 1 @city REDUCE HLL 1 @price",
        "! HLL is not supported: COUNT_DISTINCT counts exactly, TOLIST lists the distinct values (argument 7)",
    );
    check(
        "* GROUPBY 1 @city REDUCE SUM 0",
        "! Bad arguments for SUM: it takes 1 to 1, here are 0 (argument 6)",
    );
    check(
        "* GROUPBY 1 @city REDUCE QUANTILE 2 @price 2",
        "! Percentage must be between 0.0 and 1.0 (argument 8)",
    );
    check(
        "* GROUPBY 1 @city REDUCE COUNT 0 REDUCE COUNT 0",
        "! Property `__generated_aliascount` specified more than once: name it otherwise with AS (argument 9)",
    );
    check(
        "* GROUPBY 1 @city SORTBY 1 @price",
        "! Property `price` not loaded nor in schema: LOAD it, or make it with APPLY or REDUCE .. AS (argument 6)",
    );
    check(
        "* GROUPBY 1 @city APPLY @price+1 AS x",
        "! Property `price` not loaded nor in schema: after GROUPBY there are its keys and its reducers (argument 5)",
    );
    check(
        "* GROUPBY 1 @city LOAD 1 @price",
        "! LOAD cannot be applied after projectors or reducers (argument 4)",
    );
    check(
        "* APPLY 1+ AS x",
        "! Syntax error at offset 2 near \"\": a value is missing at the end (column 3)",
    );
    check(
        "* LIMIT 3 0",
        "! The `offset` of the LIMIT must be 0 when `num` is 0 (argument 3)",
    );
}

#[test]
fn groups_are_bounded_in_number_and_memory() {
    let space = space("i SCHEMA n NUMERIC");
    let objects: Vec<_> = (0..100)
        .map(|n| {
            (
                format!("k{n}"),
                Object::Hash(Hash::from_iter([("n", n.to_string())])),
            )
        })
        .collect();
    let few = Limits {
        groups_max: 99,
        ..Limits::default()
    };
    let text = "* GROUPBY 1 @n REDUCE COUNT 0";
    assert!(
        run(&space, &objects, text, 2, few)
            .unwrap_err()
            .message
            .starts_with("GROUPBY makes more than 99 groups")
    );
    let small = Limits {
        bytes_max: 2000,
        ..Limits::default()
    };
    let text = "* GROUPBY 0 REDUCE TOLIST 1 @n";
    assert!(
        run(&space, &objects, text, 2, small)
            .unwrap_err()
            .message
            .starts_with("groups take more than 2000 bytes")
    );
    assert!(run(&space, &objects, text, 2, Limits::default()).is_ok());
    // The limit applies to the current size of the rows, not to their number so far.
    let few = Limits {
        groups_max: 9,
        bytes_max: 2000,
        ..Limits::default()
    };
    assert!(
        run(&space, &objects, "* LOAD 1 @n", 2, few)
            .unwrap_err()
            .message
            .starts_with("rows take more than 2000 bytes")
    );
    assert_eq!(
        shown(run(&space, &objects, "* SORTBY 2 @n DESC MAX 2", 2, few)),
        "100: n=99 | n=98"
    );
    let page = Limits {
        rows_max: 3,
        ..Limits::default()
    };
    assert_eq!(
        shown(run(&space, &objects, "* LOAD 1 @n", 4, page)),
        "100: n=0 | n=1 | n=10"
    );
}

#[test]
fn documents_are_aggregated_by_path() {
    let space = space("i ON JSON SCHEMA $.n AS n NUMERIC $.tags[*] AS tag TAG");
    let document = |text: &str| Object::Json(Document::parse(text.as_bytes()).unwrap());
    let objects = [
        (
            "a".to_string(),
            document(r#"{"n":1,"tags":["x","y"],"at":{"z":5}}"#),
        ),
        ("b".to_string(), document(r#"{"n":2,"tags":["x"]}"#)),
    ];
    let run = |text: &str| shown(run(&space, &objects, text, 2, Limits::default()));
    assert_eq!(
        run("* GROUPBY 1 @tag REDUCE SUM 1 @n AS s"),
        "2: tag=x,s=3 | tag=y,s=1"
    );
    assert_eq!(run("* LOAD 4 $.at.z AS z @n"), "2: z=5,n=1 | n=2");
    assert_eq!(run("@n==2 LOAD *"), r#"1: $={"n":2,"tags":["x"]}"#);
}

type Sample = (Option<i32>, Option<u8>);

fn objects_of(samples: &[Sample]) -> Vec<(String, Object)> {
    let object = |(index, (n, t)): (usize, &Sample)| {
        let mut hash = Hash::default();
        n.map(|n| hash.set(b"n", n.to_string()));
        t.map(|t| hash.set(b"t", format!("t{t}")));
        (format!("k{index:03}"), Object::Hash(hash))
    };
    samples.iter().enumerate().map(object).collect()
}

proptest! {
    /// However the objects are divided into regions, the result is the same.
    #[test]
    fn results_do_not_depend_on_regions(samples in proptest::collection::vec((proptest::option::of(-3..4), proptest::option::of(0..3_u8)), 0..40), regions in 2_usize..6, text in proptest::sample::select(vec![
        "* LOAD 1 @n",
        "* LIMIT 2 3",
        "* SORTBY 2 @n DESC LIMIT 1 4",
        "* SORTBY 3 @t @n DESC",
        "* GROUPBY 1 @t REDUCE COUNT 0 AS c REDUCE SUM 1 @n AS s REDUCE MIN 1 @n AS a REDUCE MAX 1 @n AS b REDUCE QUANTILE 2 @n 0.3 AS q",
        "* GROUPBY 2 @t @n REDUCE FIRST\u{1}VALUE 4 @n BY @n DESC AS f REDUCE TOLIST 1 @t AS l SORTBY 2 @f DESC MAX 3",
        "* GROUPBY 1 @t REDUCE RANDOM\u{1}SAMPLE 2 @n 2 AS s REDUCE COUNT\u{1}DISTINCT 1 @n AS d REDUCE AVG 1 @n AS g",
        "-@n==1 APPLY case(exists(@n),@n*@n,0) AS m FILTER @m<9 GROUPBY 1 @m REDUCE COUNT 0 AS c",
    ])) {
        let space = space("i SCHEMA n NUMERIC t TAG");
        let objects = objects_of(&samples);
        let one = shown(run(&space, &objects, text, 1, Limits::default()));
        prop_assert!(!one.starts_with('!'), "{}", one);
        prop_assert_eq!(shown(run(&space, &objects, text, regions, Limits::default())), one);
    }

    /// Compares the reducers with straightforward computations.
    #[test]
    fn reducers_agree_with_direct_computations(samples in proptest::collection::vec((proptest::option::of(-3..4), Just(Some(0_u8))), 1..40), regions in 1_usize..4) {
        let space = space("i SCHEMA n NUMERIC t TAG");
        let text = "* GROUPBY 1 @t REDUCE COUNT 0 AS c REDUCE SUM 1 @n AS s REDUCE COUNT\u{1}DISTINCT 1 @n AS d REDUCE STDDEV 1 @n AS v REDUCE QUANTILE 2 @n 0.5 AS q";
        let found = shown(run(&space, &objects_of(&samples), text, regions, Limits::default()));
        let mut numbers: Vec<i32> = samples.iter().filter_map(|sample| sample.0).collect();
        numbers.sort_unstable();
        let count = numbers.len() as f64;
        let mean = f64::from(numbers.iter().sum::<i32>()) / count;
        let squares: f64 = numbers.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum();
        let deviation = if numbers.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() };
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        let (sum, median) = if numbers.is_empty() {
            ("nan".to_string(), "nan".to_string())
        } else {
            (numbers.iter().sum::<i32>().to_string(), numbers[numbers.len().div_ceil(2) - 1].to_string())
        };
        let begin = format!("1: t=t0,c={},s={sum},d={},v=", samples.len(), distinct.len());
        prop_assert!(found.starts_with(&begin) && found.ends_with(&format!(",q={median}")), "{} {} {}", found, begin, median);
        let shown: f64 = found[begin.len()..].split(',').next().unwrap().parse().unwrap();
        prop_assert!((shown - deviation).abs() < 1e-9, "{} {}", shown, deviation);
    }

    #[test]
    fn arbitrary_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0_u8..2) {
        let space = space("i SCHEMA n NUMERIC t TAG");
        for text in ["* GROUPBY 1 @t REDUCE SUM 1 @n AS s REDUCE TOLIST 1 @n AS l REDUCE FIRST\u{1}VALUE 1 @n AS f", "* SORTBY 2 @n DESC"] {
            let aggregation = parse(&space, text).unwrap();
            let bytes = [&[kind][..], &bytes].concat();
            if let Ok(partial) = Partial::decode(&bytes, &aggregation, Limits::default()) {
                let _ = finish(&aggregation, partial, Limits::default(), &|| Ok(()));
            }
        }
    }
}
