//! MULTI, EXEC and DISCARD.
//!
//! The commands wait as the bytes of requests. EXEC executes them one after another with no other client's in
//! between, and hands their changes to the journal as one batch, unless what was watched has changed (see `watch`). What it reads of stores is read before (see `stores`).

use larder_protocol::commands::{self, Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Request, Step};

use super::super::dispatch::{self, Job};
use super::super::memory::Limits;
use super::super::mixed::{Split, is_mixed};
use super::super::remote::write_request;
use super::super::session::State;
use super::{AgainJob, WaitJob, watch};
use crate::catalog::Snapshot;
use crate::tables::Refusal;

/// What stands around an argument, or before all, of a request in bytes: its kind, its length and two ends of lines.
const HEADER_BYTES: usize = 16;

/// Commands since MULTI.
#[derive(Default)]
pub(in crate::resp) struct Transaction {
    requests: Vec<Queued>,
    /// Of all requests.
    bytes: usize,
    refused: bool,
    /// It had so much that it was given up.
    is_too_large: bool,
}

/// A command that waits for EXEC.
pub(in crate::resp) struct Queued {
    pub command: &'static Command,
    pub bytes: Vec<u8>,
    /// Of a read of a store, once it was made.
    pub answer: Option<Vec<u8>>,
    /// Of a read of stores and tables, once that of the stores was made: `bytes` ask for the rows alone then.
    pub stores: Option<(Split, Vec<u8>)>,
}

impl Queued {
    /// The whole reply, of that to `bytes`.
    pub fn with_stores(&self, reply: Vec<u8>) -> Vec<u8> {
        match &self.stores {
            None => reply,
            Some((split, stores)) => split
                .join(&reply, stores)
                .unwrap_or_else(|| b"-IOERR the rows cannot be read\r\n".to_vec()),
        }
    }
}

/// Whether the request waits for EXEC, or was refused to.
pub(super) fn takes(
    state: &mut State,
    snapshot: &Snapshot,
    command: &'static Command,
    request: Request<'_>,
) -> bool {
    let Some(transaction) = &mut state.transaction else {
        return false;
    };
    if matches!(command.id, Id::Multi | Id::Exec | Id::Discard | Id::Watch) {
        return false;
    }
    let limits = state.core.clients.limits;
    let commands_max = state.core.shared.config.server.max_transaction_commands as usize;
    let fits = transaction.refuse_more(request, limits, commands_max);
    let refused = fits.and_then(|()| match command.id {
        Id::Subscribe | Id::PSubscribe | Id::Unsubscribe | Id::PUnsubscribe => {
            let message = format!("{} isn't allowed in a transaction", command.name);
            Err((Code::BadRequest, message))
        }
        _ if super::is_of_tables(snapshot, command, request)
            && !is_mixed(snapshot, command, request) =>
        {
            super::check_keys(snapshot, command, request)
        }
        _ => Ok(()),
    });
    if let Err(refusal) = refused {
        transaction.refused = true;
        // Nothing of it will be executed.
        (transaction.requests, transaction.bytes) = (Vec::new(), 0);
        state.refuse(refusal);
        return true;
    }
    if !transaction.refused {
        // In one piece: what grows may take twice what it holds.
        let all: usize = request.args().map(|arg| arg.len() + HEADER_BYTES).sum();
        let mut bytes = Vec::with_capacity(all + HEADER_BYTES);
        write_request(&mut bytes, request.args());
        transaction.bytes += bytes.capacity();
        transaction.requests.push(Queued {
            command,
            bytes,
            answer: None,
            stores: None,
        });
    }
    state.encoder().simple("QUEUED");
    true
}

/// A request since MULTI that never came to [`takes`] makes EXEC refuse.
pub(in crate::resp) fn spoil(state: &mut State) {
    if let Some(transaction) = &mut state.transaction {
        transaction.refused = true;
    }
}

pub(super) fn execute(
    state: &mut State,
    snapshot: &Snapshot,
    command: &Command,
    _: Request<'_>,
) -> Result<Option<Job>, Refusal> {
    if command.id == Id::Multi {
        if state.transaction.is_some() {
            let message = "MULTI calls can not be nested".to_owned();
            return Err((Code::BadRequest, message));
        }
        state.transaction = Some(Box::default());
        state.encoder().ok();
        return Ok(None);
    }
    let Some(transaction) = state.transaction.take() else {
        let message = format!("{} without MULTI", command.name);
        return Err((Code::BadRequest, message));
    };
    if command.id == Id::Discard {
        state.watching = None;
        state.encoder().ok();
        return Ok(None);
    }
    let has_changed = watch::has_changed(state, snapshot);
    transaction.refuse()?;
    if has_changed {
        state.encoder().null_array();
        return Ok(None);
    }
    run_together(state, snapshot, &transaction.requests);
    let pressed = !state.tables().has_room();
    Ok(pressed.then_some(Job::Room(Id::Exec)))
}

/// Executes commands with no other in between, and logs their changes as one.
fn run_together(state: &mut State, snapshot: &Snapshot, requests: &[Queued]) {
    state.encoder().array(requests.len());
    let tables = state.tables();
    let mut gate = std::mem::take(&mut state.gate);
    tables.together(&mut gate, |gate| {
        for queued in requests {
            one(state, snapshot, queued);
        }
        gate.join(std::mem::take(&mut state.gate));
    });
    state.gate = gate;
}

/// Executes the requests in `bytes` as a transaction of another core's connection; what is to be done before, if its
/// reads miss rows.
pub(in crate::resp) fn execute_together(
    state: &mut State,
    snapshot: &Snapshot,
    bytes: &[u8],
) -> Option<Job> {
    if let Some(lacking) = state.tables().to_settle() {
        return Some(Job::Wait(WaitJob::before_together(bytes, lacking)));
    }
    execute_settled(state, snapshot, bytes)
}

/// As [`execute_together`], when what had expired is settled.
pub(super) fn execute_settled(state: &mut State, snapshot: &Snapshot, bytes: &[u8]) -> Option<Job> {
    let mut decoder = Decoder::new(state.core.limits);
    let (mut requests, mut at) = (Vec::new(), 0);
    while let Ok(Step::Request(size)) = decoder.decode(&bytes[at..]) {
        let request = &bytes[at..at + size];
        at += size;
        if let Some(command) = commands::find(decoder.request(request).arg(0)) {
            requests.push(Queued {
                command,
                bytes: request.to_vec(),
                answer: None,
                stores: None,
            });
        }
    }
    if let Some(again) = AgainJob::before_together(state, snapshot, &requests, bytes) {
        return Some(Job::Again(again));
    }
    run_together(state, snapshot, &requests);
    None
}

impl Transaction {
    /// What it keeps.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + self.requests.capacity() * size_of::<Queued>()
    }

    /// Forgets all of it, since it keeps too much: what is still sent for it is refused.
    pub fn give_up(&mut self) {
        *self = Transaction {
            refused: true,
            is_too_large: true,
            ..Transaction::default()
        };
    }

    /// # Errors
    /// Another request cannot wait.
    fn refuse_more(
        &self,
        request: Request<'_>,
        limits: Limits,
        commands_max: usize,
    ) -> Result<(), Refusal> {
        if self.requests.len() >= commands_max {
            let message = format!(
                "MULTI has queued {commands_max} commands, which is as many as server.max_transaction_commands allows: everybody \
                 else waits for them; send them in several transactions"
            );
            return Err((Code::BadRequest, message));
        }
        if self.is_too_large {
            let message = format!(
                "what MULTI had queued, and what came behind it, took more than the {} bytes that server.client_memory allows: send it \
                 in several transactions",
                limits.each
            );
            return Err((Code::OutOfMemory, message));
        }
        let more: usize = request.args().map(<[u8]>::len).sum();
        if self.memory_bytes() + more > limits.each {
            let message = format!(
                "MULTI has queued {} bytes, and with this command it would be more than the {} that server.client_memory allows: \
                 send them in several transactions",
                self.bytes, limits.each
            );
            return Err((Code::OutOfMemory, message));
        }
        Ok(())
    }

    /// # Errors
    /// One of its requests was refused.
    pub fn refuse(&self) -> Result<(), Refusal> {
        if !self.refused {
            return Ok(());
        }
        let message = "Transaction discarded because of previous errors.".to_owned();
        Err((Code::ExecAbort, message))
    }

    pub fn requests(&self) -> &[Queued] {
        &self.requests
    }

    pub fn requests_mut(&mut self) -> &mut [Queued] {
        &mut self.requests
    }

    /// All requests, one after another.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.requests.iter().map(|queued| &queued.bytes[..]);
        bytes.collect::<Vec<_>>().concat()
    }
}

fn one(state: &mut State, snapshot: &Snapshot, queued: &Queued) {
    if let Some(answer) = &queued.answer {
        return match state.bound_answer() {
            Ok(()) => state.output.tail.extend_from_slice(answer),
            Err(refusal) => state.refuse(refusal),
        };
    }
    let mut decoder = Decoder::new(state.core.limits);
    let Ok(Step::Request(_)) = decoder.decode(&queued.bytes) else {
        return state.error(Code::BadRequest, "the request cannot be read again");
    };
    let (command, request) = (queued.command, decoder.request(&queued.bytes));
    if let (false, Err(refusal)) = (command.has_flag("write"), state.bound_answer()) {
        return state.refuse(refusal);
    }
    if !super::is_of_tables(snapshot, command, request) {
        return answer(state, snapshot, command, request);
    }
    let mark = state.output.mark();
    let begin = state.output.tail.len();
    let done = super::at_once(state, snapshot, command, request, true);
    if let Err(refusal) = done {
        state.output.rewind(mark);
        return state.refuse(refusal);
    }
    if queued.stores.is_some() {
        // A read of rows, whose reply is in one piece.
        let reply = state.output.tail.split_off(begin);
        let tail = &mut state.output.tail;
        tail.extend_from_slice(&queued.with_stores(reply));
    }
}

/// Answers what is of no table, in a transaction.
pub(super) fn answer(
    state: &mut State,
    snapshot: &Snapshot,
    command: &'static Command,
    request: Request<'_>,
) {
    let mark = state.output.mark();
    if dispatch::answer(state, snapshot, command, request).is_some() {
        // A store came since the transaction's reads of stores were made.
        state.output.rewind(mark);
        let message = "a store that the command reads came just before EXEC; send it again";
        state.error(Code::Conflict, message);
    }
}
