//! Commands that could not be answered at once: what is kept of each, whatever it waits for.
//!
//! The kinds differ in what is still to be done for them, their [`Work`], which `drive` does.

use std::rc::Rc;
use std::time::Instant;

use larder_protocol::commands::{Command, OwnedCommand};

use super::count::{finish, shortened};
use super::mixed::MixedJob;
use super::reads::ReadJob;
use super::scan::ScanJob;
use super::state::State;
use super::tables::{DefineJob, RangeJob, Retry, SeveralCores, StoresJob, SubscribeJob, WatchJob};
use crate::tables::postgres::WriteJob;

/// A command that waits.
pub(super) struct Pending {
    /// The whole of it if it is needed once more (see [`Work::needs_command`]), else what the slow log shows.
    pub command: Rc<OwnedCommand>,
    pub started: Instant,
    pub work: Work,
}

/// What is still to be done for a command.
pub(super) enum Work {
    /// Lookups in stores.
    Read(ReadJob),
    /// It reads stores and tables.
    Mixed(MixedJob),
    Scan(ScanJob),
    /// A range of rows is read or removed, some of them in each turn.
    Range(RangeJob),
    /// A join is dropped.
    Define(DefineJob),
    /// It needs what is not here yet, and is executed again.
    Retry(Retry),
    /// Several cores execute it.
    SeveralCores(SeveralCores),
    /// A write to PostgreSQL.
    Write(WriteJob),
    /// A transaction's reads of stores.
    Stores(StoresJob),
    Watch(WatchJob),
    Subscribe(SubscribeJob),
    /// It gives a password, which is looked at when its turn has come.
    Password,
    /// Nothing but to wait until the journal's disk has caught up, after the command.
    Room,
}

impl Work {
    fn needs_command(&self) -> bool {
        matches!(
            self,
            Work::Mixed(_)
                | Work::Retry(_)
                | Work::SeveralCores(_)
                | Work::Stores(_)
                | Work::Password
        )
    }

    /// What it keeps of other commands.
    fn memory_bytes(&self) -> usize {
        match self {
            Work::Retry(retry) => retry.memory_bytes(),
            Work::SeveralCores(several) => several.memory_bytes(),
            _ => 0,
        }
    }
}

impl Pending {
    pub fn new(command: Command<'_>, work: Work) -> Pending {
        let kept = match work.needs_command() {
            true => command.owned(),
            false => shortened(command),
        };
        Pending {
            command: Rc::new(kept),
            started: Instant::now(),
            work,
        }
    }

    /// What it keeps of requests.
    pub fn memory_bytes(&self) -> usize {
        self.command.memory_bytes() + self.work.memory_bytes()
    }

    /// Counts the command, which has been executed.
    pub fn finish(mut self, state: &mut State) {
        let command = self.command.command();
        finish(state, command.spec, &mut self.started, command.args());
    }
}
