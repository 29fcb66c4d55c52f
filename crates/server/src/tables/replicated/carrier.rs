//! Who carries messages to other places.

use larder_cluster::map::NodeId;
use larder_cluster::replication::{Message, Place};

/// Connections to other nodes, as replication sees them. A place's stream goes to a replica over a connection that this side has made; what a
/// replica answers goes back over the connection over which the stream came.
pub trait Carrier {
    /// Has a connection made to this node if there is none; [`crate::tables::Tables::replication_reached`] is told of it.
    fn reach(&self, node: NodeId);

    /// Sends a part of a stream. What cannot be sent is lost with the connection.
    fn stream(&self, to: Place, message: &Message);

    /// Answers, over this connection.
    fn answer(&self, to: Place, connection: u64, message: &Message);
}
