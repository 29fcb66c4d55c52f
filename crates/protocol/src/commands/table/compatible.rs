//! Commands of Redis's sets, sorted sets and scripts, implemented on rows, rankings of joins, and known scripts.

use super::super::Id;
use super::super::spec::{Group, KeyPlace, Keys, Spec, Subject};
use super::{CONSTANT, RANGE, ROW, row, sub};

const RANKING: &str = "O(K) for the K rows of the group; the join computes them on the first read";

/// A command that reads the rows below one key, its first argument.
const fn read(
    id: Id,
    name: &'static str,
    arity: i32,
    syntax: &'static str,
    summary: &'static str,
    complexity: &'static str,
) -> Spec {
    row(
        id,
        name,
        arity,
        "readonly",
        Group::Tables,
        Subject::Tables,
        Keys::One,
        KeyPlace::Owner,
        syntax,
        summary,
        complexity,
        "0.1.0",
        &[],
    )
}

#[rustfmt::skip]
pub const ROWS: &[Spec] = &[
    row(Id::Eval, "EVAL", -3, "write denyoom noscript movablekeys", Group::Tables, Subject::Tables, Keys::Counted, KeyPlace::Owner,
        "script 1 key [arg ...]",
        "Executes one of the known scripts, which are those of redis-py's Lock, django-redis and rate-limiter-flexible; other scripts are rejected, because there is no Lua", ROW, "0.1.0", &[]),
    row(Id::EvalSha, "EVALSHA", -3, "write denyoom noscript movablekeys", Group::Tables, Subject::Tables, Keys::Counted, KeyPlace::Owner,
        "sha1 1 key [arg ...]",
        "As EVAL, for a script given by the SHA-1 of its text", ROW, "0.1.0", &[]),
    read(Id::SCard, "SCARD", 2, "key",
        "Returns the number of rows whose keys begin with the key and a separator", RANGE),
    row(Id::Script, "SCRIPT", -2, "noscript", Group::Tables, Subject::Server, Keys::None, KeyPlace::Connection,
        "LOAD script | EXISTS sha1 [sha1 ...] | FLUSH [ASYNC | SYNC]",
        "Describes the known scripts, which are always loaded", CONSTANT, "0.1.0", &[
        sub("EXISTS", -3, "sha1 [sha1 ...]", "Returns 1 for each known script, 0 for any other"),
        sub("FLUSH", -2, "[ASYNC | SYNC]", "Accepted without effect"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LOAD", 3, "script", "Returns the SHA-1 of a known script; other scripts are rejected"),
    ]),
    read(Id::SIsMember, "SISMEMBER", 3, "key member",
        "Returns 1 if a row key|member exists, else 0", ROW),
    read(Id::SMembers, "SMEMBERS", 2, "key",
        "Returns the part of each row's key that follows the key and a separator: ann and bob for team|red if the rows are team|red|ann and team|red|bob", RANGE),
    read(Id::SMIsMember, "SMISMEMBER", -3, "key member [member ...]",
        "As SISMEMBER, for several members", "O(N*log(R)) for N members"),
    read(Id::ZCard, "ZCARD", 2, "key",
        "Returns the number of rows that a join ranks in a group; the key is the part of the rows' keys before the rank", RANKING),
    read(Id::ZCount, "ZCOUNT", 4, "key min max",
        "Returns the number of rows of a ranking with values from min to max; ( excludes a bound, -inf and +inf are unbounded", RANKING),
    read(Id::ZMScore, "ZMSCORE", -3, "key member [member ...]",
        "As ZSCORE, for several members", RANKING),
    read(Id::ZRange, "ZRANGE", -4, "key start stop [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]",
        "Returns members of a ranking (the part of the rows' keys after the rank) in ascending order of value, selected by rank or, with BYSCORE, by value", RANKING),
    read(Id::ZRangeByScore, "ZRANGEBYSCORE", -4, "key min max [WITHSCORES] [LIMIT offset count]",
        "As ZRANGE BYSCORE", RANKING),
    read(Id::ZRank, "ZRANK", -3, "key member [WITHSCORE]",
        "Returns a member's zero-based rank in ascending order of value; nil if it is not ranked", RANKING),
    read(Id::ZRevRange, "ZREVRANGE", -4, "key start stop [WITHSCORES]",
        "As ZRANGE REV", RANKING),
    read(Id::ZRevRangeByScore, "ZREVRANGEBYSCORE", -4, "key max min [WITHSCORES] [LIMIT offset count]",
        "As ZRANGE BYSCORE REV", RANKING),
    read(Id::ZRevRank, "ZREVRANK", -3, "key member [WITHSCORE]",
        "Returns a member's zero-based rank in descending order of value; nil if it is not ranked", RANKING),
    read(Id::ZScore, "ZSCORE", 3, "key member",
        "Returns the value of a member of a ranking; nil if it is not ranked", RANKING),
];
