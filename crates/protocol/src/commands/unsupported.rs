//! Unsupported commands of Redis, and their alternatives: the text of the error that rejects them.

/// Prefixes of command names, and the alternatives.
const PREFIXES: [(&str, &str); 9] = [
    (
        "FT.SUG",
        "suggestions are not supported: search for a prefix (hel*), or count words with a join",
    ),
    (
        "FT.SYN",
        "synonyms are not supported: search for alternatives (one | other)",
    ),
    (
        "FT.DICT",
        "dictionaries are not supported: search for words, prefixes (hel*) or parts (*ell*)",
    ),
    (
        "FT.SPELLCHECK",
        "spelling correction is not supported: search for a prefix (hel*) or a part (*ell*)",
    ),
    (
        "FT.HYBRID",
        "vectors are not supported: search by attributes",
    ),
    (
        "GEO",
        "geo sets are not supported: search a GEO attribute with FT.SEARCH",
    ),
    (
        "PF",
        "HyperLogLogs are not supported: count rows with a join",
    ),
    ("BITFIELD", BITS),
    ("FUNCTION", SCRIPTS),
];

const LISTS: &str = "lists are not supported: store rows under increasing keys and read them with RANGE, or use a JSON array";
const SETS: &str = "sets are stored as rows: write a row team|red|ann for the member ann of team|red, and read the members with SMEMBERS or RANGE";
const SORTED_SETS: &str = "sorted sets are computed by joins: write a score with SET score|chess|ann 5, rank the scores with JOIN.CREATE and top, and read the ranking with ZRANGE";
const STREAMS: &str = "streams are not supported: store rows under increasing keys, read them with RANGE, and SUBSCRIBE to their keys";
const BITS: &str = "bit operations are not supported: store numbers, or fields of a hash";
const SCRIPTS: &str = "Lua is not supported, and EVAL executes only a few scripts of client libraries: use SET IFEQ or DELEX to compare and change a string, OBJ.CHANGE to change an object, and MULTI with WATCH for several keys";

/// The families of unsupported commands. Commands that only read sets and sorted sets are supported.
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

/// Returns the alternative to an unsupported command; `None` if the word is not a command of Redis.
pub fn alternative_to(name: &[u8]) -> Option<&'static str> {
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
