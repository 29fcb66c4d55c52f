//! Commands of Redis's sets, sorted sets and scripts, over what there is instead: rows, rankings of joins, and known scripts.

use super::super::Id;
use super::super::spec::{Group, Keys, Place, Spec, Subject};
use super::{CONSTANT, RANGE, ROW, row, sub};

const RANKING: &str =
    "O(K) for the K rows of the group, which the join computes when they are first read";

/// A read of rows under one key, which is its first argument.
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
        Place::Owner,
        syntax,
        summary,
        complexity,
        "0.1.0",
        &[],
    )
}

#[rustfmt::skip]
pub const ROWS: &[Spec] = &[
    row(Id::Eval, "EVAL", -3, "write denyoom noscript movablekeys", Group::Tables, Subject::Tables, Keys::Counted, Place::Owner,
        "script 1 key [arg ...]",
        "Executes one of the known scripts: those of redis-py's Lock, django-redis and rate-limiter-flexible. There is no Lua", ROW, "0.1.0", &[]),
    row(Id::EvalSha, "EVALSHA", -3, "write denyoom noscript movablekeys", Group::Tables, Subject::Tables, Keys::Counted, Place::Owner,
        "sha1 1 key [arg ...]",
        "As EVAL, for a script that is named by the SHA-1 of its text", ROW, "0.1.0", &[]),
    read(Id::SCard, "SCARD", 2, "key",
        "How many rows have keys that begin with the key and a separator", RANGE),
    row(Id::Script, "SCRIPT", -2, "noscript", Group::Tables, Subject::Server, Keys::None, Place::Connection,
        "LOAD script | EXISTS sha1 [sha1 ...] | FLUSH [ASYNC | SYNC]",
        "The known scripts, which are always loaded", CONSTANT, "0.1.0", &[
        sub("EXISTS", -3, "sha1 [sha1 ...]", "Which of these scripts are known: 1 or 0 for each"),
        sub("FLUSH", -2, "[ASYNC | SYNC]", "Does nothing"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LOAD", 3, "script", "The SHA-1 of a known script; others are refused"),
    ]),
    read(Id::SIsMember, "SISMEMBER", 3, "key member",
        "Whether there is a row key|member: 1 or 0", ROW),
    read(Id::SMembers, "SMEMBERS", 2, "key",
        "The text behind the key and a separator, of each row whose key begins so: ann and bob of team|red where there are team|red|ann and team|red|bob", RANGE),
    read(Id::SMIsMember, "SMISMEMBER", -3, "key member [member ...]",
        "As SISMEMBER, for several members", "O(N*log(R)) for N members"),
    read(Id::ZCard, "ZCARD", 2, "key",
        "How many rows a join ranks in a group, which is the text in front of the rank", RANKING),
    read(Id::ZCount, "ZCOUNT", 4, "key min max",
        "How many rows of a ranking have values from min to max; ( excludes a bound, -inf and +inf are none", RANKING),
    read(Id::ZMScore, "ZMSCORE", -3, "key member [member ...]",
        "As ZSCORE, for several members", RANKING),
    read(Id::ZRange, "ZRANGE", -4, "key start stop [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]",
        "Members of a ranking, which are the texts behind the rank, by ascending value: by their places, or BYSCORE by their values", RANKING),
    read(Id::ZRangeByScore, "ZRANGEBYSCORE", -4, "key min max [WITHSCORES] [LIMIT offset count]",
        "As ZRANGE BYSCORE", RANKING),
    read(Id::ZRank, "ZRANK", -3, "key member [WITHSCORE]",
        "The place of a member by ascending value, from 0; nil if it is not among the ranked", RANKING),
    read(Id::ZRevRange, "ZREVRANGE", -4, "key start stop [WITHSCORES]",
        "As ZRANGE REV", RANKING),
    read(Id::ZRevRangeByScore, "ZREVRANGEBYSCORE", -4, "key max min [WITHSCORES] [LIMIT offset count]",
        "As ZRANGE BYSCORE REV", RANKING),
    read(Id::ZRevRank, "ZREVRANK", -3, "key member [WITHSCORE]",
        "The place of a member by descending value, from 0", RANKING),
    read(Id::ZScore, "ZSCORE", 3, "key member",
        "The value of a member of a ranking; nil if it is not among the ranked", RANKING),
];
