//! The table: every command that the server executes, in the order of their names.
//!
//! | column | says |
//! |---|---|
//! | id, name | the variant of [`Id`], and how people write it |
//! | arity | arguments, the name included; negative means at least so many |
//! | flags | Redis's, separated by spaces; `write`, `no_auth` and `pubsub` mean something to the server |
//! | group | the chapter of the reference page |
//! | subject, keys, place | whom it is about, which arguments are its keys, and which core executes it |
//! | syntax, summary, complexity, since | what `COMMAND DOCS` and the reference page say |
//! | subcommands | those that its first argument names |
//!
//! Those on objects are in `objects`, on spaces in `spaces`, and those over what sets, sorted sets and scripts of Redis stand for in `compatible`; [`COMMANDS`] has them all.

mod compatible;
mod objects;
mod spaces;

use super::Id;
use super::spec::{Group, InMulti, Keys, Place, Spec, Subcommand, Subject};

const CONSTANT: &str = "O(1)";
const ROW: &str = "O(log(R))";
const READ: &str = "O(log(R)) in tables, O(1) in stores";
const N_READS: &str = "O(N*log(R)) for N keys of tables, O(N) of stores";
const RANGE: &str = "O(log(R)+N) for N rows; what a join makes is computed when it is first read";

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
    place: Place,
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

/// Whether a word is among others, which spaces separate.
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

/// Lists that are each in the order of their names, as one that is.
const fn merged<const N: usize>(lists: [&[Spec]; 4]) -> [Spec; N] {
    let mut all = [ROWS[0]; N];
    let (mut taken, mut at) = ([0; 4], 0);
    while at < N {
        let (mut first, mut list) = (lists.len(), 0);
        while list < lists.len() {
            if taken[list] < lists[list].len()
                && (first == lists.len()
                    || is_before(
                        lists[list][taken[list]].name.as_bytes(),
                        lists[first][taken[first]].name.as_bytes(),
                    ))
            {
                first = list;
            }
            list += 1;
        }
        all[at] = lists[first][taken[first]];
        taken[first] += 1;
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
    row(Id::Append, "APPEND", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key value",
        "Adds bytes to a value's end, to nothing if it is absent; answers how many it has then", ROW, "0.1.0", &[]),
    row(Id::Asking, "ASKING", 1, "fast", Group::Cluster, Subject::Server, Keys::None, Place::Connection,
        "",
        "Accepted from clients of Redis Cluster; refused unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::Auth, "AUTH", -2, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "[username] password",
        "Gives the server's password; the user is default", CONSTANT, "0.1.0", &[]),
    row(Id::Client, "CLIENT", -2, "noscript loading stale", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "subcommand [argument ...]",
        "What the server knows of this and other connections", CONSTANT, "0.1.0", &[
        sub("CACHING", 3, "YES | NO", "With OPTIN or OPTOUT: whether the keys that the next command reads are tracked"),
        sub("GETNAME", 2, "", "The connection's name, or nil"),
        sub("GETREDIR", 2, "", "The number of the connection that receives the invalidations; 0 is this one, -1 none"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("ID", 2, "", "The connection's number"),
        sub("INFO", 2, "", "One line about the connection"),
        sub("KILL", -3, "ip:port | [ID id] [TYPE type] [ADDR ip:port] [LADDR ip:port] [SKIPME yes | no]", "Closes connections; answers OK, or how many"),
        sub("LIST", -2, "[ID id ... | TYPE type]", "One line per connection"),
        sub("NO-EVICT", 3, "ON | OFF", "Accepted; connections are never evicted"),
        sub("NO-TOUCH", 3, "ON | OFF", "Accepted; reads change nothing"),
        sub("REPLY", 3, "ON", "Accepted with ON only"),
        sub("SETINFO", 4, "LIB-NAME name | LIB-VER version", "Remembers the client's library"),
        sub("SETNAME", 3, "name", "Names the connection"),
        sub("TRACKING", -3, "ON | OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]", "Has the server report changes of keys that the client has read and may have cached"),
        sub("TRACKINGINFO", 2, "", "The connection's mode of tracking"),
    ]),
    row(Id::Cluster, "CLUSTER", -2, "loading stale", Group::Cluster, Subject::Server, Keys::None, Place::Connection,
        "subcommand [argument ...]",
        "What clients of Redis Cluster ask; refused unless cluster.mode is set", CONSTANT, "0.1.0", &[
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("INFO", 2, "", "Whether all slots are served, and by how many nodes"),
        sub("KEYSLOT", 3, "key", "The slot of a key"),
        sub("MAP", 2, "", "The cluster's map as this node knows it, as JSON"),
        sub("MYID", 2, "", "The node's id"),
        sub("NODES", 2, "", "One line per node"),
        sub("SHARDS", 2, "", "Slots, and the nodes that serve them"),
        sub("SLOTS", 2, "", "Slots, and the nodes that serve them, as older clients ask"),
    ]),
    row(Id::Command, "COMMAND", -1, "loading stale", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "[subcommand]",
        "The command table", CONSTANT, "0.1.0", &[
        sub("COUNT", 2, "", "How many commands there are"),
        sub("DOCS", -2, "[name ...]", "Summary and syntax"),
        sub("GETKEYS", -3, "command [argument ...]", "The keys of a command"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("INFO", -2, "[name ...]", "Arity, flags and keys"),
        sub("LIST", -2, "[FILTERBY MODULE module | ACLCAT category | PATTERN pattern]", "The names of commands and subcommands"),
    ]),
    row(Id::Config, "CONFIG", -2, "admin noscript loading stale", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "GET pattern [pattern ...]",
        "Redis's names for some settings, to read only", CONSTANT, "0.1.0", &[
        sub("GET", -3, "pattern [pattern ...]", "The settings whose names match"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("RESETSTAT", 2, "", "Has INFO and LATENCY HISTOGRAM count from 0 again; /metrics goes on"),
        sub("REWRITE", 2, "", "Refused: the server never writes its configuration"),
        sub("SET", -4, "parameter value", "Refused: see larder.toml and PATCH /v1/settings"),
    ]),
    row(Id::Copy, "COPY", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Two, Place::Owner,
        "source destination [DB 0] [REPLACE]",
        "Puts a row's value, and when it goes, under another key; answers 1, or 0 if there is no such row or one in its place", ROW, "0.1.0", &[]),
    row(Id::DbSize, "DBSIZE", 1, "readonly fast", Group::Server, Subject::Server, Keys::None, Place::AllCores,
        "",
        "Records in all live versions, and rows of all tables", CONSTANT, "0.1.0", &[]),
    row(Id::Decr, "DECR", 2, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "Takes 1 from an integer; answers what comes of it", ROW, "0.1.0", &[]),
    row(Id::DecrBy, "DECRBY", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key decrement",
        "Takes from an integer; answers what comes of it", ROW, "0.1.0", &[]),
    row(Id::Del, "DEL", -2, "write", Group::Tables, Subject::Tables, Keys::Every, Place::Owner,
        "key [key ...]",
        "Removes rows; answers how many there were", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::DelEx, "DELEX", -2, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]",
        "Removes a key if its text equals a value, or differs from it, or by its DIGEST; answers 1 or 0", ROW, "0.1.0", &[]),
    row(Id::Digest, "DIGEST", 2, "readonly fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "The XXH3 hash of a text, as 16 hexadecimal digits", ROW, "0.1.0", &[]),
    row(Id::Discard, "DISCARD", 1, "noscript loading stale fast", Group::Tables, Subject::Tables, Keys::None, Place::Connection,
        "",
        "Forgets the commands since MULTI", ROW, "0.1.0", &[]),
    row(Id::Dump, "DUMP", 2, "readonly", Group::Generic, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "A text or a hash in Redis's format, for RESTORE", ROW, "0.1.0", &[]),
    row(Id::Echo, "ECHO", 2, "loading stale fast", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "message",
        "Answers the message", CONSTANT, "0.1.0", &[]),
    row(Id::Exec, "EXEC", 1, "noscript loading stale", Group::Tables, Subject::Tables, Keys::None, Place::Connection,
        "",
        "Executes the commands since MULTI as one: all of them or, after a crash, none", "That of its commands", "0.1.0", &[]),
    row(Id::Exists, "EXISTS", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, Place::Owner,
        "key [key ...]",
        "How many of the keys exist", N_READS, "0.1.0", &[]),
    row(Id::Expire, "EXPIRE", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key seconds [NX | XX | GT | LT ...]",
        "Lets a row go after some time; answers 1, or 0 if there is none", ROW, "0.1.0", &[]),
    row(Id::ExpireAt, "EXPIREAT", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key unix-time-seconds [NX | XX | GT | LT ...]",
        "As EXPIRE, at a time since 1970", ROW, "0.1.0", &[]),
    row(Id::ExpireTime, "EXPIRETIME", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "When a row goes, in seconds since 1970; -1 if it stays, -2 if there is none", ROW, "0.1.0", &[]),
    row(Id::FlushAll, "FLUSHALL", -1, "write", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "[ASYNC | SYNC]",
        "As FLUSHDB: there is one database", "O(N*log(R)) for N rows, in steps", "0.1.0", &[]),
    row(Id::FlushDb, "FLUSHDB", -1, "write", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "[ASYNC | SYNC]",
        "Removes all rows of tables; stores, joins and tables in PostgreSQL stay, and what joins made follows", "O(N*log(R)) for N rows, in steps", "0.1.0", &[]),
    row(Id::Get, "GET", 2, "readonly fast", Group::Stores, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "The key's value, or nil", READ, "0.1.0", &[]),
    row(Id::GetDel, "GETDEL", 2, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "Removes a row; answers the value that it had, or nil", ROW, "0.1.0", &[]),
    row(Id::GetEx, "GETEX", -2, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | PERSIST]",
        "A row's value, or nil; and when it goes from now on", ROW, "0.1.0", &[]),
    row(Id::GetRange, "GETRANGE", 4, "readonly", Group::Stores, Subject::Keys, Keys::One, Place::Owner,
        "key start end",
        "Bytes start to end, both included, of the key's value; negative ones count from its end", READ, "0.1.0", &[]),
    row(Id::GetSet, "GETSET", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key value",
        "Puts a row; answers the value that it had, or nil", ROW, "0.1.0", &[]),
    row(Id::Hello, "HELLO", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "[protover [AUTH username password] [SETNAME clientname]]",
        "Chooses the protocol's version and describes the server", CONSTANT, "0.1.0", &[]),
    row(Id::Incr, "INCR", 2, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "Adds 1 to an integer, 0 if it is absent; answers the sum", ROW, "0.1.0", &[]),
    row(Id::IncrBy, "INCRBY", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key increment",
        "Adds to an integer, 0 if it is absent; answers the sum", ROW, "0.1.0", &[]),
    row(Id::IncrByFloat, "INCRBYFLOAT", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key increment",
        "Adds to a number, 0 if it is absent; answers the sum, exact to 17 decimals", ROW, "0.1.0", &[]),
    row(Id::Info, "INFO", -1, "loading stale", Group::Server, Subject::Server, Keys::None, Place::AllCores,
        "[section ...]",
        "The server's state, as lines of name:value", CONSTANT, "0.1.0", &[]),
    row(Id::JoinCreate, "JOIN.CREATE", -3, "write", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "name [IF NOT EXISTS | OR REPLACE] 'definition'",
        "Declares a join (see below): its output is computed when it is read, and kept fresh", ROW, "0.1.0", &[]),
    row(Id::JoinDrop, "JOIN.DROP", -2, "write", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "name [CASCADE]",
        "Drops a join and what it made, with CASCADE also the joins that read its output", "O(N) for N rows that the join made, in steps", "0.1.0", &[]),
    row(Id::JoinExplain, "JOIN.EXPLAIN", -2, "readonly", Group::Tables, Subject::Tables, Keys::JoinRange, Place::Owner,
        "name [lo hi]",
        "How a join computes, and which parts of a range are filled", ROW, "0.1.0", &[]),
    row(Id::JoinInfo, "JOIN.INFO", 2, "readonly", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "name",
        "Definition, rows, ranges and memory of a join", ROW, "0.1.0", &[]),
    row(Id::JoinList, "JOIN.LIST", 1, "readonly", Group::Tables, Subject::Tables, Keys::None, Place::Connection,
        "",
        "Names and definitions of all joins", ROW, "0.1.0", &[]),
    row(Id::Keys, "KEYS", 2, "readonly", Group::Tables, Subject::Tables, Keys::None, Place::AllCores,
        "pattern",
        "Keys of tables that match, where at most 10000 begin with the pattern's literal text; SCAN walks more, and stores", "O(N) for N keys that are walked", "0.1.0", &[]),
    row(Id::LastSave, "LASTSAVE", 1, "loading stale fast", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "",
        "The time at which the server started: every acknowledged write is saved", CONSTANT, "0.1.0", &[]),
    row(Id::Latency, "LATENCY", -2, "admin noscript loading stale", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "subcommand",
        "Latency of the commands", CONSTANT, "0.1.0", &[
        sub("DOCTOR", 2, "", "Points to the histograms"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("HISTOGRAM", -2, "[command ...]", "Calls by the time that they took"),
        sub("HISTORY", 3, "event", "Always empty"),
        sub("LATEST", 2, "", "Always empty"),
        sub("RESET", -2, "[event ...]", "Always 0"),
    ]),
    row(Id::Memory, "MEMORY", -2, "readonly", Group::Server, Subject::Keys, Keys::Second, Place::Owner,
        "USAGE key",
        "What a record takes", CONSTANT, "0.1.0", &[
        sub("DOCTOR", 2, "", "Points to INFO"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("USAGE", -3, "key [SAMPLES count]", "Bytes of the key and its value, or nil"),
    ]),
    row(Id::MGet, "MGET", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, Place::Owner,
        "key [key ...]",
        "The keys' values, nil for each that is absent; all of one moment", N_READS, "0.1.0", &[]),
    row(Id::Module, "MODULE", -2, "admin noscript", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "LIST",
        "Redis's modules whose commands are here", CONSTANT, "0.1.0", &[
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LIST", 2, "", "The modules by name and version"),
    ]),
    row(Id::MSet, "MSET", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Pairs, Place::Owner,
        "key value [key value ...]",
        "Puts rows, all as one", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::MSetEx, "MSETEX", -4, "write denyoom movablekeys", Group::Tables, Subject::Tables, Keys::CountedPairs, Place::Owner,
        "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]",
        "Puts texts that expire together, in one step, if all of the keys exist or none does; answers 1 or 0", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::MSetNx, "MSETNX", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::Pairs, Place::Owner,
        "key value [key value ...]",
        "Puts rows if none of them is there, all as one; answers 1 or 0", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::Multi, "MULTI", 1, "noscript loading stale fast", Group::Tables, Subject::Tables, Keys::None, Place::Connection,
        "",
        "Begins a transaction: what follows waits for EXEC", ROW, "0.1.0", &[]),
    row(Id::Object, "OBJECT", -2, "readonly", Group::Generic, Subject::Keys, Keys::Second, Place::Owner,
        "ENCODING key | IDLETIME key | REFCOUNT key | FREQ key",
        "What Redis would keep a value as", CONSTANT, "0.1.0", &[
        sub("ENCODING", 3, "key", "int, embstr or raw for a text, listpack or hashtable for a hash, as Redis chooses by their sizes"),
        sub("FREQ", 3, "key", "Refused, as in Redis without an LFU policy: accesses are not counted"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("IDLETIME", 3, "key", "Always 0: the time of the last access is not kept"),
        sub("REFCOUNT", 3, "key", "Always 1"),
    ]),
    row(Id::Persist, "PERSIST", 2, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key",
        "Lets a row stay that was to go; answers 1 if it was", ROW, "0.1.0", &[]),
    row(Id::PExpire, "PEXPIRE", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key milliseconds [NX | XX | GT | LT ...]",
        "As EXPIRE, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PExpireAt, "PEXPIREAT", -3, "write fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key unix-time-milliseconds [NX | XX | GT | LT ...]",
        "As EXPIREAT, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PExpireTime, "PEXPIRETIME", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "As EXPIRETIME, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::Ping, "PING", -1, "fast", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "[message]",
        "Answers PONG or the message", CONSTANT, "0.1.0", &[]),
    row(Id::PSetEx, "PSETEX", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key milliseconds value",
        "As SETEX, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::PSubscribe, "PSUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, Place::ConnectionInOrder,
        "pattern [pattern ...]",
        "As SUBSCRIBE, of the channels and keys that match, such as __keyspace@0__:table|pattern", ROW, "0.1.0", &[]),
    row(Id::PTtl, "PTTL", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "As TTL, in milliseconds", ROW, "0.1.0", &[]),
    row(Id::Publish, "PUBLISH", 3, "pubsub loading stale fast", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "channel message",
        "Sends a message to the connections of this node that are subscribed to the channel, or to a pattern that matches it; answers to how many", "O(N+M), N the subscribers of the channel, M the patterns of all clients", "0.2.0", &[]),
    row(Id::PubSub, "PUBSUB", -2, "pubsub loading stale", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "subcommand [argument ...]",
        "The channels and patterns of this node that connections are subscribed to", "O(N), N the channels", "0.2.0", &[
        sub("CHANNELS", -2, "[pattern]", "The channels, or those that match"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("NUMPAT", 2, "", "How many patterns"),
        sub("NUMSUB", -2, "[channel ...]", "Each channel, and how many connections are subscribed to it"),
    ]),
    row(Id::PUnsubscribe, "PUNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, Place::ConnectionInOrder,
        "[pattern ...]",
        "Is no longer told of what matches; without patterns, of none", ROW, "0.1.0", &[]),
    row(Id::Quit, "QUIT", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "",
        "Closes the connection after its replies", CONSTANT, "0.1.0", &[]),
    row(Id::RandomKey, "RANDOMKEY", 1, "readonly", Group::Generic, Subject::Tables, Keys::None, Place::AllCores,
        "",
        "A key of a text or an object, or nil; keys that follow large gaps are drawn more often than others", ROW, "0.1.0", &[]),
    row(Id::Range, "RANGE", -3, "readonly", Group::Tables, Subject::Tables, Keys::Range, Place::Owner,
        "lo hi [LIMIT n] [REV] [KEYSONLY]",
        "Keys and values of a table or join output from lo to before hi, in key order", RANGE, "0.1.0", &[]),
    row(Id::RangeCount, "RANGECOUNT", 3, "readonly", Group::Tables, Subject::Tables, Keys::Range, Place::Owner,
        "lo hi",
        "How many rows there are from lo to before hi", ROW, "0.1.0", &[]),
    row(Id::RangeDel, "RANGEDEL", 3, "write", Group::Tables, Subject::Tables, Keys::Range, Place::Owner,
        "lo hi",
        "Removes the rows from lo to before hi; answers how many there were", RANGE, "0.1.0", &[]),
    row(Id::ReadOnly, "READONLY", 1, "fast loading stale", Group::Cluster, Subject::Server, Keys::None, Place::Connection,
        "",
        "Accepted from clients of Redis Cluster; refused unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::ReadWrite, "READWRITE", 1, "fast loading stale", Group::Cluster, Subject::Server, Keys::None, Place::Connection,
        "",
        "Accepted from clients of Redis Cluster; refused unless cluster.mode is set", CONSTANT, "0.1.0", &[]),
    row(Id::Rename, "RENAME", 3, "write", Group::Tables, Subject::Tables, Keys::Two, Place::Owner,
        "key newkey",
        "Gives a row another key, in place of what has it", ROW, "0.1.0", &[]),
    row(Id::RenameNx, "RENAMENX", 3, "write fast", Group::Tables, Subject::Tables, Keys::Two, Place::Owner,
        "key newkey",
        "Gives a row another key unless there is one; answers 1 or 0", ROW, "0.1.0", &[]),
    row(Id::Reset, "RESET", 1, "noscript loading stale fast no_auth allow_busy", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "",
        "Makes the connection as new", CONSTANT, "0.1.0", &[]),
    row(Id::Restore, "RESTORE", -4, "write denyoom", Group::Generic, Subject::Tables, Keys::One, Place::Owner,
        "key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Puts a text or a hash that DUMP has answered, here or in Redis; ttl is in milliseconds, 0 for none", ROW, "0.1.0", &[]),
    row(Id::Role, "ROLE", 1, "noscript loading stale fast", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "",
        "Always master, without replicas: clients are served by every node", CONSTANT, "0.1.0", &[]),
    row(Id::Scan, "SCAN", -2, "readonly", Group::Generic, Subject::Keys, Keys::None, Place::AllCores,
        "cursor MATCH name:pattern [COUNT count] [TYPE string | hash | ReJSON-RL]",
        "Walks the keys of one store or table, and of objects; start with cursor 0", "O(N) for N keys that are walked", "0.1.0", &[]),
    row(Id::Select, "SELECT", 2, "loading stale fast", Group::Connection, Subject::Server, Keys::None, Place::Connection,
        "0",
        "There is one database, 0", CONSTANT, "0.1.0", &[]),
    row(Id::Set, "SET", -3, "write denyoom", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]",
        "Puts a text", ROW, "0.1.0", &[]),
    row(Id::SetEx, "SETEX", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key seconds value",
        "Puts a row that goes after some time", ROW, "0.1.0", &[]),
    row(Id::SetNx, "SETNX", 3, "write denyoom fast", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key value",
        "Puts a row unless there is one; answers 1 or 0", ROW, "0.1.0", &[]),
    row(Id::SetRange, "SETRANGE", 4, "write denyoom", Group::Tables, Subject::Tables, Keys::One, Place::Owner,
        "key offset value",
        "Puts bytes into a value, behind zeros if it is shorter; answers how many it has then", ROW, "0.1.0", &[]),
    row(Id::SlowLog, "SLOWLOG", -2, "admin loading stale", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "GET [count] | LEN | RESET",
        "The slowest commands of late", CONSTANT, "0.1.0", &[
        sub("GET", -2, "[count]", "The newest entries; 10 unless told, -1 for all"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LEN", 2, "", "How many entries there are"),
        sub("RESET", 2, "", "Forgets them"),
    ]),
    row(Id::StoreInfo, "STORE.INFO", 2, "readonly", Group::Stores, Subject::Server, Keys::None, Place::Connection,
        "store",
        "Records, bytes, partitions and residency of a store's live version", READ, "0.1.0", &[]),
    row(Id::StoreList, "STORE.LIST", 1, "readonly", Group::Stores, Subject::Server, Keys::None, Place::Connection,
        "",
        "The stores that can be read", READ, "0.1.0", &[]),
    row(Id::StoreVersion, "STORE.VERSION", 2, "readonly fast", Group::Stores, Subject::Server, Keys::None, Place::Connection,
        "store",
        "The number of a store's live version", READ, "0.1.0", &[]),
    row(Id::StrLen, "STRLEN", 2, "readonly fast", Group::Stores, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "Bytes of the key's value; 0 if it is absent", READ, "0.1.0", &[]),
    row(Id::Subscribe, "SUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, Place::ConnectionInOrder,
        "channel [channel ...]",
        "Receives what is published on the channels; __keyspace@0__:table|key notifies of changes of a row, also of one that joins make, as set or del", ROW, "0.1.0", &[]),
    row(Id::SubStr, "SUBSTR", 4, "readonly", Group::Stores, Subject::Keys, Keys::One, Place::Owner,
        "key start end",
        "As GETRANGE", READ, "0.1.0", &[]),
    row(Id::Time, "TIME", 1, "loading stale fast", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "",
        "The server's clock: seconds and microseconds since 1970", CONSTANT, "0.1.0", &[]),
    row(Id::Touch, "TOUCH", -2, "readonly fast", Group::Stores, Subject::Keys, Keys::Every, Place::Owner,
        "key [key ...]",
        "As EXISTS", N_READS, "0.1.0", &[]),
    row(Id::Ttl, "TTL", 2, "readonly fast", Group::Tables, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "Seconds until a row goes; -1 if it stays, -2 if there is none", ROW, "0.1.0", &[]),
    row(Id::Type, "TYPE", 2, "readonly fast", Group::Generic, Subject::Keys, Keys::One, Place::Owner,
        "key",
        "string, hash, ReJSON-RL or none", CONSTANT, "0.1.0", &[]),
    row(Id::Unlink, "UNLINK", -2, "write fast", Group::Tables, Subject::Tables, Keys::Every, Place::Owner,
        "key [key ...]",
        "As DEL", "O(N*log(R)) for N keys", "0.1.0", &[]),
    row(Id::Unsubscribe, "UNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, Subject::Tables, Keys::None, Place::ConnectionInOrder,
        "[channel ...]",
        "Is no longer told of these channels; without any, of none", ROW, "0.1.0", &[]),
    row(Id::Unwatch, "UNWATCH", 1, "noscript loading stale fast allow_busy", Group::Tables, Subject::Tables, Keys::None, Place::Connection,
        "",
        "Forgets what WATCH was told", ROW, "0.1.0", &[]),
    row(Id::Wait, "WAIT", 3, "noscript", Group::Server, Subject::Server, Keys::None, Place::Connection,
        "numreplicas timeout",
        "How many replicas have all writes that were answered; immediately, since a write is answered when its replicas in sync have it", CONSTANT, "0.1.0", &[]),
    row(Id::Watch, "WATCH", -2, "noscript loading stale fast allow_busy", Group::Tables, Subject::Tables, Keys::Every, Place::ConnectionInOrder,
        "key [key ...]",
        "Has EXEC do nothing, and answer nil, if one of the keys changes before", N_READS, "0.1.0", &[]),
];
