//! Chooses the core that executes a request on tables: one of this node, one of another, or several.

use std::sync::Arc;

use larder_join::{NO_OWNER, Owner, Shard, range_slot, row_slot};
use larder_protocol::commands::{Command, Id, KeyPlace, Keys};
use larder_protocol::errors::Code;

use super::super::core::Core;
use super::super::handlers::{self, Coordination, SpaceEffect};
use super::super::subject::CommandSubject;
use super::check::check_keys;
use crate::catalog::Snapshot;
use crate::cluster::View;
use crate::tables::{Refusal, Tables};

/// The executor of a request. A core is identified by the number of its place; the cores of this node have the lowest
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Destination {
    Core(usize),
    /// Several cores of this node. The connection's core combines their replies.
    AllCores,
    /// Several nodes of the cluster.
    Nodes,
    /// In a cluster: a slot has no owner, or this node does not know all joins yet.
    Unavailable,
}

/// The route of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::resp) struct Route {
    pub destination: Destination,
    /// The request reads outputs of joins, which may depend on rows that an earlier request changes on another core.
    pub reads_outputs: bool,
}

/// Returns the route of a request on tables that is not being queued by MULTI. A request that will be rejected is
/// executed on this core.
pub(in crate::resp) fn route(
    tables: &Tables,
    shard: &Shard,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Route {
    let router = Router {
        tables,
        shard,
        view: tables.view(),
    };
    let route = |to, reads_outputs| Route {
        destination: to,
        reads_outputs,
    };
    let local = Destination::Core(tables.index);
    let Route {
        destination: to,
        reads_outputs,
    } = match command.spec.place {
        KeyPlace::Connection => route(local, false),
        KeyPlace::ConnectionInOrder => route(local, true),
        KeyPlace::AllCores => route(router.route_all_cores(command), true),
        KeyPlace::Owner if check_keys(snapshot, command).is_err() => route(local, false),
        KeyPlace::Owner if tables.is_missing_joins() => route(Destination::Unavailable, true),
        KeyPlace::Owner => match command.range() {
            Some(range) => router.route_range(command, range),
            None => router.route_keys(command),
        },
    };
    let to = match to {
        Destination::AllCores if tables.handle().cores() == 1 => local,
        Destination::Core(core) if core == usize::from(NO_OWNER) => Destination::Unavailable,
        to => to,
    };
    Route {
        destination: to,
        reads_outputs,
    }
}

/// Returns whether a command concerns rows that every core of every node may have, so that each core executes a part of
/// it. All rows of a computed or mapped table are available on one core.
pub(in crate::resp) fn concerns_every_core(
    tables: &Tables,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> bool {
    match command.id() {
        Id::DbSize => true,
        Id::FlushAll | Id::FlushDb | Id::Keys | Id::Scan => {
            CommandSubject::of(snapshot, command).has_rows()
        }
        Id::Range | Id::RangeCount | Id::RangeDel => command.range().is_some_and(|(lo, hi)| {
            range_slot(lo, hi).is_none() && !tables.is_computed(lo) && !tables.is_mapped(lo)
        }),
        _ => false,
    }
}

/// The ownership by which a request is routed.
struct Router<'a> {
    tables: &'a Tables,
    shard: &'a Shard,
    /// The cluster's view; `None` outside a cluster.
    view: Option<Arc<View>>,
}

impl Router<'_> {
    /// Returns the place that owns the row of a key, or computes it.
    fn owner_of(&self, key: &[u8], is_computed: bool) -> usize {
        let computing = self.view.as_ref().and_then(|view| view.computing.as_ref());
        match computing.filter(|_| is_computed) {
            Some(computing) => usize::from(computing.owner_of(row_slot(key))),
            None => usize::from(self.shard.owner_of(key)),
        }
    }

    /// Returns the route of a command on data that every place has.
    fn all_places(&self) -> Destination {
        if !self.tables.is_in_cluster() {
            return Destination::AllCores;
        }
        if self.tables.is_missing_joins() {
            return Destination::Unavailable;
        }
        let cores = self.tables.handle().cores();
        let mut to = Destination::AllCores;
        for owner in self.shard.owners() {
            match owner {
                NO_OWNER => return Destination::Unavailable,
                owner if usize::from(owner) < cores => {}
                _ => to = Destination::Nodes,
            }
        }
        to
    }

    fn route_all_cores(&self, command: Command<'_>) -> Destination {
        let coordination = handlers::find(command).coordination;
        let is_definition = matches!(coordination, Coordination::Spaces(SpaceEffect::Define, _))
            || matches!(command.id(), Id::JoinCreate | Id::JoinDrop);
        match command.id() {
            // The map contains the definitions.
            _ if is_definition && self.tables.is_in_cluster() => Destination::Nodes,
            // Each node has its own.
            Id::JoinInfo | Id::Info => Destination::AllCores,
            // Clients of Redis Cluster send the command to every node and combine the replies.
            Id::DbSize | Id::Keys | Id::Scan if self.tables.handle().is_redirecting => {
                Destination::AllCores
            }
            _ => self.all_places(),
        }
    }

    fn route_range(&self, command: Command<'_>, (lo, hi): (&[u8], &[u8])) -> Route {
        let route = |to, reads_outputs| Route {
            destination: to,
            reads_outputs,
        };
        let tables = self.tables;
        let home = |key: &[u8]| {
            // A range over several groups of an output is always computed on the same core.
            let name = key.iter().position(|byte| matches!(byte, b'|' | b':'));
            let name = &key[..name.map_or(key.len(), |end| end + 1)];
            Destination::Core(self.owner_of(name, true))
        };
        let reads_outputs = command.spec.keys == Keys::JoinRange || tables.is_computed(lo);
        match self.shard.owner_of_range(lo, hi) {
            Owner::One(_) if reads_outputs => {
                route(Destination::Core(self.owner_of(lo, true)), true)
            }
            Owner::One(one) => route(Destination::Core(usize::from(one)), reads_outputs),
            // Any core can load all rows of a mapped table.
            Owner::All if reads_outputs || tables.is_mapped(lo) => route(home(lo), true),
            Owner::All => route(self.all_places(), false),
        }
    }

    fn route_keys(&self, command: Command<'_>) -> Route {
        let is_computed = |key: &[u8]| self.tables.is_computed(key);
        let mut keys = command.keys();
        let reads_outputs = command.reads_ranking() || keys.clone().any(is_computed);
        let is_output = |key: &[u8]| reads_outputs && (command.reads_ranking() || is_computed(key));
        let owner = |key: &[u8]| self.owner_of(key, is_output(key));
        let first = keys.next().map_or(self.tables.index, owner);
        let to = if keys.clone().all(|key| owner(key) == first) {
            Destination::Core(first)
        } else {
            self.route_several(first, keys.map(owner))
        };
        Route {
            destination: to,
            reads_outputs,
        }
    }

    /// Returns the route of keys that several places own.
    fn route_several(
        &self,
        first: usize,
        mut others: impl Iterator<Item = usize> + Clone,
    ) -> Destination {
        let Some(view) = &self.view else {
            return Destination::AllCores;
        };
        let node = |number: usize| view.places.get(number as u16).map(|place| place.node);
        let home = node(first);
        if first == usize::from(NO_OWNER) || others.clone().any(|it| it == usize::from(NO_OWNER)) {
            return Destination::Unavailable;
        }
        match others.all(|other| node(other) == home) {
            false => Destination::Nodes,
            true if first < self.tables.handle().cores() => Destination::AllCores,
            // The cores of that node execute it together.
            true => Destination::Core(first),
        }
    }
}

/// Returns the error for slots that have not reached their new owner in time, or joins of the map that this node does
/// not have yet.
pub(in crate::resp) fn slots_still_moving() -> Refusal {
    let message = "slots are still moving to another node, or this node has not received all joins yet; retry the request";
    (Code::TryAgain, message.to_owned())
}

/// Returns the error for a slot without a node that serves it.
pub(in crate::resp) fn slot_not_served(core: &Core) -> Refusal {
    let why = match &core.shared.membership {
        Some(membership) => membership.refusal(),
        None => None,
    };
    let message = match why {
        Some(why) => format!("Hash slot not served: {why}"),
        None => "Hash slot not served: no running node has it".to_owned(),
    };
    (Code::ClusterDown, message)
}

/// Returns the error for a WATCH or SUBSCRIBE of rows that another node owns.
pub(in crate::resp) fn rows_on_other_node(tables: &Tables, place: usize, what: &str) -> Refusal {
    let owner = tables
        .place(place as u16)
        .map(|place| tables.node_name(place.node));
    let message = match owner {
        Some(owner) => {
            format!("these rows can be {what} only on their owner {owner}; connect to that node")
        }
        None => format!("these rows cannot be {what} now, because no running node owns them"),
    };
    (Code::CrossSlot, message)
}

/// Returns the error for a request that would change several nodes atomically.
pub(in crate::resp) fn keys_on_several_nodes(command: &str) -> Refusal {
    let message = format!(
        "{command} is executed by one node, but several nodes own these keys; give the keys one hash tag, as in post|{{bob}}|17, or send one request per node"
    );
    (Code::CrossSlot, message)
}
