//! Reads of stores that cannot be answered from memory alone: disk threads look up the remaining keys of a command,
//! several at a time.
//!
//! ```text
//!  ReadJob ─ advance ─┬─ the reply is complete
//!     ▲               ├─ the output is full: the client must read some of its replies
//!     │               └─ a key is not in memory ─ start_reads ─► disk threads
//!     └─────────────────────────── deliver ◄──────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use larder_batch::{Attempt, Error};
use tokio::task::JoinHandle;

use super::super::output::OutputMark;
use super::super::state::ConnectionState;
use super::disk_hook::run_hook;
use super::reply::{ReplyBuilder, byte_range};
use super::{
    KeyQuery, READ_AHEAD_BYTES_MAX, READS_MAX, ReplyCheckpoint, add, lookup_error, try_lookup,
};
use crate::catalog::LiveStore;
use crate::error::Refusal;
use crate::pinned_value::PinnedValue;

/// A part of the reply that is still missing.
pub(in crate::resp) enum ReadTarget {
    Key(Arc<LiveStore>, Box<[u8]>),
    /// The reply for a key of a table, which has already been read.
    Row(Vec<u8>),
}

/// A command whose remaining keys wait for the disk, or for the client to read its replies.
pub(in crate::resp) struct ReadJob {
    pub reply: ReplyBuilder,
    targets: VecDeque<ReadTarget>,
    /// The start of the reply; `None` once a part of it may have been sent.
    mark: Option<OutputMark>,
    failed: bool,
    read_ahead: usize,
}

/// A lookup on a disk thread. It returns the value, or the requested part for GETRANGE.
pub(in crate::resp) type DiskRead = JoinHandle<Result<Option<PinnedValue>, Error>>;

/// The next step of a job.
pub(in crate::resp) enum ReadStep {
    Done,
    /// The client must read some of its replies.
    OutputFull,
    NeedsDisk,
}

impl ReadJob {
    /// Creates the job of a command with this number of keys, which the caller then adds in order.
    pub fn new(state: &ConnectionState, query: KeyQuery, keys: usize) -> ReadJob {
        ReadJob {
            reply: ReplyBuilder::new(query, keys),
            targets: VecDeque::with_capacity(keys),
            mark: Some(state.output.mark()),
            failed: false,
            read_ahead: READS_MAX,
        }
    }

    /// Creates the job for the rest of a command whose reply starts at `mark`.
    pub(super) fn for_rest(
        reply: ReplyBuilder,
        targets: VecDeque<ReadTarget>,
        mark: OutputMark,
        read_ahead: usize,
    ) -> ReadJob {
        ReadJob {
            reply,
            targets,
            mark: Some(mark),
            failed: false,
            read_ahead,
        }
    }

    pub fn add(&mut self, target: ReadTarget) {
        self.targets.push_back(target);
    }

    /// Counts keys of tables in the statistics, with the number of those that exist.
    pub fn count_rows(&mut self, requested: u64, present: u64) {
        self.reply.requested += requested;
        self.reply.absent += requested.saturating_sub(present);
    }

    /// Records that a part of the reply may have been sent, so that an error can no longer replace it.
    pub fn mark_partly_sent(&mut self) {
        self.mark = None;
    }

    /// Appends the replies of keys that are in memory.
    pub fn advance(&mut self, state: &mut ConnectionState) -> ReadStep {
        while let Some(target) = self.targets.front() {
            if !state.has_room() {
                return ReadStep::OutputFull;
            }
            let (live, key) = match target {
                ReadTarget::Key(live, key) => (live, key),
                ReadTarget::Row(reply) => {
                    self.reply.add_reply(&mut state.output, state.proto, reply);
                    self.targets.pop_front();
                    continue;
                }
            };
            let checkpoint = ReplyCheckpoint::take(live, state, &self.reply, 0);
            let found = match try_lookup(live, key) {
                Ok(Attempt::WouldBlock) => return ReadStep::NeedsDisk,
                Ok(Attempt::Ready(value)) => Ok(value),
                Err(error) => Err(error),
            };
            match found {
                Ok(value) => {
                    add(state, &mut self.reply, live, key, value);
                    if checkpoint.is_invalidated(live) {
                        (self.reply, _) = checkpoint.restore(state);
                        continue;
                    }
                }
                Err(error) => self.fail(state, &error),
            }
            self.targets.pop_front();
        }
        if !self.failed {
            self.reply.finish(&mut state.output, state.proto);
            state.keys = (self.reply.requested, self.reply.absent);
        }
        ReadStep::Done
    }

    /// Starts the next lookups on disk threads. They include the first key that is not in memory.
    pub fn start_reads(&self) -> Vec<DiskRead> {
        let next = self.targets.iter().take(self.read_ahead);
        let next = next.map_while(|target| match target {
            ReadTarget::Key(live, key) => Some((live, key)),
            ReadTarget::Row(_) => None,
        });
        next.map(|(live, key)| {
            let (live, key, query) = (live.clone(), key.clone(), self.reply.query);
            tokio::task::spawn_blocking(move || {
                run_hook(&key);
                let found = PinnedValue::find(&live, |version| version.get(&key))?;
                Ok(found.map(|value| match query {
                    // Cut on the disk thread, where copying a large part delays no other client.
                    KeyQuery::GetRange { start, end } => {
                        let range = byte_range(start, end, value.len());
                        value.slice(range)
                    }
                    _ => value,
                }))
            })
        })
        .collect()
    }

    /// Appends the result of the next lookup.
    pub fn deliver(
        &mut self,
        state: &mut ConnectionState,
        found: Result<Option<PinnedValue>, Error>,
    ) {
        let Some(ReadTarget::Key(live, key)) = self.targets.pop_front() else {
            return;
        };
        let checkpoint = ReplyCheckpoint::take(&live, state, &self.reply, 0);
        let returns_value = matches!(
            self.reply.query,
            KeyQuery::Get | KeyQuery::MGet | KeyQuery::GetRange { .. }
        );
        match found {
            // A value in a mapped file takes no memory, whatever its length.
            Ok(Some(value))
                if returns_value
                    && value.memory_bytes() > state.core.clients.limits.reply_bytes() =>
            {
                let refusal = state.core.clients.limits.reply_too_long();
                self.refuse(state, refusal);
            }
            Ok(value) => {
                let borrowed = value.as_ref().is_some_and(PinnedValue::is_borrowed);
                let len = value.as_ref().map_or(0, |value| value.len());
                self.read_ahead = if len >= READ_AHEAD_BYTES_MAX {
                    1
                } else {
                    READS_MAX
                };
                if let KeyQuery::GetRange { start, end } = &mut self.reply.query {
                    // The part has already been cut out, and the command has only one key.
                    (*start, *end) = (0, -1);
                }
                self.reply
                    .add(&mut state.output, state.proto, key.len(), value, |value| {
                        value
                    });
                if borrowed && !live.version.is_intact() {
                    (self.reply, _) = checkpoint.restore(state);
                    self.fail(state, &live.version.lost_pages_error());
                }
            }
            Err(error) => self.fail(state, &error),
        }
    }

    fn fail(&mut self, state: &mut ConnectionState, error: &Error) {
        self.refuse(state, lookup_error(error));
    }

    fn refuse(&mut self, state: &mut ConnectionState, refusal: Refusal) {
        if let Some(mark) = self.mark {
            state.output.rewind(mark);
        }
        state.refuse(refusal);
        // Once a part of an array has been sent, an error takes the place of the damaged element.
        let in_array =
            self.mark.is_none() && self.reply.query == KeyQuery::MGet && self.reply.array.is_none();
        if !in_array {
            self.failed = true;
            self.targets.clear();
        }
    }
}
