//! The participants of a command on spaces: the cores of this node, or the nodes of the cluster.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_cluster::replication::Place;
use larder_protocol::commands::Command;
use larder_protocol::errors::{Code, ROWS};
use larder_protocol::resp::client::Token;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::mapping::SlotOwner;
use larder_types::wire::{WireReader, put_bytes};

use super::super::core::Core;
use super::super::tables::{request_nodes, wait_for_change};
use super::regions::RegionRequest;
use crate::clients::Client;
use crate::spaces::{DeclaredSpace, change};
use crate::tables::{Refusal, Tables, stopping};

/// Maximum number of attempts at a command whose space is altered concurrently.
const TRIES_MAX: usize = 4;
/// Maximum time to retry on all nodes while owners change.
const RETRY_TIME_MAX: Duration = Duration::from_secs(3);

/// The participants of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum QueryScope {
    /// All cores of this node, outside a cluster.
    Alone,
    /// All nodes.
    Nodes,
    /// All cores of this node, on behalf of another one, by the map of this epoch. The reply is a part of an answer.
    Part { epoch: u64 },
}

/// The origin of a command and the way to execute it.
pub(in crate::resp) struct QueryContext {
    pub core: Rc<Core>,
    pub client: Arc<Client>,
    pub proto: Proto,
    pub scope: QueryScope,
    /// The ticket of the pause in which the command is executed, if it belongs to a transaction.
    pub ticket: Option<u64>,
}

impl QueryContext {
    /// Returns the space with this name or alias.
    pub fn find_space(&self, name: &[u8]) -> Result<Arc<DeclaredSpace>, Refusal> {
        let name = super::parse_name(name)?;
        let catalog = self.core.shared.tables.spaces.load();
        let declared = catalog.space(name).cloned();
        declared.ok_or_else(|| change::unknown_index(name))
    }

    /// Returns the numbers of the node and the core that own a slot. A node's number is that of its first place.
    pub fn owner_of(&self, slot: u16) -> SlotOwner {
        let shard = self.core.tables.shard();
        let place = shard.map_or(0, |shard| shard.owner_of_slot(slot));
        match self.core.tables.place(place) {
            Some(Place { core, .. }) => (place - core, core),
            None => (0, place),
        }
    }

    pub fn encode(&self, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let (mut out, proto) = (Vec::new(), self.proto);
        write(&mut Encoder {
            out: &mut out,
            proto,
        });
        out
    }

    pub fn epoch(&self) -> u64 {
        match self.scope {
            QueryScope::Part { epoch } => epoch,
            _ => self.core.tables.map_epoch(),
        }
    }

    /// Runs a task on every core of this node. Returns the results in the order of the cores.
    ///
    /// # Errors
    /// The error of the first core that failed.
    pub async fn run_on_cores<T, F>(
        &self,
        task: impl FnOnce(Rc<Tables>) -> F + Clone + Send + 'static,
    ) -> Result<Vec<T>, Refusal>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + 'static,
    {
        // This core's earlier writes must be visible.
        self.core.tables.commit();
        let all = self.core.shared.tables.run_on_all(self.ticket, task).await;
        all.map_err(stopping)?.into_iter().collect()
    }

    /// Returns the parts of all nodes, based on one definition of the space.
    ///
    /// # Errors
    /// A node does not reply or rejects the command.
    pub async fn query_nodes(
        &self,
        command: Command<'_>,
        declared: &DeclaredSpace,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let replies = request_nodes(&self.core, &self.client, Proto::Resp2, command.into()).await?;
        replies
            .iter()
            .map(|reply| decode_part(reply, declared))
            .collect()
    }

    /// Removes the requested regions from the end of a command's arguments. `None` if the sender requests all objects
    /// of this node, or is a client.
    pub fn take_region_request(&self, arguments: &mut Vec<&[u8]>) -> Option<RegionRequest> {
        match self.scope {
            QueryScope::Part { .. } => RegionRequest::take(arguments),
            _ => None,
        }
    }

    /// Encodes this node's part for another node.
    pub fn encode_part(&self, declared: &DeclaredSpace, part: &[u8]) -> Vec<u8> {
        let mut bytes = declared.version.to_le_bytes().to_vec();
        put_bytes(&mut bytes, part);
        self.encode(|encoder| encoder.bulk(&bytes))
    }
}

/// Retries an attempt while owners change or the space is altered.
pub(super) async fn retry_on_schema_change<T>(
    core: &Rc<Core>,
    reach: QueryScope,
    mut attempt: impl AsyncFnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (started, mut tries) = (Instant::now(), 0);
    loop {
        let epoch = core.tables.map_epoch();
        let done = attempt().await;
        tries += 1;
        match (&done, reach) {
            // For a part, the requesting node retries.
            (Err((Code::TryAgain, _)), QueryScope::Alone) if tries < TRIES_MAX => {}
            (Err((Code::TryAgain, _)), QueryScope::Nodes) if started.elapsed() < RETRY_TIME_MAX => {
                wait_for_change(core, epoch).await;
            }
            _ => return done,
        }
    }
}

/// Decodes the part in a node's reply, and checks the version of its definition.
pub(super) fn decode_part(reply: &[u8], declared: &DeclaredSpace) -> Result<Vec<u8>, Refusal> {
    let bytes = match Token::first(reply) {
        Some((Token::Bulk(bytes), _)) => bytes,
        Some((Token::Error(text), _)) => return Err(decode_refusal(text)),
        _ => return Err(unreadable_part()),
    };
    let mut reader = WireReader::new(bytes);
    let version = reader.u64().map_err(|_| unreadable_part())?;
    if version != declared.version {
        return Err(altered_refusal());
    }
    Ok(reader.bytes().map_err(|_| unreadable_part())?.to_vec())
}

/// Returns the error for a space that was altered concurrently.
pub(super) fn altered_refusal() -> Refusal {
    let message = "the space was altered during the command: send the command again";
    (Code::TryAgain, message.to_owned())
}

pub(super) fn unreadable_part() -> Refusal {
    let message =
        "cannot decode a node's part of the reply: run one version of larder on all nodes";
    (Code::Io, message.to_owned())
}

/// Decodes the error reply of another node.
pub(super) fn decode_refusal(text: &[u8]) -> Refusal {
    let text = String::from_utf8_lossy(text);
    let (word, message) = text.split_once(' ').unwrap_or(("", &text));
    match ROWS.iter().find(|row| row.resp_prefix == word) {
        Some(row) => (row.code, message.to_owned()),
        None => (Code::Io, text.into_owned()),
    }
}
