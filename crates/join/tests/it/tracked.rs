//! Cached computed rows: a key whose value has changed since it was read is reported.

use std::collections::HashMap;

use larder_join::Engine;
use larder_types::Random;

use crate::story::TIMELINE;

const UNREAD: &str = "unread|<user> = count tline|<user>|<time>|<author>";
const BEST: &str = "best|<author>|<rank:1> = top 2 post|<author>|<time>";

fn value(engine: &mut Engine, key: &str) -> Option<String> {
    let mut value = None;
    let keep = &mut |bytes: &[u8]| value = Some(String::from_utf8_lossy(bytes).into_owned());
    let read = engine.get(key.as_bytes(), 0, keep);
    read.expect("a table").done().expect("all rows are present");
    value
}

/// The values of output keys that were read and not reported since.
#[derive(Default)]
struct Cache(HashMap<String, Option<String>>);

impl Cache {
    fn forget_stale(&mut self, engine: &mut Engine) -> usize {
        let stale = engine.take_stale();
        for key in &stale {
            self.0.remove(std::str::from_utf8(key).expect("UTF-8"));
        }
        stale.len()
    }

    fn read(&mut self, engine: &mut Engine, key: String) {
        let value = value(engine, &key);
        let is_tracked = engine.track(key.as_bytes());
        self.forget_stale(engine);
        if is_tracked {
            self.0.insert(key, value);
        }
    }
}

fn engine() -> Engine {
    let mut engine = Engine::new();
    for (name, definition) in [("timeline", TIMELINE), ("unread", UNREAD), ("best", BEST)] {
        engine.create(name, definition, 0).expect("a join");
    }
    engine
}

fn key(random: &mut Random) -> String {
    let (a, b, c) = (random.below(3), random.below(3), random.below(4));
    match random.below(4) {
        0 => format!("unread|u{a}"),
        1 => format!("best|u{b}|{}", random.below(3)),
        _ => format!("tline|u{a}|{c}|u{b}"),
    }
}

#[test]
fn every_change_of_a_tracked_row_is_reported() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut engine = engine();
        engine.set_step_rows(Some(1 + random.below(4) as usize));
        let (mut cache, mut reported, mut unreported) = (Cache::default(), 0, 0);
        for step in 0..300 {
            let (a, b, c) = (random.below(3), random.below(3), random.below(4));
            let (sub, post) = (format!("sub|u{a}|u{b}"), format!("post|u{b}|{c}"));
            let wrote = match random.below(12) {
                0 => engine.put(sub.as_bytes(), b"1", 0).map(drop),
                1 => engine.remove(sub.as_bytes(), 0).map(drop),
                2 | 3 => {
                    let value = random.below(100).to_string();
                    engine.put(post.as_bytes(), value.as_bytes(), 0).map(drop)
                }
                4 => engine.remove(post.as_bytes(), 0).map(drop),
                5 if random.below(4) == 0 => {
                    engine.evict_all();
                    Ok(())
                }
                _ => {
                    let key = key(&mut random);
                    cache.read(&mut engine, key);
                    Ok(())
                }
            };
            wrote.expect("written");
            // A writer receives its reply when all outputs reflect its change.
            while engine.step(100) {}
            reported += cache.forget_stale(&mut engine);
            for (key, cached) in &cache.0 {
                unreported += 1;
                assert_eq!(
                    *cached,
                    recomputed(&mut engine, key),
                    "{key}, seed {seed}, step {step}"
                );
            }
        }
        assert!(reported > 10 && unreported > 100, "{reported} {unreported}");
    }
}

/// Recomputes a key's value from the base rows.
fn recomputed(engine: &mut Engine, key: &str) -> Option<String> {
    let mut fresh = self::engine();
    let mut rows = Vec::new();
    for table in ["sub|", "post|"] {
        let hi = format!("{table}\u{7f}");
        engine.read_base_rows(table.as_bytes(), hi.as_bytes(), &mut |key, value, _| {
            rows.push((key.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        });
    }
    for (key, value) in rows {
        fresh.put(&key, &value, 0).expect("written");
    }
    value(&mut fresh, key)
}

#[test]
fn rows_of_joins_that_are_not_maintained_cannot_be_tracked() {
    let mut engine = Engine::new();
    for (mode, table) in [("pull", "a"), ("snapshot 10", "b"), ("auto", "c")] {
        let definition = format!("{table}|<author>|<time> = {mode} copy post|<author>|<time>");
        engine.create(table, &definition, 0).expect("a join");
        let key = format!("{table}|bob|1");
        value(&mut engine, &key);
        assert!(!engine.track(key.as_bytes()), "{mode}");
    }
    assert!(engine.track(b"post|bob|1"), "a base row");
}

/// A range whose fill was dropped is not maintained until it is read again.
#[test]
fn a_row_whose_range_is_not_filled_cannot_be_tracked() {
    let mut engine = engine();
    assert!(!engine.track(b"unread|u1"));
    value(&mut engine, "unread|u1");
    assert!(engine.track(b"unread|u1"));
    engine.evict_all();
    assert_eq!(engine.take_stale(), [Box::from(&b"unread|u1"[..])]);
    assert!(!engine.track(b"unread|u1"));
}
