//! Commands over several cores: each is divided by core, and the replies are combined. Commands over several nodes of a
//! cluster (`nodes`) are divided by node first.
//!
//! An operation that changes several cores atomically (EXEC: see `exec`; MSET; definitions) pauses all cores; see
//! `crate::tables::Paused`. It runs in a separate task, so that it completes even if the connection stops waiting.

mod define;
mod exec;
mod keys;
mod nodes;
mod objects;
mod patience;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_join::Shard;
use larder_protocol::commands::{Batch, Command, Id, Keys, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};
use tokio::time::{Instant, timeout_at};

use super::super::core::Core;
use super::super::incoming::Incoming;
use super::super::replies;
use super::super::spaces::{self, Asker, Reach};
use super::super::state::State;
use super::super::subject::About;
use super::joins::JoinChange;
use super::merge::Merge;
use super::partly::refused;
use super::range::{Asked, check_flush, header, one_row};
use super::transaction::Transaction;
use super::watch::Watching;
use super::{joins, scan, still_moving};
use crate::catalog::Snapshot;
use crate::clients::{Client, as_reply};
use crate::tables::{Execution, Gate, Paused, Refusal, refusal, stopping};

pub(crate) use define::{define_everywhere, define_in_cluster, follow_definitions};
pub(in crate::resp) use nodes::{
    ask_nodes, ask_places, places_awaited, places_of_nodes, wait_for_change,
};
pub(in crate::resp) use patience::Patience;

/// The state of a command for several cores besides the command itself. For EXEC, these are the queued commands and the
/// watched keys.
#[derive(Default)]
pub(in crate::resp) struct SeveralCores {
    transaction: Option<Box<Transaction>>,
    watching: Option<Box<Watching>>,
    /// Several nodes take part.
    over_nodes: bool,
    /// The snapshot for reads of stores, if it is fixed.
    snapshot: Option<Arc<Snapshot>>,
}

impl SeveralCores {
    /// Creates the state for a command of a connection.
    pub fn of(state: &mut State, command: Id) -> SeveralCores {
        let is_exec = command == Id::Exec;
        SeveralCores {
            watching: state.watching.take_if(|_| is_exec),
            transaction: state.transaction.take(),
            ..SeveralCores::default()
        }
    }

    /// Creates the state for a command that is executed by the owners of its keys, possibly on several nodes.
    pub fn of_nodes() -> SeveralCores {
        SeveralCores {
            over_nodes: true,
            ..SeveralCores::default()
        }
    }

    /// As [`SeveralCores::of_nodes`], but reads stores from this snapshot.
    pub fn of_snapshot(snapshot: &Arc<Snapshot>) -> SeveralCores {
        SeveralCores {
            snapshot: Some(snapshot.clone()),
            ..SeveralCores::of_nodes()
        }
    }

    /// Creates the state for a transaction that another node sent.
    pub fn of_batch(batch: &Batch) -> SeveralCores {
        SeveralCores {
            transaction: Some(Box::new(Transaction::of(batch))),
            ..SeveralCores::default()
        }
    }

    /// Returns whether other nodes take part.
    pub fn is_over_nodes(&self) -> bool {
        self.over_nodes
    }

    /// Returns the memory held for further commands.
    pub fn memory_bytes(&self) -> usize {
        let transaction = self.transaction.as_ref();
        transaction.map_or(0, |transaction| transaction.memory_bytes())
    }

    /// Returns the range of a command whose reply is sent in pieces, as the client reads it.
    pub fn range<'a>(&self, command: Command<'a>) -> Option<Result<Asked<'a>, Refusal>> {
        (command.id() == Id::Range).then(|| Asked::parse(command.request))
    }

    /// Executes the command. Dropping the returned future aborts a long read; any other command is completed.
    pub async fn answer(
        &mut self,
        state: &State,
        command: Rc<OwnedCommand>,
    ) -> Result<Done, Refusal> {
        let (transaction, watching) = (self.transaction.take(), self.watching.take());
        let transaction: Option<Rc<Transaction>> = transaction.map(Rc::from);
        let mut all = Coordinator {
            core: state.core.clone(),
            client: state.client.clone(),
            proto: state.proto,
            commands: match &transaction {
                Some(transaction) => Commands::Transaction(transaction.clone()),
                None => Commands::One(command.clone()),
            },
            ticket: None,
            paused_until: None,
            gate: Gate::default(),
            closing: false,
            is_of_node: state.is_of_node,
            epoch: if state.is_of_node {
                state.asked_at
            } else {
                state.core.tables.epoch_of_map()
            },
            shard: state.core.tables.shard(),
            snapshot: self.snapshot.take(),
        };
        let is_of_cluster = state.core.nodes.is_some();
        // Rows may move to another node while a client's command waits for them.
        let over_nodes = self.over_nodes
            || is_of_cluster && !state.is_of_node && !spaces::is_of_spaces(command.command());
        let (limits, spec) = (state.core.clients.limits, command.spec);
        let queued_writes = |transaction: &Transaction| {
            let mut queued = transaction.requests().iter();
            queued.any(|queued| queued.command.spec.writes)
        };
        let writes = transaction.as_deref().map_or(spec.writes, queued_writes);
        let is_long_read = spaces::is_long_read(command.command());
        let task = tokio::task::spawn_local(async move {
            let reply = match (all.wait_while_leaving().await, transaction) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), Some(transaction)) => {
                    all.transaction(&transaction, watching.as_deref()).await
                }
                (Ok(()), None) if over_nodes => all.anywhere(command.command()).await,
                (Ok(()), None) => all.execute(command.command()).await,
            };
            let reply = reply.map_err(|refused| {
                if is_of_cluster && refused == gone() {
                    lost(writes)
                } else {
                    refused
                }
            });
            reply.map(|reply| Done {
                reply: match (reply.len(), writes) {
                    (bytes, _) if bytes <= limits.most() => reply,
                    (bytes, true) => as_reply(limits.executed(spec.name, bytes)),
                    _ => limits.too_long_reply(),
                },
                gate: all.gate,
                proto: all.proto,
                closing: all.closing,
            })
        });
        let _given_up = is_long_read.then(|| AbortOnDrop(task.abort_handle()));
        let gone = |_| (Code::Io, "the command was given up".to_owned());
        task.await.map_err(gone)?
    }
}

/// Aborts a task when it is dropped. Dropping the task's own handle would detach it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The result of a command.
pub(in crate::resp) struct Done {
    pub reply: Vec<u8>,
    /// The conditions that the reply waits for.
    pub gate: Gate,
    /// The protocol version of the connection afterwards; a transaction may change it.
    pub proto: Proto,
    pub closing: bool,
}

pub(super) const MOVED: &str = "slots have moved to another node meanwhile; send it again";

/// A reply, and whether all its parts were read at one moment.
type Read = (Vec<u8>, bool);

/// Maximum time to wait for slots that are moving to another node.
const LEAVING_MAX: Duration = Duration::from_secs(3);
/// Maximum duration of a pause on a node of a cluster. Work in a pause may wait for replicas, and a failed replica is
/// only removed by the next map, which is applied after the pause.
pub(super) const PAUSED_MAX: Duration = Duration::from_secs(3);

/// Waits for work during a pause. `None` if the pause must end first.
pub(super) async fn in_time<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(work.await),
        Some(until) => timeout_at(until, work).await.ok(),
    }
}

/// The commands that a coordinator executes.
enum Commands {
    One(Rc<OwnedCommand>),
    Transaction(Rc<Transaction>),
}

/// Maximum number of attempts at a read whose parts were separated by a transaction.
pub(super) const TRIES_MAX: usize = 4;

fn are_of_one_moment<'a>(mut incoming: impl Iterator<Item = &'a Incoming>) -> bool {
    let first = incoming.next().map(Incoming::moment);
    first.is_none_or(|first| first.is_some() && incoming.all(|one| one.moment() == first))
}

/// Executes one command on several cores.
struct Coordinator {
    core: Rc<Core>,
    client: Arc<Client>,
    proto: Proto,
    commands: Commands,
    /// The ticket, while the cores are paused.
    ticket: Option<u64>,
    /// In a pause on a node of a cluster: the deadline for replies.
    paused_until: Option<Instant>,
    gate: Gate,
    closing: bool,
    /// The command is this node's part, on behalf of the node that coordinates all parts.
    is_of_node: bool,
    /// The epoch of the map by which rows are read: that of the coordinating node, or of this node.
    epoch: u64,
    /// The ownership by that map.
    shard: Option<Rc<Shard>>,
    /// The snapshot from which all nodes read stores.
    snapshot: Option<Arc<Snapshot>>,
}

/// Returns the error for a core that did not reply.
pub(super) fn gone() -> Refusal {
    let message = "a core of the server does not answer: it is stopping".to_owned();
    (Code::Io, message)
}

/// As [`gone`], but for a cluster, where replies are also lost if a node may not serve its slots any more.
fn lost(writes: bool) -> Refusal {
    if writes {
        let message = "this node lost its lease, or the slots, before replicas had acknowledged this; it is unknown whether it was done";
        (Code::Unknown, message.to_owned())
    } else {
        let message = "owners have changed while this was read; send it again";
        (Code::TryAgain, message.to_owned())
    }
}

/// Executes a command on the owners of its keys, on behalf of a sender without a connection.
///
/// # Errors
/// The keys have no owner, or it is unreachable.
pub(in crate::resp) async fn anywhere(
    core: &Rc<Core>,
    client: &Arc<Client>,
    command: OwnedCommand,
) -> Result<Vec<u8>, Refusal> {
    let command = Rc::new(command);
    let mut all = Coordinator {
        core: core.clone(),
        client: client.clone(),
        proto: Proto::Resp2,
        commands: Commands::One(command.clone()),
        ticket: None,
        paused_until: None,
        gate: Gate::default(),
        closing: false,
        is_of_node: false,
        epoch: core.tables.epoch_of_map(),
        shard: core.tables.shard(),
        snapshot: None,
    };
    let reply = all.anywhere(command.command()).await;
    let opened = poll_fn(|cx| core.tables.poll_gate(&mut all.gate, cx)).await;
    opened.map_err(|_| lost(command.command().writes()))?;
    reply
}

/// Waits for all replies.
async fn all_replies(all: impl IntoIterator<Item = Incoming>) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut replies = Vec::new();
    for mut incoming in all {
        replies.push(incoming.reply().await.ok_or_else(gone)?);
    }
    Ok(replies)
}

/// Returns the argument after the keys that every core receives with its own keys.
fn behind_keys(command: Command<'_>) -> Option<&[u8]> {
    let has_last = command.spec.keys == Keys::EveryButLast;
    has_last.then(|| command.arg(command.len() - 1))
}

impl Coordinator {
    fn ask(&self, to: usize, batch: Batch, execution: Execution) -> Incoming {
        let (core, client) = (&self.core, &self.client);
        let (proto, ticket, epoch) = (self.proto, self.ticket, self.epoch);
        let incoming = Incoming::ask(core, to, batch, proto, client, ticket, execution, epoch);
        incoming.until(self.paused_until)
    }

    /// Returns whether the commands need a slot that is moving from this node to another.
    fn is_leaving(&self) -> bool {
        let leaving = &self.core.shared.tables.leaving;
        if !leaving.has_any() {
            return false;
        }
        let (tables, snapshot) = (&self.core.tables, self.core.shared.catalog.load());
        let concerns = |command: Command<'_>| {
            let is_of_rows = About::of(&snapshot, command).has_rows();
            is_of_rows && leaving.concerns(command, |key| tables.is_computed(key))
        };
        match &self.commands {
            Commands::One(command) => concerns(command.command()),
            Commands::Transaction(transaction) => {
                let mut requests = transaction.requests().iter();
                requests.any(|queued| concerns(queued.command.command()))
            }
        }
    }

    /// Waits until the slots that are moving to another node have left, before anything is read.
    async fn wait_while_leaving(&mut self) -> Result<(), Refusal> {
        let begun = Instant::now();
        while self.is_leaving() {
            if begun.elapsed() > LEAVING_MAX {
                return Err(still_moving());
            }
            nodes::wait_for_change(&self.core, self.core.tables.epoch_of_map()).await;
            self.follow_map();
        }
        Ok(())
    }

    /// Adopts the newest map. A part that another node coordinates keeps the epoch of that node's map.
    fn follow_map(&mut self) {
        self.shard = self.core.tables.shard();
        if !self.is_of_node {
            self.epoch = self.core.tables.epoch_of_map();
        }
    }

    /// Rejects a reply that exceeds the limit of one client.
    fn bound(&self, answer: &[u8]) -> Result<(), Refusal> {
        let limits = self.core.clients.limits;
        if answer.len() > limits.answer() {
            Err(limits.too_long())
        } else {
            Ok(())
        }
    }

    fn execution(&self) -> Execution {
        match self.ticket {
            None => Execution::OneByOne,
            Some(_) => Execution::ToEnd,
        }
    }

    fn cores(&self) -> usize {
        self.core.shared.tables.cores()
    }

    /// Sends each core its part, if it has one.
    fn ask_each(&self, parts: Vec<Batch>, execution: Execution) -> Vec<Option<Incoming>> {
        self.core.tables.send_exchange();
        let ask = |(core, part): (usize, Batch)| {
            (!part.is_empty()).then(|| self.ask(core, part, execution))
        };
        parts.into_iter().enumerate().map(ask).collect()
    }

    fn owner(&self, key: &[u8]) -> usize {
        let shard = self.shard.as_ref();
        shard.map_or(0, |shard| usize::from(shard.owner_of(key)))
    }

    /// # Errors
    /// The ownership has changed since the command started.
    fn check_shard(&self) -> Result<(), Refusal> {
        let is_same = match (&self.shard, self.core.tables.shard()) {
            (Some(before), Some(now)) => Rc::ptr_eq(before, &now),
            (before, now) => before.is_none() && now.is_none(),
        };
        if is_same {
            Ok(())
        } else {
            Err((Code::TryAgain, MOVED.to_owned()))
        }
    }

    /// # Errors
    /// Another node owns some of the keys by now.
    fn check_owners(&self, command: Command<'_>) -> Result<(), Refusal> {
        let mut keys = command.keys();
        if keys.all(|key| self.owner(key) < self.cores()) {
            Ok(())
        } else {
            Err((Code::TryAgain, MOVED.to_owned()))
        }
    }

    async fn execute(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        if spaces::is_of_spaces(command) {
            return self.of_spaces(command, Reach::Alone).await;
        }
        let request = command.request;
        self.check_owners(command)?;
        if let Some(core) = self.mapped_core(command) {
            let mut incoming = self.ask(core, command.into(), self.execution());
            return incoming.reply().await.ok_or_else(gone);
        }
        if command.writes() && self.ticket.is_none() {
            // Checked before the pause, which involves all cores.
            self.core.tables.ensure_writes_taken()?;
        }
        let is_of_rows = matches!(
            command.id(),
            Id::Del | Id::Unlink | Id::MSet | Id::MSetNx | Id::MSetEx
        );
        if is_of_rows {
            self.refuse_computed_rows(command.keys())?;
        }
        match command.id() {
            Id::MGet | Id::JsonMGet | Id::Exists | Id::Touch | Id::RangeCount
                if self.ticket.is_none() =>
            {
                self.read_at_one_moment(command).await
            }
            Id::MGet | Id::JsonMGet => Ok(self.mget(command).await?.0),
            Id::Exists | Id::Touch | Id::Del | Id::Unlink => {
                Ok(self.sum(command, self.by_owner(command)).await?.0)
            }
            Id::RangeCount | Id::RangeDel => Ok(self.sum(command, self.for_each(command)).await?.0),
            Id::MSet | Id::MSetNx | Id::MSetEx => self.put_texts(command).await,
            Id::JsonMSet => self.json_mset(request).await,
            Id::RandomKey => self.random_key().await,
            Id::Rename | Id::RenameNx | Id::Copy => self.copy(command.id(), request).await,
            Id::Keys => self.keys(request).await,
            Id::FlushDb | Id::FlushAll => self.flush(command).await,
            Id::Range => self.range(request).await,
            Id::Scan => self.scan(request).await,
            Id::JoinInfo => {
                let joins = self.core.shared.tables.joins(self.ticket).await;
                let name = joins::text(request.arg(1))?;
                let joins = joins.map_err(stopping)?;
                let Some(join) = joins.iter().find(|join| join.name == name) else {
                    let name = name.to_owned();
                    return Err(refusal(larder_join::Error::UnknownJoin { name }));
                };
                Ok(self.encoded(|encoder| joins::describe(encoder, join)))
            }
            Id::JoinCreate | Id::JoinDrop => self.define(JoinChange::of(command)?).await,
            _ => Err((
                Code::BadRequest,
                format!("{} is of one core", command.name()),
            )),
        }
    }

    /// Executes a command on spaces.
    async fn of_spaces(&mut self, command: Command<'_>, reach: Reach) -> Result<Vec<u8>, Refusal> {
        let mut asker = self.asker(reach);
        Box::pin(spaces::answer(&mut asker, command)).await
    }

    fn asker(&self, reach: Reach) -> Asker {
        Asker {
            core: self.core.clone(),
            client: self.client.clone(),
            proto: self.proto,
            reach: if self.is_of_node {
                Reach::Part { epoch: self.epoch }
            } else {
                reach
            },
            ticket: self.ticket,
        }
    }

    /// Drops the spaces that a FLUSHALL drops.
    async fn drop_spaces(&self, command: Command<'_>, reach: Reach) -> Result<(), Refusal> {
        if self.is_of_node || !spaces::flush_drops_any(&self.core) {
            return Ok(());
        }
        check_flush(command.request)?;
        if self.ticket.is_some() {
            return Err(spaces::no_flush_in_multi(command));
        }
        spaces::drop_all(&self.asker(reach)).await
    }

    /// Returns the core that executes the complete command if its keys are of mapped tables. One core can load all
    /// their rows, and PostgreSQL executes a write of several keys atomically. That core rejects a write that also
    /// concerns other tables.
    fn mapped_core(&self, command: Command<'_>) -> Option<usize> {
        let is_whole = command.spec.keys == Keys::Every || command.id() == Id::MSet;
        let mut keys = command.keys();
        let is_mapped = |key| self.core.tables.is_mapped(key);
        let first = keys.next()?;
        let is_one = if command.writes() {
            is_mapped(first) || keys.any(is_mapped)
        } else {
            is_mapped(first) && keys.all(is_mapped)
        };
        (is_whole && is_one).then(|| self.owner(first))
    }

    /// Reads keys or counts rows of several cores at one moment. If transactions keep interfering, the cores are
    /// paused.
    async fn read_at_one_moment(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        for _ in 0..TRIES_MAX {
            let (reply, is_one) = match command.id() {
                Id::MGet | Id::JsonMGet => self.mget(command).await?,
                Id::Exists | Id::Touch => self.sum(command, self.by_owner(command)).await?,
                _ => self.sum(command, self.for_each(command)).await?,
            };
            if is_one {
                return Ok(reply);
            }
        }
        let paused = self.pause().await?;
        let reply = match self.ensure_owners(command).await {
            Ok(()) => Box::pin(self.execute(command)).await,
            Err(refusal) => Err(refusal),
        };
        self.end_reading(paused);
        reply
    }

    /// Checks, during a pause, that each core owns the rows that it owned by the map of [`Self::epoch`], for a command
    /// on rows that every core has.
    ///
    /// # Errors
    /// Rows have moved since, or have not arrived yet.
    async fn ensure_owners(&self, command: Command<'_>) -> Result<(), Refusal> {
        if command.keys().len() > 0 {
            return Ok(());
        }
        let epoch = self.epoch;
        let handle = &self.core.shared.tables;
        handle.ensure_owners_since(self.ticket, epoch).await
    }

    /// Divides a command on keys into one command for each core that owns some of them.
    fn by_owner(&self, command: Command<'_>) -> Vec<Batch> {
        let mut args: Vec<Vec<&[u8]>> = vec![vec![command.arg(0)]; self.cores()];
        for key in command.keys() {
            args[self.owner(key)].push(key);
        }
        let last = behind_keys(command);
        let mut parts = vec![Batch::default(); self.cores()];
        for (part, mut args) in parts.iter_mut().zip(args) {
            if args.len() > 1 {
                args.extend(last);
                part.push_args(command.spec, args.iter().copied());
            }
        }
        parts
    }

    /// Returns the same command for each core.
    fn for_each(&self, command: Command<'_>) -> Vec<Batch> {
        vec![command.into(); self.cores()]
    }

    fn encoded(&self, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let (mut out, proto) = (Vec::new(), self.proto);
        write(&mut Encoder {
            out: &mut out,
            proto,
        });
        out
    }

    async fn mget(&self, command: Command<'_>) -> Result<Read, Refusal> {
        let mut all_incoming = self.ask_each(self.by_owner(command), self.execution());
        let mut answers = Vec::with_capacity(all_incoming.len());
        for incoming in &mut all_incoming {
            let reply = match incoming {
                None => Vec::new(),
                Some(incoming) => incoming.reply().await.ok_or_else(gone)?,
            };
            if reply.first() == Some(&b'-') {
                return Ok((reply, true));
            }
            answers.push(reply);
        }
        let values = answers.iter().map(|reply| {
            if reply.is_empty() {
                Some(Vec::new().into_iter())
            } else {
                replies::elements(reply).map(Vec::into_iter)
            }
        });
        let mut values = values.collect::<Option<Vec<_>>>().ok_or_else(gone)?;
        let mut all = self.encoded(|encoder| encoder.array(command.keys().len()));
        for key in command.keys() {
            let value = values[self.owner(key)].next().ok_or_else(gone)?;
            all.extend_from_slice(value);
            self.bound(&all)?;
        }
        Ok((all, are_of_one_moment(all_incoming.iter().flatten())))
    }

    /// Adds up the cores' replies, which are numbers.
    async fn sum(&self, command: Command<'_>, parts: Vec<Batch>) -> Result<Read, Refusal> {
        let mut all = self.ask_each(parts, self.execution());
        let mut replies = Vec::with_capacity(all.len());
        for incoming in all.iter_mut().flatten() {
            replies.push(incoming.reply().await.ok_or_else(gone)?);
        }
        let is_one = are_of_one_moment(all.iter().flatten());
        Ok((self.added(command, 0, &replies), is_one))
    }

    /// Returns the sum of the replies, or the error if some of them are errors.
    fn added(&self, command: Command<'_>, more: i64, replies: &[Vec<u8>]) -> Vec<u8> {
        let numbers = replies.iter().filter_map(|reply| replies::number(reply));
        let sum = numbers.sum::<i64>() + more;
        refused(command, replies).unwrap_or_else(|| self.encoded(|encoder| encoder.integer(sum)))
    }

    /// Removes all rows, on each core separately.
    async fn flush(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        self.drop_spaces(command, Reach::Alone).await?;
        let asked = self.ask_each(self.for_each(command), self.execution());
        let replies = all_replies(asked.into_iter().flatten()).await?;
        let refused = refused(command, &replies);
        Ok(refused.unwrap_or_else(|| self.encoded(|encoder| encoder.ok())))
    }

    /// Pauses the cores, unless they are already paused.
    async fn pause(&mut self) -> Result<Option<Paused>, Refusal> {
        match self.ticket {
            Some(_) => Ok(None),
            None => self.pause_all().await.map(Some),
        }
    }

    async fn pause_all(&mut self) -> Result<Paused, Refusal> {
        let paused = Paused::all(&self.core.shared.tables).await;
        let paused = paused.map_err(stopping)?;
        // No view is applied during a pause, so the check remains valid.
        if self.check_shard().is_err() || self.is_leaving() {
            paused.end_reading();
            return Err((Code::TryAgain, MOVED.to_owned()));
        }
        self.ticket = Some(paused.ticket);
        let is_of_cluster = self.core.tables.is_replicated();
        self.paused_until = is_of_cluster.then(|| Instant::now() + PAUSED_MAX);
        Ok(paused)
    }

    /// Returns whether a pause has lasted too long.
    fn is_late(&self) -> bool {
        self.paused_until
            .is_some_and(|until| Instant::now() >= until)
    }

    /// Resets the state after a pause.
    fn end_pause(&mut self) {
        (self.ticket, self.paused_until) = (None, None);
    }

    /// Logs the changes, and resumes the cores that this command paused.
    async fn resume(&mut self, paused: Option<Paused>) -> Result<(), Refusal> {
        match paused {
            None => Ok(()),
            Some(paused) => {
                self.end_pause();
                paused.finish(&self.core.tables, &mut self.gate).await
            }
        }
    }

    /// As [`Coordinator::resume`], for commands that wrote nothing: does not wait for the cores to confirm.
    fn end_reading(&mut self, paused: Option<Paused>) {
        if let Some(paused) = paused {
            self.end_pause();
            paused.end_reading();
        }
    }

    /// Returns all rows of a range, in a transaction.
    async fn range(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let asked = Asked::parse(request)?;
        let handle = &self.core.shared.tables;
        let pause = self.ticket.map(|ticket| (ticket, self.paused_until));
        let mut merge = Merge::begin(handle, &asked, self.epoch, pause, &self.client).await?;
        let (form, rows) = (asked.form, merge.left);
        let mut all = self.encoded(|encoder| header(encoder, form, rows));
        while let Some((key, value)) = merge.next().await? {
            all.extend(self.encoded(|encoder| one_row(encoder, form, &key, &value)));
            self.bound(&all)?;
        }
        Ok(all)
    }

    /// Returns whether one core has or computes all rows of a table.
    fn is_of_one_core(&self, table: &[u8]) -> bool {
        let tables = &self.core.tables;
        tables.is_computed(table) || tables.is_mapped(table)
    }

    async fn scan(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let handle = &self.core.shared.tables;
        if self.is_of_node {
            let walk = scan::Walk::of_part(request)?;
            let keys = self.walked(&walk).await?;
            return Ok(self.encoded(|encoder| scan::answer_part(encoder, &keys)));
        }
        let walk = scan::Walk::parse(request, &handle.cursors())?;
        let mut keys = self.walked(&walk).await?;
        let cursor = walk.next(&mut keys, &mut handle.cursors());
        Ok(self.encoded(|encoder| walk.answer(encoder, cursor, &keys)))
    }

    /// Returns the next keys of the cores, in order.
    async fn walked(&self, walk: &scan::Walk) -> Result<Vec<scan::Walked>, Refusal> {
        let handle = &self.core.shared.tables;
        let home = match &walk.only {
            Some(name) if self.is_of_one_core(name) => Some(self.owner(name)),
            _ => None,
        };

        let (epoch, mut keys) = (self.epoch, Vec::new());
        for core in (0..self.cores()).filter(|&core| home.is_none_or(|home| home == core)) {
            let (walk, ticket) = (walk.clone(), self.ticket);
            let shared = self.core.shared.clone();
            let part = handle.start_on(core, ticket, move |tables| async move {
                let postgres = shared.postgres.as_ref();
                let read = tables.read_waiting(ticket, postgres, |engine, now| {
                    // A row that moves during the read is then in the part of at least one core or node.
                    tables.ensure_owner_since(epoch)?;
                    walk.keys(engine, now)
                });
                let keys = read.await?;
                tables.wait_until_committed().await?;
                Ok(keys)
            });
            let part = in_time(self.paused_until, part).await.ok_or_else(gone)?;
            let part: Result<Vec<scan::Walked>, Refusal> = part.map_err(|_| gone())?;
            keys.extend(part?);
        }
        keys.sort_unstable();
        Ok(keys)
    }
}
