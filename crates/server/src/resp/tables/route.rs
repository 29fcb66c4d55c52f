//! Which core executes a request on tables.

use larder_join::{Owner, Shard};
use larder_protocol::commands::{Command, Id};
use larder_protocol::resp::Request;

use super::check_keys;
use crate::catalog::Snapshot;
use crate::tables::Tables;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Place {
    Core(usize),
    /// Several, and the session puts together what they answer.
    Many,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy)]
pub(in crate::resp) struct Route {
    pub place: Place,
    /// It reads what joins compute, perhaps from rows that an earlier request changes on another core.
    pub depends: bool,
}

/// Where a request goes that is of tables and of no transaction that is being told. What will be refused is refused here.
pub(in crate::resp) fn route(
    tables: &Tables,
    shard: Shard,
    snapshot: &Snapshot,
    command: &Command,
    request: Request<'_>,
) -> Route {
    let here = Place::Core(tables.index);
    let route = |place, depends| Route { place, depends };
    let home = |key: &[u8]| {
        // What spans columns of an output is computed on one core, always the same.
        let name = key.iter().position(|byte| matches!(byte, b'|' | b':'));
        let name = &key[..name.map_or(key.len(), |end| end + 1)];
        Place::Core(usize::from(shard.owner_of(name)))
    };
    let owner = |key: &[u8]| usize::from(shard.owner_of(key));
    match command.id {
        Id::Multi | Id::Exec | Id::Discard | Id::Unwatch | Id::JoinList => {
            return route(here, false);
        }
        Id::Watch | Id::Subscribe | Id::PSubscribe | Id::Unsubscribe | Id::PUnsubscribe => {
            return route(here, true);
        }
        Id::JoinCreate
        | Id::JoinDrop
        | Id::JoinInfo
        | Id::Scan
        | Id::Keys
        | Id::DbSize
        | Id::Info
        | Id::FlushDb
        | Id::FlushAll => return route(Place::Many, true),
        Id::JoinExplain if request.len() == 4 => {
            let (lo, hi) = (request.arg(2), request.arg(3));
            return match shard.owner_of_range(lo, hi) {
                Owner::One(one) => route(Place::Core(usize::from(one)), true),
                Owner::All => route(home(lo), true),
            };
        }
        Id::JoinExplain => return route(here, false),
        _ => {}
    }
    if check_keys(snapshot, command, request).is_err() {
        return route(here, false);
    }
    match command.id {
        Id::Range | Id::RangeCount | Id::RangeDel => {
            let (lo, hi) = (request.arg(1), request.arg(2));
            let depends = tables.is_computed(lo);
            match shard.owner_of_range(lo, hi) {
                Owner::One(one) => route(Place::Core(usize::from(one)), depends),
                // Any core can have all rows of a mapped table.
                Owner::All if depends || tables.is_mapped(lo) => route(home(lo), true),
                Owner::All => route(Place::Many, false),
            }
        }
        Id::MGet
        | Id::Exists
        | Id::Touch
        | Id::Del
        | Id::Unlink
        | Id::MSet
        | Id::MSetNx
        | Id::Rename
        | Id::RenameNx
        | Id::Copy => {
            let positions: Vec<usize> = command.key_positions(request.len()).collect();
            let mut keys = positions.iter().map(|&at| request.arg(at));
            let depends = keys.clone().any(|key| tables.is_computed(key));
            let first = keys.next().map_or(tables.index, owner);
            match keys.all(|key| owner(key) == first) {
                true => route(Place::Core(first), depends),
                false => route(Place::Many, depends),
            }
        }
        _ => {
            let first = command.key_positions(request.len()).next();
            let Some(key) = first.map(|at| request.arg(at)) else {
                return route(here, false);
            };
            route(Place::Core(owner(key)), tables.is_computed(key))
        }
    }
}
