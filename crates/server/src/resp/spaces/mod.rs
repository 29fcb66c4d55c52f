//! FT.*: spaces are declared, altered and dropped, and objects are searched by their attributes.
//!
//! ```text
//!  FT.SEARCH ─► parsed ─► every core of this node: `run`, in steps ─► partial answers ─► merged ─► the reply
//!                └─ in a cluster: every node is asked for its part ───────┘
//! ```
//!
//! `define` declares; `search`, `aggregate` and `values` (FT.TAGVALS) find; `change` changes what a query finds. A search or an aggregation is a
//! `question`; `aside` does what takes long once parts have come; `parts` has it answered by all who take part and puts their parts together, `run` is what one core does for it, and `regions` what those
//! do who hold regions of a subspace; `reply` is what a client gets, and `at_once` does without all this where one core has everything. `info` tells of spaces, `explain` of queries, and `profile` of what a search took. `reach` says who takes part,
//! and asks other nodes; `layout` gives a space other subspaces, `cuts` has them cut anew, and `record` tells what is done with a space.
//!
//! 1. The parts of an answer are of one assignment of slots to nodes, and each slot is answered by its owner, under its lease. If owners change
//!    meanwhile, all parts are asked for again; see docs/decisions/0019-searches-over-nodes.md.
//! 2. The parts are of one definition of the space: each says of which.

mod aggregate;
pub(super) mod aside;
mod at_once;
mod change;
mod cuts;
mod define;
mod explain;
mod figures;
mod info;
mod layout;
mod parts;
mod profile;
mod question;
mod reach;
mod record;
mod regions;
mod reply;
mod run;
mod search;
mod values;

use larder_protocol::commands::{Command, Group, Id};
use larder_protocol::errors::Code;

pub(in crate::resp) use cuts::follow_drift;
pub(in crate::resp) use define::drop_all;
pub(crate) use define::follow_spaces;
pub(in crate::resp) use reach::{Asker, Reach};

use super::core::Core;
use super::state::State;
use crate::tables::Refusal;

/// Whether a command is one of these.
pub(in crate::resp) fn is_of_spaces(command: Command<'_>) -> bool {
    command.spec.group == Group::Spaces
}

/// Whether a command only reads, and may take long: it is given up when its client has gone.
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

/// Answers a command that all cores, or all nodes, take part in.
pub(in crate::resp) async fn answer(
    asker: &mut Asker,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    match command.id() {
        Id::FtSearch => search::search(asker, command).await,
        Id::FtAggregate => aggregate::aggregate(asker, command).await,
        Id::FtChange => change::change(asker, command).await,
        Id::FtCursor => aggregate::cursor(asker, command).await,
        Id::FtProfile => profile::profile(asker, command).await,
        Id::FtExplain | Id::FtExplainCli => explain::explain(asker, command).await,
        Id::FtTagVals => values::tag_values(asker, command).await,
        Id::FtInfo => info::info(asker, command).await,
        Id::SpaceRecord => record::record(asker, command).await,
        _ => define::define(asker, command).await,
    }
}

/// Answers a command on the core of the connection; `None`: others take part, or it takes several turns. `whole`: in a transaction.
pub(in crate::resp) fn answer_here(
    state: &mut State,
    command: Command<'_>,
    whole: bool,
) -> Option<Result<(), Refusal>> {
    Some(match command.id() {
        Id::FtSearch if !whole && at_once::search(state, command) => Ok(()),
        Id::FtList => info::list(state),
        Id::FtAliasList => info::aliases(state, command),
        Id::FtConfig => explain::config(state, command),
        _ => return None,
    })
}

/// Whether FLUSHALL has to drop spaces first.
pub(in crate::resp) fn flush_drops_any(core: &Core) -> bool {
    let shared = &core.shared;
    shared.config.spaces.flush_drops_spaces && shared.tables.spaces.load().spaces().next().is_some()
}

/// Dropping a space takes several turns, which EXEC has not.
pub(in crate::resp) fn no_flush_in_multi(command: Command<'_>) -> Refusal {
    let message = format!(
        "{} would drop spaces (spaces.flush_drops_spaces), which is not possible in a transaction",
        command.name()
    );
    (Code::BadRequest, message)
}

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| {
        let message = "the names of spaces, aliases and attributes are UTF-8".to_owned();
        (Code::BadRequest, message)
    })
}

/// What was refused of a command's arguments, which begin at argument `first`.
fn refusal(refused: larder_space::error::Refusal, first: usize) -> Refusal {
    (Code::BadRequest, refused.behind(first).to_string())
}
