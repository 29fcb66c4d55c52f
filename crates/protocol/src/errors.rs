//! The error codes that clients match on.
//!
//! RESP has a code as the first word of an error reply (`-NOSTORE no store is named ...`). HTTP has a
//! status, and the code as `error.code` in the body. Every message states what failed, on which value,
//! and what to do; it is one sentence without a final period or a newline.

use std::fmt;

/// An error code. [`Code::row`] has its spelling in each protocol.
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

/// A [`Code`]'s spelling in each protocol, and its remedy.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub code: Code,
    /// `error.code` in the body of an HTTP response.
    pub name: &'static str,
    /// First word of a RESP error.
    pub resp_prefix: &'static str,
    pub http_status: u16,
    /// True if the same request may succeed later without any other change.
    pub retry: bool,
    /// The cause and the remedy, as Markdown.
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
    row(Code::BadRequest, "BAD_REQUEST", "ERR", 400, false, "The request is malformed, or an argument is out of its range; the message names the argument and its range"),
    row(Code::UnknownCommand, "UNKNOWN_COMMAND", "ERR", 404, false, "The command does not exist. The text is the same as Redis's"),
    row(Code::WrongArity, "WRONG_ARITY", "ERR", 400, false, "Too few or too many arguments. The text is the same as Redis's"),
    row(Code::Syntax, "SYNTAX", "ERR", 400, false, "An option is unknown or has no value"),
    row(Code::ReadOnly, "READONLY", "NOWRITE", 405, false, "The key cannot be written here. Store: build a version and push it. Output of a join: write to its sources. Table in PostgreSQL: write to PostgreSQL"),
    row(Code::NoAuth, "NOAUTH", "NOAUTH", 401, false, "The server requires a password, and the connection or the HTTP request did not send one"),
    row(Code::WrongPassword, "WRONGPASS", "WRONGPASS", 401, false, "The user name or the password is wrong"),
    row(Code::NoProto, "NOPROTO", "NOPROTO", 400, false, "HELLO requested a protocol version other than 2 or 3"),
    row(Code::TooManyClients, "MAX_CLIENTS", "ERR", 503, true, "The number of open connections has reached `server.max_connections`, or for HTTP `server.max_http_connections`; close some, or raise the limit"),
    row(Code::Forbidden, "FORBIDDEN", "ERR", 403, false, "The request was sent by a browser from a page of another site, or the source of the pull is not in `fetch.allow`"),
    row(Code::NoSuchStore, "NO_SUCH_STORE", "NOSTORE", 404, false, "No store has this name; STORE.LIST lists the stores, `larder push` creates one"),
    row(Code::NoSuchVersion, "NO_SUCH_VERSION", "NOVERSION", 404, false, "The store does not have this version; the message lists its versions"),
    row(Code::NoSuchPull, "NO_SUCH_PULL", "NOPULL", 404, false, "No pull since the server started has this id"),
    row(Code::NoLiveVersion, "NO_LIVE_VERSION", "NOLIVE", 503, true, "The store has no live version yet; wait for its pull, or swap to a version"),
    row(Code::AbsentKey, "ABSENT_KEY", "ERR", 404, false, "The store does not contain this key; over RESP the reply is nil instead"),
    row(Code::Conflict, "CONFLICT", "BUSY", 409, true, "Another pull of the store is running, or the version is in use"),
    row(Code::KeyExists, "KEY_EXISTS", "BUSYKEY", 409, false, "RESTORE: the key already exists. To replace its value, add REPLACE. The text is the same as Redis's"),
    row(Code::Refused, "REFUSED", "REFUSED", 422, false, "A gate rejected the new version; the live version is unchanged"),
    row(Code::Corrupted, "CORRUPTED", "CORRUPTED", 500, false, "Data on disk is damaged. Verify the version, then roll back or pull again. A damaged record is never reported as an absent key"),
    row(Code::DiskFull, "DISK_FULL", "DISKFULL", 507, false, "The data disk has no space for a pull or for the journal of the tables. Free some space, or lower the retention. Nothing was changed. Tables accept writes again automatically once there is space"),
    row(Code::Source, "SOURCE", "SOURCE", 502, true, "The source of a pull cannot be read, or its files do not match the manifest; the body's `retry` is true if another attempt may succeed. Also: the PostgreSQL database that holds the table cannot be reached or is not set up; the message names the remedy, and the server retries automatically"),
    row(Code::Cancelled, "CANCELLED", "CANCELLED", 409, false, "The operation was cancelled on request; nothing was changed"),
    row(Code::Io, "IO", "IOERR", 500, false, "A file system or network operation failed; the message contains the path and the cause. If the journal of the tables cannot be written, the message states whether the server retries or needs a restart"),
    row(Code::NoSuchJoin, "NO_SUCH_JOIN", "NOJOIN", 404, false, "No join has this name; JOIN.LIST lists the joins"),
    row(Code::OutOfMemory, "OUT_OF_MEMORY", "OOM", 507, false, "`tables.memory` is exhausted: all computed rows are evicted, and base rows alone fill it. Remove rows, or raise the limit. Also: the command would exceed `server.client_memory`; send or read less at a time"),
    row(Code::ExecAbort, "EXEC_ABORT", "EXECABORT", 409, false, "A command after MULTI was rejected, so EXEC executed none of the commands"),
    row(Code::Overloaded, "OVERLOADED", "OVERLOADED", 503, true, "The queue for this kind of work is full. `server.http_reads` limits samples, dumps, comparisons, verifications and large values; `fetch.pulls` and `fetch.queue` limit pulls. Try again later, or raise the limit"),
    row(Code::Timeout, "TIMEOUT", "TIMEOUT", 408, true, "The rest of an HTTP request did not arrive within `server.http_timeout_seconds`"),
    row(Code::TooManyGuesses, "TOO_MANY_GUESSES", "ERR", 429, true, "Too many wrong passwords were sent from this address, or from all addresses together, so this password was not checked; try again after a second"),
    row(Code::ClusterDown, "CLUSTER_DOWN", "CLUSTERDOWN", 503, true, "No node currently serves the key's slot, or this node must not serve it; the message gives the reason. Nothing was changed. The slot is served again when a replica takes over, or when the node or etcd is back"),
    row(Code::CrossSlot, "CROSS_SLOT", "CROSSSLOT", 400, false, "The request would atomically change rows of several nodes, which a cluster does not support. Use keys with the same hash tag, such as `post|{bob}|17`, so that one node owns them, or send one request per node"),
    row(Code::Moved, "MOVED", "MOVED", 421, true, "Another node owns the key's slot; the message names it. Sent only if `cluster.routing` is `redirect`. Clients of Redis Cluster follow it automatically"),
    row(Code::TryAgain, "TRY_AGAIN", "TRYAGAIN", 503, true, "Slots moved to other nodes while the request was being executed; send it again"),
    row(Code::Unknown, "OUTCOME_UNKNOWN", "UNKNOWN", 504, false, "The outcome of the write is unknown: the request was sent to the node that owns the key, and the connection broke before the reply arrived. Read the row before you send the write again, unless the write is idempotent. Also: a write to several keys, such as DEL or MSET, was executed for some keys and rejected for others; the message contains the first error"),
    row(Code::WrongType, "WRONG_TYPE", "WRONGTYPE", 409, false, "The key holds a value of another type than the command requires: a string, a hash or a JSON document. TYPE shows the type. The text is the same as Redis's"),
    row(Code::NoSuchSpace, "NO_SUCH_SPACE", "Unknown", 404, false, "No space has this name; FT._LIST lists the spaces. The text is the same as RediSearch's, `Unknown index name`, because object mappers compare the complete text"),
    row(Code::Loading, "LOADING", "LOADING", 503, true, "The server is starting: it opens its stores or loads rows into memory. Send the request again later. `/readyz` shows the progress. The text is the same as Redis's"),
    row(Code::NoReplicas, "NO_REPLICAS", "NOREPLICAS", 503, true, "Fewer copies of the key's slot are in sync than `cluster.min_copies` requires, so the write was not executed; the message contains the number of copies. Writes are accepted again when enough copies are in sync"),
    row(Code::NoScript, "NO_SCRIPT", "NOSCRIPT", 404, false, "EVALSHA: no known script has this hash. Send the script's text with EVAL, whose error lists the supported scripts. The text is the same as Redis's"),
];

impl Code {
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the code with this name in `error.code`.
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
