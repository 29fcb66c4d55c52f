//! The commands on tables and join outputs.
//!
//! `execute` first: it names the function of each command, and says what may have to come before it. Then by what they do:
//!
//! | room | files |
//! |---|---|
//! | single rows | `rows` (SET, DEL, INCR), `strings` (what edits a value; `decimal`: sums), `expire`, `reads` |
//! | several rows | `keys` (MSET, RENAME), `range` (`head`: how its answers begin), `scan` |
//! | joins | `joins` |
//! | transactions | `transaction`, `stores` (what it reads of stores), `watch` |
//! | changes | `subscribe` |
//! | refused, or not yet | `check`, `retry` (it needs rows of other cores or of PostgreSQL, or time) |
//! | several cores | `route` (which one executes a command), `coordinate` and `merge` (what several do) |

mod check;
mod coordinate;
mod decimal;
mod execute;
mod expire;
mod head;
mod joins;
mod keys;
mod merge;
mod range;
mod reads;
mod retry;
mod route;
mod rows;
mod scan;
mod stores;
mod strings;
mod subscribe;
mod transaction;
mod watch;

use larder_protocol::commands::{Command, Id, Keys, Subject};
use larder_protocol::errors::Code;

use super::dispatch::integer;
use super::state::State;
use crate::catalog::{Lookup, Snapshot};
use crate::tables::Refusal;

pub(super) use coordinate::SeveralCores;
pub(crate) use coordinate::define_everywhere;
pub(super) use execute::{execute, execute_whole};
pub(super) use head::RowCounts;
pub(super) use joins::DropJob;
pub(super) use merge::Merge;
pub(super) use range::{RangeJob, header, one_row};
pub(super) use retry::Retry;
pub(super) use route::{To, route};
pub(super) use stores::StoresJob;
pub(super) use subscribe::{SubscribeJob, Subscribed, deliver, ping, refuse_in_subscriber_mode};
pub(super) use transaction::{Transaction, execute_together, mark_refused};
pub(super) use watch::{WatchJob, Watching};

/// Whether a key is of a table, or of nothing there is: its name is no store's.
#[inline]
pub(super) fn is_of_table(snapshot: &Snapshot, key: &[u8]) -> bool {
    match key.iter().position(|&byte| byte == b':' || byte == b'|') {
        None => false,
        Some(end) => key[end] == b'|' || matches!(snapshot.lookup(&key[..end]), Lookup::Absent),
    }
}

/// Whether a request must be executed where the tables are, or waits for EXEC.
pub(super) fn concerns(state: &State, snapshot: &Snapshot, command: Command<'_>) -> bool {
    let waits = state.transaction.is_some() && !matches!(command.id(), Id::Quit | Id::Reset);
    waits || is_of_tables(snapshot, command)
}

/// Whether a request reads or changes tables, joins or a transaction.
fn is_of_tables(snapshot: &Snapshot, command: Command<'_>) -> bool {
    match (command.spec.subject, command.spec.keys) {
        (Subject::Server, _) => false,
        (Subject::Tables, _) => true,
        (Subject::Keys, Keys::None) => scan::is_of_tables(snapshot, command.request),
        (Subject::Keys, _) => command.keys().any(|key| is_of_table(snapshot, key)),
    }
}

fn number(text: &[u8]) -> Result<i64, Refusal> {
    integer(text).ok_or_else(|| {
        (
            Code::BadRequest,
            "value is not an integer or out of range".to_owned(),
        )
    })
}

fn syntax() -> Refusal {
    (Code::Syntax, "syntax error".to_owned())
}
