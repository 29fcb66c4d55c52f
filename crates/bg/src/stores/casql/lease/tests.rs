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
struct ProtocolModel {
    cache: RefCell<HashMap<String, CachedEntry>>,
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

impl ProtocolModel {
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

    fn evict(&self, which: impl Fn(&CachedEntry) -> bool) {
        self.cache.borrow_mut().retain(|_, found| !which(found));
    }
}

impl Cache for ProtocolModel {
    async fn peek(&self, key: &str) -> Result<Option<CachedEntry>, Failure> {
        step().await;
        let found = self.cache.borrow().get(key).cloned();
        step().await;
        Ok(found)
    }

    async fn get(&self, key: &str) -> Result<Option<CachedEntry>, Failure> {
        step().await;
        let found = self.cache.borrow().get(key).cloned();
        if let Some(found) = found.as_ref().filter(|found| found.flags == VALUE) {
            self.hits.set(self.hits.get() + 1);
            let is_stale = ProtocolModel::value(&found.value) != self.database.get();
            self.stale.set(self.stale.get() + u64::from(is_stale));
        }
        step().await;
        Ok(found)
    }

    async fn store(
        &self,
        key: &str,
        entry: &Entry<'_>,
        only: StoreCondition,
    ) -> Result<Option<u64>, Failure> {
        step().await;
        let now = self.cache.borrow().get(key).map(|found| found.cas);
        let may = match only {
            StoreCondition::Always => true,
            StoreCondition::IfAbsent => now.is_none(),
            StoreCondition::If(cas) => now == Some(cas),
        };
        let cas = may.then(|| {
            self.last_cas.set(self.last_cas.get() + 1);
            let found = CachedEntry {
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

    async fn delete(&self, key: &str, cas: Option<u64>) -> Result<DeleteOutcome, Failure> {
        step().await;
        let now = self.cache.borrow().get(key).map(|found| found.cas);
        let deleted = match now {
            None => DeleteOutcome::Absent,
            Some(now) if cas.is_some_and(|cas| cas != now) => DeleteOutcome::VersionMismatch,
            Some(_) => {
                self.cache.borrow_mut().remove(key);
                DeleteOutcome::Deleted
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
    evicts: bool,
    /// Readers and writers may die at any step. Q expires after no live writer holds it and the database has ended the
    /// statement.
    crashes: bool,
}

async fn reader(model: Rc<ProtocolModel>, protocol: Protocol, key: &'static str) {
    let acknowledged = model.acknowledged.get();
    let looked = match protocol {
        Protocol::Lease => lookup(&*model, key).await,
        Protocol::Invalidate => Ok(match model.get(key).await.expect("the model answers") {
            Some(found) => Lookup::Value(found.value),
            None => Lookup::Busy,
        }),
    };
    let read = match looked.expect("the model answers") {
        Lookup::Value(value) => ProtocolModel::value(&value),
        Lookup::Reserved(cas) => {
            let value = model.read_database().await;
            fill(&*model, key, cas, &value)
                .await
                .expect("the model answers");
            ProtocolModel::value(&value)
        }
        Lookup::Busy => {
            let value = model.read_database().await;
            if protocol == Protocol::Invalidate {
                let entry = Entry {
                    value: &value,
                    flags: VALUE,
                    seconds: 0,
                };
                model
                    .store(key, &entry, StoreCondition::Always)
                    .await
                    .expect("the model answers");
            }
            ProtocolModel::value(&value)
        }
    };
    if read < acknowledged {
        model.unpredictable.set(model.unpredictable.get() + 1);
    }
}

/// Counts a live writer.
struct WriterGuard(Rc<ProtocolModel>);

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

async fn writer(model: Rc<ProtocolModel>, protocol: Protocol) {
    model.writers.set(model.writers.get() + 1);
    let _lives = WriterGuard(model.clone());
    let keys = KEYS.map(str::to_owned).to_vec();
    let number = match protocol {
        Protocol::Lease => {
            let held = quarantine(&*model, keys).await.expect("the model answers");
            let number = model.commit().await;
            release(&*model, held).await.expect("the model answers");
            number
        }
        Protocol::Invalidate => {
            let number = model.commit().await;
            for key in KEYS {
                model.delete(key, None).await.expect("the model answers");
            }
            number
        }
    };
    model.acknowledged.set(model.acknowledged.get().max(number));
}

/// Runs a history of some hundred steps.
fn run(seed: u64, protocol: Protocol, faults: Faults) -> Rc<ProtocolModel> {
    let random = Dice(RefCell::new(Random::new(seed)));
    let model = Rc::new(ProtocolModel::default());
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..900 {
        if tasks.len() < 6 {
            let key = KEYS[random.below(2) as usize];
            tasks.push(match random.below(10) {
                0 => Box::pin(writer(model.clone(), protocol)),
                _ => Box::pin(reader(model.clone(), protocol, key)),
            });
        }
        let index = random.below(tasks.len() as u64) as usize;
        if tasks[index].as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(index));
        }
        let statements = model.statements.borrow().len();
        if statements > 0 && random.below(4) == 0 {
            model.execute(random.below(statements as u64) as usize);
        }
        if faults.crashes && random.below(50) == 0 && !tasks.is_empty() {
            drop(tasks.swap_remove(random.below(tasks.len() as u64) as usize));
        }
        if random.below(10) == 0 {
            // Evicts markers of live and dead readers. A live reader then fails to swap.
            model.evict(|found| found.flags == BEING_READ);
        }
        let is_quiet = model.writers.get() == 0 && model.statements.borrow().is_empty();
        if is_quiet && random.below(4) == 0 {
            model.evict(|found| found.flags == BEING_WRITTEN);
        }
        if faults.evicts && random.below(25) == 0 {
            model.evict(|_| true);
        }
    }
    model
}

const HISTORIES: u64 = 3000;

fn total(protocol: Protocol, faults: Faults, count: impl Fn(&ProtocolModel) -> u64) -> u64 {
    let histories = (0..HISTORIES).map(|seed| run(seed, protocol, faults));
    histories.map(|model| count(&model)).sum()
}

#[test]
fn cached_values_equal_the_database_even_if_clients_crash() {
    for crashes in [false, true] {
        let faults = Faults {
            evicts: false,
            crashes,
        };
        for seed in 0..HISTORIES {
            let model = run(seed, Protocol::Lease, faults);
            assert_eq!(
                model.stale.get(),
                0,
                "seed {seed}, clients crash: {crashes}"
            );
            assert_eq!(model.unpredictable.get(), 0, "seed {seed}");
        }
        // The cache must keep values, or the test would be meaningless.
        let hits = total(Protocol::Lease, faults, |model| model.hits.get());
        assert!(hits > HISTORIES, "{hits}");
    }
}

#[test]
fn acknowledged_writes_are_visible_even_if_markers_are_evicted() {
    let faults = Faults {
        evicts: true,
        crashes: false,
    };
    for seed in 0..HISTORIES {
        let model = run(seed, Protocol::Lease, faults);
        assert_eq!(model.unpredictable.get(), 0, "seed {seed}");
    }
    let hits = total(Protocol::Lease, faults, |model| model.hits.get());
    assert!(hits > HISTORIES, "{hits}");
}

#[test]
fn deletion_after_the_commit_alone_serves_stale_values() {
    let faults = Faults {
        evicts: false,
        crashes: false,
    };
    let missed = total(Protocol::Invalidate, faults, |model| {
        model.unpredictable.get()
    });
    assert!(missed > 0);
}
