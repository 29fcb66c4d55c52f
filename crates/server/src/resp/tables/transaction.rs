//! MULTI, EXEC and DISCARD.
//!
//! Commands are queued in decoded form. EXEC executes them in order, without commands of other clients in between, and
//! passes their changes to the journal as one batch. It is a no-op if a watched key has changed (see `watch`). Its
//! reads of stores are executed first (see `stores`).

use larder_protocol::commands::{Batch, Command, Id, InMulti, OwnedCommand};
use larder_protocol::errors::Code;
use larder_types::text_row;

use super::super::dispatch;
use super::super::mixed::Split;
use super::super::pending::Work;
use super::super::spaces;
use super::super::state::State;
use super::super::subject::About;
use super::check::check_keys;
use super::coordinate::SeveralCores;
use super::execute::execute_now;
use super::strings::key_of_answer;
use super::{Retry, StoresJob, retry, watch};
use crate::catalog::Snapshot;
use crate::clients::Limits;
use crate::tables::{Awaited, Refusal};

/// The commands since MULTI.
#[derive(Default)]
pub(in crate::resp) struct Transaction {
    requests: Vec<Queued>,
    /// Memory of all requests.
    bytes: usize,
    refused: bool,
    /// The transaction was discarded because it exceeded the memory limit.
    is_too_large: bool,
}

/// A queued command.
pub(in crate::resp) struct Queued {
    pub command: OwnedCommand,
    /// The reply of a read of a store, once it was executed.
    pub answer: Option<Vec<u8>>,
    /// For a read of stores and tables, the stores' part and its reply, once it was read. `command` then reads only the
    /// rows.
    pub stores: Option<Box<(Split, Vec<u8>)>>,
}

impl Queued {
    /// Completes the reply of `command` with that of the stores.
    pub fn with_stores(&self, reply: Vec<u8>) -> Vec<u8> {
        match &self.stores {
            None => reply,
            Some(read) => {
                let (split, stores) = &**read;
                let joined = split.join(&reply, stores);
                joined.unwrap_or_else(|| b"-IOERR the rows cannot be read\r\n".to_vec())
            }
        }
    }
}

/// Queues a command, or rejects it and with it the transaction.
pub(in crate::resp) fn queue(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    about: About,
) {
    let Some(transaction) = &mut state.transaction else {
        return;
    };
    let limits = state.core.clients.limits;
    let commands_max = state.core.shared.config.server.max_transaction_commands as usize;
    let fits = transaction.refuse_more(command, limits, commands_max);
    let refused = fits.and_then(|()| match (command.spec.in_multi, about) {
        (InMulti::Refused, _) => {
            let message = format!("{} isn't allowed in a transaction", command.name());
            Err((Code::BadRequest, message))
        }
        _ if spaces::is_of_spaces(command) && state.core.nodes.is_some() => {
            let message = format!(
                "{} isn't allowed in a transaction of a cluster: other nodes take part in it",
                command.name()
            );
            Err((Code::BadRequest, message))
        }
        (_, About::Rows) => check_keys(snapshot, command),
        _ => Ok(()),
    });
    if let Err(refusal) = refused {
        transaction.refused = true;
        // Nothing of the transaction will be executed.
        (transaction.requests, transaction.bytes) = (Vec::new(), 0);
        return state.refuse(refusal);
    }
    if !transaction.refused {
        let command = command.owned();
        transaction.bytes += command.memory_bytes();
        transaction.requests.push(Queued {
            command,
            answer: None,
            stores: None,
        });
    }
    state.encoder().simple("QUEUED");
}

/// Makes EXEC fail after an invalid request in the transaction.
pub(in crate::resp) fn mark_refused(state: &mut State) {
    if let Some(transaction) = &mut state.transaction {
        transaction.refused = true;
    }
}

/// Executes MULTI: the commands that follow are queued.
pub(super) fn begin(state: &mut State) -> Result<(), Refusal> {
    if state.transaction.is_some() {
        let message = "MULTI calls can not be nested".to_owned();
        return Err((Code::BadRequest, message));
    }
    state.transaction = Some(Box::default());
    state.encoder().ok();
    Ok(())
}

/// Executes DISCARD: drops the queued commands.
pub(super) fn discard(state: &mut State) -> Result<(), Refusal> {
    take(state, "DISCARD")?;
    state.watching = None;
    state.encoder().ok();
    Ok(())
}

fn take(state: &mut State, command: &str) -> Result<Box<Transaction>, Refusal> {
    state.transaction.take().ok_or_else(|| {
        let message = format!("{command} without MULTI");
        (Code::BadRequest, message)
    })
}

/// Executes EXEC, once all data that its reads need has arrived.
pub(super) fn exec(state: &mut State, snapshot: &Snapshot) -> Option<Work> {
    if state.transaction.is_some()
        && let Some(awaited) = state.tables().expired_elsewhere()
    {
        return Some(Retry::exec_awaiting(awaited));
    }
    exec_settled(state, snapshot)
}

/// As [`exec`], once no output contains rows that have expired on another core.
pub(super) fn exec_settled(state: &mut State, snapshot: &Snapshot) -> Option<Work> {
    let queued = state.transaction.as_ref();
    let requests = queued.map_or(&[][..], |queued| queued.requests());
    let commands = requests.iter().map(|queued| queued.command.command());
    if let Some(awaited) = awaits_slots(state, snapshot, commands) {
        return Some(Retry::exec_awaiting(awaited));
    }
    if let Some(job) = StoresJob::before_exec(state, snapshot) {
        return Some(Work::Stores(job));
    }
    if let Some(work) = Retry::before_exec(state, snapshot) {
        return Some(work);
    }
    match exec_queued(state, snapshot) {
        Ok(work) => work,
        Err(refusal) => {
            state.refuse(refusal);
            None
        }
    }
}

fn exec_queued(state: &mut State, snapshot: &Snapshot) -> Result<Option<Work>, Refusal> {
    if has_searches(state) {
        // Searches take several turns, during a pause.
        let several = SeveralCores::of(state, Id::Exec);
        return Ok(Some(Work::SeveralCores(several)));
    }
    let transaction = take(state, "EXEC")?;
    let has_changed = watch::has_changed(state, snapshot);
    transaction.refuse()?;
    if has_changed {
        state.encoder().null_array();
        return Ok(None);
    }
    let requests = transaction.requests.iter();
    let commands = requests.map(|queued| (queued.command.command(), Some(queued)));
    run_together(state, snapshot, commands);
    let pressed = !state.tables().disk_keeps_up();
    Ok(pressed.then_some(Work::Room))
}

/// Returns whether commands on spaces, such as searches, were queued.
fn has_searches(state: &State) -> bool {
    let queued = state.transaction.as_ref();
    let mut requests = queued.map_or(&[][..], |queued| queued.requests()).iter();
    requests.any(|queued| spaces::is_of_spaces(queued.command.command()))
}

/// Rejects a transaction, before any of it is executed, if the replies of its writes would exceed the client's limit.
fn refuse_long<'q>(
    state: &State,
    commands: impl Iterator<Item = Command<'q>>,
) -> Result<(), Refusal> {
    let (tables, limits) = (state.tables(), state.core.clients.limits);
    let mut bytes = 0;
    for key in commands.filter_map(key_of_answer) {
        if !tables.is_computed(key) && !tables.is_mapped(key) {
            // Other errors appear in the command's own reply.
            let mut count = |value: &[u8]| bytes += value.len();
            let _ = tables.read(|engine, now| engine.get(&text_row(key), now, &mut count));
        }
    }
    if bytes > limits.answer() {
        Err(limits.too_long())
    } else {
        Ok(())
    }
}

/// Returns what a transaction must wait for if it needs a slot that is moving from this node to another.
fn awaits_slots<'q>(
    state: &State,
    snapshot: &Snapshot,
    mut commands: impl Iterator<Item = Command<'q>>,
) -> Option<Awaited> {
    let (tables, leaving) = (state.tables(), &state.core.shared.tables.leaving);
    let concerns = |command: Command<'_>| {
        let is_of_rows = About::of(snapshot, command).has_rows();
        is_of_rows && leaving.concerns(command, |key| tables.is_computed(key))
    };
    let progress = tables.replication_progress();
    let is_any = leaving.has_any() && commands.any(concerns);
    is_any.then_some(Awaited::Replicas { progress })
}

/// Rejects a transaction, before any of it is executed, if one of its commands may not be executed on this core.
fn admit_all<'q>(
    state: &mut State,
    snapshot: &Snapshot,
    mut commands: impl Iterator<Item = Command<'q>>,
) -> Result<(), Refusal> {
    let tables = state.tables();
    if !tables.is_replicated() {
        return Ok(());
    }
    commands.try_for_each(|command| {
        if About::of(snapshot, command).has_rows() && check_keys(snapshot, command).is_ok() {
            tables.admit(command, &mut state.gate, false)?;
        }
        Ok(())
    })
}

/// Executes commands without others in between, and logs their changes as one batch.
fn run_together<'q>(
    state: &mut State,
    snapshot: &Snapshot,
    commands: impl ExactSizeIterator<Item = (Command<'q>, Option<&'q Queued>)> + Clone,
) {
    let alone = commands.clone().map(|(command, _)| command);
    if let Err(refusal) =
        refuse_long(state, alone.clone()).and_then(|()| admit_all(state, snapshot, alone.clone()))
    {
        return state.refuse(refusal);
    }
    let mark = state.output.mark();
    state.encoder().array(commands.len());
    let tables = state.tables();
    let mut gate = std::mem::take(&mut state.gate);
    tables.execute_transaction(&mut gate, |gate| {
        for (command, queued) in commands {
            one(state, snapshot, command, queued);
        }
        gate.join(std::mem::take(&mut state.gate));
    });
    state.gate = gate;
    if state.output.len() > state.core.clients.limits.most() {
        let mut alone = alone;
        state.take_back_long(mark, "EXEC", alone.any(|command| command.writes()));
    }
}

/// Executes commands as a transaction of another core's connection. Returns the work to do first if the reads need
/// missing rows.
pub(in crate::resp) fn execute_together(
    state: &mut State,
    snapshot: &Snapshot,
    batch: Batch,
) -> Option<Work> {
    if let Some(awaited) = state.tables().expired_elsewhere() {
        return Some(Retry::batch_awaiting(awaited, batch));
    }
    execute_settled(state, snapshot, batch)
}

/// As [`execute_together`], after the expired rows have been removed from the outputs.
pub(super) fn execute_settled(
    state: &mut State,
    snapshot: &Snapshot,
    batch: Batch,
) -> Option<Work> {
    if let Some(awaited) = awaits_slots(state, snapshot, batch.iter()) {
        return Some(Retry::batch_awaiting(awaited, batch));
    }
    if let Some(wanted) = retry::load_for_reads(state, snapshot, batch.iter()) {
        return Some(Retry::batch_loading(wanted, batch));
    }
    run_together(state, snapshot, batch.iter().map(|command| (command, None)));
    None
}

impl Transaction {
    /// Returns the memory of the queued commands.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + self.requests.capacity() * size_of::<Queued>()
    }

    /// Discards a transaction that exceeds the memory limit. Further commands of it are rejected.
    pub fn give_up(&mut self) {
        *self = Transaction {
            refused: true,
            is_too_large: true,
            ..Transaction::default()
        };
    }

    /// # Errors
    /// No further request can be queued.
    fn refuse_more(
        &self,
        command: Command<'_>,
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
        let more: usize = command.args().map(<[u8]>::len).sum();
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
    /// One of its requests was rejected.
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

    /// Creates a transaction of commands that another core has queued.
    pub fn of(batch: &Batch) -> Transaction {
        let queued = |command: Command<'_>| Queued {
            command: command.owned(),
            answer: None,
            stores: None,
        };
        Transaction {
            requests: batch.iter().map(queued).collect(),
            bytes: batch.memory_bytes(),
            ..Transaction::default()
        }
    }

    /// Returns all commands in order.
    pub fn batch(&self) -> Batch {
        let requests = self.requests.iter();
        requests.map(|queued| queued.command.command()).collect()
    }
}

/// Executes one command. `queued` has replies that were computed in advance, if it was queued on this core.
fn one(state: &mut State, snapshot: &Snapshot, command: Command<'_>, queued: Option<&Queued>) {
    if let Some(answer) = queued.and_then(|queued| queued.answer.as_ref()) {
        return match state.bound_answer() {
            Ok(()) => state.output.tail.extend_from_slice(answer),
            Err(refusal) => state.refuse(refusal),
        };
    }
    if let (false, Err(refusal)) = (command.writes(), state.bound_answer()) {
        return state.refuse(refusal);
    }
    if !About::of(snapshot, command).has_rows() {
        return answer(state, snapshot, command);
    }
    let mark = state.output.mark();
    let begin = state.output.tail.len();
    let done = execute_now(state, snapshot, command, true);
    if let Err(why) = done {
        state.output.rewind(mark);
        return state.refuse(why.refusal());
    }
    if let Some(queued) = queued.filter(|queued| queued.stores.is_some()) {
        // The command reads rows, so its reply is in one piece.
        let reply = state.output.tail.split_off(begin);
        let tail = &mut state.output.tail;
        tail.extend_from_slice(&queued.with_stores(reply));
    }
}

/// Executes a command of a transaction that concerns no table.
pub(super) fn answer(state: &mut State, snapshot: &Snapshot, command: Command<'_>) {
    let mark = state.output.mark();
    if dispatch::answer(state, snapshot, command).is_some() {
        // A store was created after the transaction's reads of stores were executed.
        state.output.rewind(mark);
        let message = "a store that the command reads came just before EXEC; send it again";
        state.error(Code::Conflict, message);
    }
}
