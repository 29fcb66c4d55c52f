//! Classifies commands by their subject: rows of tables, records of stores, both, or the connection and the server. A
//! command is classified once, before it is placed and executed.
//!
//! | key | subject |
//! |---|---|
//! | `post\|bob\|17` | a table: its name ends at `\|` |
//! | `pymk:42` | the store of that name, if it exists, else a table |
//! | `hotel` | no table: a plain key, whose text or object is kept among the rows |

use larder_protocol::commands::{Command, Keys, Subject};

use super::tables::scans_tables;
use crate::catalog::{Lookup, Snapshot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandSubject {
    /// The connection, the server, or stores as a whole.
    Server,
    /// Records of stores, or keys without an existing store.
    Records,
    /// Rows of tables, joins or a transaction.
    Rows,
    /// Keys of stores and keys of tables.
    Both,
}

impl CommandSubject {
    #[inline]
    pub fn of(snapshot: &Snapshot, command: Command<'_>) -> CommandSubject {
        let either = |is_rows: bool| {
            if is_rows {
                CommandSubject::Rows
            } else {
                CommandSubject::Records
            }
        };
        let mut are_rows = command.keys().map(|key| is_of_table(snapshot, key));
        match (command.spec.subject, command.spec.keys) {
            (Subject::Server, _) => CommandSubject::Server,
            (Subject::Tables, _) => CommandSubject::Rows,
            (Subject::Keys, Keys::None) => either(scans_tables(snapshot, command.request)),
            (Subject::Keys, Keys::Every) => {
                let first = are_rows.next().unwrap_or(false);
                if are_rows.any(|is_row| is_row != first) {
                    CommandSubject::Both
                } else {
                    either(first)
                }
            }
            (Subject::Keys, _) => either(are_rows.any(|is_row| is_row)),
        }
    }

    /// Returns whether the command must be executed where the tables are.
    #[inline]
    pub fn has_rows(self) -> bool {
        matches!(self, CommandSubject::Rows | CommandSubject::Both)
    }

    pub fn has_records(self) -> bool {
        matches!(self, CommandSubject::Records | CommandSubject::Both)
    }
}

/// Returns whether a key belongs to no store: it is a plain key, has `|` as its first separator, or names a store that
/// does not exist.
#[inline]
pub(super) fn is_of_table(snapshot: &Snapshot, key: &[u8]) -> bool {
    match key.iter().position(|&byte| byte == b':' || byte == b'|') {
        None => true,
        Some(end) => key[end] == b'|' || matches!(snapshot.lookup(&key[..end]), Lookup::Absent),
    }
}
