//! The work of a search or an aggregation without a pause is bounded, whatever a client requests. The tests compare a
//! counter of work, not the time.

use std::sync::Arc;

use larder_space::aggregate::{Aggregation, Limits};
use larder_space::index::{Objects, Profile, effort};
use larder_space::object::{Hash, Object};
use larder_space::query::CONDITIONS_MAX;
use larder_space::search::Search;

use super::{Store, key_of};

/// The number of objects that a step of the server examines.
const STEP: usize = 256;
/// The bound for planning, and for the minimum number of objects in a step of a query with the maximum number of
/// conditions.
const WORK_MAX: u64 = 100_000;

fn store(objects: u16) -> Store {
    let mut store = Store::new(
        "s INDEX 5 s n,s t x s,t SCHEMA n NUMERIC s NUMERIC SORTABLE t TAG SEPARATOR ; x TEXT y TEXT",
    );
    for number in 0..objects {
        let fields = [
            ("n", number.to_string()),
            ("s", (number % 10).to_string()),
            ("t", format!("t{number};t{}", number % 7)),
            ("x", format!("word{number} and word{}", number % 13)),
        ];
        let fields = fields.iter().map(|(name, value)| (*name, value.as_str()));
        store.put(&key_of(number), Object::Hash(Hash::from_iter(fields)));
    }
    store
}

fn searched(store: &Store, words: &[&str]) -> (u64, Profile) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let search = Arc::new(Search::parse(&words, &store.space).expect("a search"));
    let mut run = store.index.search(search, usize::MAX);
    while !run.step(&store.index, store, 0, effort(STEP)) {}
    let profile = run.profile().clone();
    (run.finish().expect("it is answered").total, profile)
}

fn aggregated(store: &Store, words: &[&str]) -> Profile {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let aggregation = Aggregation::parse(&words, &store.space).expect("an aggregation");
    let mut run = (store.index).aggregate(Arc::new(aggregation), Limits::default(), None);
    while !run.step(&store.index, store, 0, effort(STEP)) {}
    run.profile().clone()
}

fn conditions(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn many_conditions_on_one_attribute_are_planned_in_bounded_work() {
    let store = store(200);
    for count in [1, 400, CONDITIONS_MAX / 2] {
        let excluded = conditions(count, |at| format!("-@n:[{at} {at}]"));
        let expected = (0..200).filter(|n| n % 10 == 4 && *n >= count).count();
        let (total, profile) = searched(&store, &[&format!("@s:[4 4] {excluded}")]);
        assert_eq!(total, expected as u64, "{count}");
        assert!(profile.work_max <= WORK_MAX, "{count}: {profile:?}");
        // These are as many spans of one attribute, merged.
        let (total, profile) = searched(&store, &[&excluded]);
        assert_eq!(total, 200_usize.saturating_sub(count) as u64, "{count}");
        assert!(profile.work_max <= WORK_MAX, "{count}: {profile:?}");
    }
}

#[test]
fn each_step_of_the_largest_query_does_bounded_work() {
    let store = store(40);
    let most = CONDITIONS_MAX - 1;
    let joined = |sign: &str, one: &dyn Fn(usize) -> String| {
        let all: Vec<String> = (0..most).map(one).collect();
        all.join(sign)
    };
    let nested = (0..90).fold("@n:[0 1]".to_owned(), |inner, at| match at % 2 {
        0 => format!("({inner} @s:[0 9])"),
        _ => format!("({inner}|@t:{{t{at}}})"),
    });
    for query in [
        "*".to_owned(),
        joined(" ", &|at| format!("@n:[{at} +inf]")),
        joined(" ", &|at| format!("-@n:[{at} {at}]")),
        joined("|", &|at| format!("@n:[{at} {at}]")),
        joined("|", &|at| format!("-@n:[{at} {at}]")),
        format!("@t:{{{}}}", joined("|", &|at| format!("t{at}"))),
        format!("-@t:{{{}}}", joined("|", &|at| format!("t{at}*"))),
        format!("@x:({})", joined("|", &|at| format!("word{at}"))),
        format!("@x:(-({}))", joined(" ", &|at| format!("*rd{at}"))),
        nested,
    ] {
        for options in [&["LIMIT", "0", "1000000"][..], &["SORTBY", "n", "DESC"]] {
            let words = [&[&query[..]], options].concat();
            let (_, profile) = searched(&store, &words);
            let shown: String = query.chars().take(40).collect();
            assert!(
                profile.work_max <= WORK_MAX,
                "{shown} {options:?}: {} in one step",
                profile.work_max
            );
        }
    }
}

#[test]
fn each_step_of_the_largest_aggregation_does_bounded_work() {
    let store = store(300);
    let long = vec!["@n+@s"; 40].join("+@n*");
    let mut applied = vec!["*"];
    (0..60).for_each(|_| applied.extend(["APPLY", &long, "AS", "a"]));
    applied.extend(["GROUPBY", "1", "@a", "REDUCE", "TOLIST", "1", "@n"]);
    let mut reduced = vec![
        "*".to_owned(),
        "GROUPBY".to_owned(),
        "1".to_owned(),
        "@t".to_owned(),
    ];
    for at in 0..1000 {
        reduced.extend(["REDUCE", "SUM", "1", "@n", "AS"].map(str::to_owned));
        reduced.push(format!("r{at}"));
    }
    let reduced: Vec<&str> = reduced.iter().map(String::as_str).collect();
    for words in [
        &applied[..],
        &reduced,
        &["*", "SORTBY", "2", "@n", "DESC", "MAX", "1000000"],
        &["*", "LOAD", "*"],
    ] {
        let profile = aggregated(&store, words);
        assert!(
            profile.work_max <= WORK_MAX,
            "{:?}",
            &words[..4.min(words.len())]
        );
    }
}

#[test]
fn too_many_conditions_or_terms_are_rejected() {
    let store = store(0);
    let refused = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let search = Search::parse(&words, &store.space).err();
        let aggregation = Aggregation::parse(&words, &store.space).err();
        let refusal = search.filter(|it| !it.message.contains("Unknown argument"));
        refusal.or(aggregation).expect("an error").message
    };
    let many = CONDITIONS_MAX + 1;
    for query in [
        conditions(many, |at| format!("@n:[{at} {at}]")),
        format!("@t:{{{}}}", vec!["a"; many].join("|")),
        // Each word is searched in both text attributes.
        conditions(CONDITIONS_MAX / 2 + 1, |at| format!("w{at}")),
    ] {
        assert!(refused(&[&query]).contains("at most 16384 conditions"));
    }
    let long = "a".repeat(1 << 20);
    let query = conditions(3, |_| "@x:$long".to_owned());
    assert!(refused(&[&query, "PARAMS", "2", "long", &long]).contains("conditions"));
    let mut loaded = vec!["*".to_owned(), "LOAD".to_owned(), "1025".to_owned()];
    loaded.extend((0..1025).map(|at| format!("@f{at}")));
    let loaded: Vec<&str> = loaded.iter().map(String::as_str).collect();
    assert!(refused(&loaded).contains("at most 1024 columns"));
    let mut returned = vec!["*".to_owned(), "RETURN".to_owned(), "1025".to_owned()];
    returned.extend((0..1025).map(|at| format!("f{at}")));
    let returned: Vec<&str> = returned.iter().map(String::as_str).collect();
    assert!(refused(&returned).contains("RETURN takes at most 1024 fields"));
}

#[test]
fn a_word_counts_as_a_condition_in_a_space_without_texts() {
    let store = Store::new("s SCHEMA n NUMERIC");
    let query = vec!["w"; CONDITIONS_MAX + 1].join("|");
    let refusal = Search::parse(&[query.as_bytes()], &store.space).err();
    let message = refusal.expect("an error").message;
    assert!(message.contains("at most 16384 conditions"), "{message}");
}

#[test]
fn a_row_in_too_many_groups_is_rejected() {
    let mut store = Store::new("s SCHEMA a TAG b TAG");
    let list = (0..100)
        .map(|at| at.to_string())
        .collect::<Vec<_>>()
        .join(",");
    let fields = [("a", &list[..]), ("b", &list)];
    store.put(b"k", Object::Hash(Hash::from_iter(fields)));
    let words = [
        "*",
        "APPLY",
        "split(@a)",
        "AS",
        "x",
        "APPLY",
        "split(@b)",
        "AS",
        "y",
        "GROUPBY",
        "2",
        "@x",
        "@y",
    ];
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let aggregation = Aggregation::parse(&words, &store.space).expect("an aggregation");
    let mut run = (store.index).aggregate(Arc::new(aggregation), Limits::default(), None);
    while !run.step(&store.index, &store, 0, effort(STEP)) {}
    let refusal = run.finish().expect_err("an error");
    assert!(
        refusal.message.contains("more than 4096 groups"),
        "{refusal}"
    );
}

/// Objects of the same length, and a counter of the bytes read from them.
struct LongObjects {
    object: Vec<u8>,
    read: std::cell::Cell<usize>,
}

impl Objects for LongObjects {
    fn object(&self, _: u32, _: &[u8], read: &mut dyn FnMut(&[u8])) {
        self.read.set(self.read.get() + self.object.len());
        read(&self.object);
    }
}

#[test]
fn steps_over_long_objects_examine_fewer() {
    let store = store(1000);
    let long = "x".repeat(100_000);
    let hash = Hash::from_iter([("n", "1"), ("z", &long)]);
    let objects = LongObjects {
        object: Object::Hash(hash).encode(),
        read: std::cell::Cell::new(0),
    };
    let largest_but_first = |step: &mut dyn FnMut() -> bool| {
        let mut read = Vec::new();
        loop {
            objects.read.set(0);
            let is_done = step();
            read.push(objects.read.get());
            if is_done {
                break;
            }
        }
        assert!(read.iter().sum::<usize>() >= 1000 * 100_000);
        read[1..].iter().copied().max().expect("more than one step")
    };
    // The limit of a step, plus one batch that reaches it.
    const BYTES_MAX: usize = 8 << 20;
    let words = [
        "*", "LOAD", "1", "@z", "GROUPBY", "0", "REDUCE", "COUNT", "0",
    ]
    .map(str::as_bytes);
    let aggregation = Aggregation::parse(&words, &store.space).expect("an aggregation");
    let mut run = (store.index).aggregate(Arc::new(aggregation), Limits::default(), None);
    let largest = largest_but_first(&mut || run.step(&store.index, &objects, 0, effort(STEP)));
    assert!(largest <= BYTES_MAX, "{largest}");

    let words = ["*", "LIMIT", "0", "1000"].map(str::as_bytes);
    let search = Arc::new(Search::parse(&words, &store.space).expect("a search"));
    let mut run = store.index.search(search, usize::MAX);
    let largest = largest_but_first(&mut || run.step(&store.index, &objects, 0, effort(STEP)));
    assert!(largest <= BYTES_MAX, "{largest}");
}
