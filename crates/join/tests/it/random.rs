//! Random operations over random definitions: the engine must agree with the model after every step.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use larder_join::grammar::JoinMode;
use larder_join::{Engine, Error, Limits, RangeReader, ReadOutcome};

pub use crate::definitions::{LOOSE, Random, VALUES, definition};

use crate::definitions::ORDERED;
use crate::model::{Computed, Model};

struct World {
    random: Random,
    seed: u64,
    widths: bool,
    /// True if only joins of `ORDERED` are created.
    ordered: bool,
    engine: Engine,
    model: Model,
    now: u64,
    /// Expiry times of base rows.
    expiries: BTreeMap<Vec<u8>, u64>,
    names: usize,
    log: Vec<String>,
    limited: bool,
    stepped: bool,
    /// Budget of a read, if reads are deferred.
    read_rows: Option<usize>,
    /// True if everything that can be evicted is, while a range is read.
    is_tight: bool,
    long_reads: Vec<LongRead>,
    coverage: Coverage,
}

/// A long read that continues while rows change.
struct LongRead {
    reader: RangeReader,
    /// The remaining rows, as they were when the read began.
    expected: VecDeque<(Vec<u8>, Vec<u8>)>,
    started_at: usize,
}

/// Events that must have occurred, so that the test cannot pass trivially.
#[derive(Default)]
struct Coverage {
    deferred: u64,
    changed_meanwhile: u64,
    /// Rows of long reads that had changed or disappeared since the read began.
    old_rows: u64,
    partial: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut engine = Engine::new();
        let limited = random.chance(30);
        let stepped = random.chance(30);
        if stepped {
            engine.set_step_rows(Some(random.below(3)));
        }
        let read_rows = random.chance(40).then(|| random.below(24));
        engine.set_read_rows(read_rows);
        World {
            widths: random.chance(60),
            ordered: false,
            random,
            seed,
            engine,
            model: Model::default(),
            now: 1000,
            expiries: BTreeMap::new(),
            names: 0,
            log: Vec::new(),
            limited,
            stepped,
            read_rows,
            is_tight: false,
            long_reads: Vec::new(),
            coverage: Coverage::default(),
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..2 + self.random.below(3) {
            self.create();
        }
        for _ in 0..steps {
            self.step();
            self.engine.check_invariants();
        }
        self.check_all();
        self.engine.check_invariants();
        while !self.long_reads.is_empty() {
            self.read_more();
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=44 => self.put(),
            45..=64 => self.remove(),
            65..=67 => self.remove_range(),
            68..=69 => self.create(),
            70 => self.drop_join(),
            71..=72 if self.limited => {
                let limit = self.engine.memory_bytes() * (50 + self.random.below(60)) / 100;
                self.log.push(format!("limit {limit}"));
                self.engine.set_memory_limit(Some(limit));
                self.engine.set_memory_limit(None);
            }
            73 => {
                self.log.push("evict all".into());
                self.engine.evict_all();
            }
            74..=77 if self.stepped || self.read_rows.is_some() => {
                let budget = self.random.below(4);
                self.log.push(format!("step {budget}"));
                self.engine.step(budget);
            }
            78 => {
                self.advance_time(100);
                self.expire();
            }
            79..=84 if !self.long_reads.is_empty() => self.read_more(),
            _ => self.read(),
        }
    }

    fn value(&mut self) -> String {
        if self.random.chance(8) {
            self.random
                .pick(&["x", "text", "a longer text than fits a handle"])
                .to_string()
        } else if self.random.chance(10) {
            String::new()
        } else {
            self.random
                .pick(&["3", "10", "7", "-2", "1.5", "7.0", "0"])
                .to_string()
        }
    }

    fn slot(&mut self) -> &'static str {
        if self.widths {
            self.random.pick(&VALUES)
        } else {
            self.random.pick(&LOOSE)
        }
    }

    fn base_key(&mut self) -> String {
        let table = self.random.pick(&["p", "q", "r"]);
        if self.random.chance(2) {
            return format!("{table}|odd");
        }
        match table {
            "p" => format!("p|{}|{}", self.slot(), self.slot()),
            "q" => format!("q|{}|{}|{}", self.slot(), self.slot(), self.slot()),
            _ => format!("r|{}", self.slot()),
        }
    }

    fn put(&mut self) {
        let (key, value) = (self.base_key(), self.value());
        self.log.push(format!("put {key} {value}"));
        self.engine
            .put(key.as_bytes(), value.as_bytes(), self.now)
            .unwrap();
        self.expiries.remove(key.as_bytes());
        self.model.base.insert(key.into_bytes(), value.into_bytes());
    }

    fn remove(&mut self) {
        let key = match self
            .model
            .base
            .keys()
            .nth(self.random.below(self.model.base.len().max(1)))
        {
            Some(key) if self.random.below(3) == 0 => String::from_utf8(key.clone()).unwrap(),
            _ => self.base_key(),
        };
        self.log.push(format!("remove {key}"));
        let written = self.engine.remove(key.as_bytes(), self.now).unwrap();
        assert_eq!(
            written.rows == 1,
            self.model.base.remove(key.as_bytes()).is_some()
        );
        self.expiries.remove(key.as_bytes());
        if self.random.chance(40) {
            let value = self.value();
            self.log.push(format!("put {key} {value}"));
            self.engine
                .put(key.as_bytes(), value.as_bytes(), self.now)
                .unwrap();
            self.model.base.insert(key.into_bytes(), value.into_bytes());
        }
    }

    fn remove_range(&mut self) {
        let table = self.random.pick(&["p", "q", "r"]);
        let lo = format!("{table}|{}", self.slot());
        let hi = format!("{lo}}}");
        self.log.push(format!("remove range {lo} {hi}"));
        self.engine
            .remove_range(lo.as_bytes(), hi.as_bytes(), u64::MAX, self.now)
            .unwrap();
        self.model
            .base
            .retain(|k, _| !(lo.as_bytes() <= k.as_slice() && k.as_slice() < hi.as_bytes()));
        let base = &self.model.base;
        self.expiries.retain(|key, _| base.contains_key(key));
    }

    /// Advances the time, and removes expired rows.
    fn advance_time(&mut self, millis: u64) {
        self.now += millis;
        let (now, base) = (self.now, &mut self.model.base);
        self.expiries.retain(|key, at| {
            let stays = *at > now;
            if !stays {
                base.remove(key);
            }
            stays
        });
    }

    fn expire(&mut self) {
        // Several rows may expire together, more than one step removes.
        for _ in 0..1 + self.random.below(8) {
            let (key, after) = (self.base_key(), 100 * self.random.below(3) as u64);
            let at = self.now + after;
            self.log
                .push(format!("expire {key} at {at}, now {}", self.now));
            let key = key.into_bytes();
            let had = self.engine.expire(&key, Some(at), self.now).unwrap();
            assert_eq!(had, self.model.base.contains_key(&key));
            if had {
                self.expiries.insert(key, at);
            }
            self.advance_time(0);
        }
    }

    fn create(&mut self) {
        let definition = if self.ordered {
            self.random.pick(&ORDERED).to_owned()
        } else {
            definition(&mut self.random, self.widths)
        };
        self.names += 1;
        let name = format!("j{}", self.names);
        match self.engine.create(&name, &definition, self.now) {
            Ok(_) => {
                self.log.push(format!("create {name} {definition}"));
                self.model.create(&name, &definition);
            }
            Err(error) => {
                let why = [
                    "is cyclic",
                    "does not report changes",
                    "needs its changes",
                    "no boundary",
                    "must name all slots",
                ];
                assert!(
                    why.iter().any(|w| error.message.contains(w)),
                    "{definition}: {error}"
                );
            }
        }
    }

    fn drop_join(&mut self) {
        if self.model.joins.is_empty() {
            return;
        }
        let name = self.model.joins[self.random.below(self.model.joins.len())]
            .0
            .clone();
        self.log.push(format!("drop {name}"));
        self.engine.drop_join(&name).unwrap();
        self.model.drop_join(&name);
    }

    fn read(&mut self) {
        let table = self.random.pick(&["x|", "y|", "z|", "w|", "p|"]);
        let (mut lo, mut hi) = (table.to_string(), table.replace('|', "}"));
        match self.random.below(4) {
            0 => {}
            1 => {
                lo = format!("{table}{}", self.slot());
                hi = format!("{table}{}", self.slot());
            }
            2 => {
                lo = format!("{table}{}|", self.slot());
                hi = lo.replace('|', "}");
                hi.replace_range(..table.len(), table);
                if self.random.chance(50) {
                    lo.push_str(self.slot());
                }
                if self.random.chance(30) {
                    hi = format!("{lo}}}");
                }
            }
            _ => {
                let rows = self.model.table(table);
                if let Some(key) = rows.keys().nth(self.random.below(rows.len().max(1))) {
                    lo = String::from_utf8(key.clone()).unwrap();
                    hi = format!("{lo}\0");
                }
            }
        }
        if self.random.chance(if self.ordered { 60 } else { 15 }) {
            return self.check_pages(table, &lo, &hi);
        }
        self.check(table, &lo, &hi);
    }

    /// Reads a range page by page, from either end, while it changes in between.
    fn check_pages(&mut self, table: &str, lo: &str, hi: &str) {
        let (mut lo, mut hi) = (lo.as_bytes().to_vec(), hi.as_bytes().to_vec());
        let rows = 1 + self.random.below(3) as u64;
        let reverse = self.random.chance(50);
        for _ in 0..8 {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let (from, to) = (text(&lo), text(&hi));
            if from >= to {
                return;
            }
            let limits = Limits {
                reverse,
                ..Limits::first(rows)
            };
            self.check_with(table, &from, &to, limits);
            let mut shown = self.model.table(table);
            shown.retain(|key, value| lo <= *key && *key < hi && value.is_some());
            let mut keys = shown.into_keys();
            let last = if reverse {
                keys.nth_back(rows as usize - 1)
            } else {
                keys.nth(rows as usize - 1)
            };
            let Some(last) = last else { return };
            if reverse {
                hi = last
            } else {
                lo = last;
                lo.push(0);
            }
            if self.random.chance(30) {
                self.put();
            }
            if self.random.chance(20) {
                self.remove();
            }
        }
    }

    fn check_all(&mut self) {
        while self.engine.step(1) {}
        for table in ["x|", "y|", "z|", "w|"] {
            self.check(table, table, &table.replace('|', "}"));
        }
    }

    fn check(&mut self, table: &str, lo: &str, hi: &str) {
        if lo >= hi {
            return;
        }
        let limits = Limits {
            limit: self.random.chance(40).then(|| self.random.below(5) as u64),
            reverse: self.random.chance(20),
            keys_only: false,
            ..Limits::default()
        };
        let limits = Limits {
            total_limit: limits.limit.filter(|_| self.random.chance(70)),
            ..limits
        };
        self.check_with(table, lo, hi, limits);
    }

    fn check_with(&mut self, table: &str, lo: &str, hi: &str, limits: Limits) {
        let is_tight = self.limited && self.random.chance(30);
        for round in 0.. {
            // A fill in many steps would never end.
            self.is_tight = is_tight && round < 3;
            if self.check_once(table, lo, hi, limits) {
                break;
            }
            assert!(round < 10_000, "seed {}: never read", self.seed);
            self.coverage.deferred += 1;
            if round < 60 && self.random.chance(40) {
                self.coverage.changed_meanwhile += 1;
                match self.random.below(20) {
                    0 => self.remove_range(),
                    1 => self.create(),
                    2 => self.drop_join(),
                    3 => {
                        self.log.push("evict all".into());
                        self.engine.evict_all();
                    }
                    4 => self.engine.set_read_rows(None),
                    5..=9 => self.remove(),
                    _ => self.put(),
                }
            }
            let budget = 1 + self.random.below(24);
            self.log.push(format!("step {budget}"));
            self.engine.step(budget);
        }
        self.engine.set_read_rows(self.read_rows);
    }

    /// Reads a range and compares the result. Returns `false` if the read was deferred.
    fn check_once(&mut self, table: &str, lo: &str, hi: &str, limits: Limits) -> bool {
        // Let snapshots expire, since they may be old.
        if self.reads_snapshot(table) {
            self.advance_time(10_000);
        }
        self.log.push(format!("read {lo} {hi} {limits:?}"));
        if self.is_tight {
            // The read itself evicts what it has filled.
            self.log.push("limit 1 during the read".into());
            self.engine.set_memory_limit(Some(1));
            let is_answered = self.check_range(table, lo, hi, limits);
            self.engine.set_memory_limit(None);
            return is_answered;
        }
        self.check_range(table, lo, hi, limits)
    }

    fn check_range(&mut self, table: &str, lo: &str, hi: &str, limits: Limits) -> bool {
        let mut expected: Computed = self.model.table(table);
        expected.retain(|k, _| lo.as_bytes() <= k.as_slice() && k.as_slice() < hi.as_bytes());
        if hi.strip_prefix(lo) == Some("\0") && self.random.chance(50) {
            return self.check_row(lo, expected.get(lo.as_bytes()).cloned());
        }
        // Ranges omit invalid aggregates.
        let rows = expected.into_iter().filter_map(|(k, v)| Some((k, v?)));
        let mut wanted: Vec<_> = rows.collect();
        if limits.reverse {
            wanted.reverse();
        }
        wanted.truncate(limits.limit.map_or(usize::MAX, |limit| limit as usize));
        if self.long_reads.len() < 3 && self.random.chance(30) {
            return self.begin_long(lo, hi, limits, wanted);
        }
        let mut got = Vec::new();
        let outcome = self.engine.range(
            lo.as_bytes(),
            hi.as_bytes(),
            limits,
            self.now,
            &mut |key, value| {
                got.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            },
        );
        let ok = match &outcome {
            Ok(needs) if needs.needs_steps() && got.is_empty() => return false,
            Ok(ReadOutcome::Done(())) => true,
            _ => false,
        };
        if got != wanted || !ok {
            self.fail(&wanted, &got, &outcome);
        }
        true
    }

    /// Reads one row, and expects an error if it is an invalid aggregate (`Some(None)`). Returns `false` if the read
    /// was deferred.
    fn check_row(&mut self, key: &str, wanted: Option<Option<Vec<u8>>>) -> bool {
        let mut got = None;
        let outcome = self.engine.get(key.as_bytes(), self.now, &mut |value| {
            got = Some(value.to_vec());
        });
        let ok = match &outcome {
            Ok(needs) if needs.needs_steps() && got.is_none() => return false,
            Ok(ReadOutcome::Done(())) => wanted.as_ref().is_none_or(Option::is_some),
            Err(Error::NotANumber { .. }) => wanted == Some(None),
            _ => false,
        };
        let row = |value| (key.as_bytes().to_vec(), value);
        let rows = (wanted.flatten().map(row), got.map(row));
        if rows.0 != rows.1 || !ok {
            self.fail(&Vec::from_iter(rows.0), &Vec::from_iter(rows.1), &outcome);
        }
        true
    }

    /// Reads the first row of a range, and holds the rest. Returns `false` if the read was deferred.
    fn begin_long(
        &mut self,
        lo: &str,
        hi: &str,
        limits: Limits,
        wanted: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> bool {
        let mut first = None;
        let (from, to) = (lo.as_bytes(), hi.as_bytes());
        let begun = self
            .engine
            .begin_range(from, to, limits, self.now, |key, value| {
                first = Some((key.to_vec(), value.to_vec()));
                ControlFlow::Break(())
            });
        let rest = match begun {
            Ok(ReadOutcome::Done(rest)) => rest,
            other => {
                let is_deferred = other.as_ref().is_ok_and(ReadOutcome::needs_steps);
                if !is_deferred || first.is_some() {
                    let outcome = other.map(|other| other.map(drop));
                    self.fail(&wanted, &Vec::from_iter(first), &outcome);
                }
                return false;
            }
        };
        if first.as_ref() != wanted.first() {
            self.fail(&wanted, &Vec::from_iter(first), &Ok(ReadOutcome::Done(())));
        }
        let Some(reading) = rest else {
            assert!(wanted.len() <= 1, "seed {}: {lo} {hi}", self.seed);
            return true;
        };
        let mut wanted = VecDeque::from(wanted);
        wanted.pop_front();
        if let Some(rows) = reading.rows() {
            assert_eq!(rows, wanted.len() as u64, "seed {}: {lo} {hi}", self.seed);
        }
        self.long_reads.push(LongRead {
            reader: reading,
            expected: wanted,
            started_at: self.log.len(),
        });
        true
    }

    /// Reads more rows of a long read, and checks that they are as they were when it began.
    fn read_more(&mut self) {
        let at = self.random.below(self.long_reads.len());
        let rows_max = 1 + self.random.below(3) as u64;
        self.log.push(format!("read {rows_max} more of {at}"));
        let held = &mut self.long_reads[at];
        let mut got = Vec::new();
        let ended = self
            .engine
            .read_more(&mut held.reader, rows_max, &mut |key, value| {
                got.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            });
        let wanted: Vec<_> = held
            .expected
            .drain(..got.len().min(held.expected.len()))
            .collect();
        let left = held.expected.len();
        let ok = if ended {
            left == 0
        } else {
            got.len() as u64 == rows_max
        };
        if got != wanted || !ok {
            self.log
                .push(format!("(it began after line {})", held.started_at));
            self.fail(&wanted, &got, &Ok(ReadOutcome::Done(())));
        }
        for (key, value) in &got {
            let table = String::from_utf8_lossy(&key[..2]).into_owned();
            let now = self.model.table(&table);
            let is_old = now.get(key).is_none_or(|now| now.as_ref() != Some(value));
            self.coverage.old_rows += u64::from(is_old);
        }
        if ended {
            self.long_reads.remove(at);
        }
    }

    fn reads_snapshot(&self, table: &str) -> bool {
        let snapshot = |t: &str| matches!(self.model.mode(t), Some(JoinMode::Snapshot { .. }));
        let _ = table;
        ["x|", "y|", "z|", "w|"].iter().any(|t| snapshot(t))
            || self
                .model
                .joins
                .iter()
                .any(|(_, j)| matches!(j.mode, JoinMode::Snapshot { .. }))
    }

    fn fail(
        &self,
        wanted: &[(Vec<u8>, Vec<u8>)],
        got: &[(Vec<u8>, Vec<u8>)],
        outcome: &Result<ReadOutcome, Error>,
    ) -> ! {
        let show = |rows: &[(Vec<u8>, Vec<u8>)]| -> String {
            let line = |(k, v): &(Vec<u8>, Vec<u8>)| {
                format!(
                    "\n  {} = {}",
                    String::from_utf8_lossy(k),
                    String::from_utf8_lossy(v)
                )
            };
            rows.iter().map(line).collect()
        };
        panic!(
            "seed {}: after\n{}\nwanted{}\ngot {outcome:?}{}",
            self.seed,
            self.log.join("\n"),
            show(wanted),
            show(got)
        );
    }
}

fn run_seeds(seeds: std::ops::Range<u64>, steps: usize) {
    let is_complete_run = seeds.end - seeds.start > 1;
    let mut all = Coverage::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run(steps);
        all.deferred += world.coverage.deferred;
        all.changed_meanwhile += world.coverage.changed_meanwhile;
        all.old_rows += world.coverage.old_rows;
        all.partial += world.engine.partial_reads();
    }
    let Coverage {
        deferred,
        changed_meanwhile,
        old_rows,
        partial,
    } = all;
    assert!(
        !is_complete_run
            || (deferred.min(changed_meanwhile) > 1000 && old_rows > 300 && partial > 300),
        "{deferred} reads deferred, {changed_meanwhile} changes meanwhile, {old_rows} former rows, {partial} partial reads"
    );
}

/// Reproduce one seed: `LARDER_SEED=17 cargo test -p larder-join random`.
#[test]
fn the_engine_agrees_with_the_model() {
    if let Ok(seed) = std::env::var("LARDER_SEED") {
        let seed = seed.parse().unwrap();
        let steps = std::env::var("LARDER_STEPS").map_or(80, |s| s.parse().unwrap());
        return run_seeds(seed..seed + 1, steps);
    }
    let seeds = if std::env::var("LARDER_SLOW_TESTS").is_ok() {
        20_000
    } else {
        2_000
    };
    run_seeds(0..seeds, 80);
}

/// Reads with limits, from both ends and page by page, of joins that are filled only as far as necessary.
#[test]
fn limited_reads_agree_with_the_model() {
    let is_slow = std::env::var("LARDER_SLOW_TESTS").is_ok();
    let seeds = match std::env::var("LARDER_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..if is_slow { 6_000 } else { 500 }).collect(),
    };
    let mut partial = 0;
    for &seed in &seeds {
        let mut world = World::new(1_000_000 + seed);
        (world.ordered, world.widths) = (true, true);
        world.run(100);
        partial += world.engine.partial_reads();
    }
    assert!(
        seeds.len() == 1 || partial > 2_000,
        "{partial} partial reads"
    );
}
