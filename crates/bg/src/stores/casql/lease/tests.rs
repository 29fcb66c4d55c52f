//! Tests the protocol with a model of cache and database, interleaving the steps of readers, writers and failures at
//! random.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use larder_types::Random;

use super::*;

/// A source of randomness that all tasks share.
struct Dice(RefCell<Random>);

impl Dice {
    fn below(&self, limit: u64) -> u64 {
        self.0.borrow_mut().word() % limit
    }
}

/// Yields to other tasks once.
async fn step() {
    let mut waited = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

const KEYS: [&str; 2] = ["a", "b"];

/// The values of both keys are one number, which every commit increments.
#[derive(Default)]
struct World {
    cache: RefCell<HashMap<String, Found>>,
    last_cas: Cell<u64>,
    database: Cell<u64>,
    /// Statements on their way to the database, with a cell for the result.
    statements: RefCell<Vec<Rc<Cell<Option<u64>>>>>,
    /// The highest acknowledged commit.
    acknowledged: Cell<u64>,
    writers: Cell<usize>,
    hits: Cell<u64>,
    /// The number of values in the cache that differed from the database at that instant.
    stale: Cell<u64>,
    /// The number of reads that missed a commit acknowledged before they began.
    unpredictable: Cell<u64>,
}

impl World {
    fn value(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes.try_into().expect("a number"))
    }

    async fn read_database(&self) -> [u8; 8] {
        step().await;
        let value = self.database.get().to_le_bytes();
        step().await;
        value
    }

    async fn commit(&self) -> u64 {
        let answer = Rc::new(Cell::new(None));
        self.statements.borrow_mut().push(answer.clone());
        loop {
            step().await;
            if let Some(number) = answer.get() {
                return number;
            }
        }
    }

    fn execute(&self, index: usize) {
        let answer = self.statements.borrow_mut().swap_remove(index);
        self.database.set(self.database.get() + 1);
        answer.set(Some(self.database.get()));
    }

    fn forget(&self, which: impl Fn(&Found) -> bool) {
        self.cache.borrow_mut().retain(|_, found| !which(found));
    }
}

impl Cache for World {
    async fn peek(&self, key: &str) -> Result<Option<Found>, Failure> {
        step().await;
        let found = self.cache.borrow().get(key).cloned();
        step().await;
        Ok(found)
    }

    async fn get(&self, key: &str) -> Result<Option<Found>, Failure> {
        step().await;
        let found = self.cache.borrow().get(key).cloned();
        if let Some(found) = found.as_ref().filter(|found| found.flags == VALUE) {
            self.hits.set(self.hits.get() + 1);
            let is_stale = World::value(&found.value) != self.database.get();
            self.stale.set(self.stale.get() + u64::from(is_stale));
        }
        step().await;
        Ok(found)
    }

    async fn store(
        &self,
        key: &str,
        entry: &Entry<'_>,
        only: Only,
    ) -> Result<Option<u64>, Failure> {
        step().await;
        let now = self.cache.borrow().get(key).map(|found| found.cas);
        let may = match only {
            Only::Always => true,
            Only::IfAbsent => now.is_none(),
            Only::If(cas) => now == Some(cas),
        };
        let cas = may.then(|| {
            self.last_cas.set(self.last_cas.get() + 1);
            let found = Found {
                value: Bytes::copy_from_slice(entry.value),
                flags: entry.flags,
                cas: self.last_cas.get(),
            };
            self.cache.borrow_mut().insert(key.to_owned(), found);
            self.last_cas.get()
        });
        step().await;
        Ok(cas)
    }

    async fn delete(&self, key: &str, cas: Option<u64>) -> Result<Deleted, Failure> {
        step().await;
        let now = self.cache.borrow().get(key).map(|found| found.cas);
        let deleted = match now {
            None => Deleted::WasAbsent,
            Some(now) if cas.is_some_and(|cas| cas != now) => Deleted::WasOther,
            Some(_) => {
                self.cache.borrow_mut().remove(key);
                Deleted::Done
            }
        };
        step().await;
        Ok(deleted)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    Lease,
    /// The writer deletes the entry after its commit, and the reader stores what it read.
    Invalidate,
}

#[derive(Clone, Copy)]
struct Faults {
    /// The cache may evict anything at any time.
    forgets: bool,
    /// Readers and writers may die at any step. Q expires after no live writer holds it and the database has ended the
    /// statement.
    dies: bool,
}

async fn reader(world: Rc<World>, protocol: Protocol, key: &'static str) {
    let acknowledged = world.acknowledged.get();
    let looked = match protocol {
        Protocol::Lease => look(&*world, key).await,
        Protocol::Invalidate => Ok(match world.get(key).await.expect("there") {
            Some(found) => Looked::Value(found.value),
            None => Looked::Busy,
        }),
    };
    let read = match looked.expect("the cache is there") {
        Looked::Value(value) => World::value(&value),
        Looked::Read(cas) => {
            let value = world.read_database().await;
            fill(&*world, key, cas, &value).await.expect("there");
            World::value(&value)
        }
        Looked::Busy => {
            let value = world.read_database().await;
            if protocol == Protocol::Invalidate {
                let entry = Entry {
                    value: &value,
                    flags: VALUE,
                    seconds: 0,
                };
                world.store(key, &entry, Only::Always).await.expect("there");
            }
            World::value(&value)
        }
    };
    if read < acknowledged {
        world.unpredictable.set(world.unpredictable.get() + 1);
    }
}

/// Counts a live writer.
struct Lives(Rc<World>);

impl Drop for Lives {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

async fn writer(world: Rc<World>, protocol: Protocol) {
    world.writers.set(world.writers.get() + 1);
    let _lives = Lives(world.clone());
    let keys = KEYS.map(str::to_owned).to_vec();
    let number = match protocol {
        Protocol::Lease => {
            let held = quarantine(&*world, keys).await.expect("there");
            let number = world.commit().await;
            release(&*world, held).await.expect("there");
            number
        }
        Protocol::Invalidate => {
            let number = world.commit().await;
            for key in KEYS {
                world.delete(key, None).await.expect("there");
            }
            number
        }
    };
    world.acknowledged.set(world.acknowledged.get().max(number));
}

/// Runs a history of some hundred steps.
fn run(seed: u64, protocol: Protocol, faults: Faults) -> Rc<World> {
    let random = Dice(RefCell::new(Random::new(seed)));
    let world = Rc::new(World::default());
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..900 {
        if tasks.len() < 6 {
            let key = KEYS[random.below(2) as usize];
            tasks.push(match random.below(10) {
                0 => Box::pin(writer(world.clone(), protocol)),
                _ => Box::pin(reader(world.clone(), protocol, key)),
            });
        }
        let index = random.below(tasks.len() as u64) as usize;
        if tasks[index].as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(index));
        }
        let statements = world.statements.borrow().len();
        if statements > 0 && random.below(4) == 0 {
            world.execute(random.below(statements as u64) as usize);
        }
        if faults.dies && random.below(50) == 0 && !tasks.is_empty() {
            drop(tasks.swap_remove(random.below(tasks.len() as u64) as usize));
        }
        if random.below(10) == 0 {
            // Evicts markers of live and dead readers. A live reader then fails to swap.
            world.forget(|found| found.flags == BEING_READ);
        }
        let is_quiet = world.writers.get() == 0 && world.statements.borrow().is_empty();
        if is_quiet && random.below(4) == 0 {
            world.forget(|found| found.flags == BEING_WRITTEN);
        }
        if faults.forgets && random.below(25) == 0 {
            world.forget(|_| true);
        }
    }
    world
}

const HISTORIES: u64 = 3000;

fn total(protocol: Protocol, faults: Faults, count: impl Fn(&World) -> u64) -> u64 {
    let histories = (0..HISTORIES).map(|seed| run(seed, protocol, faults));
    histories.map(|world| count(&world)).sum()
}

#[test]
fn a_value_found_is_the_databases_at_that_instant_though_clients_die() {
    for dies in [false, true] {
        let faults = Faults {
            forgets: false,
            dies,
        };
        for seed in 0..HISTORIES {
            let world = run(seed, Protocol::Lease, faults);
            assert_eq!(world.stale.get(), 0, "seed {seed}, clients die: {dies}");
            assert_eq!(world.unpredictable.get(), 0, "seed {seed}");
        }
        // The cache must keep values, or the test would be meaningless.
        let hits = total(Protocol::Lease, faults, |world| world.hits.get());
        assert!(hits > HISTORIES, "{hits}");
    }
}

#[test]
fn an_acknowledged_write_is_seen_though_the_cache_forgets_markers() {
    let faults = Faults {
        forgets: true,
        dies: false,
    };
    for seed in 0..HISTORIES {
        let world = run(seed, Protocol::Lease, faults);
        assert_eq!(world.unpredictable.get(), 0, "seed {seed}");
    }
    let hits = total(Protocol::Lease, faults, |world| world.hits.get());
    assert!(hits > HISTORIES, "{hits}");
}

#[test]
fn deletion_after_the_commit_alone_loses_races() {
    let faults = Faults {
        forgets: false,
        dies: false,
    };
    let missed = total(Protocol::Invalidate, faults, |world| {
        world.unpredictable.get()
    });
    assert!(missed > 0);
}
