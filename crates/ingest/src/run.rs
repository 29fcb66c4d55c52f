//! Runs the input of a build: assigns reading, decoding and passing on rows to threads.
//!
//! ```text
//!  worker:  take a file's lock ── next() ──► a task and its bytes ── unlock ──► run(task) ──► sink
//!             │ taken? try the next file (at most `threads` files are open)        │
//!             └──────────────────────◄─────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! 1. The tasks of a file are taken in order, and each one that was taken is run to its end or its fault. When chunk
//!    `n` fails, the lines of all chunks before it are therefore known, and of several faults in a file the first one
//!    is reported.
//! 2. After a fault no new task starts, and no sink is finished.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::chunk::LongChunk;
use crate::error::{At, Error, Fault};
use crate::guard::guarded;
use crate::input::{Input, expand};
use crate::key::is_separator;
use crate::options::{InputOptions, Progress, RowError, RowSink, SinkError, Summary};
use crate::positions::{FilePositions, RowPositions};
use crate::rows::Rows;

/// A task and its number in its file; `None` after the last.
pub(crate) type NextTask = Option<(u64, Box<dyn Task>)>;

/// A file as a list of tasks, used by one worker at a time.
pub(crate) trait Tasks: Send {
    /// Returns the next task and its number; writes the data that it needs from the stream to `buffer`.
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<NextTask, Fault>;

    /// Returns the number of the task that `next` failed to create.
    fn failed_at(&self) -> u64 {
        u64::MAX
    }
}

/// A part of a file, processed by one worker outside of any lock.
pub(crate) trait Task: Send {
    fn run(self: Box<Self>, file: u64, data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault>;
}

/// A larger buffer is freed after the record that needed it.
const BUFFER_KEPT_MAX: usize = 16 << 20;

/// The sequence number has 20 bits for the file.
const FILES_MAX: usize = 1 << 20;

/// Reads all inputs and passes their rows to the sinks, one sink per thread. Blocks until everything is read; must
/// not be called on a thread of an async runtime. A run that returns an error has passed on only some of the rows:
/// discard what was made of them.
///
/// # Errors
/// The first fault, with its file and position. See [`Error`].
pub fn ingest<'s>(
    options: &InputOptions,
    make_sink: &(dyn Fn() -> Result<Box<dyn RowSink + 's>, SinkError> + Sync),
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Summary, Error> {
    check(options)?;
    let inputs = expand(options)?;
    if inputs.len() > FILES_MAX {
        return Err(Error::Options {
            reason: format!(
                "{} files are too many; at most {FILES_MAX} can be read in one run",
                inputs.len()
            ),
        });
    }
    let threads = options.threads.max(1);
    let shared_options = Arc::new(options.clone());
    let run = Run {
        options,
        bytes_total: inputs.iter().map(|input| input.size).sum(),
        slots: inputs
            .into_iter()
            .map(|input| Mutex::new(Slot::new(input)))
            .collect(),
        bytes_read: Arc::default(),
        long_chunk: Arc::default(),
        rows: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
        skipped_missing: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        faults: Mutex::new(BTreeMap::new()),
        budget: Budget::new(options.memory.0),
        progress,
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| run.work(&shared_options, make_sink)))
            .collect();
        for worker in workers {
            // A panic outside the guarded decoders is a bug in this crate and is propagated.
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    run.finish()
}

fn check(options: &InputOptions) -> Result<(), Error> {
    if options.inputs.is_empty() {
        return Err(Error::Options {
            reason: "no input is given; pass paths, globs, URLs, or - for standard input".into(),
        });
    }
    check_columns(options)
}

/// # Errors
/// If the options about columns and keys are invalid.
pub(crate) fn check_columns(options: &InputOptions) -> Result<(), Error> {
    let reason = if options.whole_rows && !options.key.is_empty() {
        "whole rows have no key"
    } else if options.key.is_empty() && !options.whole_rows {
        "no key column is named; name one or more"
    } else if options
        .delimiter
        .is_some_and(|byte| matches!(byte, b'"' | b'\n' | b'\r'))
    {
        "the delimiter must not be a quote or a newline"
    } else if options
        .escape
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        "the escape character must not be a newline"
    } else if !is_separator(options.key_separator) {
        "the separator of keys must be neither a letter, a digit nor %"
    } else {
        return Ok(());
    };
    Err(Error::Options {
        reason: reason.into(),
    })
}

struct Run<'a> {
    options: &'a InputOptions,
    slots: Vec<Mutex<Slot>>,
    bytes_total: Option<u64>,
    bytes_read: Arc<AtomicU64>,
    long_chunk: Arc<LongChunk>,
    rows: AtomicU64,
    skipped: AtomicU64,
    skipped_missing: AtomicU64,
    stop: AtomicBool,
    /// Ordered by file and task, so that the first fault in the data comes first.
    faults: Mutex<BTreeMap<(usize, u64), Fault>>,
    budget: Budget,
    progress: &'a (dyn Fn(Progress) + Sync),
}

struct Slot {
    input: Input,
    state: SlotState,
    /// Lines per text chunk, for line numbers.
    lines: BTreeMap<u64, u64>,
}

enum SlotState {
    Unopened,
    Open(Box<dyn Tasks>),
    Done,
}

impl Slot {
    fn new(input: Input) -> Slot {
        Slot {
            input,
            state: SlotState::Unopened,
            lines: BTreeMap::new(),
        }
    }

    fn next(
        &mut self,
        options: &Arc<InputOptions>,
        bytes_read: &Arc<AtomicU64>,
        long_chunk: &Arc<LongChunk>,
        buffer: &mut Vec<u8>,
    ) -> Result<NextTask, (u64, Fault)> {
        if let SlotState::Unopened = self.state {
            let input = &self.input;
            let tasks = guarded(|| input.open(options, bytes_read, long_chunk))
                .map_err(|fault| (0, fault))?;
            self.state = SlotState::Open(tasks);
        }
        let SlotState::Open(tasks) = &mut self.state else {
            return Ok(None);
        };
        let next = guarded(|| tasks.next(buffer)).map_err(|fault| (tasks.failed_at(), fault));
        if !matches!(next, Ok(Some(_))) {
            self.state = SlotState::Done;
        }
        next
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Panics of decoders never pass a lock guard, so the data of a poisoned lock is consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    fn work<'s>(
        &self,
        options: &Arc<InputOptions>,
        make_sink: &(dyn Fn() -> Result<Box<dyn RowSink + 's>, SinkError> + Sync),
    ) {
        let sink = match make_sink() {
            Ok(sink) => sink,
            Err(source) => return self.fail(0, 0, sink_fault(source)),
        };
        let mut rows = Rows::new(self.options, &self.budget, sink);
        let mut buffer = Vec::new();
        let mut first = 0;
        while let Some((file, number, task)) = self.take(options, &mut first, &mut buffer) {
            let (count, skipped) = (rows.count, rows.skipped);
            let missing = rows.skipped_missing;
            rows.lines = None;
            let result = guarded(|| task.run(file as u64, &buffer, &mut rows));
            if buffer.capacity() > BUFFER_KEPT_MAX {
                buffer = Vec::new();
            }
            if let Some(lines) = rows.lines {
                lock(&self.slots[file]).lines.insert(number, lines);
            }
            self.rows.fetch_add(rows.count - count, Ordering::Relaxed);
            self.skipped
                .fetch_add(rows.skipped - skipped, Ordering::Relaxed);
            self.skipped_missing
                .fetch_add(rows.skipped_missing - missing, Ordering::Relaxed);
            if let Err(fault) = result {
                return self.fail(file, number, fault);
            }
            (self.progress)(self.progress_now());
        }
        if !self.stop.load(Ordering::Acquire)
            && let Err(source) = rows.sink.finish()
        {
            self.fail(self.slots.len() - 1, u64::MAX, sink_fault(source));
        }
    }

    /// Returns the next task of any open file; `None` when everything is done or a fault was found. `first` is the
    /// first file that this worker has not seen done.
    fn take(
        &self,
        options: &Arc<InputOptions>,
        first: &mut usize,
        buffer: &mut Vec<u8>,
    ) -> Option<(usize, u64, Box<dyn Task>)> {
        loop {
            let mut is_busy = false;
            let mut in_sight = self.options.threads.max(1);
            let mut file = *first;
            while file < self.slots.len() && in_sight > 0 {
                if self.stop.load(Ordering::Acquire) {
                    return None;
                }
                if let Ok(mut slot) = self.slots[file].try_lock() {
                    match slot.next(options, &self.bytes_read, &self.long_chunk, buffer) {
                        Ok(Some((number, task))) => return Some((file, number, task)),
                        Ok(None) if file == *first => *first += 1,
                        Ok(None) => {}
                        Err((number, fault)) => {
                            drop(slot);
                            self.fail(file, number, fault);
                            return None;
                        }
                    }
                } else {
                    is_busy = true;
                    in_sight -= 1;
                }
                file += 1;
            }
            if !is_busy {
                return None;
            }
            drop(lock(&self.slots[*first]));
        }
    }

    fn fail(&self, file: usize, number: u64, fault: Fault) {
        self.stop.store(true, Ordering::Release);
        lock(&self.faults).insert((file, number), fault);
    }

    fn progress_now(&self) -> Progress {
        Progress {
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_total: self.bytes_total,
            rows: self.rows.load(Ordering::Relaxed),
        }
    }

    fn finish(self) -> Result<Summary, Error> {
        let faults = std::mem::take(&mut *lock(&self.faults));
        // Only CSV can have skipped lines.
        let lines_skipped = self.options.skip_lines;
        if let Some(((file, number), fault)) = faults.into_iter().next() {
            let slot = lock(&self.slots[file]);
            let before = slot.lines.range(..number).map(|(_, lines)| lines);
            let fault = fault.after_lines(lines_skipped + before.sum::<u64>());
            let error = fault.into_error(&slot.input.name);
            drop(slot);
            return Err(self.with_row_position(error));
        }
        let files = self.slots.into_iter().map(|slot| {
            let slot = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            FilePositions {
                name: slot.input.name,
                lines_skipped,
                lines: slot.lines,
            }
        });
        let files: Vec<FilePositions> = files.collect();
        Ok(Summary {
            files: files.len() as u64,
            positions: RowPositions(files),
            rows: self.rows.into_inner(),
            skipped: self.skipped.into_inner(),
            skipped_missing: self.skipped_missing.into_inner(),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
        })
    }

    /// Adds the position of the row to a receiver's error for an earlier row.
    fn with_row_position(&self, error: Error) -> Error {
        let Error::Sink { file, at, source } = error else {
            return error;
        };
        let place = source.downcast_ref::<RowError>().and_then(|error| {
            let number = usize::try_from(error.seq >> 44).ok()?;
            let mut places = RowPositions::default();
            for slot in self.slots.get(..=number)? {
                let slot = lock(slot);
                places.0.push(FilePositions {
                    name: slot.input.name.clone(),
                    lines_skipped: self.options.skip_lines,
                    lines: slot.lines.clone(),
                });
            }
            let (file, at) = places.locate(error.seq)?;
            Some((file.to_owned(), at))
        });
        let (file, at) = place.unwrap_or((file, at));
        Error::Sink { file, at, source }
    }
}

pub(crate) fn sink_fault(source: SinkError) -> Fault {
    Fault {
        at: At::File,
        kind: crate::error::FaultKind::Sink(source),
    }
}

/// Memory that decoders share: each claims the amount that it needs and waits until it is available.
pub(crate) struct Budget {
    total: u64,
    free: Mutex<u64>,
    freed: Condvar,
    /// Held by the thread that has a long value; see `rows`.
    pub long_value: Mutex<()>,
}

pub(crate) struct MemoryClaim<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub fn new(total: u64) -> Budget {
        Budget {
            total,
            free: Mutex::new(total),
            freed: Condvar::new(),
            long_value: Mutex::new(()),
        }
    }

    /// Waits for `bytes`; `None` if that exceeds the total.
    pub fn claim(&self, bytes: u64) -> Option<MemoryClaim<'_>> {
        if bytes > self.total {
            return None;
        }
        let mut free = lock(&self.free);
        while *free < bytes {
            free = self
                .freed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *free -= bytes;
        Some(MemoryClaim {
            budget: self,
            bytes,
        })
    }

    pub fn total(&self) -> u64 {
        self.total
    }
}

impl MemoryClaim<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryClaim<'_> {
    fn drop(&mut self) {
        *lock(&self.budget.free) += self.bytes;
        self.budget.freed.notify_all();
    }
}
