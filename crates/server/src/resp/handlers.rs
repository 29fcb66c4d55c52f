//! The table of handlers: the function that executes each command, and how several cores or nodes execute it together.
//!
//! [`handler`] has a row per command, in the order of `larder_protocol::commands::Id`. It has no wildcard arm, so the
//! compiler reports a command without a handler. The dispatch, the execution on tables and the coordinator only look up
//! rows of this table; they name no commands.

use std::iter::once;
use std::pin::Pin;

use larder_protocol::commands::{COMMANDS, Command, Id};
use larder_protocol::resp::Request;

use super::objects::{change, fields, hash, json, json_mset};
use super::pending::Work;
use super::reads::{self, KeyQuery};
use super::spaces::change as space_change;
use super::spaces::{
    QueryContext, aggregate, coordinate, define, explain, info, profile, record, search,
    single_core_search, values,
};
use super::state::ConnectionState;
use super::tables::{
    Coordinator, SubscribeJob, WatchJob, dump, expire, joins, keys, members, parse_integer, range,
    rankings, rows, scripts, strings, subscribe, transaction, watch,
};
use super::tables::{reads as row_reads, scan as table_scan};
use super::{cluster, connection, describe, known_scripts, pubsub, scan};
use crate::catalog::Snapshot;
use crate::error::Refusal;
use crate::tables::NoReply;

/// A row of the table.
#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub function: Function,
    pub coordination: Coordination,
}

/// The function that executes a command on one core, by the kind of execution.
#[derive(Clone, Copy)]
pub(super) enum Function {
    /// A command on the connection or the server, which replies immediately.
    Server(fn(&mut ConnectionState, Request<'_>)),
    /// As [`Function::Server`], for a command on complete stores.
    Stores(fn(&mut ConnectionState, &Snapshot, Request<'_>)),
    /// A command on the state of the connection: its transaction, its watched keys or its subscriptions.
    Connection(fn(&mut ConnectionState, &Snapshot, Request<'_>) -> Result<Option<Work>, Refusal>),
    /// A query of each key, in stores or in tables.
    Query(fn(Request<'_>) -> Result<KeyQuery, Refusal>),
    /// A read that stores and tables execute by different functions.
    StoresOrRows {
        stores: fn(&mut ConnectionState, &Snapshot, Request<'_>) -> Option<Work>,
        rows: RowsFunction,
    },
    /// A command on rows, objects or joins that this core has. It replies within one turn.
    Rows(RowsFunction),
    /// As [`Function::Rows`], but the command may take several turns. In a transaction, which the last argument
    /// indicates, it must take one.
    Steps(fn(&mut ConnectionState, Request<'_>, bool) -> Result<Option<Work>, NoReply>),
}

type RowsFunction = fn(&mut ConnectionState, Request<'_>) -> Result<(), NoReply>;

/// The execution of a command over several cores or nodes.
#[derive(Clone, Copy)]
pub(super) enum Coordination {
    /// The command is rejected if several cores or nodes have its keys or rows.
    Rejected,
    /// Each core executes the command on its keys; if the command has none, on its rows. The replies are numbers, which
    /// are added up.
    Sum,
    /// Each core executes the command on its keys. The elements of the replies are put into the order of the keys.
    Elements,
    /// Functions for the cores of a node, and for the nodes of a cluster; `None` if the command is rejected there.
    Functions {
        cores: Option<CoordinatorFunction>,
        nodes: Option<CoordinatorFunction>,
    },
    /// A command on spaces, which always involves all cores or nodes.
    Spaces(SpaceEffect, SpaceFunction),
}

/// The effect of a command on spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceEffect {
    /// Changes definitions of spaces, which in a cluster are in the map.
    Define,
    /// Only reads, and may take long. It is aborted if its client disconnects.
    LongRead,
    Other,
}

type Reply<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Refusal>> + 'a>>;
type CoordinatorFunction = for<'a> fn(&'a mut Coordinator, Command<'a>) -> Reply<'a>;
type SpaceFunction = for<'a> fn(&'a mut QueryContext, Command<'a>) -> Reply<'a>;

/// Returns the row of a command.
#[inline]
pub(super) fn find(command: Command<'_>) -> &'static Handler {
    &HANDLERS[command.id() as usize]
}

static HANDLERS: [Handler; COMMANDS.len()] = {
    let mut all = [handler(Id::Append); COMMANDS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = handler(COMMANDS[at].id);
        at += 1;
    }
    all
};

const fn row(function: Function) -> Handler {
    Handler {
        function,
        coordination: Coordination::Rejected,
    }
}

/// A command on spaces, which the coordinator executes.
const fn space(effect: SpaceEffect, function: SpaceFunction) -> Handler {
    row(Function::Steps(|_, _, _| Ok(Some(coordinate()))))
        .over(Coordination::Spaces(effect, function))
}

impl Handler {
    const fn over(self, coordination: Coordination) -> Handler {
        Handler {
            coordination,
            ..self
        }
    }

    const fn over_cores(self, cores: CoordinatorFunction) -> Handler {
        self.over(Coordination::Functions {
            cores: Some(cores),
            nodes: None,
        })
    }

    const fn over_cores_and_nodes(
        self,
        cores: CoordinatorFunction,
        nodes: CoordinatorFunction,
    ) -> Handler {
        self.over(Coordination::Functions {
            cores: Some(cores),
            nodes: Some(nodes),
        })
    }
}

/// Executes TTL and similar of a store's key, which never expires.
fn store_ttl(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) -> Option<Work> {
    reads::read(state, snapshot, KeyQuery::Ttl, once(request.arg(1))).map(Work::Read)
}

/// Executes MEMORY USAGE of a store's key, and MEMORY DOCTOR.
fn store_memory(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) -> Option<Work> {
    if request.arg(1).eq_ignore_ascii_case(b"USAGE") {
        reads::read(state, snapshot, KeyQuery::MemoryUsage, once(request.arg(2))).map(Work::Read)
    } else {
        describe::memory_doctor(state);
        None
    }
}

/// Returns the row of a command, from which [`HANDLERS`] is built.
#[rustfmt::skip]
const fn handler(id: Id) -> Handler {
    use Coordination::{Elements, Functions, Spaces, Sum};
    use Function::{Connection, Query, Rows, Server, Steps, Stores, StoresOrRows};
    use SpaceEffect::{Define, LongRead, Other};
    match id {
        Id::Append => row(Rows(strings::append)),
        Id::Asking => row(Server(|state, _| cluster::asking(state))),
        Id::Auth => row(Server(connection::auth)),
        Id::Client => row(Server(connection::client)),
        Id::Cluster => row(Server(cluster::cluster)),
        Id::Command => row(Server(describe::command)),
        Id::Config => row(Server(describe::config)),
        Id::Copy => row(Rows(|state, request| keys::copy(state, Id::Copy, request)))
            .over_cores(|all, command| Box::pin(all.copy(command.id(), command.request))),
        Id::DbSize => row(Stores(|state, snapshot, _| describe::db_size(state, snapshot))).over(Functions {
            // On one node, the command itself counts the rows of all cores.
            cores: None,
            nodes: Some(|all, command| Box::pin(all.db_size_over_nodes(command))),
        }),
        Id::Decr => row(Rows(|state, request| rows::increment(state, request.arg(1), Some(-1)))),
        Id::DecrBy => row(Rows(|state, request| rows::increment(state, request.arg(1), parse_integer(request.arg(2))?.checked_neg()))),
        Id::Del => row(Rows(rows::del)).over(Sum),
        Id::DelEx => row(Rows(rows::del_if)),
        Id::Digest => row(Query(|_| Ok(KeyQuery::Digest))),
        Id::Discard => row(Connection(|state, _, _| transaction::discard(state).map(|()| None))),
        Id::Dump => row(Rows(dump::dump)),
        Id::Echo => row(Server(|state, request| state.encoder().bulk(request.arg(1)))),
        Id::Eval => row(Rows(|state, request| scripts::eval(state, request, false))),
        Id::EvalSha => row(Rows(|state, request| scripts::eval(state, request, true))),
        Id::Exec => row(Connection(|state, snapshot, _| Ok(transaction::exec(state, snapshot)))),
        Id::Exists => row(Query(|_| Ok(KeyQuery::Exists))).over(Sum),
        Id::Expire => row(Rows(|state, request| expire::expire(state, request, "expire", (1000, true)))),
        Id::ExpireAt => row(Rows(|state, request| expire::expire(state, request, "expireat", (1000, false)))),
        Id::ExpireTime => row(StoresOrRows { stores: store_ttl, rows: |state, request| expire::expire_time(state, request.arg(1), 1000) }),
        Id::FlushAll => row(Steps(|state, request, atomic| range::flush(state, request, "FLUSHALL", atomic)))
            .over_cores_and_nodes(|all, command| Box::pin(all.flush(command)), |all, command| Box::pin(all.flush_over_nodes(command))),
        Id::FlushDb => row(Steps(|state, request, atomic| range::flush(state, request, "FLUSHDB", atomic)))
            .over_cores_and_nodes(|all, command| Box::pin(all.flush(command)), |all, command| Box::pin(all.flush_over_nodes(command))),
        Id::FtAggregate => space(LongRead, |context, command| Box::pin(aggregate::aggregate(context, command))),
        Id::FtAliasAdd => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtAliasDel => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtAliasList => row(Rows(info::aliases)),
        Id::FtAliasUpdate => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtAlter => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtChange => space(Other, |context, command| Box::pin(space_change::change(context, command))),
        Id::FtConfig => row(Rows(|state, request| Ok(explain::config(state, request)?))),
        Id::FtCreate => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtCursor => space(Other, |context, command| Box::pin(aggregate::cursor(context, command))),
        Id::FtDropIndex => space(Define, |context, command| Box::pin(define::define(context, command))),
        Id::FtExplain => space(LongRead, |context, command| Box::pin(explain::explain(context, command))),
        Id::FtExplainCli => space(LongRead, |context, command| Box::pin(explain::explain(context, command))),
        Id::FtInfo => space(Other, |context, command| Box::pin(info::info(context, command))),
        Id::FtProfile => space(LongRead, |context, command| Box::pin(profile::profile(context, command))),
        Id::FtSearch => row(Steps(single_core_search::search))
            .over(Spaces(LongRead, |context, command| Box::pin(search::search(context, command)))),
        Id::FtTagVals => space(LongRead, |context, command| Box::pin(values::tag_values(context, command))),
        Id::FtList => row(Rows(|state, _| { info::list(state); Ok(()) })),
        Id::Get => row(Query(|_| Ok(KeyQuery::Get))),
        Id::GetDel => row(Rows(strings::get_del)),
        Id::GetEx => row(Rows(strings::get_ex)),
        Id::GetRange => row(Query(reads::range_query)),
        Id::GetSet => row(Rows(strings::get_set)),
        Id::HDel => row(Rows(hash::delete)),
        Id::Hello => row(Server(connection::hello)),
        Id::HExists => row(Rows(hash::exists)),
        Id::HExpire => row(Rows(|state, request| fields::expire(state, request, "hexpire", (1000, true)))),
        Id::HExpireAt => row(Rows(|state, request| fields::expire(state, request, "hexpireat", (1000, false)))),
        Id::HExpireTime => row(Rows(|state, request| fields::read_times(state, request, |at, _| at.div_ceil(1000)))),
        Id::HGet => row(Rows(hash::get)),
        Id::HGetAll => row(Rows(|state, request| hash::read_all(state, request, hash::FieldParts::Both))),
        Id::HGetDel => row(Rows(fields::get_del)),
        Id::HGetEx => row(Rows(fields::get_ex)),
        Id::HIncrBy => row(Rows(hash::increment)),
        Id::HIncrByFloat => row(Rows(hash::increment_float)),
        Id::HKeys => row(Rows(|state, request| hash::read_all(state, request, hash::FieldParts::Names))),
        Id::HLen => row(Rows(hash::length)),
        Id::HMGet => row(Rows(hash::get_several)),
        Id::HMSet => row(Rows(|state, request| hash::set(state, request, true))),
        Id::HPersist => row(Rows(fields::persist)),
        Id::HPExpire => row(Rows(|state, request| fields::expire(state, request, "hpexpire", (1, true)))),
        Id::HPExpireAt => row(Rows(|state, request| fields::expire(state, request, "hpexpireat", (1, false)))),
        Id::HPExpireTime => row(Rows(|state, request| fields::read_times(state, request, |at, _| at))),
        Id::HPTtl => row(Rows(|state, request| fields::read_times(state, request, |at, now| at - now))),
        Id::HRandField => row(Rows(hash::random)),
        Id::HScan => row(Rows(hash::scan)),
        Id::HSet => row(Rows(|state, request| hash::set(state, request, false))),
        Id::HSetEx => row(Rows(fields::set_ex)),
        Id::HSetNx => row(Rows(hash::set_if_absent)),
        Id::HStrLen => row(Rows(hash::value_length)),
        Id::HTtl => row(Rows(|state, request| fields::read_times(state, request, |at, now| (at - now).div_ceil(1000)))),
        Id::HVals => row(Rows(|state, request| hash::read_all(state, request, hash::FieldParts::Values))),
        Id::Incr => row(Rows(|state, request| rows::increment(state, request.arg(1), Some(1)))),
        Id::IncrBy => row(Rows(|state, request| rows::increment(state, request.arg(1), Some(parse_integer(request.arg(2))?)))),
        Id::IncrByFloat => row(Rows(strings::increment_by_float)),
        Id::Info => row(Stores(describe::info)),
        Id::JoinCreate => row(Steps(|state, request, atomic| joins::define(state, Id::JoinCreate, request, atomic)))
            .over_cores_and_nodes(
                |all, command| Box::pin(all.define_join(command)),
                |all, command| Box::pin(all.define_join_over_nodes(command)),
            ),
        Id::JoinDrop => row(Steps(|state, request, atomic| joins::define(state, Id::JoinDrop, request, atomic)))
            .over_cores_and_nodes(
                |all, command| Box::pin(all.define_join(command)),
                |all, command| Box::pin(all.define_join_over_nodes(command)),
            ),
        Id::JoinExplain => row(Rows(joins::explain)),
        Id::JoinInfo => row(Rows(joins::info)).over_cores(|all, command| Box::pin(all.join_info(command.request))),
        Id::JoinList => row(Rows(|state, _| { joins::list(state); Ok(()) })),
        Id::JsonArrAppend => row(Rows(json::append_elements)),
        Id::JsonArrIndex => row(Rows(json::index_of)),
        Id::JsonArrInsert => row(Rows(json::insert_elements)),
        Id::JsonArrLen => row(Rows(|state, request| json::lengths(state, request, "an array"))),
        Id::JsonArrPop => row(Rows(json::pop_elements)),
        Id::JsonArrTrim => row(Rows(json::trim_elements)),
        Id::JsonClear => row(Rows(json::clear)),
        Id::JsonDel => row(Rows(json::delete)),
        Id::JsonForget => row(Rows(json::delete)),
        Id::JsonGet => row(Rows(json::get)),
        Id::JsonMerge => row(Rows(json::merge)),
        Id::JsonMGet => row(Rows(json::get_several)).over(Elements),
        Id::JsonMSet => row(Rows(json_mset::set_several)).over_cores(|all, command| Box::pin(all.json_mset(command.request))),
        Id::JsonNumIncrBy => row(Rows(|state, request| json::change_numbers(state, request, false))),
        Id::JsonNumMultBy => row(Rows(|state, request| json::change_numbers(state, request, true))),
        Id::JsonObjKeys => row(Rows(json::names)),
        Id::JsonObjLen => row(Rows(|state, request| json::lengths(state, request, "an object"))),
        Id::JsonSet => row(Rows(json::set)),
        Id::JsonStrAppend => row(Rows(json::append_string)),
        Id::JsonStrLen => row(Rows(|state, request| json::lengths(state, request, "a string"))),
        Id::JsonToggle => row(Rows(json::toggle)),
        Id::JsonType => row(Rows(json::types)),
        Id::Keys => row(Rows(table_scan::keys))
            .over_cores_and_nodes(
                |all, command| Box::pin(all.keys(command.request)),
                |all, command| Box::pin(all.keys_over_nodes(command)),
            ),
        Id::LastSave => row(Server(|state, _| describe::last_save(state))),
        Id::Latency => row(Server(describe::latency)),
        Id::Memory => row(StoresOrRows { stores: store_memory, rows: |state, request| row_reads::read(state, KeyQuery::MemoryUsage, once(request.arg(2))) }),
        Id::MGet => row(Query(|_| Ok(KeyQuery::MGet))).over(Elements),
        Id::Module => row(Server(|state, _| describe::modules(state))),
        Id::MSet => row(Rows(|state, request| keys::put(state, Id::MSet, request))).over_cores(|all, command| Box::pin(all.put_texts(command))),
        Id::MSetEx => row(Rows(|state, request| keys::put(state, Id::MSetEx, request))).over_cores(|all, command| Box::pin(all.put_texts(command))),
        Id::MSetNx => row(Rows(|state, request| keys::put(state, Id::MSetNx, request))).over_cores(|all, command| Box::pin(all.put_texts(command))),
        Id::Multi => row(Connection(|state, _, _| transaction::begin(state).map(|()| None))),
        Id::ObjChange => row(Rows(change::run)),
        Id::Object => row(Query(reads::object_query)),
        Id::Persist => row(Rows(|state, request| expire::persist(state, request.arg(1)))),
        Id::PExpire => row(Rows(|state, request| expire::expire(state, request, "pexpire", (1, true)))),
        Id::PExpireAt => row(Rows(|state, request| expire::expire(state, request, "pexpireat", (1, false)))),
        Id::PExpireTime => row(StoresOrRows { stores: store_ttl, rows: |state, request| expire::expire_time(state, request.arg(1), 1) }),
        Id::Ping => row(Server(connection::ping)),
        Id::PSetEx => row(Rows(|state, request| strings::set_ex(state, request, "psetex", b"PX"))),
        Id::PSubscribe => row(Connection(|state, snapshot, request| SubscribeJob::begin(state, snapshot, request, true))),
        Id::PTtl => row(StoresOrRows { stores: store_ttl, rows: |state, request| expire::ttl(state, request.arg(1), 1) }),
        Id::Publish => row(Server(pubsub::publish)),
        Id::PubSub => row(Server(pubsub::pubsub)),
        Id::PUnsubscribe => row(Rows(|state, request| { subscribe::unsubscribe(state, request, true); Ok(()) })),
        Id::Quit => row(Server(|state, _| connection::quit(state))),
        Id::RandomKey => row(Rows(|state, _| table_scan::random_key(state)))
            .over_cores_and_nodes(|all, _| Box::pin(all.random_key()), |all, command| Box::pin(all.random_key_over_nodes(command))),
        Id::Range => row(Steps(range::range)).over_cores(|all, command| Box::pin(all.read_range(command.request))),
        Id::RangeCount => row(Rows(range::count)).over(Sum),
        Id::RangeDel => row(Steps(range::remove)).over(Sum),
        Id::ReadOnly => row(Server(|state, _| cluster::set_reads_replicas(state, true))),
        Id::ReadWrite => row(Server(|state, _| cluster::set_reads_replicas(state, false))),
        Id::Rename => row(Rows(|state, request| keys::copy(state, Id::Rename, request)))
            .over_cores(|all, command| Box::pin(all.copy(command.id(), command.request))),
        Id::RenameNx => row(Rows(|state, request| keys::copy(state, Id::RenameNx, request)))
            .over_cores(|all, command| Box::pin(all.copy(command.id(), command.request))),
        Id::Reset => row(Server(|state, _| connection::reset(state))),
        Id::Restore => row(Rows(dump::restore)),
        Id::Role => row(Server(|state, _| describe::role(state))),
        Id::Scan => row(StoresOrRows { stores: |state, snapshot, request| scan::parse_scan(state, snapshot, request).map(Work::Scan), rows: table_scan::scan })
            .over_cores_and_nodes(
                |all, command| Box::pin(all.scan(command.request)),
                |all, command| Box::pin(all.scan_over_nodes(command.request)),
            ),
        Id::SCard => row(Rows(members::count)),
        Id::Script => row(Server(known_scripts::script)),
        Id::Select => row(Server(connection::select)),
        Id::Set => row(Rows(rows::set)),
        Id::SetEx => row(Rows(|state, request| strings::set_ex(state, request, "setex", b"EX"))),
        Id::SetNx => row(Rows(rows::set_if_absent)),
        Id::SetRange => row(Rows(strings::set_range)),
        Id::SIsMember => row(Rows(|state, request| members::contains(state, request, false))),
        Id::SlowLog => row(Server(describe::slowlog)),
        Id::SMembers => row(Steps(members::read_all)),
        Id::SMIsMember => row(Rows(|state, request| members::contains(state, request, true))),
        Id::SpaceCPut => row(Rows(change::put)),
        Id::SpaceRecord => space(Other, |context, command| Box::pin(record::record(context, command))),
        Id::StoreInfo => row(Stores(describe::store_info)),
        Id::StoreList => row(Stores(|state, snapshot, _| describe::store_list(state, snapshot))),
        Id::StoreVersion => row(Stores(describe::store_version)),
        Id::StrLen => row(Query(|_| Ok(KeyQuery::StrLen))),
        Id::Subscribe => row(Connection(|state, snapshot, request| SubscribeJob::begin(state, snapshot, request, false))),
        Id::SubStr => row(Query(reads::range_query)),
        Id::Time => row(Server(|state, _| describe::time(state))),
        Id::Touch => row(Query(|_| Ok(KeyQuery::Exists))).over(Sum),
        Id::Ttl => row(StoresOrRows { stores: store_ttl, rows: |state, request| expire::ttl(state, request.arg(1), 1000) }),
        Id::Type => row(Query(|_| Ok(KeyQuery::Type))),
        Id::Unlink => row(Rows(rows::del)).over(Sum),
        Id::Unsubscribe => row(Rows(|state, request| { subscribe::unsubscribe(state, request, false); Ok(()) })),
        Id::Unwatch => row(Rows(|state, _| { watch::unwatch(state); Ok(()) })),
        Id::Wait => row(Server(describe::wait)),
        Id::Watch => row(Connection(|state, snapshot, request| WatchJob::begin(state, snapshot, request))),
        Id::ZCard => row(Rows(rankings::count)),
        Id::ZCount => row(Rows(rankings::count_between)),
        Id::ZMScore => row(Rows(|state, request| rankings::scores(state, request, false))),
        Id::ZRange => row(Rows(|state, request| rankings::range(state, Id::ZRange, request))),
        Id::ZRangeByScore => row(Rows(|state, request| rankings::range(state, Id::ZRangeByScore, request))),
        Id::ZRank => row(Rows(|state, request| rankings::rank(state, request, false))),
        Id::ZRevRange => row(Rows(|state, request| rankings::range(state, Id::ZRevRange, request))),
        Id::ZRevRangeByScore => row(Rows(|state, request| rankings::range(state, Id::ZRevRangeByScore, request))),
        Id::ZRevRank => row(Rows(|state, request| rankings::rank(state, request, true))),
        Id::ZScore => row(Rows(|state, request| rankings::scores(state, request, true))),
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::commands::{KeyPlace, Keys, Spec, Subject};

    use super::*;

    #[test]
    fn every_command_has_a_handler_of_the_kind_that_its_subject_demands() {
        for command in COMMANDS {
            let function = handler(command.id).function;
            let is_right = match command.subject {
                Subject::Server => matches!(function, Function::Server(_) | Function::Stores(_)),
                Subject::Keys => {
                    matches!(function, Function::Query(_) | Function::StoresOrRows { .. })
                }
                Subject::Tables => matches!(
                    function,
                    Function::Connection(_)
                        | Function::Query(_)
                        | Function::Rows(_)
                        | Function::Steps(_)
                ),
            };
            assert!(is_right, "{}", command.name);
        }
    }

    /// Returns whether several cores may have the keys or rows of a command.
    fn may_concern_several_cores(command: &Spec) -> bool {
        use Keys::{CountedPairs, Every, EveryButLast, Pairs, Range, Triplets, Two};
        let has_several = matches!(
            command.keys,
            Two | Every | EveryButLast | Pairs | CountedPairs | Triplets | Range
        );
        match command.place {
            KeyPlace::Owner => has_several,
            KeyPlace::AllCores => command.subject != Subject::Server,
            KeyPlace::Connection | KeyPlace::ConnectionInOrder => false,
        }
    }

    #[test]
    fn every_command_that_may_concern_several_cores_is_coordinated() {
        for command in COMMANDS
            .iter()
            .filter(|command| may_concern_several_cores(command))
        {
            let coordination = handler(command.id).coordination;
            assert!(
                !matches!(coordination, Coordination::Rejected),
                "{}",
                command.name
            );
        }
    }
}
