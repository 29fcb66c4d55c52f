//! Long reads whose ranges are evicted meanwhile: every reply has all rows of the moment when it began.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use larder_join::{Engine, KeyRange, Limits, RangeReader, ReadOutcome};

use crate::definitions::Random;

/// Rows that a server reads of a long reply at a time.
const CHUNK_ROWS: u64 = 1024;

type Row = (String, String);

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Reads the first chunk of a range, and holds the rest.
fn begin(
    engine: &mut Engine,
    (lo, hi): (&str, &str),
    limits: Limits,
    now: u64,
) -> (Vec<Row>, Option<RangeReader>) {
    for _ in 0..10_000 {
        let mut rows = Vec::new();
        let begun = engine.begin_range(lo.as_bytes(), hi.as_bytes(), limits, now, |key, value| {
            rows.push((text(key), text(value)));
            if rows.len() as u64 == CHUNK_ROWS {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match begun.expect("the range is of one table") {
            ReadOutcome::Done(rest) => return (rows, rest),
            ReadOutcome::Needs(_) => engine.step(10_000),
        };
    }
    panic!("{lo} is never read");
}

/// Reads one more chunk. Returns whether it was the last.
fn read_chunk(engine: &Engine, reading: &mut RangeReader, rows: &mut Vec<Row>) -> bool {
    let ended = engine.read_more(reading, CHUNK_ROWS, &mut |key, value| {
        rows.push((text(key), text(value)));
        ControlFlow::Continue(())
    });
    assert!(!reading.is_lost(), "the rest is lost");
    ended
}

/// Applies limits to the rows of a range.
fn limited(mut rows: Vec<Row>, limits: Limits) -> Vec<Row> {
    if limits.reverse {
        rows.reverse();
    }
    rows.truncate(limits.limit.map_or(usize::MAX, |limit| limit as usize));
    if limits.keys_only {
        rows.iter_mut().for_each(|(_, value)| value.clear());
    }
    rows
}

fn all_limits() -> [Limits; 5] {
    let all = Limits::default();
    [
        all,
        Limits {
            reverse: true,
            ..all
        },
        Limits {
            limit: Some(1_400),
            total_limit: Some(1_400),
            ..all
        },
        Limits {
            limit: Some(1_400),
            total_limit: Some(1_400),
            reverse: true,
            ..all
        },
        Limits {
            keys_only: true,
            ..all
        },
    ]
}

#[track_caller]
fn check_all_limits(engine: &mut Engine, range: (&str, &str), expected: &[Row]) {
    for limits in all_limits() {
        let (mut rows, rest) = begin(engine, range, limits, 0);
        if let Some(mut reading) = rest {
            while !read_chunk(engine, &mut reading, &mut rows) {}
        }
        let expected = limited(expected.to_vec(), limits);
        assert!(
            rows == expected,
            "{} of {} rows, {limits:?}",
            rows.len(),
            expected.len()
        );
    }
}

const POSTS: usize = 1_500;

fn post(time: usize) -> Row {
    (format!("p|bob|{time:06}"), format!("text {time}"))
}

#[test]
fn a_range_that_its_own_read_evicts_is_read_completely() {
    let copied: Vec<Row> = (0..POSTS)
        .map(|time| (format!("t|ann|{time:06}|bob"), post(time).1))
        .collect();
    let counted: Vec<Row> = (0..POSTS)
        .map(|time| (format!("t|ann|{time:06}"), "1".to_owned()))
        .collect();
    let merged: Vec<Row> = (0..POSTS)
        .flat_map(|time| {
            let key = |word| format!("t|ann|{time:06}|{word}");
            [(key("a"), post(time).1), (key("b"), "1".to_owned())]
        })
        .collect();
    let timeline = "check s|<user>|<poster> copy p|<poster>|<time>";
    let count = "check s|<user>|<poster> count p|<poster>|<time>";
    let copy_of = |mode: &str| format!("t|<user:3>|<time:6>|<poster> = {mode}{timeline}");
    let cases: [(Vec<String>, &[Row]); 5] = [
        (vec![copy_of("")], &copied),
        (vec![copy_of("auto ")], &copied),
        (vec![copy_of("snapshot 60 ")], &copied),
        (vec![format!("t|<user:3>|<time:6> = {count}")], &counted),
        (
            vec![
                format!("t|<user:3>|<time:6>|a = {timeline}"),
                format!("t|<user:3>|<time:6>|b = {count}"),
            ],
            &merged,
        ),
    ];
    for (joins, expected) in cases {
        let mut engine = Engine::new();
        for (number, join) in joins.iter().enumerate() {
            engine.create(&format!("j{number}"), join, 0).expect("join");
        }
        for (key, value) in (0..POSTS).map(post) {
            engine
                .put(key.as_bytes(), value.as_bytes(), 0)
                .expect("put");
        }
        engine.put(b"s|ann|bob", b"", 0).expect("put");
        // With this limit, everything that can be evicted is.
        engine.set_memory_limit(Some(1));
        check_all_limits(&mut engine, ("t|ann|", "t|ann}"), expected);
        let evicted: u64 = engine.list().iter().map(|join| join.evicted).sum();
        assert!(evicted >= 5, "{joins:?}: {evicted} ranges were evicted");
    }
}

#[test]
fn a_supplied_range_that_its_own_read_evicts_is_read_completely() {
    let mut engine = Engine::new();
    engine.declare_external(b"p|").expect("a new table");
    engine.set_memory_limit(Some(1));
    let rows: Vec<Row> = (0..POSTS).map(post).collect();
    for limits in all_limits() {
        let mut supplied = rows
            .iter()
            .map(|(key, value)| (key.clone().into_bytes(), value.clone().into_bytes()));
        engine.supply(&KeyRange::new(b"p|bob|", b"p|bob}"), &mut supplied);
        let (mut read, rest) = begin(&mut engine, ("p|bob|", "p|bob}"), limits, 0);
        let mut reading = rest.expect("there are more than a chunk");
        assert_eq!(engine.supplied_rows(b"p|"), 0, "the ranges are evicted");
        while !read_chunk(&engine, &mut reading, &mut read) {}
        assert!(
            read == limited(rows.clone(), limits),
            "{} rows, {limits:?}",
            read.len()
        );
    }
}

#[test]
fn a_range_in_use_is_evicted_last() {
    let mut engine = Engine::new();
    let join = "t|<user:3>|<time:6> = check s|<user>|<poster> copy p|<poster>|<time>";
    engine.create("j", join, 0).expect("join");
    for (key, value) in (0..POSTS).map(post) {
        engine
            .put(key.as_bytes(), value.as_bytes(), 0)
            .expect("put");
    }
    for user in ["ann", "cid", "dan"] {
        let key = format!("s|{user}|bob");
        engine.put(key.as_bytes(), b"", 0).expect("put");
    }
    let base = engine.memory_bytes();
    let (_, rest) = begin(&mut engine, ("t|ann|", "t|ann}"), Limits::default(), 0);
    let one = engine.memory_bytes() - base;
    for user in ["cid", "dan"] {
        let (lo, hi) = (format!("t|{user}|"), format!("t|{user}}}"));
        begin(&mut engine, (&lo, &hi), Limits::default(), 0);
    }
    engine.set_memory_limit(Some(base + one + one / 2));
    assert_eq!(engine.snapshot_bytes(), 0, "no former value was needed");
    let filled = engine.info("j").expect("it exists").rows;
    assert!(filled >= POSTS as u64, "{filled}");
    drop(rest);
}

/// Joins over large groups, and a recomputation of their rows by the simplest means.
struct World {
    random: Random,
    engine: Engine,
    now: u64,
    posts: BTreeMap<(usize, usize), String>,
    follows: BTreeSet<(usize, usize)>,
    long_reads: Vec<LongRead>,
    old_rows: usize,
}

struct LongRead {
    reader: RangeReader,
    rows: Vec<Row>,
    remaining: VecDeque<Row>,
}

const USERS: usize = 3;
const OUTPUTS: [(&str, &str); 5] = [
    (
        "push",
        "push|<u:1>|<t:6>|<a:1> = check s|<u>|<a> copy p|<a>|<t>",
    ),
    (
        "auto",
        "auto|<u:1>|<t:6>|<a:1> = auto check s|<u>|<a> copy p|<a>|<t>",
    ),
    (
        "pull",
        "pull|<u:1>|<t:6>|<a:1> = pull check s|<u>|<a> copy p|<a>|<t>",
    ),
    (
        "snap",
        "snap|<u:1>|<t:6>|<a:1> = snapshot 1 check s|<u>|<a> copy p|<a>|<t>",
    ),
    (
        "last",
        "last|<u:1>|<t:6>|<a:1> = check s|<u>|<a> max p|<a>|<t>",
    ),
];

impl World {
    /// Creates one author for each size.
    fn new(seed: u64, sizes: &[usize]) -> World {
        let mut world = World {
            random: Random::new(seed),
            engine: Engine::new(),
            now: 1_000,
            posts: BTreeMap::new(),
            follows: BTreeSet::new(),
            long_reads: Vec::new(),
            old_rows: 0,
        };
        for (name, definition) in OUTPUTS {
            world.engine.create(name, definition, 0).expect("join");
        }
        for (author, &size) in sizes.iter().enumerate() {
            for time in 0..size {
                world.put(author, time * 2);
            }
            world.follow(author % USERS, author);
        }
        if world.random.chance(70) {
            world.engine.set_read_rows(Some(8_192));
            world.engine.set_step_rows(Some(2_048));
        }
        world
    }

    /// The limit always exceeds the base rows: only computed rows are evicted.
    fn limit_memory(&mut self, percent: usize) {
        let bytes = self.engine.memory_bytes() * percent / 100;
        self.engine.set_memory_limit(Some(bytes));
    }

    fn with_room<T>(&mut self, run: impl FnOnce(&mut Engine, u64) -> T) -> T {
        self.engine.set_memory_limit(None);
        run(&mut self.engine, self.now)
    }

    fn put(&mut self, author: usize, time: usize) {
        let value = self.random.below(1_000).to_string();
        let key = format!("p|{author}|{time:06}");
        self.with_room(|engine, now| engine.put(key.as_bytes(), value.as_bytes(), now))
            .expect("put");
        self.posts.insert((author, time), value);
    }

    fn follow(&mut self, user: usize, author: usize) {
        let key = format!("s|{user}|{author}");
        if self.follows.remove(&(user, author)) {
            self.with_room(|engine, now| engine.remove(key.as_bytes(), now))
        } else {
            self.follows.insert((user, author));
            self.with_room(|engine, now| engine.put(key.as_bytes(), b"", now))
        }
        .expect("written");
    }

    fn expected(&self, table: &str, user: usize) -> Vec<Row> {
        let follows = self.follows.range((user, 0)..(user + 1, 0));
        let posts = follows.flat_map(|(_, author)| self.posts.range((*author, 0)..(author + 1, 0)));
        let row = |((author, time), value): (&(usize, usize), &String)| {
            (format!("{table}|{user}|{time:06}|{author}"), value.clone())
        };
        let mut rows: Vec<Row> = posts.map(row).collect();
        rows.sort();
        rows
    }

    fn begin(&mut self) {
        let (table, _) = OUTPUTS[self.random.below(OUTPUTS.len())];
        let user = self.random.below(USERS);
        let limit = self
            .random
            .chance(40)
            .then(|| self.random.below(5_000) as u64);
        let limits = Limits {
            limit,
            total_limit: limit.filter(|_| self.random.chance(70)),
            reverse: self.random.chance(40),
            keys_only: self.random.chance(20),
        };
        // Let snapshots expire.
        self.now += 10_000;
        let wanted = limited(self.expected(table, user), limits);
        let (lo, hi) = (format!("{table}|{user}|"), format!("{table}|{user}}}"));
        let (rows, rest) = begin(&mut self.engine, (&lo, &hi), limits, self.now);
        let mut read = LongRead {
            reader: match rest {
                Some(reading) => reading,
                None => return assert!(rows == wanted, "{lo}: {} of {}", rows.len(), wanted.len()),
            },
            rows,
            remaining: wanted.into(),
        };
        read.check();
        self.long_reads.push(read);
    }

    fn continue_read(&mut self, at: usize) {
        let held = &mut self.long_reads[at];
        let ended = read_chunk(&self.engine, &mut held.reader, &mut held.rows);
        let is_old = |(key, value): &&Row| {
            let mut words = key.split('|').skip(1);
            let mut number = || words.next().expect("a key").parse().expect("a number");
            let (_, time, author): (usize, usize, usize) = (number(), number(), number());
            !value.is_empty() && self.posts.get(&(author, time)) != Some(value)
        };
        self.old_rows += held.rows.iter().filter(is_old).count();
        held.check();
        if ended {
            assert!(
                held.remaining.is_empty(),
                "{} rows are missing",
                held.remaining.len()
            );
            self.long_reads.swap_remove(at);
        }
    }

    fn step(&mut self) {
        let authors = self
            .posts
            .keys()
            .next_back()
            .map_or(1, |(last, _)| last + 1);
        let author = self.random.below(authors);
        match self.random.below(20) {
            0..=2 => (0..self.random.below(50)).for_each(|_| {
                let time = self.random.below(4_000);
                self.put(author, time);
            }),
            3..=4 => {
                let from = self.random.below(4_000);
                let (lo, hi) = (
                    format!("p|{author}|{from:06}"),
                    format!("p|{author}|{:06}", from + 50),
                );
                self.with_room(|engine, now| {
                    engine.remove_range(lo.as_bytes(), hi.as_bytes(), u64::MAX, now)
                })
                .expect("removed");
                self.posts
                    .retain(|(a, time), _| *a != author || !(from..from + 50).contains(time));
            }
            5 => {
                let user = self.random.below(USERS);
                self.follow(user, author);
            }
            6..=7 => self.engine.evict_all(),
            8..=10 => {
                let percent = 30 + self.random.below(80);
                self.limit_memory(percent);
            }
            11 => _ = self.engine.step(2_048),
            12..=14 if self.long_reads.len() < 4 => self.begin(),
            _ if self.long_reads.is_empty() => self.begin(),
            _ => {
                let at = self.random.below(self.long_reads.len());
                self.continue_read(at);
            }
        }
    }
}

impl LongRead {
    /// Checks the rows that were read, and removes them from the expected ones.
    fn check(&mut self) {
        for row in self.rows.drain(..) {
            assert_eq!(Some(row), self.remaining.pop_front());
        }
    }
}

fn run(seed: u64, sizes: &[usize], steps: usize) -> usize {
    let mut world = World::new(seed, sizes);
    for _ in 0..steps {
        world.step();
        world.engine.check_invariants();
    }
    while !world.long_reads.is_empty() {
        world.continue_read(0);
    }
    world.old_rows
}

/// Reproduce one seed: `LARDER_SEED=17 cargo test -p larder-join groups_larger`.
#[test]
fn groups_larger_than_a_chunk_are_read_completely_during_eviction_and_changes() {
    let sizes = [0, 1, 1_023, 1_024, 1_025, 2_048, 3_000];
    if let Ok(seed) = std::env::var("LARDER_SEED") {
        run(seed.parse().expect("a number"), &sizes, 150);
        return;
    }
    let is_slow = std::env::var("LARDER_SLOW_TESTS").is_ok();
    let old_rows: usize = (0..if is_slow { 100 } else { 6 })
        .map(|seed| run(seed, &sizes, 150))
        .sum();
    assert!(
        old_rows > 100,
        "{old_rows} rows changed while they were read"
    );
}

/// More rows than a read with a limit examines (65,536).
#[test]
fn a_group_larger_than_a_probe_is_read_completely_during_eviction() {
    run(1, &[70_000, 10, 1_500], 60);
}
