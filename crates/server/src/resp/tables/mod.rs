//! The commands on tables and join outputs.
//!
//! Start with `execute`, which maps commands to functions and lists what may have to happen first. The modules by area:
//!
//! | area | modules |
//! |---|---|
//! | single rows | `rows` (SET, DEL, INCR; `condition`: SET IFEQ), `strings` (edits of a value), `expire`, `reads`, `dump`, `scripts` (EVAL of known scripts) |
//! | several rows | `keys` (MSET, RENAME), `range` (`head`: headers of its replies), `scan`, `members` (SMEMBERS), `rankings` (ZRANGE) |
//! | joins | `joins` |
//! | transactions | `transaction`, `stores` (its reads of stores), `watch` |
//! | changes | `subscribe` |
//! | rejections and waits | `check`, `partly` (rejected for some rows), `retry` (waits for rows of other cores or of PostgreSQL, or for a computation) |
//! | several cores | `route` (chooses the core of a command), `coordinate` and `merge` (commands over several cores) |

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
