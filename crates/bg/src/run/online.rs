//! Reads judged while the trial runs: a thread that is given what the trace is given.
//!
//! ```text
//!   writer ── records, watermarks ──► thread ──► validate's Online ── each second ──► Live
//! ```
//!
//! What it says is for those who look meanwhile; a trial's result is what the whole trace says when it is over.
//!
//! Invariants:
//!
//! 1. Nobody waits for the judge: one that is [`BEHIND_MAX`] buffers behind gives up for the rest of the trial, and takes back what it said.
//! 2. Workers' watermarks come behind the records they speak of, and the least of them is the judge's.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use larder_validate::record::Record;
use larder_validate::trace::Online;

use super::live::Live;
use crate::verdict::judge::{self, Start};

/// Buffers of the trace, of 1 MB each, that may wait.
const BEHIND_MAX: usize = 64;

/// How long writes are kept to tell the age of stale answers.
const HISTORY_NS: u64 = 10_000_000_000;

/// Where the trace's thread leaves what it has written.
pub struct Judge {
    sender: Option<SyncSender<Fed>>,
    thread: Option<JoinHandle<()>>,
    live: Arc<Live>,
}

struct Fed {
    worker: usize,
    records: Vec<Record>,
    watermark: Option<u64>,
}

impl Judge {
    /// `before`: how the data store differed from the population when the trial began.
    pub fn start(start: Start, before: &[Record], workers: usize, live: Arc<Live>) -> Judge {
        let (sender, receiver) = sync_channel(BEHIND_MAX);
        let options = judge::options(&start, 1);
        let mut online = Online::new(start, &options, HISTORY_NS);
        online.feed(before);
        let thread = thread::Builder::new()
            .name("judge".to_owned())
            .spawn({
                let live = live.clone();
                move || judge_all(online, workers, &receiver, &live)
            })
            .ok();
        Judge {
            sender: thread.is_some().then_some(sender),
            thread,
            live,
        }
    }

    /// Copies the records, unless the judge has given up.
    pub fn feed(&mut self, worker: usize, records: &[Record], watermark: Option<u64>) {
        let Some(sender) = &self.sender else { return };
        let fed = Fed {
            worker,
            records: records.to_vec(),
            watermark,
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(fed) {
            self.sender = None;
            self.live.unjudged();
        }
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed; the trace is whole without it.
            let _ = thread.join();
        }
    }
}

fn judge_all(mut online: Online<Start>, workers: usize, receiver: &Receiver<Fed>, live: &Live) {
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
            live.judged(judge::summarize(online.report()));
        }
    }
}
