//! The plans of searches, and the number of examined objects.

use std::sync::Arc;

use larder_space::index::{Profile, effort};
use larder_space::object::{Hash, Object};
use larder_space::search::Search;
use proptest::prelude::*;

use super::{Store, key_of};

/// A thousand rooms: one of 50 cities, one of five kinds, prices that increase with their number, and stars that
/// decrease.
fn rooms(space: &str, count: u16) -> Store {
    let mut store = Store::new(space);
    for number in 0..count {
        let fields = [
            ("city", format!("city{}", number % 50)),
            ("kind", format!("kind{}", number % 5)),
            ("price", number.to_string()),
            ("stars", (count - number).to_string()),
            ("name", format!("The house of number {number}")),
        ];
        let fields = fields.iter().map(|(name, value)| (*name, value.as_str()));
        store.put(&key_of(number), Object::Hash(Hash::from_iter(fields)));
    }
    store
}

const ROOMS: &str =
    "rooms SCHEMA city TAG INDEXMISSING kind TAG price NUMERIC stars NUMERIC name TEXT";

fn search(store: &Store, words: &str) -> Arc<Search> {
    // The query precedes a slash, the other arguments follow it.
    let (query, rest) = words.split_once(" / ").unwrap_or((words, ""));
    let mut words: Vec<&[u8]> = vec![query.as_bytes()];
    words.extend(
        rest.split(' ')
            .filter(|it| !it.is_empty())
            .map(str::as_bytes),
    );
    words.push(b"NOCONTENT");
    Arc::new(Search::parse(&words, &store.space).unwrap())
}

fn profile(store: &Store, search: Arc<Search>) -> Profile {
    let mut run = store.index.search(search, usize::MAX);
    while !run.step(&store.index, store, 0, effort(1000)) {}
    run.profile().clone()
}

/// Checks the plan and the number of examined objects of each search.
fn check(store: &Store, cases: &[(&str, &str)]) {
    let shown = cases.iter().map(|(words, _)| {
        let profile = profile(store, search(store, words));
        let looked_at = profile.candidates + profile.scanned;
        format!("{words} => {}; {looked_at} looked at", profile.plan)
    });
    let expected = cases.iter().map(|(words, how)| format!("{words} => {how}"));
    let (shown, expected): (Vec<_>, Vec<_>) = (shown.collect(), expected.collect());
    assert_eq!(
        shown.join("\n"),
        expected.join("\n"),
        "\n{}\n",
        shown.join("\n")
    );
}

#[test]
fn the_most_selective_predicate_is_looked_up_and_the_others_filter() {
    check(
        &rooms(ROOMS, 1000),
        &[
            (
                "@city:{city7}",
                "index city, a value; about 20 candidates; the total by index; 20 looked at",
            ),
            (
                "@city:{city7} @price:[0 500]",
                "index city, a value; about 20 candidates; filter city, price; 20 looked at",
            ),
            (
                "@price:[10 12] @kind:{kind1}",
                "index price, a range; about 3 candidates; filter price, kind; 3 looked at",
            ),
            // Examining these few takes less time than finding fewer.
            (
                "@price:[10 12] @city:{city7}",
                "index city, a value; about 20 candidates; filter price, city; 20 looked at",
            ),
            (
                "@price:[10 500] @price:[490 900]",
                "index price, a range; about 11 candidates; filter price; the total by index; 11 looked at",
            ),
            (
                "@city:{city7|city8*}",
                "index city, 2 values; about 40 candidates; the total by index; 40 looked at",
            ),
            (
                "@city:{city7} | @price:[5 6]",
                "index city, a value or index price, a range; about 22 candidates; filter city, price; 22 looked at",
            ),
            (
                "-@city:{city7} / LIMIT 0 0",
                "all objects; about 0 candidates; filter city; the total by index; 0 looked at",
            ),
            (
                "@price:[100 700] / LIMIT 0 0",
                "index price, a range; about 0 candidates; the total by index; 0 looked at",
            ),
            (
                "@price:[100 700] -@price:[200 300] / LIMIT 0 0",
                "index price, 2 ranges; about 0 candidates; filter price; the total by index; 0 looked at",
            ),
            (
                "ismissing(@city)",
                "index city, missing; about 0 candidates; the total by index; 0 looked at",
            ),
            (
                "number",
                "in order of key until 10 are found, else index name, a value; about 10 candidates; the total by index; 10 looked at",
            ),
            (
                "\"number 77\"",
                "index name, a value; about 1 candidates; filter name; 1 looked at",
            ),
            (
                "@city:{nowhere} @price:[0 500]",
                "index city, 0 values; about 0 candidates; filter city, price; the total by index; 0 looked at",
            ),
            (
                "* / INKEYS 2 a b",
                "2 given keys; about 2 candidates; 2 looked at",
            ),
        ],
    );
}

#[test]
fn wide_queries_walk_in_result_order() {
    check(
        &rooms(ROOMS, 1000),
        &[
            (
                "* / SORTBY price",
                "in order of price until 10 are found, else all objects; about 10 candidates; the total by index; 10 looked at",
            ),
            (
                "@kind:{kind1} / SORTBY price DESC LIMIT 0 3",
                "in order of price descending until 3 are found, else index kind, a value; about 15 candidates; the total by index; 14 looked at",
            ),
            (
                "@price:[100 700] / SORTBY price",
                "in order of price until 10 are found, else index price, a range; about 10 candidates; the total by index; 10 looked at",
            ),
            (
                "@kind:{kind1}",
                "in order of key until 10 are found, else index kind, a value; about 50 candidates; the total by index; 52 looked at",
            ),
            (
                "@kind:{kind1} @price:[100 700] / SORTBY price",
                "in order of price until 10 are found, else index kind, a value; about 58 candidates; filter kind, price; 1047 looked at",
            ),
            // There are no matches where the walk begins.
            (
                "@stars:[0 400] / SORTBY price",
                "in order of price until 10 are found, else index stars, a range; about 25 candidates; the total by index; 1408 looked at",
            ),
            (
                "@city:{city7} / SORTBY price",
                "index city, a value; about 20 candidates; the total by index; 20 looked at",
            ),
        ],
    );
}

#[test]
fn a_walk_skips_unreadable_objects() {
    let mut store = rooms(ROOMS, 1000);
    store.objects.remove(&key_of(3));
    for words in ["* / LIMIT 0 10", "* / SORTBY price LIMIT 0 10"] {
        let search = Search::parse(
            &words
                .split(' ')
                .filter(|it| *it != "/")
                .map(str::as_bytes)
                .collect::<Vec<_>>(),
            &store.space,
        );
        let mut run = store.index.search(Arc::new(search.unwrap()), usize::MAX);
        while !run.step(&store.index, &store, 0, effort(1000)) {}
        assert_eq!(
            run.finish().unwrap().finish(0).iter().count(),
            10,
            "{words}"
        );
    }
}

#[test]
fn a_composite_index_serves_its_first_attribute_alone() {
    let store = rooms(
        "rooms INDEX 1 city,price SCHEMA city TAG kind TAG price NUMERIC stars NUMERIC name TEXT",
        1000,
    );
    check(
        &store,
        &[(
            "@city:{city1}",
            "index (city, price), a range; about 20 candidates; filter city; 20 looked at",
        )],
    );
}

#[test]
fn a_composite_index_serves_several_conditions() {
    let store = rooms(
        "rooms INDEX 3 kind,price kind price SCHEMA city TAG kind TAG price NUMERIC stars NUMERIC name TEXT",
        1000,
    );
    check(
        &store,
        &[
            (
                "@kind:{kind1} @price:[100 450]",
                "index (kind, price), a range; about 70 candidates; filter kind, price; 70 looked at",
            ),
            (
                "@kind:{kind1|kind2} @price:[100 270]",
                "index (kind, price), ranges; about 68 candidates; filter kind, price; 68 looked at",
            ),
            (
                "@city:{city1}",
                "in order of key until 10 are found, else all objects; about 28 candidates; filter city; 1455 looked at",
            ),
        ],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The cost of a search: its candidates, a 64th of the objects scanned by their bytes, and one for each match to
    /// sort it.
    #[test]
    fn an_added_predicate_at_most_doubles_the_cost_of_the_best_single_predicate(
        ranges in proptest::collection::vec((0_usize..3, 0_u16..3000, 0_u16..3000), 1..5), order in proptest::sample::select(vec!["", "SORTBY price", "SORTBY stars DESC", "SORTBY kind"]),
    ) {
        thread_local!(static STORE: Store = rooms(ROOMS, 3000));
        STORE.with(|store| -> Result<(), TestCaseError> {
            let mut texts = Vec::new();
            for (attribute, low, width) in ranges {
                texts.push(match attribute {
                    0 => format!("@price:[{low} {}]", low + width),
                    1 => format!("@stars:[{low} {}]", low + width),
                    _ => format!("@kind:{{kind{}}}", low % 5),
                });
            }
            let cost_of_looking = |text: &String| {
                let all = search(store, &format!("{text} / LIMIT 0 0"));
                let count = {
                    let mut run = store.index.search(all, usize::MAX);
                    while !run.step(&store.index, store, 0, effort(1000)) {}
                    run.finish().unwrap().total
                };
                count.min(store.index.len() / 8) + count
            };
            let least = texts.iter().map(cost_of_looking).min().unwrap();
            let profile = profile(store, search(store, &format!("{} / {order}", texts.join(" "))));
            let cost = profile.candidates + profile.scanned / 64 + profile.found;
            prop_assert!(cost <= 2 * least + 64, "{} {} of {} {:?}", texts.join(" "), cost, least, profile);
            Ok(())
        })?;
    }
}
