//! Large first fills: each call visits few rows, other clients read and write in between, and the result is as if it
//! had been computed in one step.

use std::ops::ControlFlow;

use larder_join::{Engine, Limits, ReadOutcome};

/// Budget of a read or a step.
const ROWS: usize = 500;

fn range(engine: &mut Engine, lo: &str, hi: &str) -> (ReadOutcome, Vec<(String, String)>) {
    let mut rows = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let outcome = engine.range(
        lo.as_bytes(),
        hi.as_bytes(),
        Limits::default(),
        0,
        &mut |key, value| {
            rows.push((text(key), text(value)));
            ControlFlow::Continue(())
        },
    );
    (outcome.expect("the range is of one table"), rows)
}

fn put(engine: &mut Engine, key: &str, value: &str) {
    engine
        .put(key.as_bytes(), value.as_bytes(), 0)
        .expect("put");
}

/// Runs `act`, and checks that it reads no more rows than the budget.
fn bounded<T>(engine: &mut Engine, act: impl FnOnce(&mut Engine) -> T) -> T {
    bounded_by(ROWS, engine, act)
}

fn bounded_by<T>(rows_max: usize, engine: &mut Engine, act: impl FnOnce(&mut Engine) -> T) -> T {
    let before = engine.rows_read();
    let done = act(engine);
    let rows = engine.rows_read() - before;
    assert!(rows <= rows_max as u64, "{rows} rows in one step");
    done
}

/// Reads a range, and calls `meanwhile` between steps. Returns the number of steps, and the rows.
fn read_in_steps(
    engine: &mut Engine,
    lo: &str,
    hi: &str,
    mut meanwhile: impl FnMut(&mut Engine, usize),
) -> (usize, Vec<(String, String)>) {
    for steps in 0.. {
        let ended = engine.ended_reads();
        let (outcome, rows) = bounded(engine, |engine| range(engine, lo, hi));
        match outcome {
            ReadOutcome::Done(()) => return (steps, rows),
            needs => assert!(needs.needs_steps() && rows.is_empty()),
        }
        while engine.ended_reads() == ended {
            bounded(engine, |engine| engine.step(ROWS));
            meanwhile(engine, steps);
        }
        assert!(steps < 1_000, "never read");
    }
    unreachable!()
}

fn sources(engine: &mut Engine, rows: usize) {
    for row in 0..rows {
        // One author has a tenth of all posts.
        let author = if row % 10 == 0 { 0 } else { row % 997 };
        put(engine, &format!("p|{author:04}|{row:07}"), "post");
        put(engine, &format!("s|ann|{:04}", row % 997), "");
        put(engine, &format!("v|{row:07}|{:04}", row % 997), "1");
    }
}

#[test]
fn a_large_first_fill_is_computed_in_steps_while_its_sources_change() {
    let is_slow = std::env::var_os("LARDER_SLOW_TESTS").is_some();
    let rows = if is_slow { 1_000_000 } else { 30_000 };
    let joins = [
        // One source range with all rows, into many groups; one with all rows, into one group; few authors, and one
        // with many posts.
        ("k|<author:4> = sum v|<row:7>|<author:4>", "k|", "k}"),
        ("n|all = count v|<row:7>|<author:4>", "n|", "n}"),
        ("m|<author:4> = max v|<row:7>|<author:4>", "m|", "m}"),
        (
            "t|<user>|<row:7>|<author:4> = check s|<user>|<author> copy p|<author>|<row>",
            "t|ann|",
            "t|ann}",
        ),
        (
            "a|<user>|<row:7>|<author:4> = auto check s|<user>|<author> copy p|<author>|<row>",
            "a|ann|",
            "a|ann}",
        ),
        // A join over a join: one read fills both.
        (
            "c|<user> = count t|<user>|<row:7>|<author:4>",
            "c|ann",
            "c|ann}",
        ),
    ];
    let mut engine = Engine::new();
    let mut model = Engine::new();
    for engine in [&mut engine, &mut model] {
        sources(engine, rows);
        for (number, (definition, ..)) in joins.iter().enumerate() {
            engine
                .create(&format!("j{number}"), definition, 0)
                .expect("create");
        }
    }
    engine.set_read_rows(Some(ROWS));
    engine.set_step_rows(Some(ROWS));
    for (definition, lo, hi) in joins {
        engine.evict_all();
        let mut calls = 0;
        let (_, rows_now) = read_in_steps(&mut engine, lo, hi, |engine, _| {
            calls += 1;
            // Change a row that may have been read or not, and a subscription.
            let row = calls * 7919 % rows;
            for engine in [&mut *engine, &mut model] {
                let author = format!("{:04}", row % 997);
                put(engine, &format!("v|{row:07}|{author}"), &calls.to_string());
                put(engine, &format!("p|{author}|{:07}", rows - row), "new");
                put(engine, &format!("v|{:07}|{author}", rows + row), "2");
                let removed = format!("p|0000|{:07}", calls * 70 % rows);
                engine.remove(removed.as_bytes(), 0).expect("remove");
                let other = format!("s|ann|{:04}", calls * 31 % 997);
                match calls % 3 {
                    0 => put(engine, &other, ""),
                    _ => _ = engine.remove(other.as_bytes(), 0).expect("remove"),
                }
            }
            let (outcome, found) = range(engine, "p|0001|", "p|0001}");
            assert!(outcome == ReadOutcome::Done(()) && !found.is_empty());
        });
        assert!(calls >= rows / ROWS / 10, "{definition}: {calls} calls");
        let (outcome, expected) = range(&mut model, lo, hi);
        assert_eq!(outcome, ReadOutcome::Done(()));
        assert!(rows_now == expected, "{definition} differs");
    }
}

#[test]
fn concurrent_reads_of_one_range_compute_it_once() {
    let mut engine = Engine::new();
    sources(&mut engine, 20_000);
    engine
        .create("n", "n|all = count v|<row:7>|<author:4>", 0)
        .expect("create");
    engine.set_read_rows(Some(ROWS));
    let before = engine.rows_read();
    for _ in 0..100 {
        let (outcome, _) = range(&mut engine, "n|", "n}");
        assert!(outcome.needs_steps());
    }
    while engine.step(ROWS) {}
    for _ in 0..100 {
        let (outcome, rows) = range(&mut engine, "n|", "n}");
        assert_eq!((outcome, rows.len()), (ReadOutcome::Done(()), 1));
    }
    assert_eq!(engine.rows_read() - before, 20_000);
}

#[test]
fn an_evicted_or_dropped_partial_fill_leaves_nothing_and_restarts() {
    let mut engine = Engine::new();
    sources(&mut engine, 20_000);
    let definition = "t|<user>|<row:7>|<author:4> = check s|<user>|<author> copy p|<author>|<row>";
    engine.create("t", definition, 0).expect("create");
    let before = engine.memory_bytes();
    engine.set_read_rows(Some(ROWS));
    let begin = |engine: &mut Engine| {
        let ended = engine.ended_reads();
        let (outcome, _) = range(engine, "t|ann|", "t|ann}");
        assert!(outcome.needs_steps());
        (0..5).for_each(|_| _ = engine.step(ROWS));
        assert!(engine.info("t").expect("there").rows > 100 && engine.ended_reads() == ended);
        ended
    };
    let ended = begin(&mut engine);
    engine.evict_all();
    let info = engine.info("t").expect("there");
    assert_eq!((info.rows, info.ranges, info.updaters), (0, 0, 0));
    assert!(engine.ended_reads() > ended, "waiting reads are notified");
    assert!(engine.memory_bytes() < before + 10_000);
    begin(&mut engine);
    engine.drop_join("t").expect("there");
    while engine.step(ROWS) {}
    engine.create("t", definition, 0).expect("create");
    let (steps, rows) = read_in_steps(&mut engine, "t|ann|", "t|ann}", |_, _| ());
    assert!(steps > 0 && rows.len() == 20_000, "{steps} {}", rows.len());
}

#[test]
fn a_chained_read_applies_a_pending_fan_out_in_steps() {
    const READERS: usize = 10_000;
    let mut engine = Engine::new();
    let timeline = "t|<user:5>|<row:4>|<author> = check s|<user>|<author> copy p|<author>|<row>";
    engine.create("t", timeline, 0).expect("create");
    engine
        .create("c", "c|<user:5> = count t|<user>|<row:4>|<author>", 0)
        .expect("create");
    for user in 0..READERS {
        put(&mut engine, &format!("s|{user:05}|cel"), "");
        let (lo, hi) = (format!("c|{user:05}"), format!("c|{user:05}\0"));
        assert_eq!(range(&mut engine, &lo, &hi).0, ReadOutcome::Done(()));
    }
    engine.set_step_rows(Some(100));
    engine.set_read_rows(Some(100));
    let waits_for = engine.put(b"p|cel|0001", b"x", 0).expect("put").waits_for;
    let change = waits_for.expect("too large for one step");
    let mut deferred = 0;
    // Only the reader makes steps.
    let rows = loop {
        let (outcome, rows) = range(&mut engine, "c|09999", "c|09999\0");
        if outcome == ReadOutcome::Done(()) {
            break rows;
        }
        deferred += 1;
        engine.step(100);
    };
    assert_eq!(rows, [("c|09999".to_owned(), "1".to_owned())]);
    // Each call applies the change to several hundred entries: the reader's own, and those of a step.
    assert!(deferred >= READERS / 500, "{deferred}");
    while engine.step(100) {}
    assert!(engine.is_done(change));
}

#[test]
fn a_group_that_drains_during_its_fill_is_recomputed_at_the_end() {
    const ROWS_ALL: usize = 3_000;
    let (mut engine, mut model) = (Engine::new(), Engine::new());
    for engine in [&mut engine, &mut model] {
        engine
            .create("m", "m|all = max v|<row:4>", 0)
            .expect("create");
        // The greatest of the rows that are read first precede the others, so that all that the state stores of them
        // are removed soon. The greatest of all rows come last.
        for row in 0..ROWS_ALL {
            let value = if row < 1_000 {
                9_000 - row
            } else {
                10_000 + row
            };
            put(engine, &format!("v|{row:04}"), &value.to_string());
        }
    }
    engine.set_read_rows(Some(ROWS));
    let mut removed = 0;
    assert!(range(&mut engine, "m|", "m}").0.needs_steps());
    // The group is not computed again in steps.
    while engine.step(ROWS) {
        for _ in 0..50 {
            let key = format!("v|{removed:04}");
            removed += 1;
            for engine in [&mut engine, &mut model] {
                engine.remove(key.as_bytes(), 0).expect("remove");
            }
        }
    }
    let rows = range(&mut engine, "m|", "m}").1;
    assert!(removed >= 200, "{removed} of {ROWS_ALL}");
    assert_eq!(rows, range(&mut model, "m|", "m}").1);
    // No row was counted twice: rows removed from now on disappear.
    for row in (removed..ROWS_ALL).rev() {
        for engine in [&mut engine, &mut model] {
            engine
                .remove(format!("v|{row:04}").as_bytes(), 0)
                .expect("remove");
        }
        engine.set_read_rows(None);
        assert_eq!(
            range(&mut engine, "m|", "m}"),
            range(&mut model, "m|", "m}")
        );
    }
}

#[test]
fn a_conversion_to_pull_during_a_fill_copies_no_rows() {
    let definition =
        "a|<user>|<row:7>|<author> = auto check s|<user>|<author> copy p|<author>|<row>";
    let mut engine = Engine::new();
    engine.create("a", definition, 0).expect("create");
    put(&mut engine, "s|ann|cel", "");
    (0..5_000).for_each(|row| put(&mut engine, &format!("p|cel|{row:07}"), "x"));
    engine.set_read_rows(Some(ROWS));
    let (outcome, _) = range(&mut engine, "a|ann|", "a|ann}");
    assert!(outcome.needs_steps());
    engine.step(ROWS);
    let copied = engine.info("a").expect("there").rows;
    assert!(0 < copied && copied < 5_000, "{copied}");
    // Writes far outnumber reads: from now on the posts are not copied.
    (0..600).for_each(|time| put(&mut engine, &format!("p|cel|{time:07}"), "y"));
    assert_eq!(engine.info("a").expect("there").rows, 0);
    while engine.step(ROWS) {}
    assert_eq!(engine.info("a").expect("there").rows, 0);
    engine.remove(b"p|cel|0004999", 0).expect("remove");
    let (outcome, rows) = range(&mut engine, "a|ann|", "a|ann}");
    assert_eq!((outcome, rows.len()), (ReadOutcome::Done(()), 4_999));
}

#[test]
fn rows_that_expire_together_are_removed_in_steps_and_are_invisible() {
    const EXPIRED: usize = 10_000;
    let mut engine = Engine::new();
    engine.create("n", "n|all = count x|<row:5>", 0).unwrap();
    for row in 0..EXPIRED + 10 {
        let key = format!("x|{row:05}");
        put(&mut engine, &key, "1");
        if row >= 10 {
            engine.expire(key.as_bytes(), Some(50), 0).unwrap();
        }
    }
    let (_, rows) = range(&mut engine, "n|", "n}");
    assert_eq!(rows[0].1, (EXPIRED + 10).to_string());
    engine.set_step_rows(Some(ROWS));
    engine.set_read_rows(Some(ROWS));
    let now = 60;
    let get = |engine: &mut Engine, key: &str| {
        let mut found = None;
        let mut each = |value: &[u8]| found = Some(value.to_vec());
        let outcome = engine.get(key.as_bytes(), now, &mut each);
        assert_eq!(outcome, Ok(ReadOutcome::Done(())));
        found
    };
    let before = engine.row_count();
    assert_eq!(get(&mut engine, "x|09999"), None, "the row has expired");
    let gone = before - engine.row_count();
    assert!(
        gone <= ROWS as u64 + 1,
        "{gone} rows were removed in one step"
    );
    assert!(engine.has_expired_rows());
    assert_eq!(engine.expires_at(b"x|09998", now), None);
    assert_eq!(engine.remove(b"x|09997", now).unwrap().rows, 0);
    assert_eq!(engine.put_if_absent(b"x|09996", b"2", now).unwrap().rows, 1);
    assert_eq!(engine.increment(b"x|09995", 5, now).unwrap().0, 5);
    assert_eq!(
        engine.count(b"x|0900", b"x|0901", now),
        Ok(ReadOutcome::Done(0))
    );
    // A read of a long range with too many expired rows is deferred until they are removed.
    let limits = Limits::default();
    let mut seen = 0;
    let mut each = |_: &[u8], _: &[u8]| {
        seen += 1;
        ControlFlow::Continue(())
    };
    let outcome = engine.range(b"x|", b"x}", limits, now, &mut each);
    assert!(outcome.is_ok_and(|outcome| outcome.needs_steps()) && seen == 0);
    for steps in 0.. {
        let before = engine.row_count();
        engine.begin(now);
        assert!(before - engine.row_count() <= ROWS as u64);
        if !engine.has_expired_rows() {
            assert!(steps > 5, "it took {steps} steps");
            break;
        }
    }
    assert_eq!(engine.count(b"x|", b"x}", now), Ok(ReadOutcome::Done(12)));
    assert_eq!(get(&mut engine, "n|all"), Some(b"12".to_vec()));
}

#[test]
fn an_empty_timeline_is_empty_only_in_the_range_that_was_read() {
    for at in ["", "at|"] {
        let mut engine = Engine::new();
        let timeline = format!(
            "t|<user>|{at}<time:4>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"
        );
        engine.create("timeline", &timeline, 0).expect("a join");
        put(&mut engine, "s|ann|bob", "1");
        put(&mut engine, "p|bob|0003", "x");
        let shows = |engine: &mut Engine, from: &str, rows: &[&str]| {
            let (outcome, found) = range(engine, &format!("t|ann|{at}{from}"), "t|ann}");
            let keys: Vec<String> = rows.iter().map(|row| format!("t|ann|{at}{row}")).collect();
            assert_eq!(outcome, ReadOutcome::Done(()));
            assert!(
                found.iter().map(|(key, _)| key).eq(&keys),
                "{at}: {found:?}"
            );
        };
        shows(&mut engine, "0005", &[]);
        shows(&mut engine, "0006", &[]);
        shows(&mut engine, "0002", &["0003|bob"]);
        engine.remove(b"p|bob|0003", 0).expect("remove");
        shows(&mut engine, "0002", &[]);
        put(&mut engine, "p|bob|0007", "y");
        shows(&mut engine, "0005", &["0007|bob"]);
    }
}

#[test]
fn large_transient_fills_are_computed_in_steps_and_dropped_after_the_read() {
    const ALL: usize = 30_000;
    let joins = [
        ("n|all = pull count v|<row:7>|<author:4>", "n|all"),
        (
            "t|<user>|<row:7>|<author:4> = pull check s|<user>|<author> copy p|<author>|<row>",
            "t|ann|",
        ),
        ("o|all = snapshot 60 sum v|<row:7>|<author:4>", "o|all"),
        // Its best rows are removed before it is read.
        ("g|all = max v|<row:7>|<author:4>", "g|all"),
    ];
    for (definition, lo) in joins {
        let hi = format!("{}}}", lo.trim_end_matches('|'));
        let (mut engine, mut model) = (Engine::new(), Engine::new());
        for engine in [&mut engine, &mut model] {
            sources(engine, ALL);
            engine.create("j", definition, 0).expect("create");
            if definition.starts_with('g') {
                assert_eq!(range(engine, lo, &hi).1.len(), 1);
                for row in (0..200).chain(ALL - 200..ALL) {
                    let removed = format!("v|{row:07}|{:04}", row % 997);
                    engine.remove(removed.as_bytes(), 0).expect("remove");
                }
            }
        }
        engine.set_read_rows(Some(ROWS));
        engine.set_step_rows(Some(ROWS));
        let (mut calls, mut found) = (0, Vec::new());
        for round in 0.. {
            assert!(round < 1_000, "{definition} is never read");
            let ended = engine.ended_reads();
            let (outcome, rows) =
                bounded_by(ROWS * 9, &mut engine, |engine| range(engine, lo, &hi));
            if outcome == ReadOutcome::Done(()) {
                found = rows;
                break;
            }
            assert!(outcome.needs_steps() && rows.is_empty());
            while engine.ended_reads() == ended {
                calls += 1;
                bounded_by(ROWS * 9, &mut engine, |engine| engine.step(ROWS));
                let row = calls * 7919 % ALL;
                for engine in [&mut engine, &mut model] {
                    let author = format!("{:04}", row % 997);
                    put(engine, &format!("v|{row:07}|{author}"), "-5");
                    put(engine, &format!("p|{author}|{:07}", ALL - row), "new");
                    let other = format!("s|ann|{:04}", calls * 31 % 997);
                    match calls % 3 {
                        0 => put(engine, &other, ""),
                        _ => _ = engine.remove(other.as_bytes(), 0).expect("remove"),
                    }
                }
            }
        }
        assert!(calls > ALL / ROWS / 4, "{definition}: {calls} steps");
        assert!(
            found == range(&mut model, lo, &hi).1,
            "{definition} differs"
        );
        if definition.contains("pull") {
            while engine.step(ROWS) {}
            let info = engine.info("j").expect("there");
            assert_eq!(
                (info.ranges, info.rows, info.updaters),
                (0, 0, 0),
                "{definition}"
            );
            put(&mut engine, "v|9999999|0001", "1");
            put(&mut model, "v|9999999|0001", "1");
            engine.set_read_rows(None);
            let again = range(&mut engine, lo, &hi).1;
            assert!(again == range(&mut model, lo, &hi).1, "{definition}, again");
        }
    }
}

/// Dropping and filling used to alternate endlessly: each step of the one left a gap for the other, and each gap
/// scanned the whole source.
#[test]
fn rereading_a_large_transient_range_costs_one_scan_of_the_source() {
    const POSTS: usize = 6_000;
    let mut engine = Engine::new();
    for post in 0..POSTS {
        put(&mut engine, &format!("post|a|{:010}", post * 7), "x");
    }
    let join = "pp|<t:10>|<a> = pull copy post|<a>|<t:10>";
    engine.create("pp", join, 0).expect("create");
    engine.set_read_rows(Some(ROWS));
    engine.set_step_rows(Some(ROWS / 4));
    let (_, all) = range_in_steps(&mut engine, "pp|", "pp}");
    assert_eq!(all.len(), POSTS);
    let windows = [
        ("pp|", "pp}"),
        ("pp|0000000001", "pp|0000000002"),
        ("pp|0", "pp|00000041"),
    ];
    for (lo, hi) in windows.into_iter().cycle().take(12) {
        // The range is partially dropped.
        engine.step(ROWS / 4);
        let before = engine.rows_read();
        let (_, rows) = range_in_steps(&mut engine, lo, hi);
        let expected: Vec<_> = all
            .iter()
            .filter(|(key, _)| lo <= key && &**key < hi)
            .cloned()
            .collect();
        assert_eq!(rows, expected, "{lo} {hi}");
        let read = engine.rows_read() - before;
        // The rows read to find that the computation exceeds the budget, and to fill the gaps before and after the
        // rest.
        let most = (2 * POSTS + 8 * ROWS + ROWS) as u64;
        assert!(
            read <= most,
            "{read} rows were read for {lo} {hi}, of {POSTS}"
        );
    }
}

/// Reads a range like a server: the read is deferred, and retried after steps.
fn range_in_steps(engine: &mut Engine, lo: &str, hi: &str) -> (usize, Vec<(String, String)>) {
    for steps in 0.. {
        let ended = engine.ended_reads();
        if let (ReadOutcome::Done(()), rows) = range(engine, lo, hi) {
            return (steps, rows);
        }
        while engine.ended_reads() == ended {
            engine.step(ROWS / 4);
        }
    }
    unreachable!()
}

/// If the output's order differs from the source's, each gap between filled ranges scans the whole source.
#[test]
fn gaps_over_the_same_source_rows_are_filled_together() {
    const POSTS: usize = 2_000;
    let mut engine = Engine::new();
    for post in 0..POSTS {
        put(&mut engine, &format!("post|a|{post:010}"), "x");
    }
    let join = "pp|<t:10>|<a> = copy post|<a>|<t:10>";
    engine.create("pp", join, 0).expect("create");
    for window in 0..100 {
        let key = format!("pp|{:010}|a", window * 20);
        let (_, rows) = range(&mut engine, &key, &format!("{key}\0"));
        assert_eq!(rows.len(), 1);
    }
    let before = engine.rows_read();
    let (_, rows) = range(&mut engine, "pp|", "pp}");
    assert_eq!(rows.len(), POSTS);
    assert_eq!(engine.rows_read() - before, POSTS as u64);
}

/// The first rows of a large timeline, from either end, cost as much as their number, and each page costs the same
/// again. Other parts are not filled.
#[test]
fn a_limited_read_fills_only_its_page_and_the_next_read_continues() {
    const AUTHORS: usize = 20;
    const POSTS: usize = 2_000;
    let mut engine = Engine::new();
    let join = "t|<user>|<time:8>|<author> = check s|<user>|<author> copy p|<author>|<time:8>";
    engine.create("t", join, 0).expect("create");
    for author in 0..AUTHORS {
        put(&mut engine, &format!("s|ann|{author:02}"), "");
        for post in 0..POSTS {
            put(
                &mut engine,
                &format!("p|{author:02}|{:08}", post * 37 + author),
                "x",
            );
        }
    }
    let mut all: Vec<String> = (0..AUTHORS * POSTS)
        .map(|n| (n % AUTHORS, n / AUTHORS))
        .map(|(author, post)| format!("t|ann|{:08}|{author:02}", post * 37 + author))
        .collect();
    all.sort();
    engine.set_read_rows(Some(ROWS));
    engine.set_step_rows(Some(ROWS / 4));
    for reverse in [true, false] {
        engine.evict_all();
        let (mut lo, mut hi) = ("t|ann|".to_owned(), "t|ann}".to_owned());
        let mut seen: Vec<String> = Vec::new();
        for page in 1..=40 {
            let before = engine.rows_read();
            let limits = Limits {
                reverse,
                ..Limits::first(20)
            };
            let mut rows = Vec::new();
            loop {
                let ended = engine.ended_reads();
                let outcome =
                    engine.range(lo.as_bytes(), hi.as_bytes(), limits, 0, &mut |key, _| {
                        rows.push(String::from_utf8(key.to_vec()).expect("text"));
                        ControlFlow::Continue(())
                    });
                if outcome.as_ref().is_ok_and(ReadOutcome::needs_steps) {
                    while engine.ended_reads() == ended {
                        engine.step(ROWS / 4);
                    }
                    continue;
                }
                assert_eq!(outcome, Ok(ReadOutcome::Done(())));
                break;
            }
            let read = (engine.rows_read() - before) as usize;
            // As many rows as the adjacent filled part has may be filled, and are examined first.
            let most = 2 * AUTHORS + 6 * 20 * page.max(2) + 20 * AUTHORS;
            assert!(read <= most, "{read} source rows for page {page}");
            let last = rows.last().expect("a page").clone();
            if reverse {
                hi = last
            } else {
                lo = last + "\0"
            }
            seen.extend(rows);
            // Filled parts are fresh; other parts will be.
            let key = format!("p|03|{:08}", 1_000_000 + page);
            put(&mut engine, &key, "late");
        }
        let expected: Vec<&String> = if reverse {
            all.iter().rev().take(800).collect()
        } else {
            all.iter().take(800).collect()
        };
        assert_eq!(seen.iter().collect::<Vec<_>>(), expected);
        let info = engine.info("t").expect("there");
        assert!(info.rows < 4_000 && info.ranges <= 12, "{info:?}");
        for page in 1..=40 {
            let key = format!("p|03|{:08}", 1_000_000 + page);
            engine.remove(key.as_bytes(), 0).expect("removed");
        }
    }
    let (_, rows) = range_in_steps(&mut engine, "t|ann|", "t|ann}");
    assert_eq!(rows.len(), all.len(), "the complete range");
}
