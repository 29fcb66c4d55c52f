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
use super::super::tables::{ask_nodes, wait_for_change};
use super::regions::Asked;
use crate::clients::Client;
use crate::spaces::{Declared, change};
use crate::tables::{Refusal, Tables, stopping};

/// Maximum number of attempts at a command whose space is altered concurrently.
const TRIES_MAX: usize = 4;
/// Maximum time to retry on all nodes while owners change.
const PATIENCE: Duration = Duration::from_secs(3);

/// The participants of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Reach {
    /// All cores of this node, outside a cluster.
    Alone,
    /// All nodes.
    Nodes,
    /// All cores of this node, on behalf of another one, by the map of this epoch. The reply is a part of an answer.
    Part { epoch: u64 },
}

/// The origin of a command and the way to execute it.
pub(in crate::resp) struct Asker {
    pub core: Rc<Core>,
    pub client: Arc<Client>,
    pub proto: Proto,
    pub reach: Reach,
    /// The ticket of the pause in which the command is executed, if it belongs to a transaction.
    pub ticket: Option<u64>,
}

impl Asker {
    /// Returns the space with this name or alias.
    pub fn declared(&self, name: &[u8]) -> Result<Arc<Declared>, Refusal> {
        let name = super::text(name)?;
        let catalog = self.core.shared.tables.spaces.load();
        let declared = catalog.space(name).cloned();
        declared.ok_or_else(|| change::unknown(name))
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

    pub fn encoded(&self, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let (mut out, proto) = (Vec::new(), self.proto);
        write(&mut Encoder {
            out: &mut out,
            proto,
        });
        out
    }

    pub fn epoch(&self) -> u64 {
        match self.reach {
            Reach::Part { epoch } => epoch,
            _ => self.core.tables.epoch_of_map(),
        }
    }

    /// Runs a task on every core of this node. Returns the results in the order of the cores.
    ///
    /// # Errors
    /// The error of the first core that failed.
    pub async fn on_cores<T, F>(
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
    pub async fn parts_of_nodes(
        &self,
        command: Command<'_>,
        declared: &Declared,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let replies = ask_nodes(&self.core, &self.client, Proto::Resp2, command.into()).await?;
        replies
            .iter()
            .map(|reply| opened(reply, declared))
            .collect()
    }

    /// Removes the requested regions from the end of a command's arguments. `None` if the sender requests all objects
    /// of this node, or is a client.
    pub fn take_asked(&self, arguments: &mut Vec<&[u8]>) -> Option<Asked> {
        match self.reach {
            Reach::Part { .. } => Asked::take(arguments),
            _ => None,
        }
    }

    /// Encodes this node's part for another node.
    pub fn part(&self, declared: &Declared, part: &[u8]) -> Vec<u8> {
        let mut bytes = declared.version.to_le_bytes().to_vec();
        put_bytes(&mut bytes, part);
        self.encoded(|encoder| encoder.bulk(&bytes))
    }
}

/// Retries an attempt while owners change or the space is altered.
pub(super) async fn again<T>(
    core: &Rc<Core>,
    reach: Reach,
    mut attempt: impl AsyncFnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (begun, mut tries) = (Instant::now(), 0);
    loop {
        let epoch = core.tables.epoch_of_map();
        let done = attempt().await;
        tries += 1;
        match (&done, reach) {
            // For a part, the requesting node retries.
            (Err((Code::TryAgain, _)), Reach::Alone) if tries < TRIES_MAX => {}
            (Err((Code::TryAgain, _)), Reach::Nodes) if begun.elapsed() < PATIENCE => {
                wait_for_change(core, epoch).await;
            }
            _ => return done,
        }
    }
}

/// Decodes the part in a node's reply, and checks the version of its definition.
pub(super) fn opened(reply: &[u8], declared: &Declared) -> Result<Vec<u8>, Refusal> {
    let bytes = match Token::first(reply) {
        Some((Token::Bulk(bytes), _)) => bytes,
        Some((Token::Error(text), _)) => return Err(refusal_of(text)),
        _ => return Err(damaged()),
    };
    let mut reader = WireReader::new(bytes);
    let version = reader.u64().map_err(|_| damaged())?;
    if version != declared.version {
        return Err(altered());
    }
    Ok(reader.bytes().map_err(|_| damaged())?.to_vec())
}

/// Returns the error for a space that was altered concurrently.
pub(super) fn altered() -> Refusal {
    let message = "the space was altered meanwhile; send it again";
    (Code::TryAgain, message.to_owned())
}

pub(super) fn damaged() -> Refusal {
    let message =
        "a node's part of the answer cannot be read: bring all nodes to one version of larder";
    (Code::Io, message.to_owned())
}

/// Decodes the error reply of another node.
pub(super) fn refusal_of(text: &[u8]) -> Refusal {
    let text = String::from_utf8_lossy(text);
    let (word, message) = text.split_once(' ').unwrap_or(("", &text));
    match ROWS.iter().find(|row| row.resp_prefix == word) {
        Some(row) => (row.code, message.to_owned()),
        None => (Code::Io, text.into_owned()),
    }
}
