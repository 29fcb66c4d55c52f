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

mod aggregate;
mod change;
mod context;
mod cuts;
mod define;
mod explain;
mod info;
mod layout;
pub(super) mod offload;
mod profile;
mod record;
mod regions;
mod reply;
mod run;
mod scatter_gather;
mod search;
mod single_core_search;
mod space_query;
mod stats;
mod values;

use larder_protocol::commands::{Command, Group, Id};
use larder_protocol::errors::Code;

pub(in crate::resp) use context::{QueryContext, QueryScope};
pub(in crate::resp) use cuts::recut_on_drift;
pub(in crate::resp) use define::drop_all;
pub(crate) use define::follow_spaces;

use super::core::Core;
use super::state::ConnectionState;
use crate::tables::Refusal;

/// Returns whether a command belongs to this module.
pub(in crate::resp) fn is_space_command(command: Command<'_>) -> bool {
    command.spec.group == Group::Spaces
}

/// Returns whether a command only reads and may take long. It is aborted if its client disconnects.
pub(in crate::resp) fn is_long_read(command: Command<'_>) -> bool {
    matches!(
        command.id(),
        Id::FtSearch
            | Id::FtAggregate
            | Id::FtProfile
            | Id::FtExplain
            | Id::FtExplainCli
            | Id::FtTagVals
    )
}

/// Executes a command on all cores or all nodes.
pub(in crate::resp) async fn execute(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    match command.id() {
        Id::FtSearch => search::search(context, command).await,
        Id::FtAggregate => aggregate::aggregate(context, command).await,
        Id::FtChange => change::change(context, command).await,
        Id::FtCursor => aggregate::cursor(context, command).await,
        Id::FtProfile => profile::profile(context, command).await,
        Id::FtExplain | Id::FtExplainCli => explain::explain(context, command).await,
        Id::FtTagVals => values::tag_values(context, command).await,
        Id::FtInfo => info::info(context, command).await,
        Id::SpaceRecord => record::record(context, command).await,
        _ => define::define(context, command).await,
    }
}

/// Executes a command on the core of the connection. `None` if it needs other cores or nodes, or several turns.
/// `atomic`: in a transaction.
pub(in crate::resp) fn execute_on_core(
    state: &mut ConnectionState,
    command: Command<'_>,
    atomic: bool,
) -> Option<Result<(), Refusal>> {
    Some(match command.id() {
        Id::FtSearch if !atomic && single_core_search::search(state, command) => Ok(()),
        Id::FtList => info::list(state),
        Id::FtAliasList => info::aliases(state, command),
        Id::FtConfig => explain::config(state, command),
        _ => return None,
    })
}

/// Returns whether FLUSHALL must drop spaces first.
pub(in crate::resp) fn must_drop_spaces(core: &Core) -> bool {
    let shared = &core.shared;
    shared.config.spaces.flush_drops_spaces && shared.tables.spaces.load().spaces().next().is_some()
}

/// Returns the error for a flush in a transaction: dropping spaces takes several turns, and EXEC has only one.
pub(in crate::resp) fn flush_in_multi_refusal(command: Command<'_>) -> Refusal {
    let message = format!(
        "{} would drop spaces (spaces.flush_drops_spaces), which is not possible in a transaction",
        command.name()
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
