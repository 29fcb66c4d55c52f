//! The commands as data. The server's dispatch, `COMMAND` and its subcommands, and the reference page (`cargo xtask gen`)
//! all read this table; what a command does is in the server alone.
//!
//! To add a command: a variant of [`Id`], a row of [`COMMANDS`], an arm in the server's dispatch.

/// A command that the server executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[rustfmt::skip]
pub enum Id {
    Append, Auth, Client, Cluster, Command, Config, Copy, DbSize, Decr, DecrBy, Del, Discard, Echo, Exec, Exists, Expire,
    ExpireAt, ExpireTime, FlushAll, FlushDb, Get, GetDel, GetEx, GetRange, GetSet, Hello, Incr, IncrBy, IncrByFloat, Info,
    JoinCreate, JoinDrop, JoinExplain, JoinInfo, JoinList, Keys, Latency, Memory, MGet, MSet, MSetNx, Multi, Persist,
    PExpire, PExpireAt, PExpireTime, Ping, PSetEx, PSubscribe, PTtl, PUnsubscribe, Quit, Range, RangeCount, RangeDel, Rename, RenameNx, Reset, Scan,
    Select, Set, SetEx, SetNx, SetRange, SlowLog, StoreInfo, StoreList, StoreVersion, StrLen, Subscribe, SubStr,
    Time, Touch, Ttl, Type, Unlink, Unsubscribe, Unwatch, Watch,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    pub id: Id,
    /// In capitals, as people write it.
    pub name: &'static str,
    /// Arguments, the name included; negative means at least so many.
    pub arity: i32,
    /// Redis's flags, separated by spaces.
    pub flags: &'static str,
    pub group: Group,
    /// First key, last key and step, as Redis counts them; all 0 when there is none.
    pub keys: (i32, i32, i32),
    pub syntax: &'static str,
    pub summary: &'static str,
    pub subcommands: &'static [Subcommand],
}

#[derive(Debug, Clone, Copy)]
pub struct Subcommand {
    pub name: &'static str,
    /// Arguments, both names included; negative means at least so many.
    pub arity: i32,
    pub syntax: &'static str,
    pub summary: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Connection,
    Generic,
    Server,
    Stores,
    Tables,
    Cluster,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::Generic => "generic",
            Group::Server => "server",
            Group::Stores => "stores",
            Group::Tables => "tables",
            Group::Cluster => "cluster",
        }
    }

    /// The group as Redis's own documentation calls it, for clients that know only those.
    pub fn redis_name(self) -> &'static str {
        match self {
            Group::Stores | Group::Tables => "string",
            other => other.name(),
        }
    }
}

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

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const TWO_KEYS: (i32, i32, i32) = (1, 2, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);

#[allow(clippy::too_many_arguments)] // a row has as many columns
const fn row(
    id: Id,
    name: &'static str,
    arity: i32,
    flags: &'static str,
    group: Group,
    keys: (i32, i32, i32),
    syntax: &'static str,
    summary: &'static str,
    subcommands: &'static [Subcommand],
) -> Command {
    Command {
        id,
        name,
        arity,
        flags,
        group,
        keys,
        syntax,
        summary,
        subcommands,
    }
}

/// In the order of their names.
#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[
    row(Id::Append, "APPEND", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key value",
        "Adds bytes to a value's end, to nothing if it is absent; answers how many it has then", &[]),
    row(Id::Auth, "AUTH", -2, "noscript loading stale fast no_auth allow_busy", Group::Connection, NO_KEYS, "[username] password",
        "Gives the server's password; the user is default", &[]),
    row(Id::Client, "CLIENT", -2, "noscript loading stale", Group::Connection, NO_KEYS, "subcommand [argument ...]",
        "What the server knows of this and other connections", &[
        sub("GETNAME", 2, "", "The connection's name, or nil"),
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
    ]),
    row(Id::Cluster, "CLUSTER", -2, "loading stale", Group::Cluster, NO_KEYS, "subcommand",
        "Refused: this server stands alone", &[]),
    row(Id::Command, "COMMAND", -1, "loading stale", Group::Server, NO_KEYS, "[subcommand]",
        "The command table", &[
        sub("COUNT", 2, "", "How many commands there are"),
        sub("DOCS", -2, "[name ...]", "Summary and syntax"),
        sub("GETKEYS", -3, "command [argument ...]", "The keys of a command"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("INFO", -2, "[name ...]", "Arity, flags and keys"),
        sub("LIST", 2, "", "The names"),
    ]),
    row(Id::Config, "CONFIG", -2, "admin noscript loading stale", Group::Server, NO_KEYS, "GET pattern [pattern ...]",
        "Redis's names for some settings, to read only", &[
        sub("GET", -3, "pattern [pattern ...]", "The settings whose names match"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("RESETSTAT", 2, "", "Refused: counters only grow"),
        sub("REWRITE", 2, "", "Refused: the server never writes its configuration"),
        sub("SET", -4, "parameter value", "Refused: see larder.toml and PATCH /v1/settings"),
    ]),
    row(Id::Copy, "COPY", -3, "write denyoom", Group::Tables, TWO_KEYS, "source destination [DB 0] [REPLACE]",
        "Puts a row's value, and when it goes, under another key; answers 1, or 0 if there is no such row or one in its place", &[]),
    row(Id::DbSize, "DBSIZE", 1, "readonly fast", Group::Server, NO_KEYS, "",
        "Records in all live versions, and rows of all tables", &[]),
    row(Id::Decr, "DECR", 2, "write denyoom fast", Group::Tables, ONE_KEY, "key",
        "Takes 1 from an integer; answers what comes of it", &[]),
    row(Id::DecrBy, "DECRBY", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key decrement",
        "Takes from an integer; answers what comes of it", &[]),
    row(Id::Del, "DEL", -2, "write", Group::Tables, ALL_KEYS, "key [key ...]",
        "Removes rows; answers how many there were", &[]),
    row(Id::Discard, "DISCARD", 1, "noscript loading stale fast", Group::Tables, NO_KEYS, "",
        "Forgets the commands since MULTI", &[]),
    row(Id::Echo, "ECHO", 2, "loading stale fast", Group::Connection, NO_KEYS, "message",
        "Answers the message", &[]),
    row(Id::Exec, "EXEC", 1, "noscript loading stale", Group::Tables, NO_KEYS, "",
        "Executes the commands since MULTI as one: all of them or, after a crash, none", &[]),
    row(Id::Exists, "EXISTS", -2, "readonly fast", Group::Stores, ALL_KEYS, "key [key ...]",
        "How many of the keys exist", &[]),
    row(Id::Expire, "EXPIRE", -3, "write fast", Group::Tables, ONE_KEY, "key seconds [NX | XX | GT | LT ...]",
        "Lets a row go after some time; answers 1, or 0 if there is none", &[]),
    row(Id::ExpireAt, "EXPIREAT", -3, "write fast", Group::Tables, ONE_KEY, "key unix-time-seconds [NX | XX | GT | LT ...]",
        "As EXPIRE, at a time since 1970", &[]),
    row(Id::ExpireTime, "EXPIRETIME", 2, "readonly fast", Group::Tables, ONE_KEY, "key",
        "When a row goes, in seconds since 1970; -1 if it stays, -2 if there is none", &[]),
    row(Id::FlushAll, "FLUSHALL", -1, "write", Group::Tables, NO_KEYS, "[ASYNC | SYNC]",
        "As FLUSHDB: there is one database", &[]),
    row(Id::FlushDb, "FLUSHDB", -1, "write", Group::Tables, NO_KEYS, "[ASYNC | SYNC]",
        "Removes all rows of tables; stores, joins and tables in PostgreSQL stay, and what joins made follows", &[]),
    row(Id::Get, "GET", 2, "readonly fast", Group::Stores, ONE_KEY, "key",
        "The key's value, or nil", &[]),
    row(Id::GetDel, "GETDEL", 2, "write fast", Group::Tables, ONE_KEY, "key",
        "Removes a row; answers the value that it had, or nil", &[]),
    row(Id::GetEx, "GETEX", -2, "write fast", Group::Tables, ONE_KEY, "key [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | PERSIST]",
        "A row's value, or nil; and when it goes from now on", &[]),
    row(Id::GetRange, "GETRANGE", 4, "readonly", Group::Stores, ONE_KEY, "key start end",
        "Bytes start to end, both included, of the key's value; negative ones count from its end", &[]),
    row(Id::GetSet, "GETSET", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key value",
        "Puts a row; answers the value that it had, or nil", &[]),
    row(Id::Hello, "HELLO", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, NO_KEYS,
        "[protover [AUTH username password] [SETNAME clientname]]",
        "Chooses the protocol's version and describes the server", &[]),
    row(Id::Incr, "INCR", 2, "write denyoom fast", Group::Tables, ONE_KEY, "key",
        "Adds 1 to an integer, 0 if it is absent; answers the sum", &[]),
    row(Id::IncrBy, "INCRBY", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key increment",
        "Adds to an integer, 0 if it is absent; answers the sum", &[]),
    row(Id::IncrByFloat, "INCRBYFLOAT", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key increment",
        "Adds to a number, 0 if it is absent; answers the sum, exact to 17 decimals", &[]),
    row(Id::Info, "INFO", -1, "loading stale", Group::Server, NO_KEYS, "[section ...]",
        "The server's state, as lines of name:value", &[]),
    row(Id::JoinCreate, "JOIN.CREATE", -3, "write", Group::Tables, NO_KEYS, "name 'definition'",
        "Declares a join (see below): its output is computed when it is read, and kept fresh", &[]),
    row(Id::JoinDrop, "JOIN.DROP", 2, "write", Group::Tables, NO_KEYS, "name",
        "Drops a join and what it made", &[]),
    row(Id::JoinExplain, "JOIN.EXPLAIN", -2, "readonly", Group::Tables, NO_KEYS, "name [lo hi]",
        "How a join computes, and which parts of a range are filled", &[]),
    row(Id::JoinInfo, "JOIN.INFO", 2, "readonly", Group::Tables, NO_KEYS, "name",
        "Definition, rows, ranges and memory of a join", &[]),
    row(Id::JoinList, "JOIN.LIST", 1, "readonly", Group::Tables, NO_KEYS, "",
        "Names and definitions of all joins", &[]),
    row(Id::Keys, "KEYS", 2, "readonly", Group::Tables, NO_KEYS, "pattern",
        "Keys of tables that match, where at most 10000 begin with the pattern's literal text; SCAN walks more, and stores", &[]),
    row(Id::Latency, "LATENCY", -2, "admin noscript loading stale", Group::Server, NO_KEYS, "subcommand",
        "Latency of the commands", &[
        sub("DOCTOR", 2, "", "Points to the histograms"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("HISTOGRAM", -2, "[command ...]", "Calls by the time that they took"),
        sub("HISTORY", 3, "event", "Always empty"),
        sub("LATEST", 2, "", "Always empty"),
        sub("RESET", -2, "[event ...]", "Always 0"),
    ]),
    row(Id::Memory, "MEMORY", -2, "readonly", Group::Server, (2, 2, 1), "USAGE key",
        "What a record takes", &[
        sub("DOCTOR", 2, "", "Points to INFO"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("USAGE", -3, "key [SAMPLES count]", "Bytes of the key and its value, or nil"),
    ]),
    row(Id::MGet, "MGET", -2, "readonly fast", Group::Stores, ALL_KEYS, "key [key ...]",
        "The keys' values, nil for each that is absent; all of one moment", &[]),
    row(Id::MSet, "MSET", -3, "write denyoom", Group::Tables, (1, -1, 2), "key value [key value ...]",
        "Puts rows, all as one", &[]),
    row(Id::MSetNx, "MSETNX", -3, "write denyoom", Group::Tables, (1, -1, 2), "key value [key value ...]",
        "Puts rows if none of them is there, all as one; answers 1 or 0", &[]),
    row(Id::Multi, "MULTI", 1, "noscript loading stale fast", Group::Tables, NO_KEYS, "",
        "Begins a transaction: what follows waits for EXEC", &[]),
    row(Id::Persist, "PERSIST", 2, "write fast", Group::Tables, ONE_KEY, "key",
        "Lets a row stay that was to go; answers 1 if it was", &[]),
    row(Id::PExpire, "PEXPIRE", -3, "write fast", Group::Tables, ONE_KEY, "key milliseconds [NX | XX | GT | LT ...]",
        "As EXPIRE, in milliseconds", &[]),
    row(Id::PExpireAt, "PEXPIREAT", -3, "write fast", Group::Tables, ONE_KEY, "key unix-time-milliseconds [NX | XX | GT | LT ...]",
        "As EXPIREAT, in milliseconds", &[]),
    row(Id::PExpireTime, "PEXPIRETIME", 2, "readonly fast", Group::Tables, ONE_KEY, "key",
        "As EXPIRETIME, in milliseconds", &[]),
    row(Id::Ping, "PING", -1, "fast", Group::Connection, NO_KEYS, "[message]",
        "Answers PONG or the message", &[]),
    row(Id::PSetEx, "PSETEX", 4, "write denyoom", Group::Tables, ONE_KEY, "key milliseconds value",
        "As SETEX, in milliseconds", &[]),
    row(Id::PSubscribe, "PSUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, NO_KEYS, "pattern [pattern ...]",
        "As SUBSCRIBE, of the keys that match: __keyspace@0__:table|pattern", &[]),
    row(Id::PTtl, "PTTL", 2, "readonly fast", Group::Tables, ONE_KEY, "key",
        "As TTL, in milliseconds", &[]),
    row(Id::PUnsubscribe, "PUNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, NO_KEYS, "[pattern ...]",
        "Is no longer told of what matches; without patterns, of none", &[]),
    row(Id::Quit, "QUIT", -1, "noscript loading stale fast no_auth allow_busy", Group::Connection, NO_KEYS, "",
        "Closes the connection after its replies", &[]),
    row(Id::Range, "RANGE", -3, "readonly", Group::Tables, NO_KEYS, "lo hi [LIMIT n] [REV] [KEYSONLY]",
        "Keys and values of a table or join output from lo to before hi, in key order", &[]),
    row(Id::RangeCount, "RANGECOUNT", 3, "readonly", Group::Tables, NO_KEYS, "lo hi",
        "How many rows there are from lo to before hi", &[]),
    row(Id::RangeDel, "RANGEDEL", 3, "write", Group::Tables, NO_KEYS, "lo hi",
        "Removes the rows from lo to before hi; answers how many there were", &[]),
    row(Id::Rename, "RENAME", 3, "write", Group::Tables, TWO_KEYS, "key newkey",
        "Gives a row another key, in place of what has it", &[]),
    row(Id::RenameNx, "RENAMENX", 3, "write fast", Group::Tables, TWO_KEYS, "key newkey",
        "Gives a row another key unless there is one; answers 1 or 0", &[]),
    row(Id::Reset, "RESET", 1, "noscript loading stale fast no_auth allow_busy", Group::Connection, NO_KEYS, "",
        "Makes the connection as new", &[]),
    row(Id::Scan, "SCAN", -2, "readonly", Group::Generic, NO_KEYS, "cursor MATCH name:pattern [COUNT count] [TYPE string]",
        "Walks the keys of one store or table; start with cursor 0", &[]),
    row(Id::Select, "SELECT", 2, "loading stale fast", Group::Connection, NO_KEYS, "0",
        "There is one database, 0", &[]),
    row(Id::Set, "SET", -3, "write denyoom", Group::Tables, ONE_KEY, "key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds | KEEPTTL]",
        "Puts a row of a table", &[]),
    row(Id::SetEx, "SETEX", 4, "write denyoom", Group::Tables, ONE_KEY, "key seconds value",
        "Puts a row that goes after some time", &[]),
    row(Id::SetNx, "SETNX", 3, "write denyoom fast", Group::Tables, ONE_KEY, "key value",
        "Puts a row unless there is one; answers 1 or 0", &[]),
    row(Id::SetRange, "SETRANGE", 4, "write denyoom", Group::Tables, ONE_KEY, "key offset value",
        "Puts bytes into a value, behind zeros if it is shorter; answers how many it has then", &[]),
    row(Id::SlowLog, "SLOWLOG", -2, "admin loading stale", Group::Server, NO_KEYS, "GET [count] | LEN | RESET",
        "The slowest commands of late", &[
        sub("GET", -2, "[count]", "The newest entries; 10 unless told, -1 for all"),
        sub("HELP", 2, "", "Lists the subcommands"),
        sub("LEN", 2, "", "How many entries there are"),
        sub("RESET", 2, "", "Forgets them"),
    ]),
    row(Id::StoreInfo, "STORE.INFO", 2, "readonly", Group::Stores, NO_KEYS, "store",
        "Records, bytes, partitions and residency of a store's live version", &[]),
    row(Id::StoreList, "STORE.LIST", 1, "readonly", Group::Stores, NO_KEYS, "",
        "The stores that can be read", &[]),
    row(Id::StoreVersion, "STORE.VERSION", 2, "readonly fast", Group::Stores, NO_KEYS, "store",
        "The number of a store's live version", &[]),
    row(Id::StrLen, "STRLEN", 2, "readonly fast", Group::Stores, ONE_KEY, "key",
        "Bytes of the key's value; 0 if it is absent", &[]),
    row(Id::Subscribe, "SUBSCRIBE", -2, "pubsub noscript loading stale", Group::Tables, NO_KEYS, "channel [channel ...]",
        "Is told of changes of a row, also of one that joins make: __keyspace@0__:table|key; the messages are set and del", &[]),
    row(Id::SubStr, "SUBSTR", 4, "readonly", Group::Stores, ONE_KEY, "key start end",
        "As GETRANGE", &[]),
    row(Id::Time, "TIME", 1, "loading stale fast", Group::Server, NO_KEYS, "",
        "The server's clock: seconds and microseconds since 1970", &[]),
    row(Id::Touch, "TOUCH", -2, "readonly fast", Group::Stores, ALL_KEYS, "key [key ...]",
        "As EXISTS", &[]),
    row(Id::Ttl, "TTL", 2, "readonly fast", Group::Tables, ONE_KEY, "key",
        "Seconds until a row goes; -1 if it stays, -2 if there is none", &[]),
    row(Id::Type, "TYPE", 2, "readonly fast", Group::Generic, ONE_KEY, "key",
        "string or none", &[]),
    row(Id::Unlink, "UNLINK", -2, "write fast", Group::Tables, ALL_KEYS, "key [key ...]",
        "As DEL", &[]),
    row(Id::Unsubscribe, "UNSUBSCRIBE", -1, "pubsub noscript loading stale", Group::Tables, NO_KEYS, "[channel ...]",
        "Is no longer told of these channels; without any, of none", &[]),
    row(Id::Unwatch, "UNWATCH", 1, "noscript loading stale fast allow_busy", Group::Tables, NO_KEYS, "",
        "Forgets what WATCH was told", &[]),
    row(Id::Watch, "WATCH", -2, "noscript loading stale fast allow_busy", Group::Tables, ALL_KEYS, "key [key ...]",
        "Has EXEC do nothing, and answer nil, if one of the keys changes before", &[]),
];

/// The row of the command `name`, in any case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    const GET: &Command = {
        let mut index = 0;
        while !matches!(COMMANDS[index].id, Id::Get) {
            index += 1;
        }
        &COMMANDS[index]
    };
    if let [g, e, t] = name
        && [g | 32, e | 32, t | 32] == [b'g', b'e', b't']
    {
        return Some(GET);
    }
    let found = COMMANDS.binary_search_by(|command| compare(command.name, name));
    found.ok().map(|index| &COMMANDS[index])
}

/// Compares a name in capitals with one in any case.
fn compare(name: &str, given: &[u8]) -> std::cmp::Ordering {
    name.bytes().cmp(given.iter().map(u8::to_ascii_uppercase))
}

impl Command {
    /// Whether so many arguments, the name included, are right.
    #[inline]
    pub fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }

    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Subcommand> {
        self.subcommands
            .iter()
            .find(|sub| name.eq_ignore_ascii_case(sub.name.as_bytes()))
    }

    /// What it takes, as Redis's documentation says it; R are the rows of a key's table.
    pub fn complexity(&self) -> &'static str {
        match self.id {
            Id::MGet | Id::Exists | Id::Touch | Id::Watch => {
                "O(N*log(R)) for N keys of tables, O(N) of stores"
            }
            Id::MSet | Id::MSetNx | Id::Del | Id::Unlink => "O(N*log(R)) for N keys",
            Id::Range | Id::RangeDel => {
                "O(log(R)+N) for N rows; what a join makes is computed when it is first read"
            }
            Id::Scan | Id::Keys => "O(N) for N keys that are walked",
            Id::FlushAll | Id::FlushDb => "O(N*log(R)) for N rows, in steps",
            Id::Exec => "That of its commands",
            Id::JoinDrop => "O(N) for N rows that the join made, in steps",
            _ => match self.group {
                Group::Tables => "O(log(R))",
                Group::Stores => "O(log(R)) in tables, O(1) in stores",
                _ => "O(1)",
            },
        }
    }

    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|own| own == flag)
    }

    /// Positions of the keys among `count` arguments.
    pub fn key_positions(&self, count: usize) -> impl Iterator<Item = usize> {
        let (first, last, step) = self.keys;
        let last = if last < 0 {
            count as i64 + i64::from(last)
        } else {
            i64::from(last)
        };
        let none = first == 0;
        (i64::from(first)..=last)
            .step_by(usize::try_from(step).unwrap_or(1).max(1))
            .filter(move |_| !none)
            .filter_map(|position| usize::try_from(position).ok())
    }
}

impl Subcommand {
    pub fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }
}

#[inline]
fn accepts(arity: i32, count: usize) -> bool {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    if arity < 0 {
        count >= -arity
    } else {
        count == arity
    }
}

/// What JOIN.CREATE understands, with examples: a part of the reference page. A test runs the examples.
pub const JOIN_LANGUAGE: &str = include_str!("../join_language.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_command_is_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for command in COMMANDS {
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
    fn arity_and_keys_are_counted_as_redis_counts_them() {
        let mget = find(b"mget").unwrap();
        assert!(mget.accepts(2) && mget.accepts(9) && !mget.accepts(1));
        assert_eq!(mget.key_positions(4).collect::<Vec<_>>(), [1, 2, 3]);
        let get = find(b"GET").unwrap();
        assert!(get.accepts(2) && !get.accepts(3));
        assert_eq!(get.key_positions(2).collect::<Vec<_>>(), [1]);
        assert_eq!(find(b"ping").unwrap().key_positions(1).count(), 0);
        assert!(get.has_flag("readonly") && !get.has_flag("read"));
    }
}
