//! Receives messages from other nodes and passes each to the core that it names. It never waits for another node.

use std::rc::Rc;

use larder_cluster::peer::{self, Ends, Last, Piece};
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use larder_types::wire::WireReader;
use tokio::sync::mpsc;

use super::super::core::Core;
use super::super::incoming::PIECES_MAX;
use super::super::remote::{self, Pieces};
use super::Nodes;
use crate::cluster::{Answering, Incoming};
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Maximum number of messages received before the core's other tasks run.
const ARRIVALS_A_TURN: usize = 16;

/// Receives messages, without end.
pub(in crate::resp) async fn take_arrivals(core: Rc<Core>, nodes: Rc<Nodes>) {
    let mut taken: usize = 0;
    loop {
        match nodes.net.arrivals().next().await {
            Incoming::Connected(link, _) => {
                core.tables.replication_linked(&link);
                if let (Some(membership), Some(peer)) = (&core.shared.membership, link.peer()) {
                    membership.saw_epoch(peer.epoch);
                }
                if link.is_accepted() {
                    if let Some(peer) = link.peer() {
                        nodes.peers.heard_from(peer.node);
                    }
                    core.tables.link_accepted(link);
                }
            }
            Incoming::Requests(requests, answering) => {
                if let Err(why) = execute(&core, &nodes, &requests, answering) {
                    tracing::warn!(why, "requests of another node are refused");
                }
            }
            Incoming::Exchange(link, exchange) => core.tables.receive_exchange(&link, &exchange),
            Incoming::Replicate(link, replicate) => {
                core.tables.receive_replicate(&link, replicate);
            }
            Incoming::Ended(link, _) => {
                core.tables.replication_link_ended(&link);
                core.tables.link_ended(&link);
            }
        }
        taken += 1;
        if taken.is_multiple_of(ARRIVALS_A_TURN) {
            tokio::task::yield_now().await;
        }
    }
}

/// Passes requests to the core that they name.
///
/// # Errors
/// This version cannot decode the requests. The error has already been returned to the sender.
fn execute(
    core: &Rc<Core>,
    nodes: &Nodes,
    asked: &peer::Requests,
    mut answering: Answering,
) -> Result<(), &'static str> {
    let mut refuse = |why: &'static str| {
        // An error means that the receiver is gone.
        let _ = answering.try_send(Piece::told(Last::NotDone, why));
        Err(why)
    };
    let mut bytes = WireReader::new(&asked.batch);
    let Ok(batch) = Batch::decode(&mut bytes) else {
        return refuse(
            "these are no requests that this node's larder knows: bring all nodes to one version of larder",
        );
    };
    let to = usize::from(asked.core);
    if to >= core.shared.tables.cores() {
        return refuse("the node has no core of this number: it has begun anew with fewer");
    }
    let (execution, replies) = match asked.execution {
        peer::Execution::OneByOne => (Execution::OneByOne, batch.len()),
        peer::Execution::Transaction => (Execution::Transaction, 1),
        peer::Execution::Prefetch => {
            return refuse("requests of another node cannot be read ahead");
        }
    };
    let (pieces, mut receiver) = mpsc::channel(PIECES_MAX);
    let requests = Requests {
        batch,
        proto: match asked.proto {
            3 => Proto::Resp3,
            _ => Proto::Resp2,
        },
        client: nodes.client(core, asked.client),
        ticket: None,
        execution,
        shared_batch: None,
        scope: Scope::Node { epoch: asked.epoch },
        versions: asked.versions.clone(),
        pieces,
    };
    if to == core.index {
        remote::execute_for(core, requests, Pieces::Node(answering));
        return Ok(());
    }
    core.shared.tables.send(to, CoreMessage::Requests(requests));
    tokio::task::spawn_local(async move {
        let mut left = replies;
        while left > 0 {
            let Some(piece) = receiver.recv().await else {
                return;
            };
            left -= piece.ends.len().min(left);
            let last = if left == 0 { Last::Whole } else { Last::No };
            if answering.send(encoded(piece, last)).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Encodes a piece of a reply for another node.
pub(in crate::resp) fn encoded(piece: ReplyPiece, last: Last) -> Piece {
    match piece.not_done {
        Some(why) => Piece::told(Last::NotDone, &why),
        None => Piece {
            last,
            moment: piece.moment,
            ends: Ends::new(&piece.ends),
            bytes: piece.bytes.into(),
        },
    }
}
