//! Validates reads during the trial, on a thread that receives the same records as the trace.
//!
//! ```text
//!   writer ── records, watermarks ──► thread ──► validate's Online ── each second ──► Live
//! ```
//!
//! Its results serve observers of the running trial. The result of a trial comes from the whole trace, after the end.
//!
//! Invariants:
//!
//! 1. No thread waits for online validation. If it falls [`QUEUE_MAX`] buffers behind, it gives up for the rest of the
//!    trial and withdraws its results.
//! 2. A worker's watermark follows the records that it covers. Validation advances to the smallest watermark of all
//!    workers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use larder_validate::record::Record;
use larder_validate::trace::OnlineValidator;

use super::live::Live;
use crate::verdict::judge::{self, InitialState};

/// Maximum number of trace buffers (1 MB each) in the queue.
const QUEUE_MAX: usize = 64;

/// The time for which writes are kept in order to compute the age of stale answers, in nanoseconds.
const HISTORY_NS: u64 = 10_000_000_000;

/// Receives the records that the trace's thread has written.
pub struct OnlineJudge {
    sender: Option<SyncSender<RecordBatch>>,
    thread: Option<JoinHandle<()>>,
    live: Arc<Live>,
}

struct RecordBatch {
    worker: usize,
    records: Vec<Record>,
    watermark: Option<u64>,
}

impl OnlineJudge {
    /// Starts the thread. `before`: the differences between the data store and the population at the start of the
    /// trial.
    pub fn start(
        start: InitialState,
        before: &[Record],
        workers: usize,
        live: Arc<Live>,
    ) -> OnlineJudge {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let options = judge::options(&start, 1);
        let mut online = OnlineValidator::new(start, &options, HISTORY_NS);
        online.feed(before);
        let thread = thread::Builder::new()
            .name("judge".to_owned())
            .spawn({
                let live = live.clone();
                move || judge_all(online, workers, &receiver, &live)
            })
            .ok();
        OnlineJudge {
            sender: thread.is_some().then_some(sender),
            thread,
            live,
        }
    }

    /// Queues a copy of the records, unless validation has given up.
    pub fn feed(&mut self, worker: usize, records: &[Record], watermark: Option<u64>) {
        let Some(sender) = &self.sender else { return };
        let fed = RecordBatch {
            worker,
            records: records.to_vec(),
            watermark,
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(fed) {
            self.sender = None;
            self.live.withdraw_validation();
        }
    }
}

impl Drop for OnlineJudge {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was already printed, and the trace is complete without it.
            let _ = thread.join();
        }
    }
}

fn judge_all(
    mut online: OnlineValidator<InitialState>,
    workers: usize,
    receiver: &Receiver<RecordBatch>,
    live: &Live,
) {
    let mut watermarks = vec![0; workers];
    let mut least = 0;
    for fed in receiver {
        online.feed(&fed.records);
        if let Some(watermark) = fed.watermark {
            watermarks[fed.worker] = watermark;
        }
        let now = watermarks.iter().copied().min().unwrap_or(0);
        online.advance(now);
        if now > least {
            least = now;
            live.set_validation(judge::summarize(online.report()));
        }
    }
}
