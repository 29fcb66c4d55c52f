//! Subscriptions report every change in a range, and nothing else; and tests of `else`.

use std::collections::BTreeSet;

use larder_join::{Engine, ReadOutcome, Shard};

use crate::random::Random;
use crate::story::{TIMELINE, TestEngine, engine_with};

/// The rows that a subscriber knows only from reported changes.
struct Mirror {
    subscription: u64,
    prefix: String,
    is_key: bool,
    keys: BTreeSet<String>,
}

impl Mirror {
    fn new(t: &mut TestEngine, beginning: &str, is_key: bool) -> Mirror {
        let listener = t.0.subscribe(beginning.as_bytes(), is_key, t.1).unwrap();
        t.0.take_row_changes();
        let mut mirror = Mirror {
            subscription: listener.done().unwrap(),
            prefix: beginning.to_owned(),
            is_key,
            keys: BTreeSet::new(),
        };
        mirror.keys = mirror.current_keys(t);
        mirror
    }

    fn current_keys(&self, t: &mut TestEngine) -> BTreeSet<String> {
        let lo = &self.prefix;
        let hi = if self.is_key {
            format!("{lo}\0")
        } else {
            format!("{lo}\u{7f}")
        };
        let rows = t.read(lo, &hi);
        let key = |row: String| row.split(' ').next().unwrap().to_owned();
        rows.into_iter().map(key).collect()
    }

    fn covers(&self, key: &str) -> bool {
        if self.is_key {
            key == self.prefix
        } else {
            key.starts_with(&self.prefix)
        }
    }
}

/// Lets the subscribers catch up, and checks that each mirror equals a read.
#[track_caller]
fn check(t: &mut TestEngine, mirrors: &mut [Mirror]) -> usize {
    for _ in 0..100 {
        let more = t.0.step(3);
        let stale = t.0.stale_subscriptions();
        if stale.is_empty() && !more {
            break;
        }
        for listener in stale {
            assert_eq!(
                t.0.refresh_subscription(listener, t.1),
                Ok(ReadOutcome::Done(()))
            );
        }
    }
    let all = t.0.take_row_changes();
    for change in &all {
        let key = String::from_utf8(change.key.to_vec()).unwrap();
        let mut mine = mirrors.iter_mut().filter(|m| m.covers(&key)).peekable();
        assert!(mine.peek().is_some(), "no subscription covers {key}");
        for mirror in mine {
            if change.exists {
                mirror.keys.insert(key.clone());
            } else {
                assert!(mirror.keys.remove(&key), "{key} was not there")
            }
        }
    }
    for mirror in mirrors {
        let current = mirror.current_keys(t);
        assert_eq!(mirror.keys, current, "{}", mirror.prefix);
    }
    all.len()
}

#[test]
fn reported_changes_equal_the_differences_between_reads() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut t = engine_with(&[
            TIMELINE,
            "n|<poster> = count p|<poster>|<time>",
            "m|<user>|<poster> = check s|<user>|<poster> max n|<poster>",
            "top|<poster>|<rank:1>|<time> = top 2 p|<poster>|<time>",
        ]);
        if random.chance(50) {
            t.0.set_step_rows(Some(2));
        }
        let users = ["ann", "bob", "cid"];
        let mut mirrors = Vec::new();
        let mut reported = 0;
        for _ in 0..300 {
            t.1 += 1;
            let (user, poster) = (random.pick(&users), random.pick(&users));
            let time = random.below(4);
            match random.below(12) {
                0 | 1 => drop(t.put(&[(&format!("s|{user}|{poster}"), "1")])),
                2 => drop(t.remove(&[&format!("s|{user}|{poster}")])),
                3..6 => {
                    let value = random.below(9).to_string();
                    t.put(&[(&format!("p|{poster}|000{time}"), &value)]);
                }
                6 | 7 => drop(t.remove(&[&format!("p|{poster}|000{time}")])),
                8 if mirrors.len() < 5 => {
                    let all = ["t|ann|", "t|", "n|", "m|bob|", "p|ann|", "top|ann|"];
                    let beginning = *all.get(random.below(all.len())).unwrap();
                    mirrors.push(Mirror::new(&mut t, beginning, false));
                }
                9 if mirrors.len() < 5 => mirrors.push(Mirror::new(&mut t, "n|bob", true)),
                10 if mirrors.len() > 2 => {
                    let removed = mirrors.swap_remove(random.below(mirrors.len()));
                    t.0.unsubscribe(removed.subscription);
                    t.0.take_row_changes();
                }
                _ => t.0.evict_all(),
            }
            reported += check(&mut t, &mut mirrors);
            t.0.check_invariants();
        }
        assert!(reported > 50, "seed {seed}: {reported}");
        for mirror in mirrors {
            t.0.unsubscribe(mirror.subscription);
        }
        // Nothing is pinned any more, so everything can be evicted, in order of dependency.
        (0..8).for_each(|_| t.0.evict_all());
        for join in ["j0", "j1", "j2", "j3"] {
            assert_eq!(t.filled(join), 0, "seed {seed}: {join}");
        }
    }
}

#[test]
fn impossible_subscriptions_are_rejected_and_a_dropped_join_leaves_nothing() {
    let mut t = engine_with(&[
        "a|<x> = pull copy p|<x>",
        "b|<x> = snapshot 5 copy p|<x>",
        "c|<x> = copy p|<x>",
    ]);
    for pulled in ["a|", "b|1"] {
        let refused = t.0.subscribe(pulled.as_bytes(), false, 0).unwrap_err();
        assert!(refused.to_string().contains("when it is read"), "{refused}");
    }
    assert!(t.0.subscribe(b"none", false, 0).is_err());
    t.put(&[("p|1", "v")]);
    let listener = t.0.subscribe(b"c|", false, 0).unwrap().done().unwrap();
    t.0.drop_join("j2").unwrap();
    t.put(&[("p|2", "v")]);
    assert!(!t.0.has_row_changes());
    t.0.unsubscribe(listener);
    t.0.create("j2", "c|<x> = copy p|<x>", 0).unwrap();
    t.shows("c|", &["c|1 v", "c|2 v"]);
}

/// A shard does not report changes of its replicas; their owner does.
#[test]
fn changes_of_replicas_are_not_reported() {
    let owner = (0..2).find(|&own| Shard::new(own, 2).owns(b"p|1")).unwrap();
    for index in 0..2 {
        let mut engine = Engine::new();
        engine.set_shard(Shard::new(index, 2));
        engine.subscribe(b"p|", false, 0).unwrap().done().unwrap();
        engine.put(b"p|1", b"v", 0).unwrap();
        assert_eq!(engine.has_row_changes(), index == owner);
    }
}

#[test]
fn else_defines_the_value_of_an_absent_row() {
    let mut t = engine_with(&["n|<x>|all = count p|<x>|<y> else 0", "c|<x> = copy p|<x>|1"]);
    t.put(&[("p|1|1", "v")]);
    let otherwise = |t: &TestEngine, key: &str| t.0.else_value(key.as_bytes()).map(<[u8]>::to_vec);
    assert_eq!(otherwise(&t, "n|2|all"), Some(b"0".to_vec()));
    for other in ["n|2|some", "n|2", "n|", "n", "c|2", "p|2|1", "none|1"] {
        assert_eq!(otherwise(&t, other), None, "{other}");
    }
    t.shows("n|", &["n|1|all 1"]);
    for (wrong, column) in [
        ("n|<x> = copy p|<x> else 0", 20),
        ("n|<x> = count p|<x> else", 25),
        ("n|<x> = count p|<x> else 0 0", 21),
        ("n|<x> = else 0", 15),
    ] {
        let error = t.0.create("wrong", wrong, 0).unwrap_err();
        assert_eq!(error.column, column, "{wrong}: {error}");
    }
    t.0.create("quoted", "q|<x> = max p|<x>|<y> else 'no such'", 0)
        .unwrap();
    assert_eq!(otherwise(&t, "q|2"), Some(b"no such".to_vec()));
}
