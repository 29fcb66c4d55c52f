//! The dynamics of links: sending, connecting, breaking, blocking. `crate::links` defines the guarantees.

use super::{Event, Mark, World};
use crate::links::{End, direction_index};
use crate::node::{Input, Node, NodeId};

impl<N: Node> World<N> {
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: N::Message) {
        let delay = self.delay();
        let now = self.now;
        let connection = self.links.pair(from, to).connection;
        if connection == 0 || self.places[from.0].held_good[to.0] != connection {
            self.mark(Mark::MessageLost);
            return;
        }
        if !self.is_calm && self.random.one_in(self.options.break_one_in) {
            self.break_connection(from, to);
            return;
        }
        let way = self.links.direction(from, to);
        let at = (now + delay).max(way.last_at);
        way.last_at = at;
        let arrive = Event::Arrive {
            connection,
            from,
            to,
            message,
        };
        self.schedule(at, arrive);
    }

    pub(super) fn send_datagram(&mut self, from: NodeId, to: NodeId, message: N::Message) {
        let at = self.now + self.delay();
        let sent = self.order;
        let datagram = Event::Datagram {
            from,
            to,
            sent,
            message,
        };
        self.schedule(at, datagram);
    }

    /// Schedules an attempt to connect two nodes, unless one is in progress.
    pub(super) fn seek(&mut self, one: NodeId, other: NodeId) {
        let after = self.random.between(1, 20_000);
        let pair = self.links.pair(one, other);
        if pair.connection == 0 && !pair.is_connecting {
            pair.is_connecting = true;
            self.schedule(self.now + after, Event::Connect(one, other));
        }
    }

    pub(super) fn connect(&mut self, one: NodeId, other: NodeId) {
        let are_up = [one, other]
            .iter()
            .all(|it| self.places[it.0].node.is_some());
        let pair = self.links.pair(one, other);
        pair.is_connecting = false;
        if !are_up {
            return;
        }
        if !pair.is_open() {
            return self.seek(one, other);
        }
        for (me, peer) in [(one, other), (other, one)] {
            if let End::Notified(connection) =
                self.links.pair(me, peer).ends[direction_index(me, peer)]
            {
                self.notify_connected(connection, me, peer);
            }
        }
        self.connections += 1;
        let connection = self.connections;
        let now = self.now;
        let pair = self.links.pair(one, other);
        pair.connection = connection;
        for way in &mut pair.ways {
            way.last_at = now;
            way.held.clear();
        }
        for (me, peer) in [(one, other), (other, one)] {
            // The first notified node may have died on that input.
            let is_up = self.places[me.0].node.is_some();
            if is_up && self.links.pair(me, peer).connection == connection {
                self.links.pair(me, peer).ends[direction_index(me, peer)] =
                    End::Notified(connection);
                self.deliver_on(me, Input::Connected(peer), connection);
            }
        }
    }

    pub(super) fn notify_connected(&mut self, connection: u64, node: NodeId, peer: NodeId) {
        let end = &mut self.links.pair(node, peer).ends[direction_index(node, peer)];
        if *end == End::Notified(connection) {
            *end = End::None;
            self.deliver(node, Input::Lost(peer));
        }
    }

    pub(super) fn break_connection(&mut self, one: NodeId, other: NodeId) {
        let pair = self.links.pair(one, other);
        let connection = pair.connection;
        if connection == 0 {
            return;
        }
        pair.break_off();
        self.mark(Mark::ConnectionBroken);
        for (node, peer) in [(one, other), (other, one)] {
            let at = self.now + self.random.between(1, self.options.break_after_us);
            self.schedule(
                at,
                Event::Learn {
                    connection,
                    node,
                    peer,
                },
            );
        }
        self.seek(one, other);
    }

    pub(super) fn block(&mut self, from: NodeId, to: NodeId) {
        let after = self.random.between(1, self.options.break_after_us);
        let since = self.order;
        let way = self.links.direction(from, to);
        way.blocks += 1;
        if way.blocks == 1 {
            way.blocked_since = since;
            self.mark(Mark::Blocked);
            self.schedule(self.now + after, Event::Tire { from, to, since });
        }
    }

    pub(super) fn unblock(&mut self, from: NodeId, to: NodeId) {
        let now = self.now;
        let pair = self.links.pair(from, to);
        let connection = pair.connection;
        let way = &mut pair.ways[direction_index(from, to)];
        if way.blocks == 0 {
            return;
        }
        way.blocks -= 1;
        if way.blocks > 0 {
            return;
        }
        // Held messages arrive before those still in flight.
        let held: Vec<_> = way.held.drain(..).collect();
        way.last_at = way.last_at.max(now);
        for message in held {
            let pair = self.links.pair(from, to);
            let is_notified = pair.ends[direction_index(to, from)] == End::Notified(connection);
            if pair.connection == connection && is_notified {
                self.deliver(to, Input::Message(from, message));
            }
        }
    }

    /// Returns all directions between these nodes and the others.
    pub(super) fn around(&self, nodes: &[NodeId]) -> Vec<(NodeId, NodeId)> {
        let all = (0..self.places.len()).map(NodeId);
        let others = all.filter(|other| !nodes.contains(other));
        others
            .flat_map(|other| {
                nodes
                    .iter()
                    .flat_map(move |node| [(*node, other), (other, *node)])
            })
            .collect()
    }
}
