//! Reads of stores that memory alone cannot answer: the remaining keys of a command are looked up by disk threads, some at a time.
//!
//! ```text
//!  ReadJob ─ advance ─┬─ all is answered
//!     ▲               ├─ the output is full: the client must take some of its replies
//!     │               └─ a key is not in memory ─ start_reads ─► disk threads
//!     └─────────────────────────── deliver ◄──────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use larder_batch::{Attempt, Error};
use tokio::task::JoinHandle;

use super::super::output::Mark;
use super::super::state::State;
use super::disk_hook::run_hook;
use super::reply::{ReplyBuilder, range_of};
use super::{Before, KeyQuery, READ_AHEAD_BYTES_MAX, READS_MAX, add, attempt, failure};
use crate::catalog::LiveStore;
use crate::error::Refusal;
use crate::pinned_value::PinnedValue;

/// What is still to be answered.
pub(in crate::resp) enum Target {
    Key(Arc<LiveStore>, Box<[u8]>),
    /// The reply to a key of a table, which has been read.
    Row(Vec<u8>),
}

/// A command whose remaining keys wait for the disk, or for the client to take what it asked for.
pub(in crate::resp) struct ReadJob {
    pub reply: ReplyBuilder,
    targets: VecDeque<Target>,
    /// Where the reply began; `None` once part of it may have been sent.
    mark: Option<Mark>,
    failed: bool,
    read_ahead: usize,
}

/// The value, or of GETRANGE the part that was asked for.
pub(in crate::resp) type DiskRead = JoinHandle<Result<Option<PinnedValue>, Error>>;

/// What a job needs next.
pub(in crate::resp) enum ReadStep {
    Done,
    /// The client must take some of its replies.
    OutputFull,
    NeedsDisk,
}

impl ReadJob {
    /// A command about so many keys, which are to be added in their order.
    pub fn new(state: &State, query: KeyQuery, keys: usize) -> ReadJob {
        ReadJob {
            reply: ReplyBuilder::new(query, keys),
            targets: VecDeque::with_capacity(keys),
            mark: Some(state.output.mark()),
            failed: false,
            read_ahead: READS_MAX,
        }
    }

    /// The rest of a command, whose reply began at `mark`.
    pub(super) fn of_rest(
        reply: ReplyBuilder,
        targets: VecDeque<Target>,
        mark: Mark,
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

    pub fn add(&mut self, target: Target) {
        self.targets.push_back(target);
    }

    /// Counts keys that are of no store, and how many of them there are.
    pub fn count_rows(&mut self, asked: u64, present: u64) {
        self.reply.asked += asked;
        self.reply.absent += asked.saturating_sub(present);
    }

    /// From now on, a failure can no longer replace the whole reply.
    pub fn reply_has_left(&mut self) {
        self.mark = None;
    }

    /// Answers what memory holds.
    pub fn advance(&mut self, state: &mut State) -> ReadStep {
        while let Some(target) = self.targets.front() {
            if !state.has_room() {
                return ReadStep::OutputFull;
            }
            let (live, key) = match target {
                Target::Key(live, key) => (live, key),
                Target::Row(reply) => {
                    self.reply.add_reply(&mut state.output, state.proto, reply);
                    self.targets.pop_front();
                    continue;
                }
            };
            let before = Before::now(live, state, &self.reply, 0);
            let found = match attempt(live, key) {
                Ok(Attempt::WouldBlock) => return ReadStep::NeedsDisk,
                Ok(Attempt::Ready(value)) => Ok(value),
                Err(error) => Err(error),
            };
            match found {
                Ok(value) => {
                    add(state, &mut self.reply, live, key, value);
                    if before.is_lost(live) {
                        (self.reply, _) = before.undo(state);
                        continue;
                    }
                }
                Err(error) => self.fail(state, &error),
            }
            self.targets.pop_front();
        }
        if !self.failed {
            self.reply.finish(&mut state.output, state.proto);
            state.keys = (self.reply.asked, self.reply.absent);
        }
        ReadStep::Done
    }

    /// Sends the next lookups to the disk threads, the first of those that wait among them.
    pub fn start_reads(&self) -> Vec<DiskRead> {
        let next = self.targets.iter().take(self.read_ahead);
        let next = next.map_while(|target| match target {
            Target::Key(live, key) => Some((live, key)),
            Target::Row(_) => None,
        });
        next.map(|(live, key)| {
            let (live, key, query) = (live.clone(), key.clone(), self.reply.query);
            tokio::task::spawn_blocking(move || {
                run_hook(&key);
                let found = PinnedValue::find(&live, |version| version.get(&key))?;
                Ok(found.map(|value| match query {
                    // Here, where copying a large part holds nobody up.
                    KeyQuery::GetRange { start, end } => {
                        let range = range_of(start, end, value.len());
                        value.slice(range)
                    }
                    _ => value,
                }))
            })
        })
        .collect()
    }

    /// Takes the answer to the next lookup.
    pub fn deliver(&mut self, state: &mut State, found: Result<Option<PinnedValue>, Error>) {
        let Some(Target::Key(live, key)) = self.targets.pop_front() else {
            return;
        };
        let before = Before::now(&live, state, &self.reply, 0);
        let is_answered = matches!(
            self.reply.query,
            KeyQuery::Get | KeyQuery::MGet | KeyQuery::GetRange { .. }
        );
        match found {
            // What lies in the map takes no memory, however long it is.
            Ok(Some(value))
                if is_answered && value.memory_bytes() > state.core.clients.limits.answer() =>
            {
                let refusal = state.core.clients.limits.too_long();
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
                    // The part has been cut out; the command has one key.
                    (*start, *end) = (0, -1);
                }
                self.reply
                    .add(&mut state.output, state.proto, key.len(), value, |value| {
                        value
                    });
                if borrowed && !live.version.is_whole() {
                    (self.reply, _) = before.undo(state);
                    self.fail(state, &live.version.lost());
                }
            }
            Err(error) => self.fail(state, &error),
        }
    }

    fn fail(&mut self, state: &mut State, error: &Error) {
        self.refuse(state, failure(error));
    }

    fn refuse(&mut self, state: &mut State, refusal: Refusal) {
        if let Some(mark) = self.mark {
            state.output.rewind(mark);
        }
        state.refuse(refusal);
        // Once part of an array has been sent, the damaged element says so in its place.
        let in_array =
            self.mark.is_none() && self.reply.query == KeyQuery::MGet && self.reply.array.is_none();
        if !in_array {
            self.failed = true;
            self.targets.clear();
        }
    }
}
