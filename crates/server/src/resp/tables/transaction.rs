//! MULTI, EXEC and DISCARD.
//!
//! The commands wait as the bytes of requests. EXEC executes them one after another with no other client's in
//! between, and hands their changes to the journal as one batch. Commands on tables, PING and ECHO can wait.

use larder_protocol::commands::{self, Command, Group, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Request, Step};

use super::super::dispatch::Job;
use super::super::remote::write_request;
use super::super::session::State;
use super::AgainJob;
use crate::catalog::Snapshot;
use crate::tables::Refusal;

/// Commands since MULTI.
#[derive(Default)]
pub(in crate::resp) struct Transaction {
    requests: Vec<(&'static Command, Vec<u8>)>,
    refused: bool,
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
    if matches!(command.id, Id::Exec | Id::Discard | Id::Quit | Id::Reset) {
        return false;
    }
    let refused = match command.id {
        Id::Multi => Some((Code::BadRequest, "MULTI calls can not be nested".to_owned())),
        Id::Ping | Id::Echo | Id::Scan => None,
        Id::Get | Id::MGet | Id::Exists | Id::StrLen | Id::GetRange | Id::Type => {
            super::check_keys(snapshot, command, request).err()
        }
        _ if command.group == Group::Tables => super::check_keys(snapshot, command, request).err(),
        _ => {
            let message = format!("{} cannot be in a transaction", command.name);
            Some((Code::BadRequest, message))
        }
    };
    if let Some(refusal) = refused {
        transaction.refused = true;
        state.refuse(refusal);
        return true;
    }
    let mut bytes = Vec::new();
    write_request(&mut bytes, request.args());
    transaction.requests.push((command, bytes));
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
        state.transaction = Some(Box::default());
        state.encoder().ok();
        return Ok(None);
    }
    let Some(transaction) = state.transaction.take() else {
        let message = format!("{} without MULTI", command.name);
        return Err((Code::BadRequest, message));
    };
    if command.id == Id::Discard {
        state.encoder().ok();
        return Ok(None);
    }
    transaction.refuse()?;
    run_together(state, snapshot, &transaction.requests);
    let pressed = !state.tables().has_room();
    Ok(pressed.then_some(Job::Room(Id::Exec)))
}

/// Executes commands with no other in between, and logs their changes as one.
fn run_together(state: &mut State, snapshot: &Snapshot, requests: &[(&'static Command, Vec<u8>)]) {
    state.encoder().array(requests.len());
    let tables = state.tables();
    let mut gate = std::mem::take(&mut state.gate);
    tables.together(&mut gate, |gate| {
        for (command, bytes) in requests {
            one(state, snapshot, command, bytes);
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
    let mut decoder = Decoder::new(state.core.limits);
    let (mut requests, mut at) = (Vec::new(), 0);
    while let Ok(Step::Request(size)) = decoder.decode(&bytes[at..]) {
        let request = &bytes[at..at + size];
        at += size;
        if let Some(command) = commands::find(decoder.request(request).arg(0)) {
            requests.push((command, request.to_vec()));
        }
    }
    if let Some(again) = AgainJob::before_together(state, snapshot, &requests, bytes) {
        return Some(Job::Again(again));
    }
    run_together(state, snapshot, &requests);
    None
}

impl Transaction {
    /// # Errors
    /// One of its requests was refused.
    pub fn refuse(&self) -> Result<(), Refusal> {
        if !self.refused {
            return Ok(());
        }
        let message = "Transaction discarded because of previous errors.".to_owned();
        Err((Code::ExecAbort, message))
    }

    pub fn requests(&self) -> &[(&'static Command, Vec<u8>)] {
        &self.requests
    }

    /// All requests, one after another.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.requests.iter().map(|(_, bytes)| &bytes[..]);
        bytes.collect::<Vec<_>>().concat()
    }
}

fn one(state: &mut State, snapshot: &Snapshot, command: &'static Command, bytes: &[u8]) {
    let mut decoder = Decoder::new(state.core.limits);
    let Ok(Step::Request(_)) = decoder.decode(bytes) else {
        return state.error(Code::BadRequest, "the request cannot be read again");
    };
    let mark = state.output.mark();
    let done = super::at_once(state, snapshot, command, decoder.request(bytes), true);
    if let Err(refusal) = done {
        state.output.rewind(mark);
        state.refuse(refusal);
    }
}
