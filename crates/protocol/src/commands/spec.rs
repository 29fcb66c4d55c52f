//! What a row of the table says of a command.

use larder_types::integer;

use super::Id;
use crate::resp::Request;

/// A command that the server executes: a row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub id: Id,
    /// In capitals, as people write it.
    pub name: &'static str,
    /// Arguments, the name included; negative means at least so many.
    pub arity: i32,
    /// Redis's flags, separated by spaces.
    pub flags: &'static str,
    /// It changes rows, or what is declared of them: the flag `write`.
    pub writes: bool,
    /// It may be sent before the password: the flag `no_auth`.
    pub before_password: bool,
    /// It subscribes to something, or no longer: the flag `pubsub`.
    pub is_pubsub: bool,
    /// It may be sent by a connection that is subscribed to something and speaks version 2 of the protocol.
    pub in_subscriber_mode: bool,
    pub in_multi: InMulti,
    pub group: Group,
    pub subject: Subject,
    pub keys: Keys,
    pub place: Place,
    pub syntax: &'static str,
    pub summary: &'static str,
    /// What it takes, as Redis's documentation says it; R are the rows of a key's table.
    pub complexity: &'static str,
    /// The first release that has it.
    pub since: &'static str,
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

/// What becomes of a command between MULTI and EXEC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InMulti {
    /// It waits for EXEC.
    Queued,
    /// It is executed: it ends the transaction or the connection, or refuses to be part of one.
    Executed,
    /// It is refused, and EXEC after it.
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

/// Whom a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The connection, the server, or stores as such.
    Server,
    /// Rows of tables, joins, or a transaction.
    Tables,
    /// Records of stores or rows of tables: the names in its keys (SCAN: in its pattern) say which.
    Keys,
}

/// Which arguments are keys. The name is argument 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    /// The first argument.
    One,
    /// The first two.
    Two,
    /// All.
    Every,
    /// All but the last.
    EveryButLast,
    /// Every other, each before its value.
    Pairs,
    /// The second and every other behind it, each before its value: as many as the first argument says. Options follow.
    CountedPairs,
    /// The third and those behind it, as many as the second argument says. Arguments follow.
    Counted,
    /// Every third, each before two other arguments.
    Triplets,
    /// The second, behind a subcommand.
    Second,
    /// None, but the first two are the bounds of a range.
    Range,
    /// None, but the two behind a join's name, if there are any, are the bounds of a range of its output.
    JoinRange,
}

/// Which core executes a command where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// That of the connection: it reads no rows.
    Connection,
    /// That of the connection, which asks others; after all that the connection has sent before.
    ConnectionInOrder,
    /// That which has the rows of its keys or of its range, or several if they are of several.
    Owner,
    /// All of them; that of the connection puts together what they answer.
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

    /// The group as Redis's own documentation calls it, for clients that know only those.
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
    /// First key, last key and step, as Redis counts them; all 0 when there is none.
    #[inline]
    pub fn redis(self) -> (i32, i32, i32) {
        match self {
            Keys::None | Keys::Range | Keys::JoinRange => (0, 0, 0),
            Keys::One => (1, 1, 1),
            Keys::Two => (1, 2, 1),
            Keys::Every => (1, -1, 1),
            Keys::EveryButLast => (1, -2, 1),
            Keys::Pairs => (1, -1, 2),
            // Clients ask COMMAND GETKEYS for them: the flag `movablekeys`.
            Keys::CountedPairs | Keys::Counted => (0, 0, 0),
            Keys::Triplets => (1, -1, 3),
            Keys::Second => (2, 2, 1),
        }
    }

    /// Positions of the keys among `count` arguments, without the options behind counted pairs.
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
    /// Whether so many arguments, the name included, are right.
    #[inline]
    pub fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }

    /// Positions of the keys of a request.
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

    /// Whether it is about the server and all cores are asked: their figures are added up.
    #[inline]
    pub fn adds_up_figures(&self) -> bool {
        self.subject == Subject::Server && self.place == Place::AllCores
    }

    /// Whether it reads any number of keys, of which some may be of stores and others of tables.
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

/// Where keys end of which the argument at `at` gives the number; each takes `width` arguments. With the request, if the number is too
/// large or none.
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
