//! Chooses where a session's request is executed: on this core, on another core or node to which it is forwarded, or on
//! several.
//!
//! In a cluster, the target may be a core of another node, which has a separate connection. Before a request that reads
//! outputs is forwarded there, this core's writes must have been sent to all subscribers.

use std::sync::Arc;
use std::time::Instant;

use larder_cluster::map::NodeId;
use larder_cluster::replication::Place;
use larder_join::{NO_OWNER, row_slot};
use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_types::{SLOTS, slot_of};

use super::core::Core;
use super::forwarded::{Dependencies, Forwarded};
use super::nodes::ROUTE_TIMEOUT;
use super::pending::{Pending, Work};
use super::reads::find_record;
use super::session::WaitCondition;
use super::state::ConnectionState;
use super::subject::{CommandSubject, is_of_table};
use super::tables::{
    self, CoordinatedCommand, Destination, Route, StoresJob, slot_not_served, slots_still_moving,
};
use crate::catalog::{LiveStore, Snapshot};
use crate::cluster::{View, core_of};
use crate::error::Refusal;

/// The result of placing a request.
pub(super) enum RoutingDecision {
    Local,
    /// The request was forwarded to another core.
    Forwarded,
    /// Several cores execute the request.
    Pending(Box<Pending>),
    Waiting(WaitCondition),
    /// No node can execute the request, and an error was returned.
    Refused,
}

pub(super) fn place(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    subject: CommandSubject,
) -> RoutingDecision {
    if command.id() == Id::Publish && state.forwarded.is_some() && state.transaction.is_none() {
        // Receivers of the message must be able to read everything written before it.
        return RoutingDecision::Waiting(WaitCondition::ForwardedReplies);
    }
    let is_exec = command.id() == Id::Exec;
    let is_of_cluster = state.core.nodes.is_some() && subject != CommandSubject::Server;
    if !state.authenticated
        || state.is_in_subscriber_mode()
        || !(command.spec.sums_replies() || subject.has_rows() || is_of_cluster)
        || (state.transaction.is_some() && !is_exec)
    {
        return RoutingDecision::Local;
    }
    let tables = &state.core.tables;
    if tables.is_paused() {
        return RoutingDecision::Waiting(WaitCondition::PauseEnd);
    }
    let Some(shard) = tables.shard() else {
        return RoutingDecision::Local;
    };
    if is_exec && StoresJob::for_exec(state, snapshot).is_some() {
        return RoutingDecision::Local;
    }
    if is_exec && tables.is_missing_joins() {
        let since = *state.slots_awaited_since.get_or_insert_with(Instant::now);
        if since.elapsed() < ROUTE_TIMEOUT {
            return RoutingDecision::Waiting(WaitCondition::SlotMove);
        }
    }
    let Route {
        destination: to,
        reads_outputs,
    } = match (is_exec && state.transaction.is_some(), subject) {
        (true, _) => Route {
            destination: Destination::AllCores,
            reads_outputs: true,
        },
        (false, CommandSubject::Records) if is_of_cluster => Route {
            destination: records_place(&state.core, snapshot, command, state.reads_replicas, &[]),
            reads_outputs: false,
        },
        (false, CommandSubject::Both) if is_of_cluster => Route {
            destination: Destination::Nodes,
            reads_outputs: true,
        },
        _ => tables::route(tables, &shard, snapshot, command),
    };
    let needs = Dependencies {
        writes: command.writes(),
        reads_outputs,
        is_long: matches!(command.id(), Id::Range | Id::SMembers),
    };
    if let Some(forwarded) = &state.forwarded {
        let must_wait = match to {
            Destination::Core(core) => forwarded.has_conflict(core, needs, state.proto),
            Destination::AllCores | Destination::Nodes | Destination::Unavailable => true,
        };
        if must_wait {
            return RoutingDecision::Waiting(WaitCondition::ForwardedReplies);
        }
    }
    if reads_outputs
        && state.core.nodes.is_some()
        && to != Destination::Core(tables.index)
        && !state.gate.is_open()
    {
        // This connection's writes are sent to other nodes only once their replicas have them, so a read elsewhere must
        // wait for that.
        return RoutingDecision::Waiting(WaitCondition::OpenGate);
    }
    match to {
        Destination::Core(core) if core == tables.index => RoutingDecision::Local,
        Destination::Core(core) => {
            if core >= state.core.shared.tables.cores()
                && let Some(refusal) = redirect_refusal(state, snapshot, command, core)
            {
                state.refuse(refusal);
                return RoutingDecision::Refused;
            }
            let forwarded = state
                .forwarded
                .get_or_insert_with(|| Box::new(Forwarded::new(state.proto)));
            if subject == CommandSubject::Records
                && !forwarded.try_record_versions(core, snapshot, command)
            {
                return RoutingDecision::Waiting(WaitCondition::ForwardedReplies);
            }
            if core >= state.core.shared.tables.cores() {
                state.core.plain_series(command.spec).record_forwarded();
            }
            let at = state.output.tail.len();
            state.output.has_holes = true;
            forwarded.add(core, at, needs, command);
            RoutingDecision::Forwarded
        }
        Destination::AllCores => {
            let work = Work::Coordinated(CoordinatedCommand::for_command(state, command.id()));
            RoutingDecision::Pending(Box::new(Pending::new(command, work)))
        }
        Destination::Nodes => {
            if !state.gate.is_open() {
                return RoutingDecision::Waiting(WaitCondition::OpenGate);
            }
            state.core.plain_series(command.spec).record_forwarded();
            let work = Work::Coordinated(CoordinatedCommand::for_nodes());
            RoutingDecision::Pending(Box::new(Pending::new(command, work)))
        }
        Destination::Unavailable => {
            let since = *state.slots_awaited_since.get_or_insert_with(Instant::now);
            let are_slots_moving = subject.has_rows() && are_slots_moving(&state.core, command);
            if are_slots_moving && since.elapsed() < ROUTE_TIMEOUT {
                return RoutingDecision::Waiting(WaitCondition::SlotMove);
            }
            state.slots_awaited_since = None;
            state.refuse(if are_slots_moving {
                slots_still_moving()
            } else {
                slot_not_served(&state.core)
            });
            RoutingDecision::Refused
        }
    }
}

/// Returns whether the map names an owner for all rows of a command. If no core may serve such rows, they are being
/// moved from this node to another one.
pub(super) fn are_slots_moving(core: &Core, command: Command<'_>) -> bool {
    let Some(view) = core.tables.view() else {
        return false;
    };
    let has_owner = |slot: u16| view.owners.owner_of(slot) != NO_OWNER;
    let mut keys = command.keys();
    match keys.len() {
        0 => (0..SLOTS).all(has_owner),
        _ => keys.all(|key| has_owner(row_slot(key))),
    }
}

/// Returns the place that executes a command which belongs to no transaction and no connection, in a cluster.
pub(super) fn place_of(core: &Core, snapshot: &Snapshot, command: Command<'_>) -> Destination {
    place_avoiding(core, snapshot, command, &[])
}

/// As [`place_of`], but records of stores are not looked up on the nodes in `avoided`, which could not be reached.
pub(super) fn place_avoiding(
    core: &Core,
    snapshot: &Snapshot,
    command: Command<'_>,
    avoided: &[NodeId],
) -> Destination {
    let local = Destination::Core(core.index);
    let Some(shard) = core.tables.shard() else {
        return local;
    };
    match CommandSubject::of(snapshot, command) {
        CommandSubject::Rows => tables::route(&core.tables, &shard, snapshot, command).destination,
        CommandSubject::Records => records_place(core, snapshot, command, true, avoided),
        CommandSubject::Both => Destination::Nodes,
        CommandSubject::Server if command.id() == Id::DbSize => {
            tables::route(&core.tables, &shard, snapshot, command).destination
        }
        CommandSubject::Server => local,
    }
}

/// Returns the place that serves a record of a store: this core if the node has its partition, else a core of another
/// node that has the slot, preferably the owner.
pub(super) fn record_place(
    core: &Core,
    view: &View,
    snapshot: &Snapshot,
    key: &[u8],
    avoided: &[NodeId],
) -> usize {
    match find_record(snapshot, key) {
        Some((live, rest)) if !live.version.has_partition_of(rest) => {
            holder_place(view, live, key, avoided)
        }
        // For a store that cannot be read, this core returns the error.
        _ => core.index,
    }
}

/// Returns a place on another node that should have the record.
fn holder_place(view: &View, live: &LiveStore, key: &[u8], avoided: &[NodeId]) -> usize {
    let slot = slot_of(key);
    let store = view.map.stores().get(&live.name);
    let lacks_store = |node: &NodeId| store.is_some_and(|store| store.lacking.contains(node));
    let holders = view.lookup.placement(slot).holders();
    let mut candidates =
        holders.filter(|node| *node != view.me && !avoided.contains(node) && !lacks_store(node));
    let place = candidates.find_map(|node| {
        let member = view.map.member(node).filter(|_| view.map.is_up(node))?;
        let core = core_of(slot, member.registration.cores);
        view.places.number(Place { node, core })
    });
    usize::from(place.unwrap_or(NO_OWNER))
}

fn records_place(
    core: &Core,
    snapshot: &Snapshot,
    command: Command<'_>,
    reads_replicas: bool,
    avoided: &[NodeId],
) -> Destination {
    let local = Destination::Core(core.index);
    let Some(view) = core.tables.view() else {
        return local;
    };
    let mut keys = command.keys();
    let Some(first) = keys.next() else {
        return local;
    };
    let place = |key: &[u8]| {
        if reads_replicas || !is_redirecting(core) || owns(&view, key) {
            record_place(core, &view, snapshot, key, avoided)
        } else {
            usize::from(view.owners.owner_of(slot_of(key)))
        }
    };
    let first = place(first);
    if first == usize::from(NO_OWNER) {
        return Destination::Unavailable;
    }
    let node = |place: usize| view.places.get(place as u16).map(|place| place.node);
    let first_node = node(first);
    for key in keys {
        let other = place(key);
        if other == usize::from(NO_OWNER) {
            return Destination::Unavailable;
        }
        if node(other) != first_node {
            return Destination::Nodes;
        }
    }
    Destination::Core(first)
}

/// Returns whether this node may serve a connection's read of a record, provided that it has the record.
pub(super) fn may_serve_record(state: &ConnectionState, key: &[u8]) -> bool {
    if state.reads_replicas || !is_redirecting(&state.core) {
        return true;
    }
    state
        .core
        .tables
        .view()
        .is_some_and(|view| owns(&view, key))
}

/// Returns whether this node owns the slot of a store's key.
fn owns(view: &View, key: &[u8]) -> bool {
    view.lookup.placement(slot_of(key)).owner == Some(view.me)
}

fn is_redirecting(core: &Core) -> bool {
    core.shared.tables.is_redirecting
}

/// Returns the view if this node must report only its own slots. With redirection, clients of Redis Cluster send SCAN,
/// KEYS and DBSIZE to every node and add up the replies.
pub(super) fn view_for_own_slots(state: &ConnectionState) -> Option<Arc<View>> {
    let core = &state.core;
    core.tables
        .view()
        .filter(|_| is_redirecting(core) && !state.executes_part)
}

/// With `cluster.routing = "redirect"`, returns the `MOVED` error that names the node of a place. `None` unless all
/// keys are in the slot that the client computes for them: other commands are forwarded, because no redirection would
/// be correct for them.
fn redirect_refusal(
    state: &ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
    place: usize,
) -> Option<Refusal> {
    let core = &state.core;
    if !is_redirecting(core) {
        return None;
    }
    let mut keys = command.keys();
    let slot = slot_of(keys.clone().next()?);
    let is_of_rows = keys.clone().any(|key| is_of_table(snapshot, key));
    let is_in_client_slot =
        |key: &[u8]| slot_of(key) == slot && (!is_of_table(snapshot, key) || row_slot(key) == slot);
    if !keys.all(is_in_client_slot) {
        return None;
    }
    let (membership, view) = (core.shared.membership.as_ref()?, core.tables.view()?);
    let member = view.map.member(view.places.get(place as u16)?.node)?;
    // Only the owner serves redirected clients.
    if view.lookup.placement(slot).owner != Some(member.id) && !is_of_rows {
        return None;
    }
    let (host, port) = membership.address(&view, member, state.client.local_addr);
    Some((Code::Moved, format!("{slot} {host}:{port}")))
}
