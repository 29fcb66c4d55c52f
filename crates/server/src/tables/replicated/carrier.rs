//! The interface through which replication sends messages to other places.

use larder_cluster::map::NodeId;
use larder_cluster::replication::{Message, Place};

/// Connections to other nodes, from the view of replication. The stream of a place goes to a replica over a connection
/// that the owner's side has opened. The replica's answers go back over the connection on which the stream arrived.
pub trait Carrier {
    /// Connects to this node unless connected. Success is reported to [`crate::tables::Tables::replication_connected`].
    fn connect(&self, node: NodeId);

    /// Sends a part of a stream. Messages that cannot be sent are lost with the connection.
    fn send_stream(&self, to: Place, message: &Message);

    /// Sends an answer over this connection.
    fn send_answer(&self, to: Place, connection: u64, message: &Message);
}
