//! Limits: of memory, and of the work that is done for one client in one step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_join::{Engine, Error, Limits, RangeReader};

use crate::story::{TIMELINE, TestEngine, engine_with};

#[test]
fn memory_stays_under_the_limit_and_excess_base_rows_are_rejected() {
    let mut t = engine_with(&[TIMELINE]);
    for user in 0..400 {
        for poster in 0..10 {
            t.put(&[(&format!("s|{user:04}|{poster:04}"), "")]);
        }
    }
    for time in 0..100 {
        t.put(&[(
            &format!("p|{:04}|{time:04}", time % 10),
            "a tweet that is longer than a handle",
        )]);
    }
    let base = t.0.memory_bytes();
    let limit = base + 600_000;
    t.0.set_memory_limit(Some(limit));
    for round in 0..3 {
        for user in 0..400 {
            let rows = t.read(&format!("t|{user:04}|"), &format!("t|{user:04}}}"));
            assert_eq!(rows.len(), 100 + round, "user {user}");
            assert!(
                t.0.memory_bytes() <= limit + limit / 20,
                "{} of {limit}",
                t.0.memory_bytes()
            );
        }
        t.put(&[(&format!("p|0003|9{round:03}"), "x")]);
    }
    assert!(t.0.info("j0").unwrap().evicted > 100);
    let failed =
        (0..1_000_000).find_map(|n| t.0.put(format!("x|{n}").as_bytes(), &[b'x'; 1000], 0).err());
    assert!(
        matches!(failed, Some(Error::OutOfMemory { .. })),
        "{failed:?}"
    );
    assert!(t.0.memory_bytes() <= limit);
    t.remove(&["x|1", "x|2", "x|3"]);
    t.0.put(b"x|1", b"fits again", 0).unwrap();
}

#[test]
fn cyclic_reads_of_more_timelines_than_fit_still_hit_some() {
    let mut t = engine_with(&[TIMELINE]);
    for user in 0..400 {
        for poster in 0..10 {
            t.put(&[(&format!("s|{user:04}|{poster:04}"), "")]);
        }
    }
    for time in 0..100 {
        t.put(&[(&format!("p|{:04}|{time:04}", time % 10), "x")]);
    }
    let base = t.0.memory_bytes();
    let read_all = |t: &mut TestEngine| {
        for user in 0..400 {
            let rows = t.read(&format!("t|{user:04}|"), &format!("t|{user:04}}}"));
            assert_eq!(rows.len(), 100, "user {user}");
        }
    };
    read_all(&mut t);
    let limit = base + (t.0.memory_bytes() - base) * 6 / 10;
    t.0.set_memory_limit(Some(limit));
    (0..5).for_each(|_| read_all(&mut t));
    let before = t.0.info("j0").unwrap().filled;
    (0..5).for_each(|_| read_all(&mut t));
    let filled = t.0.info("j0").unwrap().filled - before;
    assert!(filled < 5 * 400 * 7 / 10, "{filled} of 2000 reads filled");
    assert!(t.0.memory_bytes() <= limit);
}

#[test]
fn a_large_fan_out_runs_in_steps_and_concurrent_reads_are_correct() {
    let mut t = engine_with(&[TIMELINE]);
    let users = 2_000;
    for user in 0..users {
        t.put(&[(&format!("s|{user:05}|cel"), "")]);
        assert_eq!(
            t.read(&format!("t|{user:05}|"), &format!("t|{user:05}}}"))
                .len(),
            0
        );
    }
    t.0.set_step_rows(Some(100));
    let first =
        t.0.put(b"p|cel|0001", b"x", 0)
            .unwrap()
            .waits_for
            .expect("too large for one step");
    t.0.put(b"p|cel|0002", b"y", 0).unwrap();
    let last = t.0.remove(b"p|cel|0001", 0).unwrap().waits_for.unwrap();
    t.shows("t|01999|", &["t|01999|0002|cel y"]);
    t.remove(&["s|00042|cel"]).shows("t|00042|", &[]);
    let mut steps = 0;
    while t.0.step(100) {
        steps += 1;
        assert!(!t.0.is_done(last));
        t.shows("t|01000|", &["t|01000|0002|cel y"]);
    }
    assert!(
        t.0.is_done(first) && t.0.is_done(last) && steps >= 50,
        "{steps}"
    );
    assert_eq!(t.read("t|", "t}").len(), users - 1);
}

#[test]
fn a_conversion_runs_in_steps_and_concurrent_reads_and_writes_are_correct() {
    let mut t = engine_with(&[
        "t|<user:3>|<time:4>|<poster:3> = auto check s|<user>|<poster> copy p|<poster>|<time>",
    ]);
    let timeline = |user: usize| (format!("t|{user:03}|"), format!("t|{user:03}}}"));
    for user in 0..400 {
        t.put(&[(&format!("s|{user:03}|cel"), "")]);
        let (lo, hi) = timeline(user);
        assert!(t.read(&lo, &hi).is_empty());
    }
    t.0.set_step_rows(Some(64));
    let mut posts: Vec<String> = Vec::new();
    // Stored rows, besides those that the timelines have: all at first, none once the author is pulled.
    let (mut partly, mut pulled, mut pushed_again) = (0, false, false);
    for round in 0..2_000 {
        if round < 60 {
            posts.push(format!("{round:04}|cel x"));
            t.put(&[(&format!("p|cel|{round:04}"), "x")]);
        }
        if round % 7 == 3 && posts.len() > 5 && round < 60 {
            let post = posts.remove(round % 5);
            t.remove(&[&format!("p|cel|{}", &post[..4])]);
        }
        t.0.step(64);
        // Few users read while the author posts, then all do.
        for user in (0..400).filter(|user| round >= 60 || user % 400 == round * 37 % 400) {
            let (lo, hi) = timeline(user);
            let expected: Vec<String> = posts.iter().map(|post| lo.clone() + post).collect();
            assert_eq!(t.read(&lo, &hi), expected, "round {round}, user {user}");
        }
        let stored = t.0.info("j0").unwrap().rows as usize;
        let all = posts.len() * 400;
        partly += usize::from(0 < stored && stored < all && round > 8);
        pulled |= stored == 0;
        pushed_again |= pulled && stored == all;
        if pushed_again {
            break;
        }
    }
    assert!(
        pulled && pushed_again && partly > 10,
        "{pulled} {pushed_again} {partly}"
    );
}

fn open(engine: &mut Engine, lo: &[u8]) -> RangeReader {
    let opened = engine.open_range(lo, b"b}", Limits::default(), 0);
    opened.unwrap().done().expect("all rows are here")
}

/// Two hundred clients request a table and read none of the reply, while all its rows are overwritten repeatedly.
#[test]
fn memory_of_long_reads_is_bounded_and_rejects_no_write() {
    let mut engine = Engine::new();
    let value = |round: u64| format!("{round:0>500}").into_bytes();
    let key = |row: u64| format!("b|{row:03}").into_bytes();
    for row in 0..200 {
        engine.put(&key(row), &value(0), 0).unwrap();
    }
    let base = engine.memory_bytes();
    engine.set_memory_limit(Some(base + base / 5));
    engine.set_snapshot_limits(usize::MAX, 300_000);
    let charged = Arc::new(AtomicUsize::new(0));
    let mut readings = Vec::new();
    for _ in 0..200 {
        let mut reading = open(&mut engine, b"b|");
        reading.charge(&charged);
        readings.push(reading);
    }
    let mut kept_max = 0;
    for round in 1..20 {
        for row in 0..200 {
            engine.put(&key(row), &value(round), 0).unwrap();
            kept_max = kept_max.max(engine.snapshot_bytes());
            assert!(engine.snapshot_bytes() <= 300_000);
        }
    }
    assert!(kept_max > 200_000, "{kept_max}");
    assert!(engine.memory_bytes() <= base + base / 5);
    // A row that all reads keep is stored once, and its memory is charged to them.
    let lost = readings.iter().filter(|reading| reading.is_lost()).count();
    assert!(lost > 0 && lost < 200, "{lost}");
    assert!(charged.load(Ordering::Relaxed) > 0);
    for mut reading in readings {
        let mut rows = 0;
        let all = engine.read_more(&mut reading, u64::MAX, &mut |_, was| {
            assert_eq!(was, value(0));
            rows += 1;
            ControlFlow::Continue(())
        });
        let expected = if reading.is_lost() { 0 } else { 200 };
        assert_eq!((all, rows), (true, expected));
    }
    assert_eq!(
        (engine.snapshot_bytes(), charged.load(Ordering::Relaxed)),
        (0, 0)
    );
}

#[test]
fn a_long_read_over_its_memory_limit_is_lost() {
    let mut engine = Engine::new();
    for row in 0..100 {
        engine
            .put(format!("b|{row:03}").as_bytes(), &[b'a'; 1000], 0)
            .unwrap();
    }
    engine.set_snapshot_limits(50_000, usize::MAX);
    let slow = open(&mut engine, b"b|");
    let mut quick = open(&mut engine, b"b|090");
    engine.remove_range(b"b|", b"b}", u64::MAX, 0).unwrap();
    assert!(slow.is_lost() && !quick.is_lost());
    let mut rows = 0;
    let all = engine.read_more(&mut quick, u64::MAX, &mut |_, value| {
        assert_eq!(value, [b'a'; 1000]);
        rows += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((all, rows), (true, 10));
    assert!(
        engine.snapshot_bytes() < 20_000,
        "{}",
        engine.snapshot_bytes()
    );
}
