//! Chooses the core that executes a request on tables: one of this node, one of another, or several.

use std::sync::Arc;

use larder_join::{NOBODY, Owner, Shard, range_slot, row_slot};
use larder_protocol::commands::{Command, Id, Keys, Place};
use larder_protocol::errors::Code;

use super::super::core::Core;
use super::super::subject::About;
use super::check::check_keys;
use crate::catalog::Snapshot;
use crate::cluster::View;
use crate::tables::{Refusal, Tables};

/// The executor of a request. A core is identified by the number of its place; the cores of this node have the lowest
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum To {
    Core(usize),
    /// Several cores of this node. The connection's core combines their replies.
    Several,
    /// Several nodes of the cluster.
    Nodes,
    /// In a cluster: a slot has no owner, or this node does not know all joins yet.
    Nobody,
}

/// The route of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::resp) struct Route {
    pub to: To,
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
    let way = Way {
        tables,
        shard,
        view: tables.view(),
    };
    let route = |to, reads_outputs| Route { to, reads_outputs };
    let here = To::Core(tables.index);
    let Route { to, reads_outputs } = match command.spec.place {
        Place::Connection => route(here, false),
        Place::ConnectionInOrder => route(here, true),
        Place::AllCores => route(way.of_all(command.id()), true),
        Place::Owner if check_keys(snapshot, command).is_err() => route(here, false),
        Place::Owner if tables.lacks_joins() => route(To::Nobody, true),
        Place::Owner => match command.range() {
            Some(range) => way.of_range(command, range),
            None => way.of_keys(command),
        },
    };
    let to = match to {
        To::Several if tables.handle().cores() == 1 => here,
        To::Core(nobody) if nobody == usize::from(NOBODY) => To::Nobody,
        to => to,
    };
    Route { to, reads_outputs }
}

/// Returns whether a command concerns rows that every core of every node may have, so that each core executes a part of
/// it. All rows of a computed or mapped table are available on one core.
pub(in crate::resp) fn is_of_every_core(
    tables: &Tables,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> bool {
    match command.id() {
        Id::DbSize => true,
        Id::FlushAll | Id::FlushDb | Id::Keys | Id::Scan => About::of(snapshot, command).has_rows(),
        Id::Range | Id::RangeCount | Id::RangeDel => command.range().is_some_and(|(lo, hi)| {
            range_slot(lo, hi).is_none() && !tables.is_computed(lo) && !tables.is_mapped(lo)
        }),
        _ => false,
    }
}

/// The ownership by which a request is routed.
struct Way<'a> {
    tables: &'a Tables,
    shard: &'a Shard,
    /// The cluster's view; `None` outside a cluster.
    view: Option<Arc<View>>,
}

impl Way<'_> {
    /// Returns the place that owns the row of a key, or computes it.
    fn owner(&self, key: &[u8], is_computed: bool) -> usize {
        let computing = self.view.as_ref().and_then(|view| view.computing.as_ref());
        match computing.filter(|_| is_computed) {
            Some(computing) => usize::from(computing.of(row_slot(key))),
            None => usize::from(self.shard.owner_of(key)),
        }
    }

    /// Returns the route of a command on data that every place has.
    fn all(&self) -> To {
        if !self.tables.is_in_cluster() {
            return To::Several;
        }
        if self.tables.lacks_joins() {
            return To::Nobody;
        }
        let cores = self.tables.handle().cores();
        let mut to = To::Several;
        for owner in self.shard.owners() {
            match owner {
                NOBODY => return To::Nobody,
                owner if usize::from(owner) < cores => {}
                _ => to = To::Nodes,
            }
        }
        to
    }

    fn of_all(&self, command: Id) -> To {
        match command {
            // The map contains them.
            Id::JoinCreate
            | Id::JoinDrop
            | Id::FtAliasAdd
            | Id::FtAliasDel
            | Id::FtAliasUpdate
            | Id::FtAlter
            | Id::FtCreate
            | Id::FtDropIndex
                if self.tables.is_in_cluster() =>
            {
                To::Nodes
            }
            // Each node has its own.
            Id::JoinInfo | Id::Info => To::Several,
            // Clients of Redis Cluster send the command to every node and combine the replies.
            Id::DbSize | Id::Keys | Id::Scan if self.tables.handle().is_redirecting => To::Several,
            _ => self.all(),
        }
    }

    fn of_range(&self, command: Command<'_>, (lo, hi): (&[u8], &[u8])) -> Route {
        let route = |to, reads_outputs| Route { to, reads_outputs };
        let tables = self.tables;
        let home = |key: &[u8]| {
            // A range over several groups of an output is always computed on the same core.
            let name = key.iter().position(|byte| matches!(byte, b'|' | b':'));
            let name = &key[..name.map_or(key.len(), |end| end + 1)];
            To::Core(self.owner(name, true))
        };
        let reads_outputs = command.spec.keys == Keys::JoinRange || tables.is_computed(lo);
        match self.shard.owner_of_range(lo, hi) {
            Owner::One(_) if reads_outputs => route(To::Core(self.owner(lo, true)), true),
            Owner::One(one) => route(To::Core(usize::from(one)), reads_outputs),
            // Any core can load all rows of a mapped table.
            Owner::All if reads_outputs || tables.is_mapped(lo) => route(home(lo), true),
            Owner::All => route(self.all(), false),
        }
    }

    fn of_keys(&self, command: Command<'_>) -> Route {
        let is_computed = |key: &[u8]| self.tables.is_computed(key);
        let mut keys = command.keys();
        let reads_outputs = command.reads_ranking() || keys.clone().any(is_computed);
        let is_output = |key: &[u8]| reads_outputs && (command.reads_ranking() || is_computed(key));
        let owner = |key: &[u8]| self.owner(key, is_output(key));
        let first = keys.next().map_or(self.tables.index, owner);
        let to = if keys.clone().all(|key| owner(key) == first) {
            To::Core(first)
        } else {
            self.of_several(first, keys.map(owner))
        };
        Route { to, reads_outputs }
    }

    /// Returns the route of keys that several places own.
    fn of_several(&self, first: usize, mut others: impl Iterator<Item = usize> + Clone) -> To {
        let Some(view) = &self.view else {
            return To::Several;
        };
        let node = |number: usize| view.places.get(number as u16).map(|place| place.node);
        let home = node(first);
        if first == usize::from(NOBODY) || others.clone().any(|it| it == usize::from(NOBODY)) {
            return To::Nobody;
        }
        match others.all(|other| node(other) == home) {
            false => To::Nodes,
            true if first < self.tables.handle().cores() => To::Several,
            // The cores of that node execute it together.
            true => To::Core(first),
        }
    }
}

/// Returns the error for slots that have not reached their new owner in time, or joins of the map that this node does
/// not have yet.
pub(in crate::resp) fn still_moving() -> Refusal {
    let message = "slots are on their way to another node, or joins to this one, which takes long; send it again";
    (Code::TryAgain, message.to_owned())
}

/// Returns the error for a slot without a node that serves it.
pub(in crate::resp) fn not_served(core: &Core) -> Refusal {
    let why = match &core.shared.membership {
        Some(membership) => membership.refusal(),
        None => None,
    };
    let message = match why {
        Some(why) => format!("Hash slot not served: {why}"),
        None => "Hash slot not served: no node that is up has it".to_owned(),
    };
    (Code::ClusterDown, message)
}

/// Returns the error for a WATCH or SUBSCRIBE of rows that another node owns.
pub(in crate::resp) fn of_other_node(tables: &Tables, place: usize, what: &str) -> Refusal {
    let owner = tables
        .place(place as u16)
        .map(|place| tables.node_name(place.node));
    let message = match owner {
        Some(owner) => {
            format!("these rows can be {what} at {owner}, which has them: connect there")
        }
        None => format!("these rows cannot be {what} at the moment: no node that is up has them"),
    };
    (Code::CrossSlot, message)
}

/// Returns the error for a request that would change several nodes atomically.
pub(in crate::resp) fn of_several_nodes(command: &str) -> Refusal {
    let message = format!(
        "{command} is done by one node, and these keys are of several: give them one hash tag, as in post|{{bob}}|17, or send a request for each"
    );
    (Code::CrossSlot, message)
}
