//! The error codes that clients match on, one row each.
//!
//! RESP shows a code as the first word of an error reply (`-NOSTORE no store is named ...`), HTTP
//! as `error.code` in the body beside a status. The habit of every message: what failed, on which
//! value, what to do; one sentence, no final full stop, no newline.

use std::fmt;

/// An error code. [`Code::row`] says how each protocol spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    BadRequest,
    UnknownCommand,
    WrongArity,
    Syntax,
    ReadOnly,
    NoAuth,
    WrongPassword,
    NoProto,
    TooManyClients,
    Forbidden,
    NoSuchStore,
    NoSuchVersion,
    NoSuchPull,
    NoLiveVersion,
    AbsentKey,
    Conflict,
    KeyExists,
    Refused,
    Corrupted,
    DiskFull,
    Source,
    Cancelled,
    Io,
    NoSuchJoin,
    OutOfMemory,
    ExecAbort,
    Overloaded,
    Timeout,
    TooManyGuesses,
    ClusterDown,
    CrossSlot,
    Moved,
    TryAgain,
    Unknown,
    WrongType,
    NoSuchSpace,
    Loading,
    NoReplicas,
    NoScript,
}

/// How a [`Code`] is spelled and what a client may do about it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub code: Code,
    /// `error.code` of an HTTP answer.
    pub name: &'static str,
    /// First word of a RESP error.
    pub resp_prefix: &'static str,
    pub http_status: u16,
    /// Whether the same request may succeed later with nobody changing anything.
    pub retry: bool,
    /// When it is answered, and what the message tells the reader to do.
    pub meaning: &'static str,
}

const fn row(
    code: Code,
    name: &'static str,
    resp_prefix: &'static str,
    http_status: u16,
    retry: bool,
    meaning: &'static str,
) -> Row {
    Row {
        code,
        name,
        resp_prefix,
        http_status,
        retry,
        meaning,
    }
}

/// Every code, in the order of [`Code`].
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row(Code::BadRequest, "BAD_REQUEST", "ERR", 400, false, "The request is malformed or an argument is out of its range; the message names the argument and its range"),
    row(Code::UnknownCommand, "UNKNOWN_COMMAND", "ERR", 404, false, "No such command; the text is the one Redis gives"),
    row(Code::WrongArity, "WRONG_ARITY", "ERR", 400, false, "Too few or too many arguments; the text is the one Redis gives"),
    row(Code::Syntax, "SYNTAX", "ERR", 400, false, "An option is unknown or lacks its value"),
    row(Code::ReadOnly, "READONLY", "NOWRITE", 405, false, "A write to a store: build a version and push it; to the output of a join: write to its sources; or to a table that is kept in PostgreSQL: write there"),
    row(Code::NoAuth, "NOAUTH", "NOAUTH", 401, false, "The server has a password and the connection, or the HTTP request, has not given it"),
    row(Code::WrongPassword, "WRONGPASS", "WRONGPASS", 401, false, "The user or the password is wrong"),
    row(Code::NoProto, "NOPROTO", "NOPROTO", 400, false, "HELLO asked for a protocol other than 2 or 3"),
    row(Code::TooManyClients, "MAX_CLIENTS", "ERR", 503, true, "As many connections are open as server.max_connections allows, or over HTTP server.max_http_connections; close some, or raise it"),
    row(Code::Forbidden, "FORBIDDEN", "ERR", 403, false, "The request comes from a page of another site in a browser; or fetch.allow does not name the source of the pull"),
    row(Code::NoSuchStore, "NO_SUCH_STORE", "NOSTORE", 404, false, "No store has this name; STORE.LIST lists them, `larder push` makes one"),
    row(Code::NoSuchVersion, "NO_SUCH_VERSION", "NOVERSION", 404, false, "The store holds no such version; the message lists those it holds"),
    row(Code::NoSuchPull, "NO_SUCH_PULL", "NOPULL", 404, false, "No pull has this id since the server started"),
    row(Code::NoLiveVersion, "NO_LIVE_VERSION", "NOLIVE", 503, true, "The store exists and no version of it is live yet; wait for its pull or swap one in"),
    row(Code::AbsentKey, "ABSENT_KEY", "ERR", 404, false, "The store holds no such key; RESP answers nil instead"),
    row(Code::Conflict, "CONFLICT", "BUSY", 409, true, "Another pull of the store is running, or the version is in use"),
    row(Code::KeyExists, "KEY_EXISTS", "BUSYKEY", 409, false, "RESTORE found the key: add REPLACE to put the value in its place. The text is the one Redis gives"),
    row(Code::Refused, "REFUSED", "REFUSED", 422, false, "A gate refused the new version; the live one is unchanged"),
    row(Code::Corrupted, "CORRUPTED", "CORRUPTED", 500, false, "Bytes on disk are damaged; verify, then roll back or pull again. Never answered as an absent key"),
    row(Code::DiskFull, "DISK_FULL", "DISKFULL", 507, false, "No space on the data disk, for a pull or for the journal of the tables; free some, or lower retention. Nothing was changed; once there is room, tables take writes again by themselves"),
    row(Code::Source, "SOURCE", "SOURCE", 502, true, "The source of a pull cannot be read, or its files are not what the manifest says; the body's retry says whether another try may help. Or PostgreSQL, which keeps the table, cannot be reached or must be set up: the message says how, and larder tries again by itself"),
    row(Code::Cancelled, "CANCELLED", "CANCELLED", 409, false, "Cancelled on request; nothing changed"),
    row(Code::Io, "IO", "IOERR", 500, false, "The file system or the network failed; the message names path and cause. Where the journal of the tables cannot be written, it says whether that is tried again or takes a restart"),
    row(Code::NoSuchJoin, "NO_SUCH_JOIN", "NOJOIN", 404, false, "No join has this name; JOIN.LIST lists them"),
    row(Code::OutOfMemory, "OUT_OF_MEMORY", "OOM", 507, false, "Base rows alone fill tables.memory, with all computed rows evicted: remove some, or raise it. Or what is kept for one client would exceed server.client_memory: ask for less at a time"),
    row(Code::ExecAbort, "EXEC_ABORT", "EXECABORT", 409, false, "A command since MULTI was refused, so none was executed"),
    row(Code::Overloaded, "OVERLOADED", "OVERLOADED", 503, true, "No more work of this kind may be under way or wait: server.http_reads bounds samples, dumps, comparisons, verifies and large values, fetch.pulls and fetch.queue bound pulls. Try again later, or raise the bound"),
    row(Code::Timeout, "TIMEOUT", "TIMEOUT", 408, true, "The rest of an HTTP request did not arrive within server.http_timeout_seconds"),
    row(Code::TooManyGuesses, "TOO_MANY_GUESSES", "ERR", 429, true, "Too many wrong passwords came from this address, or from all together, so this one was not checked; try again in a second"),
    row(Code::ClusterDown, "CLUSTER_DOWN", "CLUSTERDOWN", 503, true, "No node of the cluster answers for the key's slot at the moment, or this one must not: the message says why. Nothing was done. It ends by itself when a replica takes over, or the node or etcd is back"),
    row(Code::CrossSlot, "CROSS_SLOT", "CROSSSLOT", 400, false, "The request would change rows of several nodes as one, which no cluster does: give the keys one hash tag, such as post|{bob}|17, so that one node has them, or send a request for each"),
    row(Code::Moved, "MOVED", "MOVED", 421, true, "Only with cluster.routing = redirect: another node has the key's slot, and the message says which; clients of Redis Cluster go there by themselves"),
    row(Code::TryAgain, "TRY_AGAIN", "TRYAGAIN", 503, true, "Slots moved to other nodes while the request was being executed: send it again"),
    row(Code::Unknown, "OUTCOME_UNKNOWN", "UNKNOWN", 504, false, "The write was sent to the node that owns its key, and the connection broke before the answer: it may have been done or not. Read the row before the write is sent again, unless it does no harm to do it twice. Or DEL, MSET or their like was done for some of its keys and refused for others: the message has the first refusal"),
    row(Code::WrongType, "WRONG_TYPE", "WRONGTYPE", 409, false, "The key holds another kind of value than the command is about: a string, a hash or a JSON document; TYPE says which. The text is the one Redis gives"),
    row(Code::NoSuchSpace, "NO_SUCH_SPACE", "Unknown", 404, false, "No space has this name: FT._LIST says which there are. The text is the one RediSearch gives, `Unknown index name`, which object mappers compare as a whole"),
    row(Code::Loading, "LOADING", "LOADING", 503, true, "The server has just started: it opens its stores or loads rows into memory. Send the request again. /readyz shows how far it is; the text is the one Redis gives"),
    row(Code::NoReplicas, "NO_REPLICAS", "NOREPLICAS", 503, true, "Fewer copies of the key's slot are in sync than cluster.min_copies asks for, so the write was not done; the message says how many there are. It ends by itself when other nodes have copies again"),
    row(Code::NoScript, "NO_SCRIPT", "NOSCRIPT", 404, false, "EVALSHA names a script that is not known: send its text with EVAL, which says what is supported. The text is the one Redis gives"),
];

impl Code {
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The code of an HTTP body's `error.code`.
    pub fn from_name(name: &str) -> Option<Code> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.code)
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn resp_prefix(self) -> &'static str {
        self.row().resp_prefix
    }

    pub fn http_status(self) -> u16 {
        self.row().http_status
    }

    pub fn retry(self) -> bool {
        self.row().retry
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_sits_at_its_code_and_names_are_unique() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.code as usize, index, "{}", row.name);
            assert_eq!(Code::from_name(row.name), Some(row.code));
            assert!(!row.resp_prefix.contains(' '));
        }
    }
}
