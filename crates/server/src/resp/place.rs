//! Which requests of a session other cores execute.

use larder_protocol::commands::{Command, Id};

use super::gathered::{Gathered, Kind};
use super::pending::{Pending, Work};
use super::session::Waits;
use super::state::State;
use super::tables::{self, SeveralCores, StoresJob, To};
use crate::catalog::Snapshot;

/// What becomes of a request where there are several cores.
pub(super) enum Placed {
    Here,
    /// It goes to another core with the batch.
    Gathered,
    /// Several cores execute it.
    Pending(Box<Pending>),
    Waits(Waits),
}

pub(super) fn place(state: &mut State, snapshot: &Snapshot, command: Command<'_>) -> Placed {
    if !state.authenticated
        || state.is_told_only()
        || !(command.spec.adds_up_figures() || tables::concerns(state, snapshot, command))
        || (state.transaction.is_some() && command.id() != Id::Exec)
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
    if command.id() == Id::Exec && StoresJob::before_exec(state, snapshot).is_some() {
        return Placed::Here;
    }
    let (to, depends) = match command.id() {
        Id::Exec if state.transaction.is_some() => (To::Several, true),
        _ => {
            let route = tables::route(tables, shard, snapshot, command);
            (route.to, route.depends)
        }
    };
    let kind = Kind {
        writes: command.writes(),
        depends,
        is_long: command.id() == Id::Range,
    };
    if let Some(gathered) = &state.gathered {
        let must_wait = match to {
            To::Core(core) => gathered.must_come_before(core, kind, state.proto),
            To::Several => true,
        };
        if must_wait {
            return Placed::Waits(Waits::Gathered);
        }
    }
    match to {
        To::Core(core) if core == tables.index => Placed::Here,
        To::Core(core) => {
            let cores = usize::from(shard.count);
            let gathered = state
                .gathered
                .get_or_insert_with(|| Box::new(Gathered::new(cores, state.proto)));
            let at = state.output.tail.len();
            state.output.has_holes = true;
            gathered.add(core, at, kind, command);
            Placed::Gathered
        }
        To::Several => {
            let work = Work::SeveralCores(SeveralCores::of(state, command.id()));
            Placed::Pending(Box::new(Pending::new(command, work)))
        }
    }
}
