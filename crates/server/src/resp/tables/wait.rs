//! A command that lacks rows of other cores, or reads more than can be computed at once: it waits, and is executed again.

use std::time::Instant;

use larder_protocol::commands::{self, Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Request, Step};

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::remote::write_request;
use super::super::session::State;
use super::transaction;
use crate::catalog::Snapshot;
use crate::tables::Lacking;

/// So often a command is tried: what it needs goes while it waits for the rest only if memory is far too short.
const ROUNDS_MAX: u32 = 10_000;
/// So often it is put off: what is computed for it goes before it is read only if memory is far too short, or all changes
/// faster than it is computed. Then it is computed in one go.
const PUT_OFFS_MAX: u32 = 16;

/// How it is executed again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Alone,
    /// EXEC, whose transaction is the connection's.
    Exec,
    /// The requests of another core's transaction.
    Together,
}

pub(in crate::resp) struct WaitJob {
    pub command: Id,
    request: Vec<u8>,
    pub lacking: Lacking,
    rounds: u32,
    put_offs: u32,
    how: How,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
}

impl WaitJob {
    pub fn new(command: &Command, request: Request<'_>, lacking: Lacking) -> WaitJob {
        let mut bytes = Vec::new();
        write_request(&mut bytes, request.args());
        WaitJob {
            command: command.id,
            request: bytes,
            lacking,
            rounds: 0,
            put_offs: 0,
            how: How::Alone,
            started: Instant::now(),
            args: kept_args(&request),
        }
    }

    /// For EXEC on the connection's own core, which waits before it begins.
    pub(super) fn before_exec(
        command: &Command,
        request: Request<'_>,
        lacking: Lacking,
    ) -> WaitJob {
        WaitJob {
            how: How::Exec,
            ..WaitJob::new(command, request, lacking)
        }
    }

    /// For the requests of another core's transaction, which wait before they begin.
    pub(super) fn before_together(bytes: &[u8], lacking: Lacking) -> WaitJob {
        WaitJob {
            command: Id::Exec,
            request: bytes.to_vec(),
            lacking,
            rounds: 0,
            put_offs: 0,
            how: How::Together,
            started: Instant::now(),
            args: vec![b"EXEC".to_vec()],
        }
    }

    pub fn request_bytes(&self) -> usize {
        self.request.len()
    }

    /// Executes it again; what then is still to be done.
    pub fn again(&mut self, state: &mut State, snapshot: &Snapshot, whole: bool) -> Option<Job> {
        if self.rounds == ROUNDS_MAX {
            let message = "the rows that this command reads do not fit in memory together";
            state.error(Code::OutOfMemory, message);
            return None;
        }
        if self.how == How::Together {
            return transaction::execute_settled(state, snapshot, &self.request);
        }
        let mut decoder = Decoder::new(state.core.limits);
        let Ok(Step::Request(_)) = decoder.decode(&self.request) else {
            return None;
        };
        let request = decoder.request(&self.request);
        let command = commands::find(request.arg(0))?;
        if self.how == How::Exec {
            return super::execute_settled(state, snapshot, command, request);
        }
        let put_offs = self.put_offs + u32::from(matches!(self.lacking, Lacking::Time { .. }));
        let whole = whole || put_offs > PUT_OFFS_MAX;
        let mut job = super::try_settled(state, snapshot, command, request, whole);
        if let Some(Job::Wait(next)) = &mut job {
            next.rounds = self.rounds + 1;
            next.put_offs = put_offs;
            next.started = self.started;
        }
        job
    }
}
