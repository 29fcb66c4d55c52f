//! Events from other places: connections, and messages over them.

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::NodeId;
use larder_cluster::replication::{Message, Place, StreamPart};
use larder_join::Engine;

use super::carrier::Carrier;
use super::{Replicated, ReplicationState, with_rows};
use crate::tables::Tables;

impl Tables {
    /// Sets the carrier for messages to other places.
    pub fn set_carrier(&self, carrier: std::rc::Rc<dyn Carrier>) {
        if let Some(replicated) = &self.replicated {
            *replicated.carrier.borrow_mut() = Some(carrier);
            self.wake_maintenance();
        }
    }

    /// Handles a new connection of this core to a node.
    pub fn replication_connected(&self, node: NodeId, connection: u64) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let mut state = replicated.state.borrow_mut();
        state.drop_streams(node);
        state.connections.insert(node, (connection, 0));
        state.begin_streams();
        drop(state);
        self.wake_maintenance();
    }

    /// Handles the end of such a connection.
    pub fn replication_disconnected(&self, node: NodeId, connection: u64) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let mut state = replicated.state.borrow_mut();
        let Some(&(_, cores)) = state.connections.get(&node).filter(|it| it.0 == connection) else {
            return;
        };
        state.connections.remove(&node);
        state.drop_streams(node);
        let now_ms = boot_ms();
        if let Some(replication) = &mut state.replication {
            for core in 0..cores {
                replication.handle_stream_end(Place { node, core }, now_ms);
            }
        }
        drop(state);
        replicated.advance_progress();
        self.wake_maintenance();
    }

    /// Handles the end of a connection over which streams of other places arrived.
    pub fn replication_source_lost(&self, node: NodeId, connection: u64) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let mut state = replicated.state.borrow_mut();
        let lost: Vec<Place> = (state.sources.iter())
            .filter(|(place, of)| place.node == node && **of == connection)
            .map(|(place, _)| *place)
            .collect();
        for place in lost {
            state.sources.remove(&place);
            state.drop_answers(place);
            if let Some(replication) = &mut state.replication {
                replication.handle_source_loss(place);
            }
        }
    }

    /// Receives a message: a part of a stream over a connection that the other node has opened, or an answer over this
    /// core's own. The connection numbers of a node increase over time.
    ///
    /// # Errors
    /// The bytes are not a message; the caller must close the connection.
    pub fn replication_received(
        &self,
        from: Place,
        connection: u64,
        bytes: &[u8],
    ) -> Result<(), larder_cluster::replication::DecodeError> {
        let Some(replicated) = &self.replicated else {
            return Ok(());
        };
        let message = Message::decode(bytes)?;
        let engine = &mut *self.engine.borrow_mut();
        let mut state = replicated.state.borrow_mut();
        if !state.is_expected(from, connection, &message) {
            return Ok(());
        }
        if let Message::Stream {
            part: StreamPart::Begin(begin),
            ..
        } = &message
        {
            state.early_fills.insert(begin.slot);
        }
        let now_ms = boot_ms();
        with_rows!(state, &mut *engine, |replication, rows, out| {
            replication.receive(from, message, rows, now_ms, out);
        });
        let closed = self.apply_events(replicated, &mut state, engine);
        drop(state);
        self.release_moved_slots(engine, &closed);
        self.wake_maintenance();
        Ok(())
    }

    /// Connects to all nodes that must receive changes of own slots.
    pub(super) fn connect_replicas(&self, replicated: &Replicated, state: &ReplicationState) {
        let carrier = replicated.carrier.borrow();
        let (Some(carrier), Some(_)) = (carrier.as_ref(), &state.replication) else {
            return;
        };
        for node in &state.replica_nodes {
            if !state.connections.contains_key(node) {
                carrier.connect(*node);
            }
        }
    }

    /// Handles slots that have moved, as their new owners report before the map does. Their rows are no longer sent to
    /// readers, and the outputs computed from them are dropped.
    pub(super) fn release_moved_slots(&self, engine: &mut Engine, closed: &[(u16, u64)]) {
        if let Some(sharing) = &self.sharing
            && !closed.is_empty()
        {
            sharing.release_moved_slots(engine, &self.spaces, closed);
        }
    }
}

impl ReplicationState {
    /// Starts streams to all cores of connected nodes.
    pub(super) fn begin_streams(&mut self) {
        let Some(replication) = &mut self.replication else {
            return;
        };
        let now_ms = boot_ms();
        for (node, (_, started)) in &mut self.connections {
            let cores = self.cores_of.get(node).copied().unwrap_or(0);
            for core in *started..cores {
                let node = *node;
                replication.handle_stream_start(Place { node, core }, now_ms);
            }
            *started = cores.max(*started);
        }
    }

    /// Drops stream messages to a node that were queued for a connection that has ended. Over another connection, they
    /// would be misinterpreted.
    fn drop_streams(&mut self, node: NodeId) {
        let messages = &mut self.out.messages;
        messages.retain(|(to, it)| to.node != node || !matches!(it, Message::Stream { .. }));
    }

    /// The same for answers to an owner.
    fn drop_answers(&mut self, owner: Place) {
        let messages = &mut self.out.messages;
        messages.retain(|(to, it)| *to != owner || matches!(it, Message::Stream { .. }));
    }

    /// Returns whether messages over this connection are current.
    fn is_expected(&mut self, from: Place, connection: u64, message: &Message) -> bool {
        match message {
            Message::Stream { .. } => {
                let current = self.sources.get(&from).copied();
                if current.is_some_and(|current| connection < current) {
                    return false;
                }
                if current != Some(connection) {
                    self.sources.insert(from, connection);
                    self.drop_answers(from);
                    if let Some(replication) = &mut self.replication {
                        replication.handle_source_loss(from);
                    }
                }
                true
            }
            Message::Acknowledged { .. } | Message::Reply { .. } => self
                .connections
                .get(&from.node)
                .is_some_and(|it| it.0 == connection),
        }
    }
}
