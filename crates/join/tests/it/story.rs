//! Named stories: a counterpart to each of Pequod's tests, and to each of its known wrong results.

use std::ops::ControlFlow;

use larder_join::{Engine, Error, KeyRange, Limits, LogEntry, ReadOutcome};

/// An engine with a terse notation for commands.
pub struct TestEngine(pub Engine, pub u64);

pub fn engine_with(joins: &[&str]) -> TestEngine {
    let mut engine = TestEngine(Engine::new(), 0);
    for (number, join) in joins.iter().enumerate() {
        engine.0.create(&format!("j{number}"), join, 0).unwrap();
    }
    engine
}

impl TestEngine {
    pub fn put(&mut self, rows: &[(&str, &str)]) -> &mut Self {
        for (key, value) in rows {
            self.0
                .put(key.as_bytes(), value.as_bytes(), self.1)
                .unwrap();
        }
        self
    }

    pub fn remove(&mut self, keys: &[&str]) -> &mut Self {
        for key in keys {
            self.0.remove(key.as_bytes(), self.1).unwrap();
        }
        self
    }

    pub fn read(&mut self, lo: &str, hi: &str) -> Vec<String> {
        let mut rows = Vec::new();
        let outcome = self.0.range(
            lo.as_bytes(),
            hi.as_bytes(),
            Limits::default(),
            self.1,
            &mut |key, value| {
                rows.push(format!(
                    "{} {}",
                    String::from_utf8_lossy(key),
                    String::from_utf8_lossy(value)
                ));
                ControlFlow::Continue(())
            },
        );
        assert_eq!(outcome, Ok(ReadOutcome::Done(())));
        rows
    }

    /// Asserts that these are all rows with a prefix, which ends in `|`.
    #[track_caller]
    pub fn shows(&mut self, prefix: &str, rows: &[&str]) -> &mut Self {
        let hi = format!("{}}}", prefix.strip_suffix('|').unwrap());
        assert_eq!(self.read(prefix, &hi), rows);
        self
    }

    pub fn filled(&self, join: &str) -> usize {
        self.0.info(join).unwrap().ranges
    }
}

pub const TIMELINE: &str =
    "t|<user>|<time:4>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

#[test]
fn a_timeline_is_computed_on_demand_and_kept_fresh() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", "1"), ("s|ann|cid", "1"), ("s|dan|bob", "1")]);
    t.put(&[
        ("p|bob|0001", "old"),
        ("p|bob|0100", "b1"),
        ("p|cid|0101", "c1"),
        ("p|eve|0102", "e1"),
    ]);
    assert_eq!(
        t.read("t|ann|0100", "t|ann}"),
        ["t|ann|0100|bob b1", "t|ann|0101|cid c1"]
    );
    t.put(&[("p|bob|0103", "b2")]);
    assert_eq!(t.read("t|ann|0102", "t|ann}"), ["t|ann|0103|bob b2"]);
    t.put(&[("s|ann|eve", "1")]);
    assert_eq!(
        t.read("t|ann|0102", "t|ann}"),
        ["t|ann|0102|eve e1", "t|ann|0103|bob b2"]
    );
    t.remove(&["s|ann|bob"]).put(&[("p|bob|0104", "b3")]);
    assert_eq!(
        t.read("t|ann|0100", "t|ann}"),
        ["t|ann|0101|cid c1", "t|ann|0102|eve e1"]
    );
    t.shows(
        "t|dan|",
        &[
            "t|dan|0001|bob old",
            "t|dan|0100|bob b1",
            "t|dan|0103|bob b2",
            "t|dan|0104|bob b3",
        ],
    );
    assert_eq!(
        t.filled("j0"),
        2,
        "the first read filled the tail; a read below its start, or of another group, fills more"
    );
}

#[test]
fn checked_rows_are_applied_on_read_and_copied_rows_immediately() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", ""), ("p|bob|0001", "x"), ("p|cid|0002", "y")]);
    t.shows("t|ann|", &["t|ann|0001|bob x"]);
    let read = t.0.rows_read();
    t.put(&[("s|ann|cid", "")]);
    assert_eq!(t.0.info("j0").unwrap().rows, 1, "nothing is copied yet");
    t.put(&[("p|bob|0003", "z")]);
    assert_eq!(t.0.info("j0").unwrap().rows, 2);
    assert_eq!(t.0.rows_read(), read, "no source was scanned");
    let all = ["t|ann|0001|bob x", "t|ann|0002|cid y", "t|ann|0003|bob z"];
    t.shows("t|ann|", &all);
    assert_eq!(t.0.rows_read(), read + 1, "only the post of the new author");
}

#[test]
fn bounds_of_a_read_limit_the_source_scans() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", ""), ("s|ann|cid", ""), ("s|annie|bob", "")]);
    for time in 0..100 {
        t.put(&[(&format!("p|bob|{time:04}"), "x")]);
    }
    t.put(&[
        ("p|cid|0099", "y"),
        ("p|cid|0100", "z"),
        ("p|bobby|0095", ""),
    ]);
    assert_eq!(t.read("t|ann|0095", "t|ann}").len(), 7);
    // Two subscriptions, the five newer posts of bob, and two of cid.
    assert_eq!(t.0.rows_read(), 2 + 5 + 2);
    assert_eq!(t.read("t|ann|0092", "t|ann|0099|c").len(), 8);
    assert_eq!(
        t.0.rows_read(),
        9 + 2 + 3,
        "only the rows before the filled range"
    );
}

#[test]
fn a_range_over_several_users_and_sub_tables() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", ""), ("s|cid|bob", ""), ("p|bob|0001", "x")]);
    t.shows("t|", &["t|ann|0001|bob x", "t|cid|0001|bob x"]);
    t.put(&[("p|bob|0002", "y"), ("s|dan|bob", "")]);
    assert_eq!(t.read("t|ann|", "t|cid}").len(), 4);
    assert_eq!(t.read("t|", "t}").len(), 6);
}

#[test]
fn joins_of_joins_are_maintained_and_chained_counts_stay_correct() {
    let mut t = engine_with(&[
        "a|<x> = copy base|<x>",
        "b|<x> = copy a|<x>",
        "votes|<author> = count v|<author>|<article>|<voter>",
        "karma|<author> = copy votes|<author>",
    ]);
    t.put(&[("base|1", "one")]).shows("b|", &["b|1 one"]);
    t.put(&[("base|2", "two")])
        .shows("b|", &["b|1 one", "b|2 two"]);
    t.put(&[("v|ann|1|x", ""), ("v|ann|2|x", "")])
        .shows("karma|", &["karma|ann 2"]);
    t.remove(&["v|ann|1|x"]).shows("karma|", &["karma|ann 1"]);
    t.remove(&["v|ann|2|x"]).shows("karma|", &[]);
}

#[test]
fn a_pull_join_stores_nothing() {
    let mut t = engine_with(&[
        "t|<user>|<time:4>|<poster> = pull check s|<user>|<poster> copy p|<poster>|<time>",
    ]);
    t.put(&[("s|ann|bob", ""), ("p|bob|0001", "x")])
        .shows("t|ann|", &["t|ann|0001|bob x"]);
    let info = t.0.info("j0").unwrap();
    assert_eq!((info.ranges, info.rows, info.updaters), (0, 0, 0));
    t.put(&[("p|bob|0002", "y")])
        .shows("t|ann|", &["t|ann|0001|bob x", "t|ann|0002|bob y"]);
}

#[test]
fn a_snapshot_is_stale_no_longer_than_its_age_limit() {
    let mut t = engine_with(&["c|<g>|<x:2> = snapshot 0.1 copy r|<g>|<x>"]);
    t.put(&[("r|g|05", "a")]);
    assert_eq!(t.read("c|g|05", "c|g}"), ["c|g|05 a"]);
    t.put(&[("r|g|06", "b"), ("r|g|01", "c")]);
    assert_eq!(t.read("c|g|05", "c|g}"), ["c|g|05 a"]);
    t.1 = 60;
    t.shows("c|g|", &["c|g|01 c", "c|g|05 a"]);
    t.1 = 201;
    t.shows("c|g|", &["c|g|01 c", "c|g|05 a", "c|g|06 b"]);
}

#[test]
fn counts_sums_and_extremes_follow_updates_and_removals() {
    let mut t = engine_with(&[
        "n|<g> = count v|<g>|<x>",
        "s|<g> = sum v|<g>|<x>",
        "lo|<g> = min v|<g>|<x>",
        "hi|<g> = max v|<g>|<x>",
        "m|<g> = avg v|<g>|<x>",
        "d|<g> = distinct v|<g>|<x>",
    ]);
    for table in ["n|", "s|", "lo|", "hi|", "m|", "d|"] {
        t.shows(table, &[]);
    }
    t.put(&[
        ("v|a|1", "10"),
        ("v|a|2", "3"),
        ("v|a|3", "7"),
        ("v|b|1", "5"),
    ]);
    t.shows("n|", &["n|a 3", "n|b 1"])
        .shows("s|", &["s|a 20", "s|b 5"])
        .shows("lo|", &["lo|a 3", "lo|b 5"]);
    t.shows("hi|", &["hi|a 10", "hi|b 5"])
        .shows("m|", &["m|a 6.666667", "m|b 5"])
        .shows("d|", &["d|a 3", "d|b 1"]);
    t.put(&[("v|a|1", "5")])
        .shows("s|", &["s|a 15", "s|b 5"])
        .shows("hi|", &["hi|a 7", "hi|b 5"]);
    t.remove(&["v|a|2", "v|b|1"])
        .shows("lo|", &["lo|a 5"])
        .shows("n|", &["n|a 2"])
        .shows("d|", &["d|a 2"]);
}

#[test]
fn a_removed_row_that_is_not_the_extreme_changes_nothing() {
    let mut t = engine_with(&["hi|<g> = max v|<g>|<x>"]);
    t.put(&[("v|a|1", "3"), ("v|a|2", "7")])
        .shows("hi|", &["hi|a 7"]);
    t.remove(&["v|a|1"]).shows("hi|", &["hi|a 7"]);
    t.remove(&["v|a|2"]).shows("hi|", &[]);
}

#[test]
fn a_drained_group_larger_than_its_stored_rows_is_recomputed() {
    let mut t = engine_with(&[
        "lo|<g> = min v|<g>|<x:3>",
        "best|<g>|<rank:2>|<x> = top 2 v|<g>|<x>",
    ]);
    for x in 0..100 {
        t.put(&[(&format!("v|a|{x:03}"), &x.to_string())]);
    }
    for x in 0..99 {
        t.shows("lo|", &[&format!("lo|a {x}")]);
        t.remove(&[&format!("v|a|{x:03}")]);
    }
    t.shows("lo|", &["lo|a 99"])
        .shows("best|", &["best|a|01|099 99"]);
    t.put(&[("v|a|001", "1000")])
        .shows("best|a|", &["best|a|01|001 1000", "best|a|02|099 99"]);
}

#[test]
fn three_sources_and_changes_of_the_middle_one() {
    let mut t = engine_with(&[
        "votes|<author> = check book|<author>|<book> check chapter|<book>|<ch> count vote|<ch>|<voter>",
    ]);
    t.put(&[
        ("book|ann|b1", ""),
        ("chapter|b1|c1", ""),
        ("vote|c1|x", ""),
        ("vote|c2|x", ""),
        ("vote|c2|y", ""),
    ]);
    t.shows("votes|", &["votes|ann 1"]);
    t.put(&[("chapter|b1|c2", "")])
        .shows("votes|", &["votes|ann 3"]);
    t.put(&[("chapter|b1|c2", "again")])
        .shows("votes|", &["votes|ann 3"]);
    t.put(&[("book|bob|b1", "")])
        .shows("votes|", &["votes|ann 3", "votes|bob 3"]);
    t.remove(&["book|ann|b1"])
        .put(&[("vote|c1|z", "")])
        .shows("votes|", &["votes|bob 4"]);
    t.put(&[("book|ann|b1", "")])
        .remove(&["chapter|b1|c1"])
        .shows("votes|", &["votes|ann 2", "votes|bob 2"]);
}

#[test]
fn celebrities_by_four_joins_and_by_one() {
    let posts = [
        ("s|ann|bob", ""),
        ("s|ann|cel", ""),
        ("c|cel", ""),
        ("p|bob|0001", "b"),
        ("cp|cel|0002", "c"),
    ];
    let four = [
        "t|<user>|<time:4>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>",
        "ct|<time:4>|<poster> = copy cp|<poster>|<time>",
        "cs|<user>|<poster> = copy c|<poster> check s|<user>|<poster>",
        "t|<user>|<time:4>|<poster> = pull copy ct|<time>|<poster> check cs|<user>|<poster>",
    ];
    let mut t = engine_with(&four);
    t.put(&posts)
        .shows("t|ann|", &["t|ann|0001|bob b", "t|ann|0002|cel c"]);
    t.put(&[("cp|cel|0003", "d")])
        .remove(&["p|bob|0001"])
        .shows("t|ann|", &["t|ann|0002|cel c", "t|ann|0003|cel d"]);
    t.remove(&["s|ann|cel"]).shows("t|ann|", &[]);
}

#[test]
fn auto_stops_copying_unread_rows_and_resumes() {
    let mut t = engine_with(&[
        "t|<user>|<time:4>|<poster> = auto check s|<user>|<poster> copy p|<poster>|<time>",
    ]);
    for user in 0..50 {
        t.put(&[
            (&format!("s|u{user:02}|cel"), ""),
            (&format!("s|u{user:02}|bob"), ""),
        ]);
        t.read(&format!("t|u{user:02}|"), &format!("t|u{user:02}}}"));
    }
    for time in 0..40 {
        t.put(&[(&format!("p|cel|{time:04}"), "x")]);
    }
    t.put(&[("p|bob|0100", "y")]);
    assert_eq!(
        t.0.info("j0").unwrap().rows,
        50,
        "only bob's post is copied"
    );
    assert_eq!(t.read("t|u07|", "t|u07}").len(), 41);
    t.remove(&["s|u07|cel"])
        .shows("t|u07|", &["t|u07|0100|bob y"]);
    t.put(&[("s|u07|cel", "")]);
    for _ in 0..200 {
        for user in 0..50 {
            assert_eq!(
                t.read(&format!("t|u{user:02}|0030"), &format!("t|u{user:02}}}"))
                    .len(),
                11
            );
        }
    }
    for time in 50..58 {
        t.put(&[(&format!("p|cel|{time:04}"), "x")]);
    }
    t.put(&[("p|other|0001", "")]);
    assert!(
        t.0.info("j0").unwrap().rows > 2000,
        "many reads: copied again"
    );
    assert_eq!(t.read("t|u07|", "t|u07}").len(), 49);
}

#[test]
fn one_read_returns_a_page_of_interleaved_joins() {
    let mut t = engine_with(&[
        "karma|<author> = count v|<author>|<seq>|<voter>",
        "page|<aid>|a = copy a|<aid>",
        "page|<aid>|c|<cid>|<who> = copy c|<aid>|<cid>|<who>",
        "page|<aid>|k|<cid>|<who> = check c|<aid>|<cid>|<who> copy karma|<who>",
    ]);
    t.put(&[
        ("a|7", "title"),
        ("c|7|1|ann", "hi"),
        ("v|ann|3|bob", ""),
        ("v|ann|3|cid", ""),
    ]);
    t.shows(
        "page|7|",
        &["page|7|a title", "page|7|c|1|ann hi", "page|7|k|1|ann 2"],
    );
    t.put(&[("v|ann|4|bob", "")])
        .remove(&["c|7|1|ann"])
        .put(&[("c|7|2|ann", "ho")]);
    t.shows(
        "page|7|",
        &["page|7|a title", "page|7|c|2|ann ho", "page|7|k|2|ann 3"],
    );
}

#[test]
fn unfollow_and_follow_between_two_reads() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|1|a", ""), ("p|a|0001", "x")])
        .shows("t|1|", &["t|1|0001|a x"]);
    t.remove(&["s|1|a"])
        .put(&[("s|1|a", "")])
        .shows("t|1|", &["t|1|0001|a x"]);
    t.put(&[("p|a|0002", "y")])
        .shows("t|1|", &["t|1|0001|a x", "t|1|0002|a y"]);
    t.put(&[("s|1|b", "")])
        .remove(&["s|1|b"])
        .put(&[("p|b|0003", "z")]);
    t.shows("t|1|", &["t|1|0001|a x", "t|1|0002|a y"]);
}

#[test]
fn a_sum_decreases_when_a_checked_row_is_removed() {
    let mut t = engine_with(&["total|<u> = check s|<u>|<p> sum v|<p>|<n>"]);
    t.put(&[
        ("s|1|a", ""),
        ("s|1|b", ""),
        ("v|a|1", "10"),
        ("v|b|1", "5"),
    ])
    .shows("total|", &["total|1 15"]);
    t.remove(&["s|1|a"]).shows("total|", &["total|1 5"]);
    t.remove(&["s|1|b"]).shows("total|", &[]);
}

#[test]
fn an_output_row_exists_while_one_of_its_source_rows_does() {
    let mut t = engine_with(&["known|<who> = copy met|<who>|<place>"]);
    t.put(&[("met|ann|x", "1"), ("met|ann|y", "2")])
        .shows("known|", &["known|ann 2"]);
    t.remove(&["met|ann|y"]).shows("known|", &["known|ann 1"]);
    t.remove(&["met|ann|x"]).shows("known|", &[]);
}

#[test]
fn an_added_join_contributes_rows_and_a_dropped_one_removes_them() {
    let mut t = engine_with(&[
        "all|<k>|<x> = copy a|<k>|<x>",
        "seen|<x> = copy all|<k>|<x>",
    ]);
    t.put(&[("a|k|1", "a"), ("b|k|2", "b")])
        .shows("all|k|", &["all|k|1 a"])
        .shows("seen|", &["seen|1 a"]);
    t.0.create("late", "all|<k>|<x> = copy b|<k>|<x>", 0)
        .unwrap();
    t.shows("all|k|", &["all|k|1 a", "all|k|2 b"])
        .shows("seen|", &["seen|1 a", "seen|2 b"]);
    t.0.drop_join("j0").unwrap();
    t.shows("all|k|", &["all|k|2 b"])
        .shows("seen|", &["seen|2 b"]);
    assert!(matches!(
        t.0.drop_join("j0"),
        Err(Error::UnknownJoin { .. })
    ));
}

#[test]
fn writes_to_computed_tables_are_rejected() {
    let mut t = engine_with(&[TIMELINE]);
    for error in [
        t.0.put(b"t|ann|0001|bob", b"x", 0).unwrap_err(),
        t.0.remove(b"t|ann|0001|bob", 0).unwrap_err(),
        t.0.remove_range(b"t|", b"t}", 9, 0).unwrap_err(),
        t.0.increment(b"t|ann|0001|bob", 1, 0).unwrap_err(),
    ] {
        assert_eq!(
            error,
            Error::ComputedTable {
                table: "t".into(),
                join: "j0".into()
            }
        );
    }
    assert!(matches!(
        t.0.put(b"nothing", b"x", 0),
        Err(Error::NoTable { .. })
    ));
    assert_eq!(t.0.remove(b"never|seen", 0).unwrap().rows, 0);
    assert!(matches!(
        t.0.range(b"a|", b"z}", Limits::default(), 0, &mut |_, _| {
            ControlFlow::Continue(())
        }),
        Err(Error::ManyTables { .. })
    ));
}

#[test]
fn errors_point_at_the_column_of_an_invalid_join() {
    let mut t = engine_with(&[
        "b|<x> = copy a|<x>",
        "c|<x> = copy b|<x>",
        "pl|<x> = pull copy a|<x>",
    ]);
    t.put(&[("own|1", "x")]);
    let mut refused = |definition: &str, column: usize, message: &str| {
        let error = t.0.create("new", definition, 0).unwrap_err();
        assert_eq!(
            (error.column, error.message.contains(message)),
            (column, true),
            "{error}"
        );
    };
    refused("a|<x> = copy c|<x>", 14, "is cyclic");
    refused("d|<x> = copy d|<x>|<y>", 14, "is cyclic");
    refused("own|<x> = copy a|<x>", 1, "contains base rows");
    refused("e|<x> = copy pl|<x>", 14, "does not report changes");
    refused("b|<x> = pull copy z|<x>", 1, "needs its changes");
}

#[test]
fn a_sum_over_text_is_omitted_from_ranges_and_a_get_returns_the_error() {
    let mut t = engine_with(&["total|<g> = sum v|<g>|<x>"]);
    t.put(&[("v|a|1", "1"), ("v|b|1", "2")])
        .shows("total|", &["total|a 1", "total|b 2"]);
    t.put(&[("v|a|2", "many")]);
    let mut none = |_: &[u8]| {};
    let failed = t.0.get(b"total|a", 0, &mut none);
    assert_eq!(
        failed,
        Err(Error::NotANumber {
            key: b"total|a".to_vec(),
            join: "j0".into(),
            values: 1
        })
    );
    assert_eq!(t.read("v|a|", "v|a}"), ["v|a|1 1", "v|a|2 many"]);
    // Neighboring rows are not affected.
    assert_eq!(t.read("total|", "total}"), ["total|b 2"]);
    assert_eq!(t.0.count(b"total|", b"total}", 0), Ok(ReadOutcome::Done(1)));
    assert_eq!(t.0.info("j0").unwrap().left_out, 3);
    t.put(&[("v|a|2", "2.5")])
        .shows("total|", &["total|a 3.5", "total|b 2"]);
}

/// As SQL's aggregates ignore NULL. A row of PostgreSQL without a value has an empty value here.
#[test]
fn empty_values_are_ignored_by_aggregates_and_conditions() {
    let mut t = engine_with(&[
        "sum|<g> = sum v|<g>|<x>",
        "avg|<g> = avg v|<g>|<x>",
        "min|<g> = min v|<g>|<x>",
        "max|<g> = max v|<g>|<x>",
        "kinds|<g> = distinct v|<g>|<x>",
        "rows|<g> = count v|<g>|<x>",
        "best|<g>|<rank:2>|<x> = top 3 v|<g>|<x>",
        "last|<g> = copy v|<g>|<x>",
        "other|<g> = count v|<g>|<x> where value != 5",
    ]);
    t.put(&[("v|a|1", "5"), ("v|a|2", ""), ("v|a|3", "7"), ("v|b|1", "")]);
    for (table, shown) in [
        ("sum|", ["sum|a 12", "sum|b "]),
        ("avg|", ["avg|a 6", "avg|b "]),
        ("min|", ["min|a 5", "min|b "]),
        ("max|", ["max|a 7", "max|b "]),
        ("kinds|", ["kinds|a 2", "kinds|b 0"]),
        ("rows|", ["rows|a 3", "rows|b 1"]),
        ("last|", ["last|a 7", "last|b "]),
        ("best|", ["best|a|01|3 7", "best|a|02|1 5"]),
    ] {
        t.shows(table, &shown);
    }
    t.shows("other|", &["other|a 1"]);
    // Empty values appear and disappear like others.
    t.put(&[("v|a|3", ""), ("v|b|1", "x")])
        .shows("max|", &["max|a 5", "max|b x"])
        .shows("kinds|", &["kinds|a 1", "kinds|b 1"])
        .shows("sum|", &["sum|a 5"]);
    t.put(&[("v|a|1", ""), ("v|b|1", "")])
        .shows("max|", &["max|a ", "max|b "])
        .shows("avg|", &["avg|a ", "avg|b "])
        .shows("best|", &[]);
    t.remove(&["v|b|1"]).shows("sum|", &["sum|a "]);
}

#[test]
fn conditions_bound_values_and_slots() {
    let mut t = engine_with(&[
        "good|<g> = check on|<g> where value = yes count v|<g>|<x> where value >= 5 and <x> < 5",
    ]);
    t.put(&[
        ("on|a", "yes"),
        ("on|b", "no"),
        ("v|a|1", "5"),
        ("v|a|2", "4"),
        ("v|a|9", "7"),
        ("v|b|1", "9"),
    ]);
    t.shows("good|", &["good|a 1"]);
    t.put(&[("v|a|2", "40"), ("on|b", "yes")])
        .shows("good|", &["good|a 2", "good|b 1"]);
    t.put(&[("v|a|1", "text"), ("on|b", "no")])
        .shows("good|", &["good|a 1"]);
}

#[test]
fn missing_ranges_are_requested_supplied_and_maintained() {
    let mut t = engine_with(&[TIMELINE]);
    t.0.declare_external(b"s|").unwrap();
    t.0.declare_external(b"p|").unwrap();
    let mut requested = Vec::new();
    loop {
        let outcome =
            t.0.range(b"t|ann|", b"t|ann}", Limits::default(), 0, &mut |_, _| {
                ControlFlow::Continue(())
            })
            .unwrap();
        let ReadOutcome::Needs(needs) = outcome else {
            break;
        };
        requested.push(needs.external.len());
        for range in needs.external {
            let all = [
                ("p|bob|0001", "x"),
                ("p|cid|0002", "y"),
                ("s|ann|bob", ""),
                ("s|ann|cid", ""),
            ];
            let rows = all.iter().filter(|(k, _)| range.contains(k.as_bytes()));
            t.0.supply(
                &range,
                &mut rows.map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())),
            );
        }
    }
    assert_eq!(
        requested,
        [1, 2],
        "first ann's follows, then all their posts in one request"
    );
    t.put(&[("p|bob|0003", "z"), ("p|eve|0009", "not asked for")]);
    t.shows(
        "t|ann|",
        &["t|ann|0001|bob x", "t|ann|0002|cid y", "t|ann|0003|bob z"],
    );
    assert_eq!(t.0.supplied_rows(b"p|"), 3);
    t.0.discard_supplied(&KeyRange::prefix(b"p|bob|"));
    assert!(matches!(
        t.0.get(b"t|ann|0001|bob", 0, &mut |_| {}),
        Ok(ReadOutcome::Needs(_))
    ));
}

#[test]
fn expired_rows_are_removed_with_their_outputs() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", ""), ("p|bob|0001", "x"), ("p|bob|0002", "y")]);
    assert!(t.0.expire(b"p|bob|0001", Some(500), 0).unwrap());
    t.shows("t|ann|", &["t|ann|0001|bob x", "t|ann|0002|bob y"]);
    assert_eq!(t.0.expires_at(b"p|bob|0001", 499), Some(500));
    t.1 = 500;
    t.shows("t|ann|", &["t|ann|0002|bob y"]);
    assert!(!t.0.expire(b"p|bob|0001", Some(900), 500).unwrap());
}

#[test]
fn changes_of_base_rows_are_logged_once_and_computed_rows_never() {
    let mut t = engine_with(&[]);
    t.0.record_changes(true);
    t.0.create("tl", TIMELINE, 0).unwrap();
    t.put(&[("s|ann|bob", ""), ("p|bob|0001", "x")]);
    t.0.increment(b"n|1", 5, 0).unwrap();
    t.read("t|", "t}");
    t.remove(&["s|ann|bob"]);
    let put = |key: &str, value: &str| LogEntry::Put {
        key: key.into(),
        value: value.into(),
    };
    let expected = [
        LogEntry::Create {
            name: "tl".into(),
            definition: TIMELINE.into(),
        },
        put("s|ann|bob", ""),
        put("p|bob|0001", "x"),
        put("n|1", "5"),
        LogEntry::Remove {
            key: b"s|ann|bob".to_vec(),
        },
    ];
    assert_eq!(t.0.take_changes(), expected);
    assert_eq!(t.0.take_changes(), []);
    let mut dump = Vec::new();
    t.0.dump(&mut |entry| dump.push(entry));
    assert_eq!(dump.len(), 3);
}

#[test]
fn explain_shows_the_plan_and_what_a_read_would_fill() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[("s|ann|bob", "")]);
    t.read("t|ann|0100", "t|ann}");
    let text = t.0.explain("j0", Some((b"t|ann|0050", b"t|ann}"))).unwrap();
    let expected = "\
join j0: t|<user>|<time:4>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>
mode push: filled on demand, then maintained by every write
1. check s|<user>|<poster>; its changes are applied when the range is read
2. copy p|<poster>|<time>; its changes are applied immediately
rows: one for each combination of source rows; values are shared
range t|ann|0050 to t|ann}
  <user> is ann
  scans first s|ann| to s|ann}
  is filled t|ann|0100 to t|ann}
  would fill t|ann|0050 to t|ann|0100
";
    assert_eq!(text, expected);
    for (lo, hi) in [("t|ann|0200", "t|ann|0150"), ("t|b", "p|b")] {
        let text = t.0.explain("j0", Some((lo.as_bytes(), hi.as_bytes())));
        let expected_text = format!("range {lo} to {hi}\n  the join has no rows in this range\n");
        assert!(text.unwrap().ends_with(&expected_text));
    }
}

#[test]
fn limits_reverse_reads_and_counts() {
    let mut t = engine_with(&[TIMELINE]);
    t.put(&[
        ("s|ann|bob", ""),
        ("p|bob|0001", "x"),
        ("p|bob|0002", "y"),
        ("p|bob|0003", "z"),
    ]);
    let mut keys = Vec::new();
    let limits = Limits {
        limit: Some(2),
        reverse: true,
        keys_only: true,
        total_limit: None,
    };
    let _ =
        t.0.range(b"t|ann|", b"t|ann}", limits, 0, &mut |key, value| {
            assert!(value.is_empty());
            keys.push(String::from_utf8_lossy(key).into_owned());
            ControlFlow::Continue(())
        });
    assert_eq!(keys, ["t|ann|0003|bob", "t|ann|0002|bob"]);
    assert_eq!(t.0.count(b"t|ann|", b"t|ann}", 0), Ok(ReadOutcome::Done(3)));
    assert_eq!(t.0.count(b"p|bob|", b"p|bob}", 0), Ok(ReadOutcome::Done(3)));
    assert_eq!(
        t.0.count(b"p|bob|0002", b"p|bob}", 0),
        Ok(ReadOutcome::Done(2))
    );
    assert_eq!(t.0.count(b"none|", b"none}", 0), Ok(ReadOutcome::Done(0)));
}

/// A write waits to reach three timelines when their join is dropped, and their lengths are read.
#[test]
fn pending_changes_of_a_dropped_join_are_invisible() {
    let mut t = engine_with(&[TIMELINE, "n|<user> = count t|<user>|<time>|<poster>"]);
    t.put(&[("s|ann|bob", ""), ("s|cid|bob", ""), ("s|dan|bob", "")]);
    t.shows("n|", &[]);
    t.0.set_step_rows(Some(1));
    t.put(&[("p|bob|0001", "x")]);
    t.0.drop_join("j0").expect("it exists");
    t.shows("n|", &[]);
    while t.0.step(1) {}
    t.shows("n|", &[]);
}
