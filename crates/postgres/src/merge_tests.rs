//! Tests the merge against a model of PostgreSQL, with commits that become visible late and out of order, and loads at
//! any time.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use larder_types::KeyRange;

use crate::changes::Change;
use crate::merge::{LoadId, Loaded, Merge, MergeOutput, Row};
use crate::snapshot::{Lsn, Snapshot};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

struct Commit {
    xid: u32,
    end: Lsn,
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// PostgreSQL, its stream, and an engine that performs the merge's actions.
#[derive(Default)]
struct World {
    next_xid: u32,
    running: Vec<u32>,
    log: Vec<Commit>,
    visible: BTreeSet<u32>,
    /// Number of commits that the stream has sent.
    streamed: usize,
    merge: Merge,
    here: Vec<KeyRange>,
    rows: Rows,
    /// Started loads, and loads whose rows are in transit.
    started_loads: Vec<(LoadId, KeyRange)>,
    in_flight: Vec<(LoadId, KeyRange, Loaded)>,
    ranges: BTreeMap<LoadId, KeyRange>,
    supplied: usize,
    retried: usize,
    wait: Option<(u64, u32)>,
}

fn key(number: u8) -> Vec<u8> {
    format!("k|{}", number % 8).into_bytes()
}

fn apply(rows: &mut Rows, commit: &Commit, only: &dyn Fn(&[u8]) -> bool) {
    for (key, value) in commit.changes.iter().filter(|(key, _)| only(key)) {
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
}

impl World {
    fn end(&self) -> Lsn {
        self.log.last().map_or(0, |commit| commit.end)
    }

    fn commit(&mut self, dice: u8, changes: &[(u8, bool)]) {
        // A few transactions run concurrently and end in any order.
        while self.running.len() < 3 {
            self.next_xid += 1;
            self.running.push(self.next_xid);
        }
        let xid = self.running.remove(usize::from(dice) % self.running.len());
        let mut changed = Vec::new();
        for (number, is_put) in changes {
            let key = key(*number);
            // A writer of a row waits until the end of the row's previous writer is visible.
            let is_locked = self.log.iter().any(|commit| {
                !self.visible.contains(&commit.xid)
                    && commit.changes.iter().any(|(other, _)| *other == key)
            });
            if !is_locked {
                changed.push((key, is_put.then(|| format!("{xid}").into_bytes())));
            }
        }
        let end = self.end() + 10;
        self.log.push(Commit {
            xid,
            end,
            changes: changed,
        });
    }

    fn make_visible(&mut self, dice: u8) {
        let hidden = self.log.iter().map(|commit| commit.xid);
        let hidden: Vec<u32> = hidden.filter(|xid| !self.visible.contains(xid)).collect();
        if !hidden.is_empty() {
            self.visible
                .insert(hidden[usize::from(dice) % hidden.len()]);
        }
    }

    fn advance_stream(&mut self) {
        let Some(commit) = self.log.get(self.streamed) else {
            // Nothing is left to send, and the server reports its position.
            self.merge.advance(self.end());
            return;
        };
        self.merge.begin(commit.xid);
        for (key, value) in &commit.changes {
            let key = key.clone();
            self.merge.change(&match value.clone() {
                Some(value) => Change::Put { key, value },
                None => Change::Remove { key },
            });
        }
        let here = &self.here;
        apply(&mut self.rows, commit, &|key| {
            here.iter().any(|range| range.contains(key))
        });
        self.merge.commit(commit.end);
        self.streamed += 1;
    }

    fn begin(&mut self, from: u8, to: u8) {
        let range = KeyRange::new(&key(from), &[key(to), b"~".to_vec()].concat());
        let load = self.merge.begin_load(0, vec![range.clone()]);
        self.ranges.insert(load, range.clone());
        self.started_loads.push((load, range));
    }

    fn select(&mut self) {
        let Some((load, range)) = self.started_loads.pop() else {
            return;
        };
        let all = (1..=self.next_xid).filter(|xid| !self.visible.contains(xid));
        let running: BTreeSet<u64> = all.map(u64::from).collect();
        let xmax = u64::from(self.next_xid) + 1;
        let snapshot = Snapshot {
            xmin: running.first().copied().unwrap_or(xmax),
            xmax,
            running,
        };
        let mut rows = Rows::new();
        for commit in self
            .log
            .iter()
            .filter(|commit| self.visible.contains(&commit.xid))
        {
            apply(&mut rows, commit, &|key| range.contains(key));
        }
        let loaded = Loaded {
            snapshot,
            lsn: self.end(),
            rows: rows.into_iter().collect::<Vec<Row>>(),
        };
        self.in_flight.push((load, range, loaded));
    }

    fn complete_load(&mut self, dice: u8) {
        if !self.in_flight.is_empty() {
            let (load, _, loaded) = self
                .in_flight
                .remove(usize::from(dice) % self.in_flight.len());
            self.merge.loaded(load, loaded);
        }
    }

    fn deliver_outputs(&mut self) {
        for ready in self.merge.take_outputs() {
            match ready {
                MergeOutput::Supply { ranges, rows, .. } => {
                    self.supplied += 1;
                    for (key, value) in rows {
                        // Existing rows are unchanged.
                        if !self.here.iter().any(|range| range.contains(&key)) {
                            self.rows.insert(key, value);
                        }
                    }
                    self.here.extend(ranges);
                }
                MergeOutput::Retry { load } => {
                    self.retried += 1;
                    self.merge.restart_load(load);
                    self.started_loads.push((load, self.ranges[&load].clone()));
                }
                MergeOutput::WriteVisible { wait } => {
                    let (expected, xid) = self.wait.take().expect("waited for");
                    assert_eq!(wait, expected);
                    let streamed = &self.log[..self.streamed];
                    assert!(
                        streamed.iter().any(|commit| commit.xid == xid),
                        "{xid} was not reported"
                    );
                }
            }
        }
    }

    /// Checks invariant 1 of `merge`.
    fn check(&self) {
        let mut expected = Rows::new();
        for commit in &self.log[..self.streamed] {
            apply(&mut expected, commit, &|key| {
                self.here.iter().any(|range| range.contains(key))
            });
        }
        assert_eq!(self.rows, expected, "after {} commits", self.streamed);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Commit(u8, Vec<(u8, bool)>),
    Show(u8),
    Tell,
    Begin(u8, u8),
    Select,
    Arrive(u8),
    /// Waits for the last commit, like its writer.
    Wait,
    /// The engine evicts everything.
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), prop::collection::vec((any::<u8>(), any::<bool>()), 1..4)).prop_map(|(a, b)| Step::Commit(a, b)),
        4 => any::<u8>().prop_map(Step::Show),
        4 => Just(Step::Tell),
        2 => (0u8..8, 0u8..8).prop_map(|(a, b)| Step::Begin(a.min(b), a.max(b))),
        3 => Just(Step::Select),
        3 => any::<u8>().prop_map(Step::Arrive),
        1 => Just(Step::Wait),
        1 => Just(Step::Evict),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var("LARDER_SLOW_TESTS").is_ok() { 100_000 } else { 2000 }, ..ProptestConfig::default() })]
    #[test]
    fn loaded_rows_always_equal_postgres_at_one_position(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::default();
        for step in steps {
            match step {
                Step::Commit(dice, changes) => world.commit(dice, &changes),
                Step::Show(dice) => world.make_visible(dice),
                Step::Tell => world.advance_stream(),
                Step::Begin(from, to) => world.begin(from, to),
                Step::Select => world.select(),
                Step::Arrive(dice) => world.complete_load(dice),
                Step::Wait => {
                    if let (None, Some(last)) = (world.wait, world.log.last()) {
                        let wait = world.merge.wait_for(Some(last.xid), last.end);
                        world.wait = Some((wait, last.xid));
                    }
                }
                Step::Evict => {
                    world.here.clear();
                    world.rows.clear();
                }
            }
            world.deliver_outputs();
            world.check();
        }
        // Finally, once everything is visible and sent, all loads complete.
        for _ in 0..world.log.len() {
            world.make_visible(0);
        }
        for _ in 0..200 {
            world.advance_stream();
            world.select();
            world.complete_load(0);
            world.deliver_outputs();
            world.check();
        }
        prop_assert!(world.started_loads.is_empty() && world.in_flight.is_empty() && world.wait.is_none());
        prop_assert_eq!(world.merge.awaited_position(), None);
    }
}

/// A load whose snapshot does not include a commit that the stream has already sent must be repeated, or the commit
/// would be lost.
#[test]
fn a_snapshot_older_than_the_stream_is_discarded() {
    let mut world = World::default();
    world.commit(0, &[(1, true)]);
    world.advance_stream();
    world.begin(0, 7);
    world.select();
    world.complete_load(0);
    world.deliver_outputs();
    assert_eq!((world.supplied, world.retried), (0, 1));
    world.make_visible(0);
    world.select();
    world.complete_load(0);
    world.deliver_outputs();
    assert_eq!((world.supplied, world.rows.len()), (1, 1));
    world.check();
}

/// A load that includes a commit which the stream has not sent yet waits for it.
#[test]
fn a_snapshot_ahead_of_the_stream_waits_for_it() {
    let mut world = World::default();
    world.begin(0, 7);
    world.commit(0, &[(1, true)]);
    world.make_visible(0);
    world.select();
    world.complete_load(0);
    world.deliver_outputs();
    assert_eq!(
        (world.supplied, world.merge.awaited_position()),
        (0, Some(10))
    );
    world.advance_stream();
    world.deliver_outputs();
    assert_eq!((world.supplied, world.rows.len()), (1, 1));
    world.check();
}
