//! The commands on tables and join outputs.
//!
//! `mod` says which requests are of tables. `rows` has those on single keys, and hands on what edits a value to `strings` (`decimal`: sums)
//! and what concerns several keys to `keys`. `range` has those on ranges (`head`: how their answers begin), `joins` the `JOIN.*`, `scan`
//! SCAN and KEYS, `transaction` MULTI and EXEC (`stores`: what is read of stores there; `watch`: WATCH), `subscribe` SUBSCRIBE. Where
//! there are several cores, `route` says which one executes a command, and `many` and `merge` what several do; `retry` has commands that
//! need rows of other cores or of PostgreSQL, or time.

mod check;
mod decimal;
mod execute;
mod expire;
mod head;
mod joins;
mod keys;
mod many;
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

pub(super) use execute::{execute, execute_whole};
pub(super) use head::RowCounts;
pub(super) use joins::DropJob;
pub(super) use many::SeveralCores;
pub(crate) use many::define_everywhere;
pub(super) use merge::Merge;
pub(super) use range::{RangeJob, header, one_row};
pub(super) use retry::Retry;
pub(super) use route::{To, route};
pub use scan::Cursors;
pub(super) use stores::StoresJob;
pub(super) use subscribe::{SubscribeJob, Subscribed, hand_on, ping, refuse_others};
pub(super) use transaction::{Transaction, execute_together, spoil};
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
