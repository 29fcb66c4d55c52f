//! MULTI, EXEC and DISCARD.
//!
//! Commands are queued in decoded form. EXEC executes them in order, without commands of other clients in between, and
//! passes their changes to the journal as one batch. It is a no-op if a watched key has changed (see `watch`). Its
//! reads of stores are executed first (see `store_reads`).

use larder_protocol::commands::{Batch, Command, Id, InMulti, OwnedCommand};
use larder_protocol::errors::Code;
use larder_types::text_row;

use super::super::dispatch;
use super::super::mixed_reads::SplitRequest;
use super::super::pending::Work;
use super::super::spaces;
use super::super::state::ConnectionState;
use super::super::subject::CommandSubject;
use super::check::check_keys;
use super::coordinate::CoordinatedCommand;
use super::execute::execute_now;
use super::strings::returned_value_key;
use super::{Retry, StoresJob, retry, watch};
use crate::catalog::Snapshot;
use crate::clients::Limits;
use crate::tables::{Refusal, WaitCondition};

/// The commands since MULTI.
#[derive(Default)]
pub(in crate::resp) struct Transaction {
    requests: Vec<Queued>,
    /// Memory of all requests.
    bytes: usize,
    is_refused: bool,
    /// The transaction was discarded because it exceeded the memory limit.
    is_too_large: bool,
}

/// A queued command.
pub(in crate::resp) struct Queued {
    pub command: OwnedCommand,
    /// The reply of a read of a store, once it was executed.
    pub reply: Option<Vec<u8>>,
    /// For a read of stores and tables, the stores' part and its reply, once it was read. `command` then reads only the
    /// rows.
    pub stores: Option<Box<(SplitRequest, Vec<u8>)>>,
}

impl Queued {
    /// Completes the reply of `command` with that of the stores.
    pub fn with_stores(&self, reply: Vec<u8>) -> Vec<u8> {
        match &self.stores {
            None => reply,
            Some(read) => {
                let (split, stores) = &**read;
                let joined = split.merge_replies(&reply, stores);
                joined.unwrap_or_else(|| {
                    b"-IOERR the rows of the tables could not be read\r\n".to_vec()
                })
            }
        }
    }
}

/// Queues a command, or rejects it and with it the transaction.
pub(in crate::resp) fn queue(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    about: CommandSubject,
) {
    let Some(transaction) = &mut state.transaction else {
        return;
    };
    let limits = state.core.clients.limits;
    let commands_max = state.core.shared.config.server.max_transaction_commands as usize;
    let fits = transaction.check_room(command, limits, commands_max);
    let refused = fits.and_then(|()| match (command.spec.in_multi, about) {
        (InMulti::Refused, _) => {
            let message = format!("{} isn't allowed in a transaction", command.name());
            Err((Code::BadRequest, message))
        }
        _ if spaces::is_space_command(command) && state.core.nodes.is_some() => {
            let message = format!(
                "{} isn't allowed in a transaction of a cluster, because several nodes execute it",
                command.name()
            );
            Err((Code::BadRequest, message))
        }
        (_, CommandSubject::Rows) => check_keys(snapshot, command),
        _ => Ok(()),
    });
    if let Err(refusal) = refused {
        transaction.is_refused = true;
        // Nothing of the transaction will be executed.
        (transaction.requests, transaction.bytes) = (Vec::new(), 0);
        return state.refuse(refusal);
    }
    if !transaction.is_refused {
        let command = command.owned();
        transaction.bytes += command.memory_bytes();
        transaction.requests.push(Queued {
            command,
            reply: None,
            stores: None,
        });
    }
    state.encoder().simple("QUEUED");
}

/// Makes EXEC fail after an invalid request in the transaction.
pub(in crate::resp) fn mark_refused(state: &mut ConnectionState) {
    if let Some(transaction) = &mut state.transaction {
        transaction.is_refused = true;
    }
}

/// Executes MULTI: the commands that follow are queued.
pub(in crate::resp) fn begin(state: &mut ConnectionState) -> Result<(), Refusal> {
    if state.transaction.is_some() {
        let message = "MULTI calls can not be nested".to_owned();
        return Err((Code::BadRequest, message));
    }
    state.transaction = Some(Box::default());
    state.encoder().ok();
    Ok(())
}

/// Executes DISCARD: drops the queued commands.
pub(in crate::resp) fn discard(state: &mut ConnectionState) -> Result<(), Refusal> {
    take_transaction(state, "DISCARD")?;
    state.watched_keys = None;
    state.encoder().ok();
    Ok(())
}

fn take_transaction(
    state: &mut ConnectionState,
    command: &str,
) -> Result<Box<Transaction>, Refusal> {
    state.transaction.take().ok_or_else(|| {
        let message = format!("{command} without MULTI");
        (Code::BadRequest, message)
    })
}

/// Executes EXEC, once all data that its reads need has arrived.
pub(in crate::resp) fn exec(state: &mut ConnectionState, snapshot: &Snapshot) -> Option<Work> {
    if state.transaction.is_some()
        && let Some(awaited) = state.tables().unreflected_expiry()
    {
        return Some(Retry::exec_awaiting(awaited));
    }
    exec_settled(state, snapshot)
}

/// As [`exec`], once no output contains rows that have expired on another core.
pub(super) fn exec_settled(state: &mut ConnectionState, snapshot: &Snapshot) -> Option<Work> {
    let queued = state.transaction.as_ref();
    let requests = queued.map_or(&[][..], |queued| queued.requests());
    let commands = requests.iter().map(|queued| queued.command.command());
    if let Some(awaited) = find_awaited_slots(state, snapshot, commands) {
        return Some(Retry::exec_awaiting(awaited));
    }
    if let Some(job) = StoresJob::for_exec(state, snapshot) {
        return Some(Work::Stores(job));
    }
    if let Some(work) = Retry::load_before_exec(state, snapshot) {
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

fn exec_queued(state: &mut ConnectionState, snapshot: &Snapshot) -> Result<Option<Work>, Refusal> {
    if has_searches(state) {
        // Searches take several turns, during a pause.
        let several = CoordinatedCommand::for_command(state, Id::Exec);
        return Ok(Some(Work::Coordinated(several)));
    }
    let transaction = take_transaction(state, "EXEC")?;
    let has_changed = watch::has_changed(state, snapshot);
    transaction.ensure_valid()?;
    if has_changed {
        state.encoder().null_array();
        return Ok(None);
    }
    let requests = transaction.requests.iter();
    let commands = requests.map(|queued| (queued.command.command(), Some(queued)));
    run_batch(state, snapshot, commands);
    let is_disk_behind = !state.tables().disk_keeps_up();
    Ok(is_disk_behind.then_some(Work::Backpressure))
}

/// Returns whether commands on spaces, such as searches, were queued.
fn has_searches(state: &ConnectionState) -> bool {
    let queued = state.transaction.as_ref();
    let mut requests = queued.map_or(&[][..], |queued| queued.requests()).iter();
    requests.any(|queued| spaces::is_space_command(queued.command.command()))
}

/// Rejects a transaction, before any of it is executed, if the replies of its writes would exceed the client's limit.
fn refuse_long<'q>(
    state: &ConnectionState,
    commands: impl Iterator<Item = Command<'q>>,
) -> Result<(), Refusal> {
    let (tables, limits) = (state.tables(), state.core.clients.limits);
    let mut bytes = 0;
    for key in commands.filter_map(returned_value_key) {
        if !tables.is_computed(key) && !tables.is_mapped(key) {
            // Other errors appear in the command's own reply.
            let mut count = |value: &[u8]| bytes += value.len();
            let _ = tables.read(|engine, now| engine.get(&text_row(key), now, &mut count));
        }
    }
    if bytes > limits.reply_bytes() {
        Err(limits.reply_too_long())
    } else {
        Ok(())
    }
}

/// Returns what a transaction must wait for if it needs a slot that is moving from this node to another.
fn find_awaited_slots<'q>(
    state: &ConnectionState,
    snapshot: &Snapshot,
    mut commands: impl Iterator<Item = Command<'q>>,
) -> Option<WaitCondition> {
    let (tables, leaving) = (state.tables(), &state.core.shared.tables.outgoing_slots);
    let concerns = |command: Command<'_>| {
        let is_of_rows = CommandSubject::of(snapshot, command).has_rows();
        is_of_rows && leaving.affects(command, |key| tables.is_computed(key))
    };
    let progress = tables.replication_progress();
    let is_any = leaving.has_any() && commands.any(concerns);
    is_any.then_some(WaitCondition::Replicas { progress })
}

/// Rejects a transaction, before any of it is executed, if one of its commands may not be executed on this core.
fn admit_all<'q>(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    mut commands: impl Iterator<Item = Command<'q>>,
) -> Result<(), Refusal> {
    let tables = state.tables();
    if !tables.is_replicated() {
        return Ok(());
    }
    commands.try_for_each(|command| {
        if CommandSubject::of(snapshot, command).has_rows() && check_keys(snapshot, command).is_ok()
        {
            tables.admit(command, &mut state.gate, false)?;
        }
        Ok(())
    })
}

/// Executes commands without others in between, and logs their changes as one batch.
fn run_batch<'q>(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    commands: impl ExactSizeIterator<Item = (Command<'q>, Option<&'q Queued>)> + Clone,
) {
    let plain = commands.clone().map(|(command, _)| command);
    if let Err(refusal) =
        refuse_long(state, plain.clone()).and_then(|()| admit_all(state, snapshot, plain.clone()))
    {
        return state.refuse(refusal);
    }
    let mark = state.output.mark();
    state.encoder().array(commands.len());
    let tables = state.tables();
    let mut gate = std::mem::take(&mut state.gate);
    tables.execute_transaction(&mut gate, |gate| {
        for (command, queued) in commands {
            execute_one(state, snapshot, command, queued);
        }
        gate.merge(std::mem::take(&mut state.gate));
    });
    state.gate = gate;
    if state.output.len() > state.core.clients.limits.unsent_bytes() {
        let mut plain = plain;
        state.discard_long_reply(mark, "EXEC", plain.any(|command| command.writes()));
    }
}

/// Executes commands as a transaction of another core's connection. Returns the work to do first if the reads need
/// missing rows.
pub(in crate::resp) fn execute_together(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    batch: Batch,
) -> Option<Work> {
    if let Some(awaited) = state.tables().unreflected_expiry() {
        return Some(Retry::batch_awaiting(awaited, batch));
    }
    execute_settled(state, snapshot, batch)
}

/// As [`execute_together`], after the expired rows have been removed from the outputs.
pub(super) fn execute_settled(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    batch: Batch,
) -> Option<Work> {
    if let Some(awaited) = find_awaited_slots(state, snapshot, batch.iter()) {
        return Some(Retry::batch_awaiting(awaited, batch));
    }
    if let Some(load) = retry::load_for_reads(state, snapshot, batch.iter()) {
        return Some(Retry::batch_loading(load, batch));
    }
    run_batch(state, snapshot, batch.iter().map(|command| (command, None)));
    None
}

impl Transaction {
    /// Returns the memory of the queued commands.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + self.requests.capacity() * size_of::<Queued>()
    }

    /// Discards a transaction that exceeds the memory limit. Further commands of it are rejected.
    pub fn discard_too_large(&mut self) {
        *self = Transaction {
            is_refused: true,
            is_too_large: true,
            ..Transaction::default()
        };
    }

    /// # Errors
    /// No further request can be queued.
    fn check_room(
        &self,
        command: Command<'_>,
        limits: Limits,
        commands_max: usize,
    ) -> Result<(), Refusal> {
        if self.requests.len() >= commands_max {
            let message = format!(
                "MULTI has queued {commands_max} commands, the maximum of server.max_transaction_commands, because other clients \
                 wait while a transaction is executed; send them in several transactions"
            );
            return Err((Code::BadRequest, message));
        }
        if self.is_too_large {
            let message = format!(
                "the commands queued after MULTI took more than the {} bytes that server.client_memory allows; send them \
                 in several transactions",
                limits.per_client_bytes
            );
            return Err((Code::OutOfMemory, message));
        }
        let more: usize = command.args().map(<[u8]>::len).sum();
        if self.memory_bytes() + more > limits.per_client_bytes {
            let message = format!(
                "MULTI has queued {} bytes, and with this command they would exceed the {} bytes that server.client_memory allows; \
                 send them in several transactions",
                self.bytes, limits.per_client_bytes
            );
            return Err((Code::OutOfMemory, message));
        }
        Ok(())
    }

    /// # Errors
    /// One of its requests was rejected.
    pub fn ensure_valid(&self) -> Result<(), Refusal> {
        if !self.is_refused {
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
            reply: None,
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
fn execute_one(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    queued: Option<&Queued>,
) {
    if let Some(stored_reply) = queued.and_then(|queued| queued.reply.as_ref()) {
        return match state.check_reply_limit() {
            Ok(()) => state.output.tail.extend_from_slice(stored_reply),
            Err(refusal) => state.refuse(refusal),
        };
    }
    if let (false, Err(refusal)) = (command.writes(), state.check_reply_limit()) {
        return state.refuse(refusal);
    }
    if !CommandSubject::of(snapshot, command).has_rows() {
        return execute_without_tables(state, snapshot, command);
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
pub(super) fn execute_without_tables(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) {
    let mark = state.output.mark();
    if dispatch::execute_without_tables(state, snapshot, command).is_some() {
        // A store was created after the transaction's reads of stores were executed.
        state.output.rewind(mark);
        let message =
            "a store that the command reads was created just before EXEC; retry the transaction";
        state.error(Code::Conflict, message);
    }
}
