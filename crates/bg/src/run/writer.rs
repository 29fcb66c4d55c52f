//! Writes the records of all workers, on a thread of its own.
//!
//! ```text
//!   Recorder (one a worker) ── full buffers ──► thread ──► worker-NNN.trace
//!            ▲── empty buffers ─────────────────┘
//! ```
//!
//! Invariants:
//!
//! 1. A worker hands over full buffers of 1 MB. It waits only if the disk is 16 buffers behind.
//! 2. A write error ends the trial: immediately with [`Live::fail`], and with an error from [`Writer::finish`]. A trace
//!    is either complete or has no footer.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use larder_validate::record::{Encoder, RECORD_SIZE, Record};

use super::live::Live;
use super::{Setup, online};
use crate::model::state::State;
use crate::verdict::judge::InitialState;
use crate::verdict::trace::{self, BEFORE, Parameters};

/// Number of records in a buffer.
const BUFFER_RECORDS: usize = (1 << 20) / RECORD_SIZE;

/// Maximum number of records of one call.
const CALL_RECORDS: usize = 8;

/// Maximum number of full buffers in the queue.
const BUFFERS_MAX: usize = 16;

/// A trace being written.
pub struct Writer {
    sender: SyncSender<FullBuffer>,
    empty: BufferPool,
    online: bool,
    thread: JoinHandle<Result<(), String>>,
}

/// Collects a worker's records for its trace file. Dropping it writes the remaining records.
pub struct Recorder {
    worker: usize,
    buffer: Vec<Record>,
    sender: SyncSender<FullBuffer>,
    empty: BufferPool,
    /// True if reads are validated during the trial.
    online: bool,
}

struct FullBuffer {
    worker: usize,
    records: Vec<Record>,
    /// All calls of the worker that started before this instant have been recorded.
    watermark: Option<u64>,
}

type BufferPool = Arc<Mutex<Vec<Vec<Record>>>>;

impl Writer {
    /// Creates the trace and starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// The folder is not empty or cannot be made.
    pub fn create(
        folder: &Path,
        setup: &Setup,
        state: &State,
        live: &Arc<Live>,
        online: bool,
    ) -> Result<Writer, String> {
        trace::make_folder(folder)?;
        let parameters =
            Parameters::new(setup.store.name(), &setup.population, setup.run_options.top);
        parameters.save(folder, &setup.population)?;
        let mut first = Trace::create(folder.join(BEFORE))?;
        let mut records = Vec::new();
        trace::visit_initial_changes(state, &mut |record| records.push(record));
        first.append(&records)?;
        first.finish()?;
        let judge = online.then(|| {
            let start = InitialState::new(setup.population.as_ref().clone(), setup.run_options.top);
            online::OnlineJudge::start(start, &records, setup.workers, live.clone())
        });
        let traces = (0..setup.workers)
            .map(|worker| Trace::create(folder.join(format!("worker-{worker:03}.trace"))))
            .collect::<Result<Vec<Trace>, String>>()?;
        let (sender, receiver) = sync_channel(BUFFERS_MAX);
        let empty = BufferPool::default();
        let thread = thread::Builder::new()
            .name("trace".to_owned())
            .spawn({
                let (empty, live) = (empty.clone(), live.clone());
                move || {
                    write_all(traces, &receiver, &empty, judge).inspect_err(|why| {
                        live.fail(why.clone());
                        // Workers must not block on a writer that has ended.
                        receiver.iter().for_each(drop);
                    })
                }
            })
            .map_err(|why| format!("cannot start the thread that writes the trace: {why}"))?;
        Ok(Writer {
            sender,
            empty,
            online,
            thread,
        })
    }

    pub fn recorder(&self, worker: usize) -> Recorder {
        Recorder {
            worker,
            buffer: Vec::with_capacity(BUFFER_RECORDS),
            sender: self.sender.clone(),
            empty: self.empty.clone(),
            online: self.online,
        }
    }

    /// Writes the remaining records and the footers. All recorders must have been dropped.
    ///
    /// # Errors
    ///
    /// The trace is incomplete.
    pub fn finish(self) -> Result<(), String> {
        drop(self.sender);
        self.thread.join().expect("the trace's thread panicked")
    }
}

impl Recorder {
    /// Adds a record. The records of one call are pushed consecutively and stay together.
    pub fn push(&mut self, record: Record) {
        if self.buffer.len() >= BUFFER_RECORDS - CALL_RECORDS
            && self
                .buffer
                .last()
                .is_none_or(|last| (last.session, last.span) != (record.session, record.span))
        {
            self.send_buffer(None);
        }
        self.buffer.push(record);
    }

    /// Marks that all calls that started before this instant have been recorded, for online validation.
    pub fn tick(&mut self, watermark: u64) {
        if self.online {
            self.send_buffer(Some(watermark));
        }
    }

    fn send_buffer(&mut self, watermark: Option<u64>) {
        let next = self.empty.lock().expect("no panic while locked").pop();
        let next = next.unwrap_or_else(|| Vec::with_capacity(BUFFER_RECORDS));
        let records = std::mem::replace(&mut self.buffer, next);
        // The thread receives until all recorders are dropped, even after an error, so sending cannot fail.
        let _ = self.sender.send(FullBuffer {
            worker: self.worker,
            records,
            watermark,
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.send_buffer(None);
    }
}

fn write_all(
    mut traces: Vec<Trace>,
    receiver: &Receiver<FullBuffer>,
    empty: &BufferPool,
    mut judge: Option<online::OnlineJudge>,
) -> Result<(), String> {
    while let Ok(mut full) = receiver.recv() {
        traces[full.worker].append(&full.records)?;
        if let Some(judge) = &mut judge {
            judge.feed(full.worker, &full.records, full.watermark);
        }
        full.records.clear();
        empty
            .lock()
            .expect("no panic while locked")
            .push(full.records);
    }
    traces.into_iter().try_for_each(Trace::finish)
}

/// One trace file.
struct Trace {
    path: PathBuf,
    file: File,
    encoder: Encoder,
    bytes: Vec<u8>,
}

impl Trace {
    fn create(path: PathBuf) -> Result<Trace, String> {
        let file = File::create_new(&path)
            .map_err(|why| format!("cannot write {}: {why}", path.display()))?;
        let mut trace = Trace {
            path,
            file,
            encoder: Encoder::default(),
            bytes: Encoder::header().to_vec(),
        };
        trace.flush()?;
        Ok(trace)
    }

    fn append(&mut self, records: &[Record]) -> Result<(), String> {
        for record in records {
            self.bytes.extend_from_slice(&self.encoder.record(record));
        }
        self.flush()
    }

    fn finish(mut self) -> Result<(), String> {
        let encoder = std::mem::take(&mut self.encoder);
        self.bytes.extend_from_slice(&encoder.footer());
        self.flush()
    }

    fn flush(&mut self) -> Result<(), String> {
        self.file
            .write_all(&self.bytes)
            .map_err(|why| format!("cannot write {}: {why}", self.path.display()))?;
        self.bytes.clear();
        Ok(())
    }
}
