//! The commands as data: the table of the server's commands, and requests parsed to commands.
//!
//! `table` has a row per command, `spec` defines the columns, and `value` parses a request to a [`Command`]. The server's dispatch,
//! `COMMAND` and the reference page (`cargo xtask gen`) all read the table. Only the server implements the commands.
//!
//! To add a command, add a row to `table`, a variant to [`Id`] at the same position, and a row with its function to the server's
//! table `resp/handlers.rs`.

mod spec;
mod table;
mod unsupported;
mod value;

pub use spec::{Group, InMulti, KeyPlace, Keys, Spec, Subcommand, Subject};
pub use table::COMMANDS;
pub use unsupported::alternative_to;
pub use value::{Batch, Command, Invalid, OwnedCommand};

/// The commands, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[rustfmt::skip]
pub enum Id {
    Append, Asking, Auth, Client, Cluster, Command, Config, Copy, DbSize, Decr, DecrBy, Del, DelEx, Digest, Discard, Dump, Echo, Eval, EvalSha, Exec, Exists, Expire, ExpireAt,
    ExpireTime, FlushAll, FlushDb,
    FtAggregate, FtAliasAdd, FtAliasDel, FtAliasList, FtAliasUpdate, FtAlter, FtChange, FtConfig, FtCreate, FtCursor, FtDropIndex, FtExplain,
    FtExplainCli, FtInfo, FtProfile, FtSearch, FtTagVals, FtList,
    Get, GetDel, GetEx, GetRange, GetSet, HDel, Hello, HExists, HExpire, HExpireAt, HExpireTime, HGet, HGetAll,
    HGetDel, HGetEx, HIncrBy, HIncrByFloat, HKeys, HLen, HMGet, HMSet, HPersist, HPExpire, HPExpireAt, HPExpireTime, HPTtl, HRandField, HScan, HSet,
    HSetEx, HSetNx, HStrLen, HTtl, HVals, Incr, IncrBy, IncrByFloat, Info, JoinCreate, JoinDrop, JoinExplain, JoinInfo, JoinList, JsonArrAppend, JsonArrIndex,
    JsonArrInsert, JsonArrLen, JsonArrPop, JsonArrTrim, JsonClear, JsonDel, JsonForget, JsonGet, JsonMerge, JsonMGet, JsonMSet, JsonNumIncrBy,
    JsonNumMultBy, JsonObjKeys, JsonObjLen, JsonSet, JsonStrAppend, JsonStrLen, JsonToggle, JsonType, Keys, LastSave, Latency, Memory, MGet, Module, MSet, MSetEx, MSetNx,
    Multi, ObjChange, Object, Persist, PExpire, PExpireAt, PExpireTime, Ping, PSetEx, PSubscribe, PTtl, Publish, PubSub, PUnsubscribe, Quit, RandomKey, Range, RangeCount, RangeDel,
    ReadOnly, ReadWrite, Rename, RenameNx, Reset, Restore, Role, Scan, SCard, Script, Select, Set, SetEx, SetNx, SetRange, SIsMember, SlowLog, SMembers, SMIsMember, SpaceCPut, SpaceRecord, StoreInfo, StoreList, StoreVersion, StrLen,
    Subscribe, SubStr, Time, Touch, Ttl, Type, Unlink, Unsubscribe, Unwatch, Wait, Watch, ZCard, ZCount, ZMScore, ZRange, ZRangeByScore, ZRank, ZRevRange, ZRevRangeByScore, ZRevRank, ZScore,
}

const _: () = {
    let mut at = 0;
    while at < COMMANDS.len() {
        assert!(
            COMMANDS[at].id as usize == at,
            "the variants of Id stand in the order of the table"
        );
        at += 1;
    }
};

/// Returns the row of a command.
#[inline]
pub fn spec(id: Id) -> &'static Spec {
    &COMMANDS[id as usize]
}

/// Returns the row of the command `name`, in any case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    if let [g, e, t] = name
        && [g | 32, e | 32, t | 32] == [b'g', b'e', b't']
    {
        return Some(spec(Id::Get));
    }
    let mut at = bucket(name);
    loop {
        let command = COMMANDS.get(usize::from(BY_NAME[at]))?;
        if command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(command);
        }
        at = (at + 1) % BUCKETS;
    }
}

/// More than twice the number of commands, so that most lookups find their command in the first bucket.
const BUCKETS: usize = 512;
const EMPTY: u8 = u8::MAX;

/// The commands' positions in the table. Each is in the bucket of its name or, if that bucket is occupied, in the next free one.
static BY_NAME: [u8; BUCKETS] = by_name();

/// Returns the first bucket in which to look for a name. It is the same in any case.
const fn bucket(name: &[u8]) -> usize {
    const LOWER: u8 = 32;
    let (mut hash, mut at) = (name.len() as u32, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(31) ^ (name[at] & !LOWER) as u32;
        at += 1;
    }
    (hash ^ hash >> 9) as usize % BUCKETS
}

const fn by_name() -> [u8; BUCKETS] {
    assert!(COMMANDS.len() < EMPTY as usize);
    let (mut buckets, mut index) = ([EMPTY; BUCKETS], 0);
    while index < COMMANDS.len() {
        let mut at = bucket(COMMANDS[index].name.as_bytes());
        while buckets[at] != EMPTY {
            at = (at + 1) % BUCKETS;
        }
        buckets[at] = index as u8;
        index += 1;
    }
    buckets
}

/// The join language with examples, which is part of the reference page. A test runs the examples.
pub const JOIN_LANGUAGE: &str = include_str!("../join_language.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_command_is_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for (index, command) in COMMANDS.iter().enumerate() {
            assert_eq!(command.id as usize, index, "{}", command.name);
            for name in [command.name.to_owned(), command.name.to_lowercase()] {
                assert_eq!(
                    find(name.as_bytes()).map(|found| found.id),
                    Some(command.id),
                    "{name}"
                );
            }
        }
        assert!(find(b"gex").is_none() && find(b"").is_none() && find(b"GETS").is_none());
    }

    #[test]
    fn arity_keys_and_flags_match_redis() {
        let mget = find(b"mget").unwrap();
        assert!(mget.accepts(2) && mget.accepts(9) && !mget.accepts(1));
        let positions = |id: Id, count: usize| spec(id).keys.positions(count).collect::<Vec<_>>();
        assert_eq!(positions(Id::MGet, 4), [1, 2, 3]);
        assert_eq!(positions(Id::MSet, 5), [1, 3]);
        assert_eq!(positions(Id::Get, 2), [1]);
        assert_eq!(positions(Id::Memory, 3), [2]);
        for (id, count) in [(Id::Ping, 1), (Id::Memory, 2), (Id::Range, 3)] {
            assert_eq!(positions(id, count), [0_usize; 0]);
        }
        let get = spec(Id::Get);
        assert!(get.accepts(2) && !get.accepts(3) && !get.writes && !get.before_password);
        assert!(spec(Id::Set).writes && spec(Id::Hello).before_password);
        for command in COMMANDS {
            let has = |flag: &str| command.flags.split(' ').any(|own| own == flag);
            assert_eq!(command.writes, has("write"), "{}", command.name);
            assert_eq!(command.before_password, has("no_auth"), "{}", command.name);
        }
    }
}
