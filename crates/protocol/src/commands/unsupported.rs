//! Commands of Redis that there are not, and what to use instead: the text of the error that refuses them.

/// Beginnings of names, and what to use instead.
const PREFIXES: [(&str, &str); 9] = [
    (
        "FT.SUG",
        "there are no suggestions: search for a prefix (hel*), or count words with a join",
    ),
    (
        "FT.SYN",
        "there are no synonyms: search for one of several words (one | other)",
    ),
    (
        "FT.DICT",
        "there are no dictionaries: words are searched as they are, by prefixes and by parts",
    ),
    (
        "FT.SPELLCHECK",
        "spelling is not corrected: search for a prefix (hel*) or a part (*ell*)",
    ),
    ("FT.HYBRID", "there are no vectors: search by attributes"),
    (
        "GEO",
        "there are no geo sets: search a GEO attribute with FT.SEARCH",
    ),
    ("PF", "there are no HyperLogLogs: count rows with a join"),
    ("BITFIELD", BITS),
    ("FUNCTION", SCRIPTS),
];

const LISTS: &str =
    "there are no lists: keep rows under increasing keys and read them with RANGE, or a JSON array";
const SETS: &str = "sets are rows: write team|red|ann for the member ann of team|red, and read them with SMEMBERS or RANGE";
const SORTED_SETS: &str = "sorted sets are what joins rank: SET score|chess|ann 5 is a score, JOIN.CREATE with top ranks them, and ZRANGE reads the ranking";
const STREAMS: &str = "there are no streams: keep rows under increasing keys, read on with RANGE, and SUBSCRIBE to their keys";
const BITS: &str = "there are no operations on bits: keep numbers, or the fields of a hash";
const SCRIPTS: &str = "there is no Lua, and EVAL knows a few scripts of client libraries only: SET IFEQ and DELEX compare and change a text, OBJ.CHANGE an object, and MULTI with WATCH several keys";

/// The families of commands that are not there. Those that only read sets and sorted sets are executed.
#[rustfmt::skip]
const FAMILIES: [(&str, &[&str]); 6] = [
    (LISTS, &[
        "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "LINDEX", "LINSERT", "LLEN", "LMOVE", "LMPOP", "LPOP",
        "LPOS", "LPUSH", "LPUSHX", "LRANGE", "LREM", "LSET", "LTRIM", "RPOP", "RPOPLPUSH", "RPUSH", "RPUSHX",
    ]),
    (SETS, &[
        "SADD", "SDIFF", "SDIFFSTORE", "SINTER", "SINTERCARD", "SINTERSTORE", "SMOVE", "SPOP", "SRANDMEMBER", "SREM",
        "SSCAN", "SUNION", "SUNIONSTORE",
    ]),
    (SORTED_SETS, &[
        "BZMPOP", "BZPOPMAX", "BZPOPMIN", "ZADD", "ZDIFF", "ZDIFFSTORE", "ZINCRBY", "ZINTER", "ZINTERCARD",
        "ZINTERSTORE", "ZLEXCOUNT", "ZMPOP", "ZPOPMAX", "ZPOPMIN", "ZRANDMEMBER", "ZRANGEBYLEX", "ZRANGESTORE", "ZREM",
        "ZREMRANGEBYLEX", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGEBYLEX", "ZSCAN", "ZUNION", "ZUNIONSTORE",
    ]),
    (STREAMS, &[
        "XACK", "XACKDEL", "XADD", "XAUTOCLAIM", "XCLAIM", "XDEL", "XDELEX", "XGROUP", "XINFO", "XLEN", "XPENDING",
        "XRANGE", "XREAD", "XREADGROUP", "XREVRANGE", "XSETID", "XTRIM",
    ]),
    (BITS, &[
        "BITCOUNT", "BITOP", "BITPOS", "GETBIT", "SETBIT",
    ]),
    (SCRIPTS, &[
        "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO",
    ]),
];

/// What to use instead of a command that larder does not have; `None` for a word that is no command of Redis.
pub fn instead_of(name: &[u8]) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let is_named = |known: &str| known.as_bytes() == name;
    let family = FAMILIES
        .iter()
        .find(|(_, names)| names.iter().any(|known| is_named(known)));
    let prefix = || {
        let fits = |known: &&(&str, &str)| name.starts_with(known.0.as_bytes());
        PREFIXES.iter().find(fits).map(|(_, instead)| *instead)
    };
    family.map(|(instead, _)| *instead).or_else(prefix)
}
