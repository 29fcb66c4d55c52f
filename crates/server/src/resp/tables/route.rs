//! Which core executes a request on tables.

use larder_join::{Owner, Shard};
use larder_protocol::commands::{Command, Keys, Place};

use super::check::check_keys;
use crate::catalog::Snapshot;
use crate::tables::Tables;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum To {
    Core(usize),
    /// Several cores, and that of the connection puts together what they answer.
    Several,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy)]
pub(in crate::resp) struct Route {
    pub to: To,
    /// It reads what joins compute, perhaps from rows that an earlier request changes on another core.
    pub reads_outputs: bool,
}

/// Where a request goes that is of tables and of no transaction that is being told. What will be refused is refused here.
pub(in crate::resp) fn route(
    tables: &Tables,
    shard: &Shard,
    snapshot: &Snapshot,
    command: Command<'_>,
) -> Route {
    let route = |to, reads_outputs| Route { to, reads_outputs };
    let here = To::Core(tables.index);
    match command.spec.place {
        Place::Connection => route(here, false),
        Place::ConnectionInOrder => route(here, true),
        Place::AllCores => route(To::Several, true),
        Place::Owner if check_keys(snapshot, command).is_err() => route(here, false),
        Place::Owner => match command.range() {
            Some(range) => of_range(tables, shard, command, range),
            None => of_keys(tables, shard, command),
        },
    }
}

fn of_range(
    tables: &Tables,
    shard: &Shard,
    command: Command<'_>,
    (lo, hi): (&[u8], &[u8]),
) -> Route {
    let route = |to, reads_outputs| Route { to, reads_outputs };
    let home = |key: &[u8]| {
        // What spans columns of an output is computed on one core, always the same.
        let name = key.iter().position(|byte| matches!(byte, b'|' | b':'));
        let name = &key[..name.map_or(key.len(), |end| end + 1)];
        To::Core(usize::from(shard.owner_of(name)))
    };
    let reads_outputs = command.spec.keys == Keys::JoinRange || tables.is_computed(lo);
    match shard.owner_of_range(lo, hi) {
        Owner::One(one) => route(To::Core(usize::from(one)), reads_outputs),
        // Any core can have all rows of a mapped table.
        Owner::All if reads_outputs || tables.is_mapped(lo) => route(home(lo), true),
        Owner::All => route(To::Several, false),
    }
}

fn of_keys(tables: &Tables, shard: &Shard, command: Command<'_>) -> Route {
    let owner = |key: &[u8]| usize::from(shard.owner_of(key));
    let mut keys = command.keys();
    let reads_outputs = keys.clone().any(|key| tables.is_computed(key));
    let first = keys.next().map_or(tables.index, owner);
    let to = match keys.all(|key| owner(key) == first) {
        true => To::Core(first),
        false => To::Several,
    };
    Route { to, reads_outputs }
}
