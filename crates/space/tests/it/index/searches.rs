//! Searches: their results for unchanged objects, and for objects that change between steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_space::index::effort;
use larder_space::search::content::{content, decode_content};
use larder_space::search::partial::{first_sort_value, rank};
use larder_space::search::{OrderedRows, Partial, Search};
use larder_space::value::Row;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Change, SPACES, Store, any_change, any_object, any_query, key_of};

const ORDERS: [&str; 13] = [
    "",
    "n",
    "n DESC",
    "m ASC n DESC",
    "m",
    "t DESC",
    "c",
    "y",
    "x DESC",
    "g",
    "at DESC m",
    "b ASC u",
    "__key DESC",
];

fn search(
    store: &Store,
    query: &str,
    order: &str,
    limit: (u64, u64),
    rest: &[&str],
) -> Arc<Search> {
    let (offset, count) = (limit.0.to_string(), limit.1.to_string());
    let mut words = vec![query, "LIMIT", &offset, &count];
    if !order.is_empty() {
        words.push("SORTBY");
        words.extend(order.split(' '));
    }
    words.extend(rest);
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Arc::new(
        Search::parse(&words, &store.space).unwrap_or_else(|refusal| panic!("{query}: {refusal}")),
    )
}

/// Returns the result of examining every object.
fn expected(store: &Store, search: &Search) -> Partial {
    let mut partial = Partial::new(search.keep());
    for (key, object) in &store.objects {
        let asked = search
            .options
            .keys
            .as_ref()
            .is_none_or(|keys| keys.contains(key));
        if asked && store.holds(&search.predicate, key) {
            let (row, _) = Row::of(&store.space, object);
            let rank = rank(&search.order, &store.space, &row, key);
            partial.offer(&rank, key, |_| ());
        }
    }
    partial
}

/// Runs all steps, each with at most this many candidates.
fn run(store: &Store, search: &Arc<Search>, candidates_max: usize) -> Partial {
    let mut run = store.index.search(search.clone(), usize::MAX);
    while !run.step(&store.index, store, 0, candidates_max) {}
    run.finish().unwrap()
}

fn shown(rows: &OrderedRows) -> Vec<(Vec<u8>, String)> {
    let key = |key| String::from_utf8_lossy(key).into_owned();
    rows.iter()
        .map(|row| (row.rank.to_vec(), key(row.key)))
        .collect()
}

/// Index clauses. Each is accepted or rejected depending on the space.
const INDEXES: [&str; 6] = [
    "INDEX 0",
    "INDEX DEFAULT",
    "INDEX 2 n t",
    "INDEX 4 m,n t,n,b x at",
    "INDEX 3 c,m m,n y",
    "INDEX 5 n m b c x",
];

fn check_found(store: &Store, query: &str, order: &str) -> Result<(), TestCaseError> {
    let search = search(store, query, order, (0, 9), &["NOCONTENT"]);
    let (found, expected) = (run(store, &search, 5), expected(store, &search));
    prop_assert_eq!(found.total, expected.total, "{}", query);
    prop_assert_eq!(
        shown(&found.finish(0)),
        shown(&expected.finish(0)),
        "{}",
        query
    );
    Ok(())
}

fn store(space: usize, changes: &[Change]) -> Store {
    let mut store = Store::new(SPACES[space]);
    changes.iter().for_each(|change| store.change(change));
    store
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_index_agrees_with_the_objects_after_any_changes(
        space in 0..SPACES.len(), changes in proptest::collection::vec(any_change(400), 300..900), queries in proptest::collection::vec((any_query(), select(&ORDERS[..])), 8),
    ) {
        let store = store(space, &changes);
        for (query, order) in queries {
            let search = search(&store, &query, order, (1, 9), &["NOCONTENT"]);
            let (found, expected) = (run(&store, &search, 100), expected(&store, &search));
            let total = expected.total;
            prop_assert_eq!(found.total, total, "{} {}", &query, store.index.plan(&search.predicate, &search.order));
            let expected = expected.finish(1);
            let at_once = store.index.search_in_one_step(&search, usize::MAX).expect("no search takes so many");
            let keys: Vec<&[u8]> = at_once.keys().collect();
            prop_assert_eq!((at_once.total, keys), (total, expected.iter().map(|entry| entry.key).collect()), "{}", &query);
            prop_assert_eq!(shown(&found.finish(1)), shown(&expected), "{}", query);
        }
        let mut store = store;
        for number in 0..400 {
            store.remove(&key_of(number));
        }
        prop_assert!(store.index.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_search_agrees_with_a_scan_of_all_objects(
        changes in proptest::collection::vec(any_change(60), 0..120), query in any_query(), order in select(&ORDERS[..]),
        limit in select(vec![(0, 0), (0, 1), (0, 3), (2, 3), (0, 1000)]), candidates_max in 1_usize..40, content_of in 0_usize..3, space in 0..SPACES.len(),
    ) {
        let store = store(space, &changes);
        prop_assert_eq!(store.index.len(), store.objects.len() as u64);
        store.check_columns();
        let rest: &[&str] = [&["NOCONTENT"][..], &[], &["RETURN", "2", "n", "nothing"]][content_of];
        let search = search(&store, &query, order, limit, rest);
        let (found, expected) = (run(&store, &search, candidates_max), expected(&store, &search));
        let total = expected.total;
        prop_assert_eq!(found.total, total, "{} {}", &query, store.index.plan(&search.predicate, &search.order));
        let (found, expected) = (found.finish(search.offset), expected.finish(search.offset));
        prop_assert_eq!(shown(&found), shown(&expected), "{}", &query);
        if let Some(at_once) = store.index.search_in_one_step(&search, effort(candidates_max)) {
            prop_assert_eq!(at_once.total, total, "{}", &query);
            let keys: Vec<&[u8]> = at_once.keys().collect();
            prop_assert_eq!(keys, expected.iter().map(|entry| entry.key).collect::<Vec<_>>(), "{}", &query);
            for (at, entry) in expected.iter().enumerate() {
                prop_assert_eq!(at_once.first_sort_value(at, &search.order), first_sort_value(entry.rank, &search.order));
            }
        }
        for entry in found.iter() {
            let pairs = content(&search, &store.space, &store.objects[entry.key]);
            let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            prop_assert_eq!(decode_content(entry.content).unwrap(), pairs);
        }
    }

    #[test]
    fn objects_that_always_match_are_found_once_despite_changes_between_steps(
        space in 0..SPACES.len(), before in proptest::collection::vec(any_change(40), 0..100), query in any_query(), order in select(&ORDERS[..]), count in select(vec![0, 1, 4, 1000]),
        steps in proptest::collection::vec((1_usize..21, proptest::collection::vec(any_change(50), 0..4)), 0..30),
    ) {
        let mut store = store(space, &before);
        let search = search(&store, &query, order, (0, count), &["NOCONTENT"]);
        let holding = |store: &Store| -> BTreeSet<Vec<u8>> {
            store.objects.keys().filter(|key| store.holds(&search.predicate, key)).cloned().collect()
        };
        let mut throughout = holding(&store);
        let mut ever = throughout.clone();
        let mut untouched = throughout.clone();
        let mut run = store.index.search(search.clone(), usize::MAX);
        let mut is_done = false;
        for (candidates_max, changes) in &steps {
            is_done = run.step(&store.index, &store, 0, *candidates_max);
            if is_done {
                break;
            }
            for change in changes {
                let (Change::Put(key, _) | Change::Remove(key)) = change;
                untouched.remove(&key_of(*key));
                store.change(change);
                let now = holding(&store);
                throughout.retain(|key| now.contains(key));
                ever.extend(now);
            }
        }
        while !is_done {
            is_done = run.step(&store.index, &store, 0, 7);
        }
        let plan = run.profile().plan.to_string();
        let partial = run.finish().unwrap();
        let total = partial.total;
        prop_assert!((throughout.len() as u64..=ever.len() as u64).contains(&total), "{} {} {}", &query, total, plan);
        let entries = partial.finish(0);
        let found: BTreeSet<Vec<u8>> = entries.iter().map(|entry| entry.key.to_vec()).collect();
        prop_assert_eq!(found.len(), entries.len(), "twice: {} {}", &query, &plan);
        prop_assert!(found.is_subset(&ever), "{} {}", &query, &plan);
        prop_assert!(total >= found.len() as u64);
        if count == 1000 {
            prop_assert!(throughout.is_subset(&found), "{} {} {:?} {:?}", &query, plan, &throughout, &found);
        }
        // Of the unchanged objects, the first in order are found, whatever happened to others.
        for key in untouched {
            let (row, _) = Row::of(&store.space, &store.objects[&key]);
            let rank = rank(&search.order, &store.space, &row, &key);
            let is_beyond = entries.len() as u64 == count && entries.iter().last().is_none_or(|last| last.rank < &rank[..]);
            prop_assert!(found.contains(&key) || is_beyond, "{} {}", &query, &plan);
        }
    }

    #[test]
    fn indexes_built_during_changes_serve_once_complete(
        space in 0..SPACES.len(), before in proptest::collection::vec(any_change(150), 0..200), queries in proptest::collection::vec((any_query(), select(&ORDERS[..])), 6),
        lists in proptest::collection::vec(select(&INDEXES[..]), 1..4), steps in proptest::collection::vec((0_usize..60, proptest::collection::vec(any_change(150), 0..4)), 6),
    ) {
        let mut store = store(space, &before);
        for list in lists {
            let words: Vec<&[u8]> = list.split(' ').map(str::as_bytes).collect();
            let Ok((altered, scans)) = store.space.parse_alter(&words) else {
                continue;
            };
            prop_assert_eq!(scans, None);
            store.space = Arc::new(altered);
            store.index.alter(store.space.clone());
            for (rows, changes) in &steps {
                let is_left = store.index.build_some(*rows);
                prop_assert_eq!(is_left, store.index.building().is_some());
                changes.iter().for_each(|change| store.change(change));
                let (query, order) = &queries[*rows % queries.len()];
                check_found(&store, query, order)?;
            }
        }
        while store.index.build_some(7) {}
        prop_assert_eq!(store.index.building(), None);
        store.check_columns();
        let mut new = larder_space::index::SpaceIndex::new(store.space.clone());
        for (key, object) in &store.objects {
            new.put(key, object);
        }
        for (query, order) in &queries {
            check_found(&store, query, order)?;
            let search = search(&store, query, order, (0, 5), &[]);
            let plan = |index: &larder_space::index::SpaceIndex| index.estimate(&search.predicate).1;
            prop_assert_eq!(plan(&store.index), plan(&new), "{}", query);
        }
        for number in 0..150 {
            store.remove(&key_of(number));
        }
        prop_assert!(store.index.is_empty());
    }

    #[test]
    fn an_added_attribute_is_missing_until_objects_are_put_again(
        objects in proptest::collection::vec(any_object(), 0..20), query in select(vec!["@k==1", "-@k==1", "ismissing(@k)", "@n>=1", "*"]), again in 0_usize..20,
    ) {
        let mut store = Store::new("s SCHEMA n NUMERIC m NUMERIC");
        for (number, object) in objects.iter().enumerate() {
            store.put(&key_of(number as u16), object.clone());
        }
        let arguments: [&[u8]; 7] = [b"SCHEMA", b"ADD", b"m", b"AS", b"k", b"NUMERIC", b"INDEXMISSING"];
        let altered = Arc::new(store.space.parse_alter(&arguments).unwrap().0);
        store.index.alter(altered.clone());
        prop_assert_eq!(store.index.backfill(), objects.len() as u64);
        let again = again.min(objects.len());
        for (number, object) in objects.iter().enumerate().take(again) {
            store.put(&key_of(number as u16), object.clone());
        }
        prop_assert_eq!(store.index.backfill(), (objects.len() - again) as u64);
        store.space = altered;
        let search = search(&store, query, "", (0, 100), &["NOCONTENT"]);
        let found = run(&store, &search, 3).finish(0);
        let mut expected = BTreeSet::new();
        for (number, object) in objects.iter().enumerate() {
            let (mut row, _) = Row::of(&store.space, object);
            if number >= again {
                row.columns[2] = larder_space::value::Column::Missing;
            }
            if larder_space::query::matches(&search.predicate, &row) {
                expected.insert(key_of(number as u16));
            }
        }
        prop_assert_eq!(found.iter().map(|entry| entry.key.to_vec()).collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn only_covered_objects_are_indexed() {
    use larder_space::object::{Hash, Object};
    let mut store = Store::new("s PREFIX 1 hotel: FILTER @stars>2 SCHEMA stars NUMERIC");
    let hash = |stars: &str| Object::Hash(Hash::from_iter([("stars", stars)]));
    store.put(b"hotel:1", hash("3"));
    store.put(b"hotel:2", hash("1"));
    store.put(b"inn:1", hash("5"));
    assert_eq!(store.index.len(), 1);
    store.put(b"hotel:1", hash("2"));
    assert_eq!(store.index.len(), 0);
    store.put(b"hotel:1", hash("x"));
    assert_eq!((store.index.len(), store.index.failures().count), (1, 1));
    let newest = store.index.failures().newest.clone().unwrap();
    assert_eq!(
        (newest.key, newest.message),
        (
            b"hotel:1".to_vec(),
            "Invalid numeric value: 'x'".to_string()
        )
    );
}

#[test]
fn expired_fields_are_omitted_and_large_results_are_rejected() {
    use larder_space::object::hash::ExpiryRule;
    use larder_space::object::{Hash, Object};
    let mut store = Store::new("s SCHEMA n NUMERIC");
    let mut hash = Hash::from_iter([("n", "1"), ("token", "x")]);
    hash.expire_field(b"token", 500, ExpiryRule::Always, 0);
    store.put(b"a", Object::Hash(hash));
    let all = search(&store, "*", "", (0, 10), &[]);
    let content_at = |now_ms| {
        let mut run = store.index.search(all.clone(), usize::MAX);
        while !run.step(&store.index, &store, now_ms, 1) {}
        let rows = run.finish().unwrap().finish(0);
        let first = rows.iter().next().unwrap();
        decode_content(first.content).unwrap().len()
    };
    assert_eq!((content_at(499), content_at(500)), (2, 1));
    let mut run = store.index.search(all, 20);
    while !run.step(&store.index, &store, 0, 1) {}
    assert!(
        run.finish()
            .unwrap_err()
            .message
            .contains("more than 20 bytes")
    );
}

#[test]
fn without_a_count_only_the_returned_objects_are_examined() {
    let mut store = Store::new("s SCHEMA n NUMERIC m NUMERIC");
    for number in 0..1000 {
        let n = number.to_string();
        let hash = larder_space::object::Hash::from_iter([("n", n.as_str()), ("m", &n)]);
        store.put(&key_of(number), larder_space::object::Object::Hash(hash));
    }
    let both = "@n:[0 899] @m:[100 999]";
    let steps = |rest: &[&str]| {
        let search = search(&store, both, "n", (0, 5), rest);
        let mut run = store.index.search(search, usize::MAX);
        while !run.step(&store.index, &store, 0, 100) {}
        let examined = run.profile().candidates + run.profile().scanned;
        let partial = run.finish().unwrap();
        (partial.total, partial.finish(0).len(), examined)
    };
    assert_eq!(steps(&["NOCONTENT"]), (800, 5, 1105));
    assert_eq!(steps(&["NOCONTENT", "WITHOUTCOUNT"]), (5, 5, 105));
}

#[test]
fn the_tags_of_an_attribute_are_listed_in_parts() {
    use larder_space::object::{Hash, Object};
    let mut store = Store::new("s SCHEMA t TAG");
    for (key, tags) in [("1", "Red, blue"), ("2", "green"), ("3", "red")] {
        store.put(key.as_bytes(), Object::Hash(Hash::from_iter([("t", tags)])));
    }
    let id = store.space.attributes[0].id;
    let texts = |list: Vec<Vec<u8>>| {
        list.into_iter()
            .map(|it| String::from_utf8(it).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(store.index.tag_values(id, None, 2)),
        ["blue", "green"]
    );
    assert_eq!(
        texts(store.index.tag_values(id, Some(b"green"), 9)),
        ["red"]
    );
    store.remove(b"1");
    assert_eq!(texts(store.index.tag_values(id, None, 9)), ["green", "red"]);
}
