//! Random operations by two cores with snapshots, and crashes at all kinds of moments.
//!
//! After each crash the rows of each core must be those after some of its batches: at least all acknowledged ones,
//! and never a part of one. The run then continues to the next crash. The disk is full occasionally, for some steps,
//! and the journal recovers automatically when it has space again.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_journal::{
    AppendOutcome, Entry, Fsync, Journal, Options, Producer, SnapshotPart, SnapshotStep,
    SnapshotWriter, Syncer, Ticket, Writer,
};

use crate::model_disk::{ModelDisk, Random};
use crate::rows::{Change, Rows};

const FOLDER: &str = "j";
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

/// One core: its current rows, its rows after each batch that is not known to be durable, and its producer.
struct Core {
    name: u8,
    rows: Rows,
    /// The possible states after a crash, oldest first. The first is durable.
    possible: VecDeque<Possible>,
    producer: Producer,
    counter: u64,
}

/// A possible state after a crash.
struct Possible {
    ticket: Ticket,
    rows: Rows,
    /// When its last batch was acknowledged.
    acknowledged: Option<Duration>,
}

impl Possible {
    /// Returns this state as the oldest possible one.
    fn durable(rows: Rows) -> VecDeque<Possible> {
        VecDeque::from([Possible {
            ticket: Ticket(0),
            rows,
            acknowledged: Some(Duration::ZERO),
        }])
    }
}

/// A running snapshot, and the progress of one core's walk over its rows.
struct Walk {
    part: Option<SnapshotPart>,
    core: usize,
    after: Vec<u8>,
    singles_done: bool,
}

struct Run {
    disk: ModelDisk,
    fsync: Fsync,
    random: Random,
    journal: Option<Journal>,
    writer: Writer,
    syncer: Syncer,
    cores: Vec<Core>,
    walks: Vec<Walk>,
    maker: Option<SnapshotWriter>,
    stats: Stats,
}

#[derive(Default, Debug, Clone, Copy)]
struct Stats {
    crashes: u64,
    cuts: u64,
    snapshots: u64,
    from_snapshots: u64,
    appended: u64,
    lost: u64,
    /// The number of acknowledged batches that survived a kill because the system had them.
    kept: u64,
    troubles: u64,
}

fn options(fsync: Fsync) -> Options {
    Options {
        fsync,
        ..Options::default()
    }
}

impl Run {
    fn start(seed: u64, fsync: Fsync) -> Run {
        let disk = ModelDisk::new(seed);
        let (journal, mut writer, _) = Journal::open_stepped(
            Arc::new(disk.clone()),
            Path::new(FOLDER),
            options(fsync),
            &mut |_| (),
        )
        .unwrap();
        let cores = [b'a', b'b'].map(|name| Core {
            name,
            rows: Rows::default(),
            possible: Possible::durable(Rows::default()),
            producer: journal.producer(|| ()),
            counter: 0,
        });
        Run {
            disk,
            fsync,
            random: Random::new(seed),
            journal: Some(journal),
            syncer: writer.split_syncs(),
            writer,
            cores: cores.into(),
            walks: Vec::new(),
            maker: None,
            stats: Stats::default(),
        }
    }

    fn step(&mut self) {
        match self.random.below(22) {
            0..=8 => self.write(),
            9..=10 => {
                let core = self.random.below(2);
                self.cores[core].producer.commit();
            }
            11..=14 => drop(self.writer.step()),
            15 => self.begin_snapshot(),
            16..=17 => self.walk(),
            18 => {
                if let Some(maker) = &mut self.maker
                    && maker.step() == SnapshotStep::Ended
                {
                    self.maker = None;
                    self.walks.clear();
                    self.stats.snapshots += 1;
                }
            }
            19 => drop(self.syncer.step()),
            20 => {
                // The disk has space again some steps later.
                let errno = [ENOSPC, EIO, EROFS][self.random.below(3)];
                let full = self.random.one_in(4).then_some(errno);
                self.disk.fill(full);
            }
            _ => {
                // The threads would not sleep longer than their deadlines.
                self.cores
                    .iter_mut()
                    .for_each(|core| core.producer.commit());
                self.disk.advance(Duration::from_millis(100));
                self.writer.step();
                self.syncer.step();
            }
        }
        if let Some(journal) = &self.journal {
            self.stats.troubles += u64::from(journal.write_failure().is_some());
            let failure = journal.failure();
            assert!(failure.is_none() || self.disk.crashed(), "{failure:?}");
        }
        self.forget();
    }

    /// Writes a batch of one to four changes by one core.
    fn write(&mut self) {
        let random = &mut self.random;
        let core = &mut self.cores[random.below(2)];
        if !core.producer.has_room() {
            return;
        }
        let mut changes = Vec::new();
        for _ in 0..1 + random.below(4) {
            core.counter += 1;
            let key = |random: &mut Random| vec![core.name, b'0' + random.below(12) as u8];
            // Values are unique, so that rows identify the batch after which they were read.
            let mut value = core.counter.to_le_bytes().to_vec();
            value.resize(8 + random.below(60), b'v');
            changes.push(match random.below(16) {
                0 | 1 => Change::Remove(key(random)),
                2 => {
                    let (lo, hi) = (key(random), key(random));
                    Change::RemoveRange(lo.clone().min(hi.clone()), lo.max(hi))
                }
                3 => Change::Define(key(random), value),
                4 => Change::Drop(key(random)),
                5 => Change::Position(key(random), value),
                6 => Change::Expire(key(random), Some(core.counter)),
                7 => Change::Expire(key(random), None),
                8 => Change::Put(key(random), value, Some(core.counter)),
                _ => Change::Put(key(random), value, None),
            });
        }
        let entries: Vec<Entry<'_>> = changes.iter().map(Change::entry).collect();
        let Ok(ticket) = core.producer.append_all(&entries) else {
            return;
        };
        entries.iter().for_each(|entry| core.rows.apply(*entry));
        core.possible.push_back(Possible {
            ticket,
            rows: core.rows.clone(),
            acknowledged: None,
        });
        self.stats.appended += 1;
    }

    fn disk_now(&self) -> Duration {
        larder_journal::Disk::now(&self.disk)
    }

    fn begin_snapshot(&mut self) {
        if self.maker.is_some() {
            return;
        }
        let journal = self.journal.as_ref().unwrap();
        let Ok((parts, maker)) = journal.begin_snapshot_stepped(2) else {
            return;
        };
        self.maker = Some(maker);
        self.walks = parts
            .into_iter()
            .enumerate()
            .map(|(core, part)| Walk {
                part: Some(part),
                core,
                after: Vec::new(),
                singles_done: false,
            })
            .collect();
    }

    /// Adds a few rows of one core to the snapshot.
    fn walk(&mut self) {
        if self.walks.is_empty() {
            return;
        }
        let walk = &mut self.walks[self.random.below(2)];
        let core = &mut self.cores[walk.core];
        let Some(part) = &mut walk.part else { return };
        if self.random.one_in(100) {
            walk.part = None;
            return;
        }
        if !walk.singles_done {
            walk.singles_done = true;
            for (name, text) in &core.rows.definitions {
                let _ = part.add(Entry::Define { name, text });
            }
            for (source, position) in &core.rows.positions {
                let _ = part.add(Entry::Position { source, position });
            }
        }
        let rest = core.rows.rows.range(walk.after.clone()..);
        let rest = rest.filter(|(key, _)| **key > walk.after);
        let chunk: Vec<_> = rest.take(1 + self.random.below(6)).collect();
        for (key, (value, deadline_ms)) in &chunk {
            let _ = part.add(Entry::Put {
                key,
                value,
                deadline_ms: *deadline_ms,
            });
        }
        match chunk.last() {
            Some((key, _)) => walk.after = (*key).clone(),
            None => walk.part.take().unwrap().finish(&mut core.producer),
        }
    }

    /// Removes older states than the acknowledged ones, which must survive.
    fn forget(&mut self) {
        let now = self.disk_now();
        for core in &mut self.cores {
            let durable = core.producer.durable_ticket();
            for possible in &mut core.possible {
                if possible.acknowledged.is_none()
                    && core.producer.outcome(possible.ticket) == AppendOutcome::Done
                {
                    possible.acknowledged = Some(now);
                }
            }
            while core.possible.len() > 1 {
                let possible = &core.possible[1];
                let kept = possible.acknowledged.is_some_and(|at| match self.fsync {
                    Fsync::Always => true,
                    Fsync::EverySecond => now >= at + Duration::from_secs(1),
                    Fsync::No => false,
                });
                if !(kept || possible.ticket <= durable) {
                    break;
                }
                core.possible.pop_front();
            }
        }
    }

    /// Crashes the machine, or only the process, and restarts it, possibly after several attempts.
    fn crash(&mut self, mut machine: bool) {
        self.forget();
        self.stats.crashes += 1;
        std::mem::forget(self.journal.take());
        self.walks.clear();
        self.maker = None;
        let mut tries = 0;
        let (rows, recovery) = loop {
            if machine {
                self.disk.restart(&mut self.random);
            } else {
                self.disk.restart_process();
            }
            // A start that ends in a kill may be followed by one that ends in a power failure.
            machine |= self.random.one_in(2);
            tries += 1;
            if tries < 4 && self.random.one_in(2) {
                self.disk.crash_at(Some(1 + self.random.below(12) as u64));
            }
            let mut rows = Rows::default();
            let opened = Journal::open_stepped(
                Arc::new(self.disk.clone()),
                Path::new(FOLDER),
                options(self.fsync),
                &mut |entry| rows.apply(entry),
            );
            match opened {
                Ok((journal, mut writer, recovery)) if !self.disk.crashed() => {
                    self.journal = Some(journal);
                    self.syncer = writer.split_syncs();
                    self.writer = writer;
                    self.disk.crash_at(None);
                    break (rows, recovery);
                }
                Ok((journal, ..)) => std::mem::forget(journal),
                Err(error) => assert!(self.disk.crashed(), "{error}; {:?}", self.disk.names()),
            }
        };
        self.stats.cuts += u64::from(recovery.torn_tail.is_some());
        self.stats.from_snapshots += u64::from(recovery.snapshot_bytes > 0);
        assert!(!self.disk.names().iter().any(|name| name.ends_with(".tmp")));
        for core in &mut self.cores {
            let found = rows.of(core.name);
            let at = core
                .possible
                .iter()
                .rposition(|possible| possible.rows == found)
                .unwrap_or_else(|| {
                    panic!(
                        "core {}: {found:#?}\nis none of {} possible states; {:?}",
                        core.name as char,
                        core.possible.len(),
                        self.disk.names()
                    )
                });
            if !machine {
                // The system continues, so it has everything that was acknowledged.
                let acknowledged = core.possible.iter().filter(|it| it.acknowledged.is_some());
                let acknowledged = acknowledged.count();
                assert!(at + 1 >= acknowledged, "{at} of {acknowledged} is found");
                self.stats.kept += acknowledged as u64 - 1;
            }
            self.stats.lost += (core.possible.len() - 1 - at) as u64;
            core.rows = found.clone();
            core.possible = Possible::durable(found);
            core.producer = self.journal.as_ref().unwrap().producer(|| ());
        }
    }
}

/// Executes `runs` runs with several crashes each.
fn check(fsync: Fsync, first_seed: u64, runs: u64) -> Stats {
    let mut all = Stats::default();
    for seed in first_seed..first_seed + runs {
        let guard = PrintSeedOnPanic(seed);
        let mut run = Run::start(seed, fsync);
        for _ in 0..6 {
            // At a random moment, or at each of the next few operations.
            let operation = 1 + run.random.below(60) as u64;
            run.disk.crash_at(Some(operation));
            let steps = 40 + run.random.below(400);
            for _ in 0..steps {
                run.step();
                if run.disk.crashed() {
                    break;
                }
            }
            let machine = !run.random.one_in(3);
            run.crash(machine);
        }
        all.crashes += run.stats.crashes;
        all.cuts += run.stats.cuts;
        all.snapshots += run.stats.snapshots;
        all.from_snapshots += run.stats.from_snapshots;
        all.appended += run.stats.appended;
        all.lost += run.stats.lost;
        all.kept += run.stats.kept;
        all.troubles += run.stats.troubles;
        // The run's journal ends like in a crash.
        std::mem::forget(run.journal.take());
        std::mem::forget(guard);
    }
    eprintln!("{fsync:?}: {all:?}");
    all
}

struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        eprintln!("seed {}", self.0);
    }
}

fn runs() -> u64 {
    if std::env::var_os("LARDER_SLOW_TESTS").is_some() {
        10_000
    } else {
        700
    }
}

#[test]
fn no_crash_loses_acknowledged_writes_under_always() {
    let stats = check(Fsync::Always, 1, runs());
    // The test would be weak if crashes had nothing to destroy.
    assert!(stats.crashes >= 4000 && stats.cuts > 100 && stats.lost > 1000);
    assert!(stats.snapshots > 100 && stats.from_snapshots > 300);
    assert!(stats.troubles > 1000);
}

#[test]
fn under_everysec_a_crash_loses_at_most_the_last_second_and_a_kill_nothing() {
    let stats = check(Fsync::EverySecond, 1_000_000, runs());
    assert!(stats.kept > 1000 && stats.troubles > 1000);
    assert!(stats.cuts > 100 && stats.lost > 1000 && stats.from_snapshots > 300);
}

#[test]
fn under_no_a_crash_leaves_complete_batches_up_to_a_point_and_a_kill_loses_nothing() {
    let stats = check(Fsync::No, 2_000_000, runs());
    assert!(stats.kept > 1000 && stats.troubles > 1000);
    assert!(stats.cuts > 100 && stats.lost > 1000 && stats.from_snapshots > 300);
}
