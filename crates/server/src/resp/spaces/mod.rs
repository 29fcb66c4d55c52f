//! FT.\*: declares, alters and drops spaces, and searches objects by their attributes.
//!
//! ```text
//!  FT.SEARCH ─► parsed ─► every core of this node: `run`, in steps ─► partial answers ─► merged ─► the reply
//!                └─ in a cluster: every node returns its part ────────────┘
//! ```
//!
//! - `define` declares spaces. `layout` changes their subspaces, and `cuts` chooses and updates the cuts.
//! - `search`, `aggregate` and `values` (FT.TAGVALS) find objects. `change` changes the objects that match a query.
//! - A search or an aggregation is a `space_query`. `scatter_gather` queries all participants and merges their results;
//!   `context` determines the participants and contacts other nodes. `run` is the work of one core, and `regions` that of the
//!   holders of regions.
//! - `offload` performs long work after the parts have arrived. `reply` writes the reply.
//! - `single_core_search` bypasses all this on a server with one core.
//! - `info` describes spaces, `explain` queries, and `profile` the work of a search. `record` records the workload of a
//!   space.
//!
//! 1. The parts of an answer are based on one assignment of slots to nodes, and each slot is answered by its owner,
//!    under its lease. If the ownership changes meanwhile, all parts are requested again; see
//!    docs/decisions/0019-searches-over-nodes.md.
//! 2. The parts are based on one definition of the space. Each part contains the version of its definition.

pub(super) mod aggregate;
pub(super) mod change;
mod context;
mod cuts;
pub(super) mod define;
pub(super) mod explain;
pub(super) mod info;
mod layout;
pub(super) mod offload;
pub(super) mod profile;
pub(super) mod record;
mod regions;
mod reply;
mod run;
mod scatter_gather;
pub(super) mod search;
pub(super) mod single_core_search;
mod space_query;
mod stats;
pub(super) mod values;

use larder_protocol::commands::{Command, Group};
use larder_protocol::errors::Code;

pub(in crate::resp) use context::{QueryContext, QueryScope};
pub(in crate::resp) use cuts::recut_on_drift;
pub(in crate::resp) use define::drop_all;
pub(crate) use define::follow_spaces;

use super::core::Core;
use super::handlers::{self, Coordination, SpaceEffect};
use super::pending::Work;
use super::tables::CoordinatedCommand;
use crate::tables::Refusal;

/// Returns whether a command belongs to this module.
pub(in crate::resp) fn is_space_command(command: Command<'_>) -> bool {
    command.spec.group == Group::Spaces
}

/// Returns whether a command only reads and may take long. It is aborted if its client disconnects.
pub(in crate::resp) fn is_long_read(command: Command<'_>) -> bool {
    matches!(
        handlers::find(command).coordination,
        Coordination::Spaces(SpaceEffect::LongRead, _)
    )
}

/// Returns the work of a command that all cores or nodes execute.
pub(in crate::resp) fn coordinate() -> Work {
    Work::Coordinated(CoordinatedCommand::default())
}

/// Returns whether FLUSHALL must drop spaces first.
pub(in crate::resp) fn must_drop_spaces(core: &Core) -> bool {
    let shared = &core.shared;
    shared.config.spaces.flush_drops_spaces && shared.tables.spaces.load().spaces().next().is_some()
}

/// Returns the error for a flush in a transaction: dropping spaces takes several turns, and EXEC has only one.
pub(in crate::resp) fn flush_in_multi_refusal(command: &str) -> Refusal {
    let message = format!(
        "{command} would drop spaces (spaces.flush_drops_spaces), which is not possible in a transaction"
    );
    (Code::BadRequest, message)
}

fn parse_name(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| {
        let message = "the names of spaces, aliases and attributes must be UTF-8".to_owned();
        (Code::BadRequest, message)
    })
}

/// Converts an error in a command's arguments, which start at argument `first`.
fn argument_refusal(refused: larder_space::error::Refusal, first: usize) -> Refusal {
    (Code::BadRequest, refused.shift_argument(first).to_string())
}
