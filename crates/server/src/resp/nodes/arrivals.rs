//! Receives messages from other nodes and passes each to the core that it names. It never waits for another node.

use std::rc::Rc;

use larder_cluster::peer::{self, Piece, PieceStatus, ReplyEnds};
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use larder_types::wire::WireReader;
use tokio::sync::mpsc;

use super::super::core::Core;
use super::super::incoming::PIECES_MAX;
use super::super::remote::{self, ReplyChannel};
use super::Nodes;
use crate::cluster::{Incoming, Responder};
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Maximum number of messages received before the core's other tasks run.
const ARRIVALS_PER_TURN: usize = 16;

/// Receives messages, without end.
pub(in crate::resp) async fn receive_arrivals(core: Rc<Core>, nodes: Rc<Nodes>) {
    let mut received: usize = 0;
    loop {
        match nodes.net.arrivals().next().await {
            Incoming::Connected(link, _) => {
                core.tables.replication_link_opened(&link);
                if let (Some(membership), Some(peer)) = (&core.shared.membership, link.peer()) {
                    membership.observe_epoch(peer.epoch);
                }
                if link.is_accepted() {
                    if let Some(peer) = link.peer() {
                        nodes.peers.record_contact(peer.node);
                    }
                    core.tables.link_accepted(link);
                }
            }
            Incoming::Requests(requests, answering) => {
                if let Err(why) = execute(&core, &nodes, &requests, answering) {
                    tracing::warn!(why, "rejected requests of another node");
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
        received += 1;
        if received.is_multiple_of(ARRIVALS_PER_TURN) {
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
    incoming: &peer::Requests,
    mut answering: Responder,
) -> Result<(), &'static str> {
    let mut refuse = |why: &'static str| {
        // An error means that the receiver is gone.
        let _ = answering.try_send(Piece::with_reason(PieceStatus::NotDone, why));
        Err(why)
    };
    let mut bytes = WireReader::new(&incoming.batch);
    let Ok(batch) = Batch::decode(&mut bytes) else {
        return refuse(
            "this version of larder cannot decode the requests; upgrade all nodes to the same version",
        );
    };
    let to = usize::from(incoming.core);
    if to >= core.shared.tables.cores() {
        return refuse(
            "the node has no core of this number, because it restarted with fewer cores",
        );
    }
    let (execution, replies) = match incoming.execution {
        peer::Execution::OneByOne => (Execution::OneByOne, batch.len()),
        peer::Execution::Transaction => (Execution::Transaction, 1),
        peer::Execution::Prefetch => {
            return refuse("requests of another node cannot be prefetched");
        }
    };
    let (pieces, mut receiver) = mpsc::channel(PIECES_MAX);
    let requests = Requests {
        batch,
        proto: match incoming.proto {
            3 => Proto::Resp3,
            _ => Proto::Resp2,
        },
        client: nodes.client(core, incoming.client),
        ticket: None,
        execution,
        shared_batch: None,
        scope: Scope::Node {
            epoch: incoming.epoch,
        },
        versions: incoming.versions.clone(),
        pieces,
    };
    if to == core.index {
        remote::execute_for(core, requests, ReplyChannel::Node(answering));
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
            let last = if left == 0 {
                PieceStatus::Complete
            } else {
                PieceStatus::Partial
            };
            if answering.send(encode_piece(piece, last)).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Encodes a piece of a reply for another node.
pub(in crate::resp) fn encode_piece(piece: ReplyPiece, last: PieceStatus) -> Piece {
    match piece.not_done {
        Some(why) => Piece::with_reason(PieceStatus::NotDone, &why),
        None => Piece {
            status: last,
            moment: piece.moment,
            ends: ReplyEnds::new(&piece.ends),
            bytes: piece.bytes.into(),
        },
    }
}
