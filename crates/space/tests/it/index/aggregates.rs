//! Aggregations: their results, and the continuation of cursors.

use std::sync::Arc;

use larder_space::aggregate::{Aggregation, Limits, Partial, ResultRow, finish};
use proptest::prelude::*;
use proptest::sample::select;

use super::{SPACES, Store, any_change, any_query};

const STAGES: [&str; 12] = [
    "",
    "LOAD 3 @n @t @__key",
    "LOAD *",
    "GROUPBY 1 @m REDUCE COUNT 0 AS c REDUCE SUM 1 @n AS s",
    "GROUPBY 2 @c @b REDUCE TOLIST 1 @n AS l",
    "GROUPBY 0 REDUCE COUNT 0 AS c",
    "GROUPBY 1 @t REDUCE MAX 1 @at AS a REDUCE AVG 1 @u",
    "SORTBY 2 @n DESC",
    "SORTBY 2 @m ASC MAX 3 LOAD 1 @x",
    "APPLY exists(@n) AS e GROUPBY 1 @e REDUCE COUNT 0 AS c",
    "FILTER exists(@m) LIMIT 1 4",
    "GROUPBY 1 @__key REDUCE FIRST_VALUE 1 @y",
];

fn aggregation(store: &Store, query: &str, stages: &str) -> Arc<Aggregation> {
    let mut words = vec![query];
    words.extend(stages.split(' ').filter(|word| !word.is_empty()));
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Arc::new(
        Aggregation::parse(&words, &store.space)
            .unwrap_or_else(|refusal| panic!("{query} {stages}: {refusal}")),
    )
}

fn run(
    store: &Store,
    aggregation: &Arc<Aggregation>,
    limits: Limits,
    after: Option<&[u8]>,
    candidates_max: usize,
) -> Partial {
    let mut run = store.index.aggregate(aggregation.clone(), limits, after);
    while !run.step(&store.index, store, 0, candidates_max) {}
    run.finish().unwrap()
}

fn expected(store: &Store, aggregation: &Aggregation) -> (u64, Vec<ResultRow>) {
    let mut partial = Partial::new(aggregation, Limits::default());
    for (key, object) in &store.objects {
        if store.holds(&aggregation.predicate, key) {
            partial.add(aggregation, &store.space, key, object).unwrap();
        }
    }
    finish(aggregation, partial, Limits::default(), &|| Ok(())).unwrap()
}

proptest! {
    #[test]
    fn an_aggregation_covers_all_matching_objects(
        changes in proptest::collection::vec(any_change(60), 0..120), query in any_query(), stages in select(&STAGES[..]), candidates_max in 1_usize..40, space in 0..SPACES.len(),
    ) {
        let mut store = Store::new(SPACES[space]);
        changes.iter().for_each(|change| store.change(change));
        let aggregation = aggregation(&store, &query, stages);
        let partial = run(&store, &aggregation, Limits::default(), None, candidates_max);
        prop_assert_eq!(finish(&aggregation, partial, Limits::default(), &|| Ok(())).unwrap(), expected(&store, &aggregation), "{} {}", query, stages);
    }

    #[test]
    fn a_cursor_continues_after_the_last_key(
        changes in proptest::collection::vec(any_change(60), 0..120), query in any_query(), rows_max in 1_usize..9, candidates_max in 1_usize..40, space in 0..SPACES.len(),
    ) {
        let mut store = Store::new(SPACES[space]);
        changes.iter().for_each(|change| store.change(change));
        let aggregation = aggregation(&store, &query, "LOAD 2 @__key @n FILTER @__key!='00:0'");
        prop_assert!(aggregation.is_streamed());
        let limits = Limits { rows_max, ..Limits::default() };
        let (mut rows, mut after): (Vec<ResultRow>, Option<Vec<u8>>) = (Vec::new(), None);
        loop {
            let partial = run(&store, &aggregation, limits, after.as_deref(), candidates_max);
            let (_, part) = finish(&aggregation, partial, limits, &|| Ok(())).unwrap();
            prop_assert!(part.len() <= rows_max);
            let Some(last) = part.last() else { break };
            after = Some(last[0].1.print());
            rows.extend(part);
        }
        prop_assert_eq!(rows, expected(&store, &aggregation).1);
    }
}
