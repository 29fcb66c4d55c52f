//! Where a request of a session is executed: here, on another core to which it is forwarded, or on several.

use larder_protocol::commands::{Command, Id};

use super::forwarded::{Dependencies, Forwarded};
use super::pending::{Pending, Work};
use super::session::Waits;
use super::state::State;
use super::subject::About;
use super::tables::{self, SeveralCores, StoresJob, To};
use crate::catalog::Snapshot;

/// What becomes of a request where there are several cores.
pub(super) enum Placed {
    Here,
    /// It was forwarded to another core.
    Forwarded,
    /// Several cores execute it.
    Pending(Box<Pending>),
    Waits(Waits),
}

pub(super) fn place(
    state: &mut State,
    snapshot: &Snapshot,
    command: Command<'_>,
    about: About,
) -> Placed {
    let is_exec = command.id() == Id::Exec;
    if !state.authenticated
        || state.is_in_subscriber_mode()
        || !(command.spec.adds_up_figures() || about.has_rows())
        || (state.transaction.is_some() && !is_exec)
    {
        return Placed::Here;
    }
    let tables = &state.core.tables;
    if tables.is_paused() {
        return Placed::Waits(Waits::Paused);
    }
    let Some(shard) = tables.shard() else {
        return Placed::Here;
    };
    if is_exec && StoresJob::before_exec(state, snapshot).is_some() {
        return Placed::Here;
    }
    let (to, reads_outputs) = match is_exec && state.transaction.is_some() {
        true => (To::Several, true),
        false => {
            let route = tables::route(tables, &shard, snapshot, command);
            (route.to, route.reads_outputs)
        }
    };
    let needs = Dependencies {
        writes: command.writes(),
        reads_outputs,
        is_long: command.id() == Id::Range,
    };
    if let Some(forwarded) = &state.forwarded {
        let must_wait = match to {
            To::Core(core) => forwarded.must_be_answered_first(core, needs, state.proto),
            To::Several => true,
        };
        if must_wait {
            return Placed::Waits(Waits::ForwardedReplies);
        }
    }
    match to {
        To::Core(core) if core == tables.index => Placed::Here,
        To::Core(core) => {
            let cores = usize::from(shard.count);
            let forwarded = state
                .forwarded
                .get_or_insert_with(|| Box::new(Forwarded::new(cores, state.proto)));
            let at = state.output.tail.len();
            state.output.has_holes = true;
            forwarded.add(core, at, needs, command);
            Placed::Forwarded
        }
        To::Several => {
            let work = Work::SeveralCores(SeveralCores::of(state, command.id()));
            Placed::Pending(Box::new(Pending::new(command, work)))
        }
    }
}
