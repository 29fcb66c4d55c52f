//! Writes objects to the server. Several threads send their own batches, so that one batch is in flight while others
//! are prepared.
//!
//! The key determines an object's thread, and a thread sends its batches one after another. Of two rows with the same
//! key, the later one is therefore written later.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use larder_client::{Error, Reply};

use crate::interrupt;
use crate::space::nodes::Nodes;

pub const THREADS: usize = 4;
/// Limits of one batch.
const COMMANDS_MAX: usize = 256;
const BYTES_MAX: usize = 256 << 10;
/// Maximum number of attempts for a batch whose outcome is unknown. Writing an object twice is idempotent.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// The commands that write one object, in order.
pub struct ObjectWrite {
    pub seq: u64,
    pub commands: Vec<Vec<Vec<u8>>>,
    bytes: usize,
}

impl ObjectWrite {
    pub fn new(seq: u64, commands: Vec<Vec<Vec<u8>>>) -> ObjectWrite {
        let bytes = commands.iter().flatten().map(Vec::len).sum();
        ObjectWrite {
            seq,
            commands,
            bytes,
        }
    }
}

/// The outcome of the writes so far.
#[derive(Default)]
pub struct WriteOutcome {
    pub objects: AtomicU64,
    has_failed: AtomicBool,
    /// The first error of each row.
    failed: Mutex<Vec<(u64, Error)>>,
}

impl WriteOutcome {
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the rows that failed since the last call, in order.
    pub fn take_failed(&self) -> Vec<(u64, Error)> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = std::mem::take(&mut *failed);
        self.has_failed.store(false, Ordering::Release);
        failed.sort_by_key(|(seq, _)| *seq);
        failed
    }

    fn fail(&self, seq: u64, error: Error) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push((seq, error));
        self.has_failed.store(true, Ordering::Release);
    }
}

/// Accepts objects and passes them to the threads, which end when it is dropped.
pub struct Writer<'scope> {
    lanes: Vec<WriterThread<'scope>>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

struct WriterThread<'scope> {
    batch: Vec<ObjectWrite>,
    bytes: usize,
    batches: SyncSender<Vec<ObjectWrite>>,
    thread: ScopedJoinHandle<'scope, ()>,
}

impl<'scope> Writer<'scope> {
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        nodes: &'scope Nodes,
        written: &'scope WriteOutcome,
    ) -> Writer<'scope> {
        let lanes = (0..THREADS).map(|_| {
            let (batches, given) = sync_channel(1);
            WriterThread {
                batch: Vec::new(),
                bytes: 0,
                batches,
                thread: scope.spawn(move || write_all(nodes, written, given)),
            }
        });
        Writer {
            lanes: lanes.collect(),
            hasher: BuildHasherDefault::default(),
        }
    }

    /// Queues an object. Waits while one batch of the key's thread is in flight and another is full.
    pub fn put(&mut self, key: &[u8], object: ObjectWrite) {
        let lane = self.hasher.hash_one(key) % THREADS as u64;
        let lane = &mut self.lanes[lane as usize];
        lane.bytes += object.bytes;
        lane.batch.push(object);
        if lane.batch.len() >= COMMANDS_MAX || lane.bytes >= BYTES_MAX {
            lane.flush();
        }
    }

    /// Sends the remaining objects, and waits for all replies.
    pub fn finish(mut self) {
        for lane in &mut self.lanes {
            lane.flush();
        }
        for lane in self.lanes {
            drop(lane.batches);
            if let Err(panic) = lane.thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl WriterThread<'_> {
    fn flush(&mut self) {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            // An error means that the thread has ended, which `finish` reports.
            let _ = self.batches.send(batch);
        }
    }
}

fn write_all(nodes: &Nodes, written: &WriteOutcome, batches: Receiver<Vec<ObjectWrite>>) {
    for batch in batches {
        if !interrupt::is_interrupted() {
            write(nodes, written, &batch);
        }
    }
}

fn write(nodes: &Nodes, written: &WriteOutcome, batch: &[ObjectWrite]) {
    let commands: Vec<(u64, Vec<&[u8]>)> = batch
        .iter()
        .flat_map(|object| {
            let commands = object.commands.iter();
            commands.map(|parts| (object.seq, parts.iter().map(Vec::as_slice).collect()))
        })
        .collect();
    let mut left = commands;
    let mut failed: Vec<(u64, Error)> = Vec::new();
    for tried in 1.. {
        let parts: Vec<Vec<&[u8]>> = left.iter().map(|(_, parts)| parts.clone()).collect();
        let results = match nodes.client().pipeline(&parts) {
            Ok(results) => results,
            Err(error) => left.iter().map(|_| Err(error.clone())).collect(),
        };
        failed.clear();
        let mut again = Vec::new();
        for ((seq, parts), result) in left.into_iter().zip(results) {
            let error = match result {
                Ok(Reply::Error(error)) => Error::Refused {
                    message: format!("{} {}", error.code, error.message),
                    code: error.code,
                    retry: false,
                },
                Ok(_) => continue,
                Err(error) => error,
            };
            failed.push((seq, error));
            again.push((seq, parts));
        }
        let is_final = |error: &Error| matches!(error, Error::Refused { retry: false, .. });
        let is_over = failed.iter().all(|(_, error)| is_final(error));
        if is_over || tried == TRIES_MAX || interrupt::is_interrupted() {
            break;
        }
        left = again;
        interrupt::wait(PAUSE * tried);
    }
    failed.dedup_by_key(|(seq, _)| *seq);
    let done = batch.len() - failed.len();
    written.objects.fetch_add(done as u64, Ordering::Relaxed);
    for (seq, error) in failed {
        written.fail(seq, error);
    }
}
