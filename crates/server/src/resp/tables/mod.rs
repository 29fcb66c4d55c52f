//! The commands on tables and join outputs.
//!
//! Start with `execute`, which lists what may have to happen before the function of a command (see `super::handlers`) is
//! called. The modules by area:
//!
//! | area | modules |
//! |---|---|
//! | single rows | `rows` (SET, DEL, INCR; `condition`: SET IFEQ), `strings` (edits of a value), `expire`, `reads`, `dump`, `scripts` (EVAL of known scripts) |
//! | several rows | `keys` (MSET, RENAME), `range` (`reply_header`: headers of its replies), `scan`, `members` (SMEMBERS), `rankings` (ZRANGE) |
//! | joins | `joins` |
//! | transactions | `transaction`, `store_reads` (its reads of stores), `watch` |
//! | changes | `subscribe` |
//! | rejections and waits | `check`, `partial_write` (rejected for some rows), `retry` (waits for rows of other cores or of PostgreSQL, or for a computation) |
//! | several cores | `route` (chooses the core of a command), `coordinate` and `merge` (commands over several cores) |

mod check;
mod condition;
mod coordinate;
pub(super) mod dump;
mod execute;
pub(super) mod expire;
pub(super) mod joins;
pub(super) mod keys;
pub(super) mod members;
mod merge;
mod partial_write;
pub(super) mod range;
pub(super) mod rankings;
pub(super) mod reads;
mod reply_header;
mod retry;
mod route;
pub(super) mod rows;
pub(super) mod scan;
pub(super) mod scripts;
mod store_reads;
pub(super) mod strings;
pub(super) mod subscribe;
pub(super) mod transaction;
pub(super) mod watch;

use larder_protocol::errors::Code;
use larder_types::integer;

use crate::tables::Refusal;

pub(super) use check::refuse_reserved_range;
pub(super) use condition::digest;
pub(super) use coordinate::{
    CoordinatedCommand, Coordinator, execute_on_owners, is_of_object, node_places, request_nodes,
    request_places, wait_for_change,
};
pub(crate) use coordinate::{define_in_cluster, define_on_all_cores, follow_definitions};
pub(super) use execute::{execute, execute_atomically, not_executable};
pub(super) use expire::{deadline, expiry};
pub(super) use joins::DefineJob;
pub(crate) use joins::JoinChange;
pub(super) use merge::Merge;
pub(super) use range::{RangeJob, encode_header, encode_row};
pub(super) use reply_header::RowCounts;
pub(super) use retry::Retry;
use route::rows_on_other_node;
pub(super) use route::{
    Destination, Route, concerns_every_core, keys_on_several_nodes, route, slot_not_served,
    slots_still_moving,
};
pub(super) use scan::scans_tables;
pub(super) use store_reads::StoresJob;
pub(super) use subscribe::{
    ConnectionSubscriptions, SubscribeJob, deliver, ping, refuse_in_subscriber_mode,
};
pub(super) use transaction::{Transaction, execute_together, mark_refused, queue};
pub(super) use watch::{WatchJob, WatchedKeys};

pub(super) fn parse_integer(text: &[u8]) -> Result<i64, Refusal> {
    integer(text).ok_or_else(|| {
        (
            Code::BadRequest,
            "value is not an integer or out of range".to_owned(),
        )
    })
}

fn syntax_error() -> Refusal {
    (Code::Syntax, "syntax error".to_owned())
}
