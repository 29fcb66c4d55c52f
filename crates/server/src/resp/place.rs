//! Chooses where a session's request is executed: on this core, on another core or node to which it is forwarded, or on
//! several.
//!
//! In a cluster, the target may be a core of another node, which has a separate connection. Before a request that reads
//! outputs is forwarded there, this core's writes must have been sent to all subscribers.

use std::sync::Arc;
use std::time::Instant;

use larder_cluster::map::NodeId;
use larder_cluster::replication::Place;
use larder_join::{NOBODY, row_slot};
use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_types::{SLOTS, slot_of};

use super::core::Core;
use super::forwarded::{Dependencies, Forwarded};
use super::nodes::PATIENCE;
use super::pending::{Pending, Work};
use super::reads::record;
use super::session::Waits;
use super::state::State;
use super::subject::{About, is_of_table};
use super::tables::{self, Route, SeveralCores, StoresJob, To, not_served, still_moving};
use crate::catalog::{LiveStore, Snapshot};
use crate::cluster::{View, core_of};
use crate::error::Refusal;

/// The result of placing a request.
pub(super) enum Placed {
    Here,
    /// The request was forwarded to another core.
    Forwarded,
    /// Several cores execute the request.
    Pending(Box<Pending>),
    Waits(Waits),
    /// No node can execute the request, and an error was returned.
    Refused,
}

pub(super) fn place(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    about: About,
) -> Placed {
    if command.id() == Id::Publish && state.forwarded.is_some() && state.transaction.is_none() {
        // Receivers of the message must be able to read everything written before it.
        return Placed::Waits(Waits::ForwardedReplies);
    }
    let is_exec = command.id() == Id::Exec;
    let is_of_cluster = state.core.nodes.is_some() && about != About::Server;
    if !state.authenticated
        || state.is_in_subscriber_mode()
        || !(command.spec.adds_up_figures() || about.has_rows() || is_of_cluster)
        || (state.transaction.is_some() && !is_exec)
    {
        return Placed::Here;
    }
    let tables = &state.core.tables;
    if tables.is_paused() {
        return Placed::Waits(Waits::Paused);
    }
    let Some(shard) = tables.shard() else {
        return Placed::Here;
    };
    if is_exec && StoresJob::before_exec(state, snapshot).is_some() {
        return Placed::Here;
    }
    if is_exec && tables.lacks_joins() {
        let since = *state.slots_awaited.get_or_insert_with(Instant::now);
        if since.elapsed() < PATIENCE {
            return Placed::Waits(Waits::Slots);
        }
    }
    let Route { to, reads_outputs } = match (is_exec && state.transaction.is_some(), about) {
        (true, _) => Route {
            to: To::Several,
            reads_outputs: true,
        },
        (false, About::Records) if is_of_cluster => Route {
            to: records_place(&state.core, snapshot, command, state.reads_replicas, &[]),
            reads_outputs: false,
        },
        (false, About::Both) if is_of_cluster => Route {
            to: To::Nodes,
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
            To::Core(core) => forwarded.must_be_answered_first(core, needs, state.proto),
            To::Several | To::Nodes | To::Nobody => true,
        };
        if must_wait {
            return Placed::Waits(Waits::ForwardedReplies);
        }
    }
    if reads_outputs
        && state.core.nodes.is_some()
        && to != To::Core(tables.index)
        && !state.gate.is_open()
    {
        // This connection's writes are sent to other nodes only once their replicas have them, so a read elsewhere must
        // wait for that.
        return Placed::Waits(Waits::OwnReplies);
    }
    match to {
        To::Core(core) if core == tables.index => Placed::Here,
        To::Core(core) => {
            if core >= state.core.shared.tables.cores()
                && let Some(refusal) = redirected(state, snapshot, command, core)
            {
                state.refuse(refusal);
                return Placed::Refused;
            }
            let forwarded = state
                .forwarded
                .get_or_insert_with(|| Box::new(Forwarded::new(state.proto)));
            if about == About::Records && !forwarded.names_version(core, snapshot, command) {
                return Placed::Waits(Waits::ForwardedReplies);
            }
            if core >= state.core.shared.tables.cores() {
                state.core.plain_series(command.spec).record_forwarded();
            }
            let at = state.output.tail.len();
            state.output.has_holes = true;
            forwarded.add(core, at, needs, command);
            Placed::Forwarded
        }
        To::Several => {
            let work = Work::SeveralCores(SeveralCores::of(state, command.id()));
            Placed::Pending(Box::new(Pending::new(command, work)))
        }
        To::Nodes => {
            if !state.gate.is_open() {
                return Placed::Waits(Waits::OwnReplies);
            }
            state.core.plain_series(command.spec).record_forwarded();
            let work = Work::SeveralCores(SeveralCores::of_nodes());
            Placed::Pending(Box::new(Pending::new(command, work)))
        }
        To::Nobody => {
            let since = *state.slots_awaited.get_or_insert_with(Instant::now);
            let is_on_its_way = about.has_rows() && is_on_its_way(&state.core, command);
            if is_on_its_way && since.elapsed() < PATIENCE {
                return Placed::Waits(Waits::Slots);
            }
            state.slots_awaited = None;
            state.refuse(if is_on_its_way {
                still_moving()
            } else {
                not_served(&state.core)
            });
            Placed::Refused
        }
    }
}

/// Returns whether the map names an owner for all rows of a command. If no core may serve such rows, they are being
/// moved from this node to another one.
pub(super) fn is_on_its_way(core: &Core, command: Command<'_>) -> bool {
    let Some(view) = core.tables.view() else {
        return false;
    };
    let has_owner = |slot: u16| view.owners.of(slot) != NOBODY;
    let mut keys = command.keys();
    match keys.len() {
        0 => (0..SLOTS).all(has_owner),
        _ => keys.all(|key| has_owner(row_slot(key))),
    }
}

/// Returns the place that executes a command which belongs to no transaction and no connection, in a cluster.
pub(super) fn place_of(core: &Core, snapshot: &Snapshot, command: Command<'_>) -> To {
    place_without(core, snapshot, command, &[])
}

/// As [`place_of`], but records of stores are not looked up on the nodes in `avoided`, which could not be reached.
pub(super) fn place_without(
    core: &Core,
    snapshot: &Snapshot,
    command: Command<'_>,
    avoided: &[NodeId],
) -> To {
    let here = To::Core(core.index);
    let Some(shard) = core.tables.shard() else {
        return here;
    };
    match About::of(snapshot, command) {
        About::Rows => tables::route(&core.tables, &shard, snapshot, command).to,
        About::Records => records_place(core, snapshot, command, true, avoided),
        About::Both => To::Nodes,
        About::Server if command.id() == Id::DbSize => {
            tables::route(&core.tables, &shard, snapshot, command).to
        }
        About::Server => here,
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
    match record(snapshot, key) {
        Some((live, rest)) if !live.version.holds(rest) => holder_place(view, live, key, avoided),
        // For a store that cannot be read, this core returns the error.
        _ => core.index,
    }
}

/// Returns a place on another node that should have the record.
fn holder_place(view: &View, live: &LiveStore, key: &[u8], avoided: &[NodeId]) -> usize {
    let slot = slot_of(key);
    let store = view.map.stores().get(&live.name);
    let lacks = |node: &NodeId| store.is_some_and(|store| store.lacking.contains(node));
    let holders = view.lookup.placed(slot).holders();
    let mut able =
        holders.filter(|node| *node != view.me && !avoided.contains(node) && !lacks(node));
    let place = able.find_map(|node| {
        let member = view.map.member(node).filter(|_| view.map.is_up(node))?;
        let core = core_of(slot, member.registration.cores);
        view.places.number(Place { node, core })
    });
    usize::from(place.unwrap_or(NOBODY))
}

fn records_place(
    core: &Core,
    snapshot: &Snapshot,
    command: Command<'_>,
    reads_replicas: bool,
    avoided: &[NodeId],
) -> To {
    let here = To::Core(core.index);
    let Some(view) = core.tables.view() else {
        return here;
    };
    let mut keys = command.keys();
    let Some(first) = keys.next() else {
        return here;
    };
    let place = |key: &[u8]| {
        if reads_replicas || !redirects(core) || owns(&view, key) {
            record_place(core, &view, snapshot, key, avoided)
        } else {
            usize::from(view.owners.of(slot_of(key)))
        }
    };
    let first = place(first);
    if first == usize::from(NOBODY) {
        return To::Nobody;
    }
    let node = |place: usize| view.places.get(place as u16).map(|place| place.node);
    let home = node(first);
    for key in keys {
        let other = place(key);
        if other == usize::from(NOBODY) {
            return To::Nobody;
        }
        if node(other) != home {
            return To::Nodes;
        }
    }
    To::Core(first)
}

/// Returns whether this node may serve a connection's read of a record, provided that it has the record.
pub(super) fn may_answer_record(state: &State, key: &[u8]) -> bool {
    if state.reads_replicas || !redirects(&state.core) {
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
    view.lookup.placed(slot_of(key)).owner == Some(view.me)
}

fn redirects(core: &Core) -> bool {
    core.shared.tables.is_redirecting
}

/// Returns the view if this node must report only its own slots. With redirection, clients of Redis Cluster send SCAN,
/// KEYS and DBSIZE to every node and add up the replies.
pub(super) fn own_slots_only(state: &State) -> Option<Arc<View>> {
    let core = &state.core;
    core.tables
        .view()
        .filter(|_| redirects(core) && !state.is_of_node)
}

/// With `cluster.routing = "redirect"`, returns the `MOVED` error that names the node of a place. `None` unless all
/// keys are in the slot that the client computes for them: other commands are forwarded, because no redirection would
/// be correct for them.
fn redirected(
    state: &State,
    snapshot: &Snapshot,
    command: Command<'_>,
    place: usize,
) -> Option<Refusal> {
    let core = &state.core;
    if !redirects(core) {
        return None;
    }
    let mut keys = command.keys();
    let slot = slot_of(keys.clone().next()?);
    let is_of_rows = keys.clone().any(|key| is_of_table(snapshot, key));
    let is_known =
        |key: &[u8]| slot_of(key) == slot && (!is_of_table(snapshot, key) || row_slot(key) == slot);
    if !keys.all(is_known) {
        return None;
    }
    let (membership, view) = (core.shared.membership.as_ref()?, core.tables.view()?);
    let member = view.map.member(view.places.get(place as u16)?.node)?;
    // Only the owner serves redirected clients.
    if view.lookup.placed(slot).owner != Some(member.id) && !is_of_rows {
        return None;
    }
    let (host, port) = membership.address(&view, member, state.client.local_addr);
    Some((Code::Moved, format!("{slot} {host}:{port}")))
}
