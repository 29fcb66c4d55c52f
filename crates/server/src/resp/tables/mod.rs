//! The commands on tables and join outputs.
//!
//! `execute` first: it names the function of each command, and says what may have to come before it. Then by what they do:
//!
//! | room | files |
//! |---|---|
//! | single rows | `rows` (SET, DEL, INCR; `condition`: SET IFEQ), `strings` (what edits a value), `expire`, `reads`, `dump`, `scripts` (EVAL of known scripts) |
//! | several rows | `keys` (MSET, RENAME), `range` (`head`: how its answers begin), `scan`, `members` (SMEMBERS), `rankings` (ZRANGE) |
//! | joins | `joins` |
//! | transactions | `transaction`, `stores` (what it reads of stores), `watch` |
//! | changes | `subscribe` |
//! | refused, or not yet | `check`, `partly` (for some rows only), `retry` (it needs rows of other cores or of PostgreSQL, or time) |
//! | several cores | `route` (which one executes a command), `coordinate` and `merge` (what several do) |

mod check;
mod condition;
mod coordinate;
mod dump;
mod execute;
mod expire;
mod head;
mod joins;
mod keys;
mod members;
mod merge;
mod partly;
mod range;
mod rankings;
mod reads;
mod retry;
mod route;
mod rows;
mod scan;
mod scripts;
mod stores;
mod strings;
mod subscribe;
mod transaction;
mod watch;

use larder_protocol::errors::Code;
use larder_types::integer;

use crate::tables::Refusal;

pub(super) use check::refuse_reserved_range;
pub(super) use condition::digest;
pub(super) use coordinate::{
    SeveralCores, anywhere, ask_nodes, ask_places, places_of_nodes, wait_for_change,
};
pub(crate) use coordinate::{define_everywhere, define_in_cluster, follow_definitions};
pub(super) use execute::{execute, execute_whole};
pub(super) use expire::{deadline, expiry};
pub(super) use head::RowCounts;
pub(super) use joins::DefineJob;
pub(crate) use joins::JoinChange;
pub(super) use merge::Merge;
pub(super) use range::{RangeJob, header, one_row};
pub(super) use retry::Retry;
use route::of_other_node;
pub(super) use route::{
    Route, To, is_of_every_core, not_served, of_several_nodes, route, still_moving,
};
pub(super) use scan::scans_tables;
pub(super) use stores::StoresJob;
pub(super) use subscribe::{SubscribeJob, Subscribed, deliver, ping, refuse_in_subscriber_mode};
pub(super) use transaction::{Transaction, execute_together, mark_refused, queue};
pub(super) use watch::{WatchJob, Watching};

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
