//! The text format of workloads.

use larder_space::plan::{Configuration, ModificationKind, Workload};

const HOTELS: &str = r#"
objects = 256000
object_bytes = 180
gets = 5

[[attribute]]
name = "city"
distinct = 5120
hot = [{ objects = 0.02, queries = 0.1 }, { objects = 0.3 }]

[[attribute]]
name = "price"
ordered = true
distinct = 980

[[attribute]]
name = "stars"
distinct = 6

[[query]]
name = "affordable rooms of a city"
frequency = 9
equal = ["city"]
range = { price = 0.1 }
one_of = { stars = 2 }
selectivity = { city = 0.001 }
results = 10

[[modification]]
name = "prices change"
frequency = 1
changes = ["price"]

[[modification]]
frequency = 0.5
kind = "create"
"#;

#[test]
fn a_workload_round_trips() {
    let workload = Workload::from_toml(HOTELS).expect("a workload");
    assert_eq!(workload.attributes[0].hot[1].queries, 0.0);
    assert_eq!(workload.queries[0].one_of["stars"], 2.0);
    assert_eq!(workload.modifications[1].kind, ModificationKind::Create);
    let written = workload.to_toml();
    assert_eq!(Workload::from_toml(&written), Ok(workload));
}

/// Returns the error of the workload after replacing one text.
fn rejection_of(from: &str, to: &str) -> String {
    assert!(HOTELS.contains(from));
    let error = Workload::from_toml(&HOTELS.replacen(from, to, 1)).expect_err("an error");
    error.to_string()
}

#[test]
fn errors_point_at_the_key() {
    for (from, to, error) in [
        ("256000", "0", "workload: objects: must be at least 1"),
        (
            "equal = [\"city\"]",
            "equal = [\"town\"]",
            "workload: query[0].equal[0]: no attribute \"town\"; add it as an [[attribute]]",
        ),
        (
            "price = 0.1",
            "price = 1.5",
            "workload: query[0].range.price: 1.5 is not a share; from 0 to 1",
        ),
        (
            "price = 0.1",
            "city = 0.1",
            "workload: query[0].range.city: \"city\" is constrained twice",
        ),
        (
            "ordered = true",
            "",
            "workload: query[0].range.price: \"price\" is not ordered; write `ordered = true` at the attribute",
        ),
        (
            "stars = 2",
            "stars = 0.5",
            "workload: query[0].one_of.stars: 0.5 values; at least 1",
        ),
        (
            "city = 0.001",
            "city = nan",
            "workload: query[0].selectivity.city: NaN is not a share; from 0 to 1",
        ),
        (
            "frequency = 1\n",
            "frequency = -1\n",
            "workload: modification[0].frequency: -1 is not a frequency; 0 to 1e15",
        ),
        (
            "objects = 0.3 }",
            "objects = 0.99 }",
            "workload: attribute[0].hot: the shares of these values are more than 1 together",
        ),
        (
            "name = \"price\"",
            "name = \"city\"",
            "workload: attribute[1].name: \"city\" occurs twice",
        ),
        (
            "name = \"price\"",
            "name = \"price,city\"",
            "workload: attribute[1].name: \"price,city\" has a comma, which separates attributes in SUBSPACES and INDEX: declare it under another name with AS, or leave it out",
        ),
    ] {
        assert_eq!(rejection_of(from, to), error);
    }
}

#[test]
fn an_invalid_workload_is_rejected_with_its_line() {
    let error = rejection_of("results = 10", "result = 10");
    assert!(
        error.contains("line 27") && error.contains("unknown field `result`"),
        "{error}"
    );
    let error = rejection_of("frequency = 9", "frequency = often");
    assert!(error.contains("line 22"), "{error}");
}

#[test]
fn a_configuration_is_written_as_the_clauses_of_ft_create() {
    let workload = Workload::from_toml(HOTELS).expect("a workload");
    let parse = |lists: &[&str]| Configuration::parse(lists, &workload, 256);
    let configuration = parse(&["city,price:3", "stars"]).expect("a configuration");
    assert_eq!(
        configuration.text(&workload),
        "SUBSPACES 2 city:5,price:3 stars:3 INDEX 3 city price stars"
    );
    for (list, error) in [
        ("city,town", "subspace city,town: no attribute \"town\""),
        ("city,city", "subspace city,city: \"city\" occurs twice"),
        ("city:x", "subspace city:x: \"x\" is not a number of bits"),
        (
            "city:9",
            "subspace city:9: the attributes request 9 bits, but the regions allow 8: request fewer bits or more regions",
        ),
    ] {
        assert_eq!(parse(&[list]).expect_err("refused").to_string(), error);
    }
}
