//! The columns of the command table.

use larder_types::integer;

use super::Id;
use crate::resp::Request;

/// A command that the server executes: a row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub id: Id,
    /// In capitals.
    pub name: &'static str,
    /// Number of arguments, including the name. Negative: the minimum.
    pub arity: i32,
    /// Redis's flags, separated by spaces.
    pub flags: &'static str,
    /// The command changes rows or declarations (the flag `write`).
    pub writes: bool,
    /// Clients may send the command before they authenticate (the flag `no_auth`).
    pub before_password: bool,
    /// The command starts or ends a subscription (the flag `pubsub`).
    pub is_pubsub: bool,
    /// A connection with a subscription may send the command even in version 2 of the protocol.
    pub in_subscriber_mode: bool,
    pub in_multi: InMulti,
    pub group: Group,
    pub subject: Subject,
    pub keys: Keys,
    pub place: KeyPlace,
    pub syntax: &'static str,
    pub summary: &'static str,
    /// The time complexity, in the notation of Redis's documentation. R is the number of rows of a key's table.
    pub complexity: &'static str,
    /// The first release with the command.
    pub since: &'static str,
    pub subcommands: &'static [Subcommand],
}

#[derive(Debug, Clone, Copy)]
pub struct Subcommand {
    pub name: &'static str,
    /// Number of arguments, including both names. Negative: the minimum.
    pub arity: i32,
    pub syntax: &'static str,
    pub summary: &'static str,
}

/// The treatment of a command between MULTI and EXEC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InMulti {
    /// The server queues the command until EXEC.
    Queued,
    /// The server executes the command immediately. It ends the transaction or the connection, or returns an error within a
    /// transaction.
    Executed,
    /// The server rejects the command and the EXEC that follows.
    Refused,
}

/// A chapter of the reference page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Connection,
    Generic,
    Server,
    Stores,
    Tables,
    Objects,
    Spaces,
    Cluster,
}

/// The subject of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The connection, the server, or complete stores.
    Server,
    /// Rows of tables, joins, or a transaction.
    Tables,
    /// Records of stores or rows of tables, depending on the names in its keys (SCAN: in its pattern).
    Keys,
}

/// The arguments that are keys. The name is argument 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    /// The first argument.
    One,
    /// The first two arguments.
    Two,
    /// All arguments.
    Every,
    /// All arguments except the last.
    EveryButLast,
    /// Every other argument, each followed by its value.
    Pairs,
    /// The second argument and every other one after it, each followed by its value. The first argument is their number. Options
    /// follow.
    CountedPairs,
    /// The third argument and those after it. The second argument is their number. Other arguments follow.
    Counted,
    /// Every third argument, each followed by two other arguments.
    Triplets,
    /// The second argument, after a subcommand.
    Second,
    /// None. The first two arguments are the bounds of a range.
    Range,
    /// None. The two arguments after a join's name, if present, are the bounds of a range of its output.
    JoinRange,
}

/// The core that executes a command, if the server has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace {
    /// The core of the connection. The command reads no rows.
    Connection,
    /// The core of the connection, which sends requests to other cores. The command starts after all previous commands of the
    /// connection.
    ConnectionInOrder,
    /// The owner of the rows of its keys or its range, or several owners.
    Owner,
    /// All cores. The core of the connection merges their replies.
    AllCores,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::Generic => "generic",
            Group::Server => "server",
            Group::Stores => "stores",
            Group::Tables => "tables",
            Group::Objects => "objects",
            Group::Spaces => "spaces",
            Group::Cluster => "cluster",
        }
    }

    /// Returns the group's name in Redis's documentation, for clients that know only Redis's groups.
    pub fn redis_name(self) -> &'static str {
        match self {
            Group::Stores | Group::Tables => "string",
            Group::Objects => "hash",
            Group::Spaces => "module",
            other => other.name(),
        }
    }
}

impl Keys {
    /// Returns the first key, the last key and the step, as Redis defines them; all 0 if there are no keys.
    #[inline]
    pub fn redis(self) -> (i32, i32, i32) {
        match self {
            Keys::None | Keys::Range | Keys::JoinRange => (0, 0, 0),
            Keys::One => (1, 1, 1),
            Keys::Two => (1, 2, 1),
            Keys::Every => (1, -1, 1),
            Keys::EveryButLast => (1, -2, 1),
            Keys::Pairs => (1, -1, 2),
            // Clients get these keys from COMMAND GETKEYS (the flag `movablekeys`).
            Keys::CountedPairs | Keys::Counted => (0, 0, 0),
            Keys::Triplets => (1, -1, 3),
            Keys::Second => (2, 2, 1),
        }
    }

    /// Returns the positions of the keys among `count` arguments, without the options after counted pairs.
    #[inline]
    pub fn positions(self, count: usize) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        let (first, end, step) = match self {
            Keys::None | Keys::Range | Keys::JoinRange => (1, 1, 1),
            Keys::One => (1, 2, 1),
            Keys::Two => (1, 3, 1),
            Keys::Every => (1, count, 1),
            Keys::EveryButLast => (1, count.saturating_sub(1), 1),
            Keys::Pairs => (1, count, 2),
            Keys::CountedPairs => (2, count, 2),
            Keys::Counted => (3, count, 1),
            Keys::Triplets => (1, count, 3),
            Keys::Second => (2, 3, 1),
        };
        (first..end.min(count)).step_by(step)
    }
}

impl Spec {
    /// Returns whether the command accepts `count` arguments, including the name.
    #[inline]
    pub fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }

    /// Returns the positions of the keys of a request.
    #[inline]
    pub fn key_positions(
        &self,
        request: Request<'_>,
    ) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        let count = match self.keys {
            Keys::CountedPairs => counted_end(request, 1, 2),
            Keys::Counted => counted_end(request, 2, 1),
            _ => request.len(),
        };
        self.keys.positions(count)
    }

    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Subcommand> {
        self.subcommands
            .iter()
            .find(|sub| name.eq_ignore_ascii_case(sub.name.as_bytes()))
    }

    /// Returns whether the reply is the sum of numbers from all cores.
    #[inline]
    pub fn sums_replies(&self) -> bool {
        self.subject == Subject::Server && self.place == KeyPlace::AllCores
    }

    /// Returns whether the command reads any number of keys, some of stores and some of tables.
    #[inline]
    pub fn reads_every_key(&self) -> bool {
        self.subject == Subject::Keys && self.keys == Keys::Every
    }
}

impl Subcommand {
    pub fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }
}

/// Returns the end of the keys whose number is the argument at `at`. Each takes `width` arguments. If the argument is too large or
/// no number, the keys end with the request.
fn counted_end(request: Request<'_>, at: usize, width: usize) -> usize {
    let keys = integer(request.arg(at)).and_then(|count| usize::try_from(count).ok());
    let end = keys.and_then(|keys| keys.checked_mul(width)?.checked_add(at + 1));
    end.unwrap_or(usize::MAX).min(request.len())
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
