//! The table of all commands that the server executes, sorted by name.
//!
//! | column | meaning |
//! |---|---|
//! | id, name | the variant of [`Id`], and the name in capitals |
//! | arity | number of arguments, including the name; negative: the minimum |
//! | flags | Redis's flags, separated by spaces; the server interprets `write`, `no_auth` and `pubsub` |
//! | group | the chapter of the reference page |
//! | subject, keys, place | what the command is about, which arguments are keys, and which core executes it |
//! | syntax, summary, complexity, since | shown by `COMMAND DOCS` and on the reference page |
//! | subcommands | the subcommands that the first argument selects |
//!
//! `objects` has the commands on objects, `spaces` those on spaces, and `compatible` those of Redis's sets, sorted sets and scripts; [`COMMANDS`] merges all.

mod compatible;
mod objects;
mod spaces;

use super::Id;
use super::spec::{Group, InMulti, KeyPlace, Keys, Spec, Subcommand, Subject};

const CONSTANT: &str = "O(1)";
const ROW: &str = "O(log(R))";
const READ: &str = "O(log(R)) in tables, O(1) in stores";
const N_READS: &str = "O(N*log(R)) for N keys in tables, O(N) in stores";
const RANGE: &str = "O(log(R)+N) for N rows; a join computes its rows on the first read";

const fn sub(
    name: &'static str,
    arity: i32,
    syntax: &'static str,
    summary: &'static str,
) -> Subcommand {
    Subcommand {
        name,
        arity,
        syntax,
        summary,
    }
}

#[allow(clippy::too_many_arguments)] // a row has as many columns
const fn row(
    id: Id,
    name: &'static str,
    arity: i32,
    flags: &'static str,
    group: Group,
    subject: Subject,
    keys: Keys,
    place: KeyPlace,
    syntax: &'static str,
    summary: &'static str,
    complexity: &'static str,
    since: &'static str,
    subcommands: &'static [Subcommand],
) -> Spec {
    Spec {
        id,
        name,
        arity,
        flags,
        writes: has_word(flags, "write"),
        before_password: has_word(flags, "no_auth"),
        is_pubsub: has_word(flags, "pubsub"),
        in_subscriber_mode: matches!(id, Id::Ping | Id::Quit | Id::Reset)
            || (has_word(flags, "pubsub") && !matches!(id, Id::Publish | Id::PubSub)),
        in_multi: match id {
            Id::Multi | Id::Exec | Id::Discard | Id::Watch | Id::Quit | Id::Reset => {
                InMulti::Executed
            }
            Id::FtAggregate | Id::FtInfo | Id::FtSearch | Id::Publish | Id::PubSub => {
                InMulti::Queued
            }
            _ if has_word(flags, "pubsub") || matches!(group, Group::Spaces) => InMulti::Refused,
            _ => InMulti::Queued,
        },
        group,
        subject,
        keys,
        place,
        syntax,
        summary,
        complexity,
        since,
        subcommands,
    }
}

/// Returns whether `words`, separated by spaces, contain `word`.
const fn has_word(words: &str, word: &str) -> bool {
    let (words, word) = (words.as_bytes(), word.as_bytes());
    let (mut start, mut at) = (0, 0);
    while at <= words.len() {
        if at == words.len() || words[at] == b' ' {
            let mut same = 0;
            while same < word.len() && start + same < at && words[start + same] == word[same] {
                same += 1;
            }
            if same == word.len() && start + same == at {
                return true;
            }
            start = at + 1;
        }
        at += 1;
    }
    false
}

/// All commands.
pub const COMMANDS: &[Spec] = &merged::<
    { ROWS.len() + compatible::ROWS.len() + objects::ROWS.len() + spaces::ROWS.len() },
>([ROWS, compatible::ROWS, objects::ROWS, spaces::ROWS]);

/// Merges lists that are each sorted by name into one sorted list.
const fn merged<const N: usize>(lists: [&[Spec]; 4]) -> [Spec; N] {
    let mut all = [ROWS[0]; N];
    let (mut positions, mut at) = ([0; 4], 0);
    while at < N {
        let (mut first, mut list) = (lists.len(), 0);
        while list < lists.len() {
            if positions[list] < lists[list].len()
                && (first == lists.len()
                    || is_before(
                        lists[list][positions[list]].name.as_bytes(),
                        lists[first][positions[first]].name.as_bytes(),
                    ))
            {
                first = list;
            }
            list += 1;
        }
        all[at] = lists[first][positions[first]];
        positions[first] += 1;
        at += 1;
    }
    all
}

const fn is_before(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() {
        if a[at] != b[at] {
            return a[at] < b[at];
        }
        at += 1;
    }
    a.len() < b.len()
}

#[rustfmt::skip]
const ROWS: &[Spec] = &[
    row(Id::Append, "APPEND", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key value",
        "Appends bytes to a string, and creates it if it is absent; returns its new length", ROW, "0.1.0", &[]),
    row(Id::Asking, "ASKING", 1, "fast", Group::Cluster, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Accepted from clients of Redis Cluster; rejected unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::Auth, "AUTH", -2, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "[username] password",
        "Authenticates the connection with the server's password; the user is default", CONSTANT, "0.1.0", &[]),
    row(Id::Client, "CLIENT", -2, "noscript loading stale", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "subcommand [argument ...]",
        "Shows and changes properties of this and other connections", CONSTANT, "0.1.0", &[
        sub("CACHING", 3, "YES | NO", "With OPTIN or OPTOUT: selects whether the keys that the next command reads are tracked"),
        sub("GETNAME", 2, "", "Returns the connection's name, or nil"),
        sub("GETREDIR", 2, "", "Returns the id of the connection that receives the invalidations; 0: this connection, -1: none"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("ID", 2, "", "Returns the connection's id"),
        sub("INFO", 2, "", "Returns one line about the connection"),
        sub("KILL", -3, "ip:port | [ID id] [TYPE type] [ADDR ip:port] [LADDR ip:port] [SKIPME yes | no]", "Closes connections; returns OK or the number of closed connections"),
        sub("LIST", -2, "[ID id ... | TYPE type]", "Returns one line per connection"),
        sub("NO-EVICT", 3, "ON | OFF", "Accepted without effect: connections are never evicted"),
        sub("NO-TOUCH", 3, "ON | OFF", "Accepted without effect: reads change no access times"),
        sub("REPLY", 3, "ON", "Accepted only with ON"),
        sub("SETINFO", 4, "LIB-NAME name | LIB-VER version", "Records the name or the version of the client's library"),
        sub("SETNAME", 3, "name", "Names the connection"),
        sub("TRACKING", -3, "ON | OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]", "Enables or disables notifications of changes to keys that the client may have cached"),
        sub("TRACKINGINFO", 2, "", "Returns the connection's tracking options"),
    ]),
    row(Id::Cluster, "CLUSTER", -2, "loading stale", Group::Cluster, Subject::Server, Keys::None, KeyPlace::Connection,
        "subcommand [argument ...]",
        "Describes the cluster to clients of Redis Cluster; rejected unless cluster.mode is set", CONSTANT, "0.1.0", &[
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("INFO", 2, "", "Returns whether all slots are served, and the number of nodes"),
        sub("KEYSLOT", 3, "key", "Returns the hash slot of a key"),
        sub("MAP", 2, "", "Returns the cluster map of this node as JSON"),
        sub("MYID", 2, "", "Returns the node's id"),
        sub("NODES", 2, "", "Returns one line per node"),
        sub("SHARDS", 2, "", "Returns the slots and the nodes that serve them"),
        sub("SLOTS", 2, "", "Returns the slots and the nodes that serve them, in the format for older clients"),
    ]),
    row(Id::Command, "COMMAND", -1, "loading stale", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "[subcommand]",
        "Describes the commands", CONSTANT, "0.1.0", &[
        sub("COUNT", 2, "", "Returns the number of commands"),
        sub("DOCS", -2, "[name ...]", "Returns summaries and other documentation of commands"),
        sub("GETKEYS", -3, "command [argument ...]", "Returns the keys of a command"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("INFO", -2, "[name ...]", "Returns arity, flags and key positions of commands"),
        sub("LIST", -2, "[FILTERBY MODULE module | ACLCAT category | PATTERN pattern]", "Returns the names of commands and subcommands"),
    ]),
    row(Id::Config, "CONFIG", -2, "admin noscript loading stale", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "GET pattern [pattern ...]",
        "Shows some settings under Redis's names", CONSTANT, "0.1.0", &[
        sub("GET", -3, "pattern [pattern ...]", "Returns the settings whose names match"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("RESETSTAT", 2, "", "Resets the counters of INFO and LATENCY HISTOGRAM, but not those of /metrics"),
        sub("REWRITE", 2, "", "Rejected: the server never writes its configuration"),
        sub("SET", -4, "parameter value", "Sets notify-keyspace-events until the next restart; other settings are rejected: see larder.toml and PATCH /v1/settings"),
    ]),
    row(Id::Copy, "COPY", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Two, KeyPlace::Owner,
        "source destination [DB 0] [REPLACE]",
        "Copies a row's value and expiry to another key; returns 1, or 0 if the source is absent or the destination exists", ROW, "0.1.0", &[]),
    row(Id::DbSize, "DBSIZE", 1, "readonly fast", Group::Server, Subject::Server, Keys::None, KeyPlace::AllCores,
        "",
        "Returns the number of records in all live versions plus the number of rows in all tables", CONSTANT, "0.1.0", &[]),
    row(Id::Decr, "DECR", 2, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Subtracts 1 from an integer, 0 if it is absent; returns the result", ROW, "0.1.0", &[]),
    row(Id::DecrBy, "DECRBY", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key decrement",
        "Subtracts a number from an integer, 0 if it is absent; returns the result", ROW, "0.1.0", &[]),
    row(Id::Del, "DEL", -2, "write", Group::Tables, Subject::Tables, Keys::Every, KeyPlace::Owner,
        "key [key ...]",
        "Removes rows; returns the number of removed rows", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::DelEx, "DELEX", -2, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]",
        "Removes a string if it equals or differs from a value, or by its DIGEST; returns 1 or 0", ROW, "0.1.0", &[]),
    row(Id::Digest, "DIGEST", 2, "readonly fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the XXH3 hash of a string as 16 hexadecimal digits", ROW, "0.1.0", &[]),
    row(Id::Discard, "DISCARD", 1, "noscript loading stale fast", Group::Tables, Subject::Tables, Keys::None, KeyPlace::Connection,
        "",
        "Discards the commands queued since MULTI", ROW, "0.1.0", &[]),
    row(Id::Dump, "DUMP", 2, "readonly", Group::Generic, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Returns a string or a hash in Redis's serialization format, or a JSON document in larder's own, for RESTORE", ROW, "0.1.0", &[]),
    row(Id::Echo, "ECHO", 2, "loading stale fast", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "message",
        "Returns the message", CONSTANT, "0.1.0", &[]),
    row(Id::Exec, "EXEC", 1, "noscript loading stale", Group::Tables, Subject::Tables, Keys::None, KeyPlace::Connection,
        "",
        "Executes the commands queued since MULTI atomically; after a crash, all or none of their changes are present", "The sum of its commands", "0.1.0", &[]),
    row(Id::Exists, "EXISTS", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, KeyPlace::Owner,
        "key [key ...]",
        "Returns the number of keys that exist", N_READS, "0.1.0", &[]),
    row(Id::Expire, "EXPIRE", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key seconds [NX | XX | GT | LT ...]",
        "Sets the time after which a row expires; returns 1, or 0 if the row is absent or the condition is not met", ROW, "0.1.0", &[]),
    row(Id::ExpireAt, "EXPIREAT", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key unix-time-seconds [NX | XX | GT | LT ...]",
        "As EXPIRE, with a Unix time in seconds", ROW, "0.1.0", &[]),
    row(Id::ExpireTime, "EXPIRETIME", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the Unix time in seconds at which a row expires; -1 if it does not expire, -2 if it is absent", ROW, "0.1.0", &[]),
    row(Id::FlushAll, "FLUSHALL", -1, "write", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "[ASYNC | SYNC]",
        "As FLUSHDB, because there is only one database", "O(N*log(R)) for N rows, in steps", "0.1.0", &[]),
    row(Id::FlushDb, "FLUSHDB", -1, "write", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "[ASYNC | SYNC]",
        "Removes all rows of tables, and updates the outputs of joins; stores, joins and tables in PostgreSQL are kept", "O(N*log(R)) for N rows, in steps", "0.1.0", &[]),
    row(Id::Get, "GET", 2, "readonly fast", Group::Stores, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the key's value, or nil", READ, "0.1.0", &[]),
    row(Id::GetDel, "GETDEL", 2, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Removes a row; returns its value, or nil", ROW, "0.1.0", &[]),
    row(Id::GetEx, "GETEX", -2, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | PERSIST]",
        "Returns a row's value, or nil, and sets or removes its expiry", ROW, "0.1.0", &[]),
    row(Id::GetRange, "GETRANGE", 4, "readonly", Group::Stores, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key start end",
        "Returns the bytes of the key's value from start to end, both inclusive; negative offsets count from the end", READ, "0.1.0", &[]),
    row(Id::GetSet, "GETSET", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key value",
        "Sets a string; returns its previous value, or nil", ROW, "0.1.0", &[]),
    row(Id::Hello, "HELLO", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "[protover [AUTH username password] [SETNAME clientname]]",
        "Selects the protocol version and returns information about the server", CONSTANT, "0.1.0", &[]),
    row(Id::Incr, "INCR", 2, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Adds 1 to an integer, 0 if it is absent; returns the result", ROW, "0.1.0", &[]),
    row(Id::IncrBy, "INCRBY", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key increment",
        "Adds a number to an integer, 0 if it is absent; returns the result", ROW, "0.1.0", &[]),
    row(Id::IncrByFloat, "INCRBYFLOAT", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key increment",
        "Adds a decimal number to a number, 0 if it is absent; returns the result, exact to 17 decimals", ROW, "0.1.0", &[]),
    row(Id::Info, "INFO", -1, "loading stale", Group::Server, Subject::Server, Keys::None, KeyPlace::AllCores,
        "[section ...]",
        "Returns the server's state as lines of name:value", CONSTANT, "0.1.0", &[]),
    row(Id::JoinCreate, "JOIN.CREATE", -3, "write", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "name [IF NOT EXISTS | OR REPLACE] 'definition'",
        "Declares a join (see below); its output is computed when it is read, and then kept up to date", ROW, "0.1.0", &[]),
    row(Id::JoinDrop, "JOIN.DROP", -2, "write", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "name [CASCADE]",
        "Drops a join and its output; with CASCADE also the joins that read its output", "O(N) for N output rows, in steps", "0.1.0", &[]),
    row(Id::JoinExplain, "JOIN.EXPLAIN", -2, "readonly", Group::Tables, Subject::Tables, Keys::JoinRange, KeyPlace::Owner,
        "name [lo hi]",
        "Returns the plan of a join, and the filled parts of a range", ROW, "0.1.0", &[]),
    row(Id::JoinInfo, "JOIN.INFO", 2, "readonly", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "name",
        "Returns the definition, rows, ranges and memory of a join", ROW, "0.1.0", &[]),
    row(Id::JoinList, "JOIN.LIST", 1, "readonly", Group::Tables, Subject::Tables, Keys::None, KeyPlace::Connection,
        "",
        "Returns the names and definitions of all joins", ROW, "0.1.0", &[]),
    row(Id::Keys, "KEYS", 2, "readonly", Group::Tables, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "pattern",
        "Returns the keys of tables that match a pattern, if at most 10000 keys begin with the pattern's literal text; SCAN has no such limit, and also covers stores", "O(N) for N visited keys", "0.1.0", &[]),
    row(Id::LastSave, "LASTSAVE", 1, "loading stale fast", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Returns the start time of the server, because every acknowledged write is saved", CONSTANT, "0.1.0", &[]),
    row(Id::Latency, "LATENCY", -2, "admin noscript loading stale", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "subcommand",
        "Shows the latency of commands", CONSTANT, "0.1.0", &[
        sub("DOCTOR", 2, "", "Refers to the histograms"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("HISTOGRAM", -2, "[command ...]", "Returns the distribution of call durations by command"),
        sub("HISTORY", 3, "event", "Returns an empty list"),
        sub("LATEST", 2, "", "Returns an empty list"),
        sub("RESET", -2, "[event ...]", "Returns 0"),
    ]),
    row(Id::Memory, "MEMORY", -2, "readonly", Group::Server, Subject::Keys, Keys::Second, KeyPlace::Owner,
        "USAGE key",
        "Shows the memory use of a key", CONSTANT, "0.1.0", &[
        sub("DOCTOR", 2, "", "Refers to INFO"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("USAGE", -3, "key [SAMPLES count]", "Returns the size of the key and its value in bytes, or nil"),
    ]),
    row(Id::MGet, "MGET", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, KeyPlace::Owner,
        "key [key ...]",
        "Returns the values of several keys at one instant; nil for each absent key", N_READS, "0.1.0", &[]),
    row(Id::Module, "MODULE", -2, "admin noscript", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "LIST",
        "Describes the Redis modules whose commands are supported", CONSTANT, "0.1.0", &[
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LIST", 2, "", "Returns the modules with their versions"),
    ]),
    row(Id::MSet, "MSET", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Pairs, KeyPlace::Owner,
        "key value [key value ...]",
        "Sets several strings atomically", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::MSetEx, "MSETEX", -4, "write denyoom movablekeys", Group::Tables, Subject::Tables, Keys::CountedPairs, KeyPlace::Owner,
        "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]",
        "Sets several strings with one expiry atomically, if all or none of the keys exist; returns 1 or 0", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::MSetNx, "MSETNX", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Pairs, KeyPlace::Owner,
        "key value [key value ...]",
        "Sets several strings atomically if none of the keys exists; returns 1 or 0", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::Multi, "MULTI", 1, "noscript loading stale fast", Group::Tables, Subject::Tables, Keys::None, KeyPlace::Connection,
        "",
        "Begins a transaction: the following commands are queued until EXEC", ROW, "0.1.0", &[]),
    row(Id::Object, "OBJECT", -2, "readonly", Group::Generic, Subject::Keys, Keys::Second, KeyPlace::Owner,
        "ENCODING key | IDLETIME key | REFCOUNT key | FREQ key",
        "Describes a value in Redis's terms", CONSTANT, "0.1.0", &[
        sub("ENCODING", 3, "key", "Returns the encoding that Redis would choose: int, embstr or raw for a string, listpack or hashtable for a hash"),
        sub("FREQ", 3, "key", "Rejected, as in Redis without an LFU policy: accesses are not counted"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("IDLETIME", 3, "key", "Returns 0: access times are not recorded"),
        sub("REFCOUNT", 3, "key", "Returns 1"),
    ]),
    row(Id::Persist, "PERSIST", 2, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key",
        "Removes a row's expiry; returns 1, or 0 if there is none", ROW, "0.1.0", &[]),
    row(Id::PExpire, "PEXPIRE", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key milliseconds [NX | XX | GT | LT ...]",
        "As EXPIRE, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PExpireAt, "PEXPIREAT", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key unix-time-milliseconds [NX | XX | GT | LT ...]",
        "As EXPIREAT, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PExpireTime, "PEXPIRETIME", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "As EXPIRETIME, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::Ping, "PING", -1, "fast", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "[message]",
        "Returns PONG or the message", CONSTANT, "0.1.0", &[]),
    row(Id::PSetEx, "PSETEX", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key milliseconds value",
        "As SETEX, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PSubscribe, "PSUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, KeyPlace::ConnectionInOrder,
        "pattern [pattern ...]",
        "As SUBSCRIBE, for all matching channels and keys, such as __keyspace@0__:table|pattern", ROW, "0.1.0", &[]),
    row(Id::PTtl, "PTTL", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "As TTL, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::Publish, "PUBLISH", 3, "pubsub loading stale fast", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "channel message",
        "Sends a message to the connections of this node that are subscribed to the channel or to a matching pattern; returns the number of receivers", "O(N+M) for N subscribers of the channel and M patterns of all clients", "0.2.0", &[]),
    row(Id::PubSub, "PUBSUB", -2, "pubsub loading stale", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "subcommand [argument ...]",
        "Shows the channels and patterns to which connections of this node are subscribed", "O(N) for N channels", "0.2.0", &[
        sub("CHANNELS", -2, "[pattern]", "Returns the channels with subscribers, or those that match"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("NUMPAT", 2, "", "Returns the number of patterns with subscribers"),
        sub("NUMSUB", -2, "[channel ...]", "Returns the number of subscribers of each channel"),
    ]),
    row(Id::PUnsubscribe, "PUNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, KeyPlace::ConnectionInOrder,
        "[pattern ...]",
        "Unsubscribes from the patterns, or from all patterns", ROW, "0.1.0", &[]),
    row(Id::Quit, "QUIT", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Closes the connection after pending replies", CONSTANT, "0.1.0", &[]),
    row(Id::RandomKey, "RANDOMKEY", 1, "readonly", Group::Generic, Subject::Tables, Keys::None, KeyPlace::AllCores,
        "",
        "Returns a random key of a string or an object, or nil; the choice is not uniform: keys that follow large gaps are more likely", ROW, "0.1.0", &[]),
    row(Id::Range, "RANGE", -3, "readonly", Group::Tables, Subject::Tables, Keys::Range, KeyPlace::Owner,
        "lo hi [LIMIT n] [REV] [KEYSONLY]",
        "Returns the keys and values of a table or join output from lo (inclusive) to hi (exclusive), in key order", RANGE, "0.1.0", &[]),
    row(Id::RangeCount, "RANGECOUNT", 3, "readonly", Group::Tables, Subject::Tables, Keys::Range, KeyPlace::Owner,
        "lo hi",
        "Returns the number of rows from lo (inclusive) to hi (exclusive)", ROW, "0.1.0", &[]),
    row(Id::RangeDel, "RANGEDEL", 3, "write", Group::Tables, Subject::Tables, Keys::Range, KeyPlace::Owner,
        "lo hi",
        "Removes the rows from lo (inclusive) to hi (exclusive); returns the number of removed rows", RANGE, "0.1.0", &[]),
    row(Id::ReadOnly, "READONLY", 1, "fast loading stale", Group::Cluster, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Accepted from clients of Redis Cluster; rejected unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::ReadWrite, "READWRITE", 1, "fast loading stale", Group::Cluster, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Accepted from clients of Redis Cluster; rejected unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::Rename, "RENAME", 3, "write", Group::Tables, Subject::Tables, Keys::Two, KeyPlace::Owner,
        "key newkey",
        "Renames a key, and replaces the row that has the new key", ROW, "0.1.0", &[]),
    row(Id::RenameNx, "RENAMENX", 3, "write fast", Group::Tables, Subject::Tables, Keys::Two, KeyPlace::Owner,
        "key newkey",
        "Renames a key if the new key is absent; returns 1 or 0", ROW, "0.1.0", &[]),
    row(Id::Reset, "RESET", 1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Resets the connection to its initial state", CONSTANT, "0.1.0", &[]),
    row(Id::Restore, "RESTORE", -4, "write denyoom", Group::Generic, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Creates a value from a payload that DUMP of larder or Redis returned; ttl is in milliseconds, 0 for no expiry", ROW, "0.1.0", &[]),
    row(Id::Role, "ROLE", 1, "noscript loading stale fast", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Returns master without replicas, because every node serves clients", CONSTANT, "0.1.0", &[]),
    row(Id::Scan, "SCAN", -2, "readonly", Group::Generic, Subject::Keys, Keys::None, KeyPlace::AllCores,
        "cursor MATCH name:pattern [COUNT count] [TYPE string | hash | ReJSON-RL]",
        "Iterates over the keys of one store or table, including objects; start with cursor 0", "O(N) for N visited keys", "0.1.0", &[]),
    row(Id::Select, "SELECT", 2, "loading stale fast", Group::Connection, Subject::Server, Keys::None, KeyPlace::Connection,
        "0",
        "Accepts database 0, the only one", CONSTANT, "0.1.0", &[]),
    row(Id::Set, "SET", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]",
        "Sets a string", ROW, "0.1.0", &[]),
    row(Id::SetEx, "SETEX", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key seconds value",
        "Sets a string with an expiry", ROW, "0.1.0", &[]),
    row(Id::SetNx, "SETNX", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key value",
        "Sets a string if the key is absent; returns 1 or 0", ROW, "0.1.0", &[]),
    row(Id::SetRange, "SETRANGE", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, KeyPlace::Owner,
        "key offset value",
        "Overwrites bytes of a string at an offset, and pads a shorter string with zeros; returns its new length", ROW, "0.1.0", &[]),
    row(Id::SlowLog, "SLOWLOG", -2, "admin loading stale", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "GET [count] | LEN | RESET",
        "Shows recent slow commands", CONSTANT, "0.1.0", &[
        sub("GET", -2, "[count]", "Returns the most recent entries; by default 10, -1 for all"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LEN", 2, "", "Returns the number of entries"),
        sub("RESET", 2, "", "Removes all entries"),
    ]),
    row(Id::StoreInfo, "STORE.INFO", 2, "readonly", Group::Stores, Subject::Server, Keys::None, KeyPlace::Connection,
        "store",
        "Returns records, bytes, partitions and residency of a store's live version", READ, "0.1.0", &[]),
    row(Id::StoreList, "STORE.LIST", 1, "readonly", Group::Stores, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Returns the stores that can be read", READ, "0.1.0", &[]),
    row(Id::StoreVersion, "STORE.VERSION", 2, "readonly fast", Group::Stores, Subject::Server, Keys::None, KeyPlace::Connection,
        "store",
        "Returns the number of a store's live version", READ, "0.1.0", &[]),
    row(Id::StrLen, "STRLEN", 2, "readonly fast", Group::Stores, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the length of the key's value in bytes; 0 if it is absent", READ, "0.1.0", &[]),
    row(Id::Subscribe, "SUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, KeyPlace::ConnectionInOrder,
        "channel [channel ...]",
        "Receives the messages that are published on the channels; __keyspace@0__:table|key reports changes of a row, including computed rows, as set or del", ROW, "0.1.0", &[]),
    row(Id::SubStr, "SUBSTR", 4, "readonly", Group::Stores, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key start end",
        "As GETRANGE", READ, "0.1.0", &[]),
    row(Id::Time, "TIME", 1, "loading stale fast", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "",
        "Returns the server's clock as Unix time in seconds and microseconds", CONSTANT, "0.1.0", &[]),
    row(Id::Touch, "TOUCH", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, KeyPlace::Owner,
        "key [key ...]",
        "As EXISTS", N_READS, "0.1.0", &[]),
    row(Id::Ttl, "TTL", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the seconds until a row expires; -1 if it does not expire, -2 if it is absent", ROW, "0.1.0", &[]),
    row(Id::Type, "TYPE", 2, "readonly fast", Group::Generic, Subject::Keys, Keys::One, KeyPlace::Owner,
        "key",
        "Returns the type of the value: string, hash, ReJSON-RL or none", CONSTANT, "0.1.0", &[]),
    row(Id::Unlink, "UNLINK", -2, "write fast", Group::Tables, Subject::Tables, Keys::Every, KeyPlace::Owner,
        "key [key ...]",
        "As DEL", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::Unsubscribe, "UNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, KeyPlace::ConnectionInOrder,
        "[channel ...]",
        "Unsubscribes from the channels, or from all channels", ROW, "0.1.0", &[]),
    row(Id::Unwatch, "UNWATCH", 1, "noscript loading stale fast allow_busy", Group::Tables, Subject::Tables, Keys::None, KeyPlace::Connection,
        "",
        "Discards the keys that WATCH recorded", ROW, "0.1.0", &[]),
    row(Id::Wait, "WAIT", 3, "noscript", Group::Server, Subject::Server, Keys::None, KeyPlace::Connection,
        "numreplicas timeout",
        "Returns the number of replicas that have all acknowledged writes, immediately: a write is acknowledged only when its replicas in sync have it", CONSTANT, "0.1.0", &[]),
    row(Id::Watch, "WATCH", -2, "noscript loading stale fast allow_busy", Group::Tables, Subject::Tables, Keys::Every, KeyPlace::ConnectionInOrder,
        "key [key ...]",
        "Makes EXEC execute nothing and return nil if one of the keys changes before it", N_READS, "0.1.0", &[]),
];
