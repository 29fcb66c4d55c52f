//! A command that lacks rows of other cores, or reads more than can be computed at once: it waits, and is executed again.

use std::time::Instant;

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::session::State;
use super::transaction;
use crate::catalog::Snapshot;
use crate::tables::Lacking;

/// So often a command is tried: what it needs goes while it waits for the rest only if memory is far too short.
const ROUNDS_MAX: u32 = 10_000;
/// So often it is put off: what is computed for it goes before it is read only if memory is far too short, or all changes
/// faster than it is computed. Then it is computed in one go.
const PUT_OFFS_MAX: u32 = 16;

/// What is executed again.
enum What {
    One(OwnedCommand),
    /// EXEC, whose transaction is the connection's.
    Exec(OwnedCommand),
    /// The commands of another core's transaction.
    Together(Batch),
}

pub(in crate::resp) struct WaitJob {
    pub command: Id,
    what: What,
    pub lacking: Lacking,
    rounds: u32,
    put_offs: u32,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
}

impl WaitJob {
    pub fn new(command: Command<'_>, lacking: Lacking) -> WaitJob {
        WaitJob {
            command: command.id(),
            what: What::One(command.owned()),
            lacking,
            rounds: 0,
            put_offs: 0,
            started: Instant::now(),
            args: kept_args(&command.request),
        }
    }

    /// For EXEC on the connection's own core, which waits before it begins.
    pub(super) fn before_exec(command: Command<'_>, lacking: Lacking) -> WaitJob {
        WaitJob {
            what: What::Exec(command.owned()),
            ..WaitJob::new(command, lacking)
        }
    }

    /// For the commands of another core's transaction, which wait before they begin.
    pub(super) fn before_together(batch: Batch, lacking: Lacking) -> WaitJob {
        WaitJob {
            command: Id::Exec,
            what: What::Together(batch),
            lacking,
            rounds: 0,
            put_offs: 0,
            started: Instant::now(),
            args: vec![b"EXEC".to_vec()],
        }
    }

    pub fn request_bytes(&self) -> usize {
        match &self.what {
            What::One(command) | What::Exec(command) => command.memory_bytes(),
            What::Together(batch) => batch.memory_bytes(),
        }
    }

    /// Executes it again; what then is still to be done.
    pub fn again(&mut self, state: &mut State, snapshot: &Snapshot, whole: bool) -> Option<Job> {
        if self.rounds == ROUNDS_MAX {
            let message = "the rows that this command reads do not fit in memory together";
            state.error(Code::OutOfMemory, message);
            return None;
        }
        let command = match &mut self.what {
            What::One(command) => command.command(),
            What::Exec(command) => {
                return super::execute_settled(state, snapshot, command.command());
            }
            What::Together(batch) => {
                return transaction::execute_settled(state, snapshot, std::mem::take(batch));
            }
        };
        let put_offs = self.put_offs + u32::from(matches!(self.lacking, Lacking::Time { .. }));
        let whole = whole || put_offs > PUT_OFFS_MAX;
        let mut job = super::try_settled(state, snapshot, command, whole);
        if let Some(Job::Wait(next)) = &mut job {
            next.rounds = self.rounds + 1;
            next.put_offs = put_offs;
            next.started = self.started;
        }
        job
    }
}
