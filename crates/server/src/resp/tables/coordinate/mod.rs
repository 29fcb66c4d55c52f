//! Commands over several cores: each is divided by core, and the replies are combined. Commands over several nodes of a
//! cluster (`nodes`) are divided by node first.
//!
//! An operation that changes several cores atomically (EXEC: see `exec`; MSET; definitions) pauses all cores; see
//! `crate::tables::PausedCores`. It runs in a separate task, so that it completes even if the connection stops waiting.

mod coordinator;
mod define;
mod exec;
mod keys;
mod nodes;
mod retry_limit;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_join::Shard;
use larder_protocol::commands::{Batch, Command, Id, Keys, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;
use tokio::time::{Instant, timeout_at};

use super::super::core::Core;
use super::super::incoming::Incoming;
use super::super::spaces::{self};
use super::super::state::ConnectionState;
use super::range::RangeQuery;
use super::slots_still_moving;
use super::transaction::Transaction;
use super::watch::WatchedKeys;
use crate::catalog::Snapshot;
use crate::clients::{Client, encode_refusal};
use crate::tables::{Gate, Refusal};

pub(crate) use define::{define_in_cluster, define_on_all_cores, follow_definitions};
pub(in crate::resp) use keys::is_of_object;
pub(in crate::resp) use nodes::{
    node_places, request_nodes, request_places, wait_for_change, wait_for_node_places,
};
pub(in crate::resp) use retry_limit::RetryLimit;

/// The state of a command for several cores besides the command itself. For EXEC, these are the queued commands and the
/// watched keys.
#[derive(Default)]
pub(in crate::resp) struct CoordinatedCommand {
    transaction: Option<Box<Transaction>>,
    watched_keys: Option<Box<WatchedKeys>>,
    /// Several nodes take part.
    spans_nodes: bool,
    /// The snapshot for reads of stores, if it is fixed.
    snapshot: Option<Arc<Snapshot>>,
}

impl CoordinatedCommand {
    /// Creates the state for a command of a connection.
    pub fn for_command(state: &mut ConnectionState, command: Id) -> CoordinatedCommand {
        let is_exec = command == Id::Exec;
        CoordinatedCommand {
            watched_keys: state.watched_keys.take_if(|_| is_exec),
            transaction: state.transaction.take(),
            ..CoordinatedCommand::default()
        }
    }

    /// Creates the state for a command that is executed by the owners of its keys, possibly on several nodes.
    pub fn for_nodes() -> CoordinatedCommand {
        CoordinatedCommand {
            spans_nodes: true,
            ..CoordinatedCommand::default()
        }
    }

    /// As [`CoordinatedCommand::for_nodes`], but reads stores from this snapshot.
    pub fn with_snapshot(snapshot: &Arc<Snapshot>) -> CoordinatedCommand {
        CoordinatedCommand {
            snapshot: Some(snapshot.clone()),
            ..CoordinatedCommand::for_nodes()
        }
    }

    /// Creates the state for a transaction that another node sent.
    pub fn for_batch(batch: &Batch) -> CoordinatedCommand {
        CoordinatedCommand {
            transaction: Some(Box::new(Transaction::of(batch))),
            ..CoordinatedCommand::default()
        }
    }

    /// Returns whether other nodes take part.
    pub fn spans_nodes(&self) -> bool {
        self.spans_nodes
    }

    /// Returns the memory held for further commands.
    pub fn memory_bytes(&self) -> usize {
        let transaction = self.transaction.as_ref();
        transaction.map_or(0, |transaction| transaction.memory_bytes())
    }

    /// Returns the range of a command whose reply is sent in pieces, as the client reads it.
    pub fn range<'a>(&self, command: Command<'a>) -> Option<Result<RangeQuery<'a>, Refusal>> {
        (command.id() == Id::Range).then(|| RangeQuery::parse(command.request))
    }

    /// Executes the command. Dropping the returned future aborts a long read; any other command is completed.
    pub async fn run(
        &mut self,
        state: &ConnectionState,
        command: Rc<OwnedCommand>,
    ) -> Result<CoordinatedReply, Refusal> {
        let (transaction, watched_keys) = (self.transaction.take(), self.watched_keys.take());
        let transaction: Option<Rc<Transaction>> = transaction.map(Rc::from);
        let mut coordinator = Coordinator {
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
            is_of_node: state.executes_part,
            epoch: if state.executes_part {
                state.routing_epoch
            } else {
                state.core.tables.map_epoch()
            },
            shard: state.core.tables.shard(),
            snapshot: self.snapshot.take(),
        };
        let is_of_cluster = state.core.nodes.is_some();
        // Rows may move to another node while a client's command waits for them.
        let spans_nodes = self.spans_nodes
            || is_of_cluster
                && !state.executes_part
                && !spaces::is_space_command(command.command());
        let (limits, spec) = (state.core.clients.limits, command.spec);
        let queued_writes = |transaction: &Transaction| {
            let mut queued = transaction.requests().iter();
            queued.any(|queued| queued.command.spec.writes)
        };
        let writes = transaction.as_deref().map_or(spec.writes, queued_writes);
        let is_long_read = spaces::is_long_read(command.command());
        let task = tokio::task::spawn_local(async move {
            let reply = match (coordinator.wait_while_leaving().await, transaction) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), Some(transaction)) => {
                    coordinator
                        .execute_transaction(&transaction, watched_keys.as_deref())
                        .await
                }
                (Ok(()), None) if spans_nodes => {
                    coordinator.execute_on_owners(command.command()).await
                }
                (Ok(()), None) => coordinator.execute(command.command()).await,
            };
            let reply = reply.map_err(|refused| {
                if is_of_cluster && refused == core_stopped() {
                    ownership_lost(writes)
                } else {
                    refused
                }
            });
            reply.map(|reply| CoordinatedReply {
                reply: match (reply.len(), writes) {
                    (bytes, _) if bytes <= limits.unsent_bytes() => reply,
                    (bytes, true) => {
                        encode_refusal(limits.executed_reply_too_long(spec.name, bytes))
                    }
                    _ => limits.encode_reply_too_long(),
                },
                gate: coordinator.gate,
                proto: coordinator.proto,
                closing: coordinator.closing,
            })
        });
        let _abort_on_drop = is_long_read.then(|| AbortOnDrop(task.abort_handle()));
        let task_failed = |_| {
            (
                Code::Io,
                "the command was aborted: its task ended without a reply".to_owned(),
            )
        };
        task.await.map_err(task_failed)?
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
pub(in crate::resp) struct CoordinatedReply {
    pub reply: Vec<u8>,
    /// The conditions that the reply waits for.
    pub gate: Gate,
    /// The protocol version of the connection afterwards; a transaction may change it.
    pub proto: Proto,
    pub closing: bool,
}

pub(super) const SLOTS_MOVED: &str =
    "slots have moved to another node during the command; send it again";

/// A reply, and whether all its parts were read at one moment.
type MultiCoreRead = (Vec<u8>, bool);

/// Maximum time to wait for slots that are moving to another node.
const LEAVING_MAX: Duration = Duration::from_secs(3);
/// Maximum duration of a pause on a node of a cluster. Work in a pause may wait for replicas, and a failed replica is
/// only removed by the next map, which is applied after the pause.
pub(super) const PAUSED_MAX: Duration = Duration::from_secs(3);

/// Waits for work during a pause. `None` if the pause must end first.
pub(super) async fn until_deadline<T>(
    until: Option<Instant>,
    work: impl Future<Output = T>,
) -> Option<T> {
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
pub(super) const ATTEMPTS_MAX: usize = 4;

fn are_consistent<'a>(mut incoming: impl Iterator<Item = &'a Incoming>) -> bool {
    let first = incoming.next().map(Incoming::moment);
    first.is_none_or(|first| first.is_some() && incoming.all(|one| one.moment() == first))
}

/// Executes one command on several cores.
pub(in crate::resp) struct Coordinator {
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
pub(super) fn core_stopped() -> Refusal {
    let message = "a core of the server did not reply because the server is stopping".to_owned();
    (Code::Io, message)
}

/// As [`gone`], but for a cluster, where replies are also lost if a node may not serve its slots any more.
fn ownership_lost(writes: bool) -> Refusal {
    if writes {
        let message = "this node lost its lease or the slots before the replicas acknowledged the write; it is unknown whether the write was executed";
        (Code::Unknown, message.to_owned())
    } else {
        let message = "the owner of the slots changed during the read; retry the request";
        (Code::TryAgain, message.to_owned())
    }
}

/// Executes a command on the owners of its keys, on behalf of a sender without a connection.
///
/// # Errors
/// The keys have no owner, or it is unreachable.
pub(in crate::resp) async fn execute_on_owners(
    core: &Rc<Core>,
    client: &Arc<Client>,
    command: OwnedCommand,
) -> Result<Vec<u8>, Refusal> {
    let command = Rc::new(command);
    let mut coordinator = Coordinator {
        core: core.clone(),
        client: client.clone(),
        proto: Proto::Resp2,
        commands: Commands::One(command.clone()),
        ticket: None,
        paused_until: None,
        gate: Gate::default(),
        closing: false,
        is_of_node: false,
        epoch: core.tables.map_epoch(),
        shard: core.tables.shard(),
        snapshot: None,
    };
    let reply = coordinator.execute_on_owners(command.command()).await;
    let opened = poll_fn(|cx| core.tables.poll_gate(&mut coordinator.gate, cx)).await;
    opened.map_err(|_| ownership_lost(command.command().writes()))?;
    reply
}

/// Waits for all replies.
async fn collect_replies(all: impl IntoIterator<Item = Incoming>) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut replies = Vec::new();
    for mut incoming in all {
        replies.push(incoming.reply().await.ok_or_else(core_stopped)?);
    }
    Ok(replies)
}

/// Returns the argument after the keys that every core receives with its own keys.
fn trailing_argument(command: Command<'_>) -> Option<&[u8]> {
    let has_last = command.spec.keys == Keys::EveryButLast;
    has_last.then(|| command.arg(command.len() - 1))
}
