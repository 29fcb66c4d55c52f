//! Commands that must wait, and the state kept for each of them.
//!
//! They differ in their remaining [`Work`], which `drive` performs.

use std::rc::Rc;
use std::time::Instant;

use larder_protocol::commands::{Command, OwnedCommand};

use super::command_stats::{record_command, shorten_args};
use super::mixed_reads::MixedReadJob;
use super::reads::ReadJob;
use super::scan::ScanJob;
use super::state::ConnectionState;
use super::tables::{
    CoordinatedCommand, DefineJob, RangeJob, Retry, StoresJob, SubscribeJob, WatchJob,
};
use crate::tables::postgres::WriteJob;

/// A command that must wait.
pub(super) struct Pending {
    /// The complete command if it is needed again (see [`Work::needs_command`]), else the part that the slow log shows.
    pub command: Rc<OwnedCommand>,
    pub started: Instant,
    pub work: Work,
}

/// The remaining work of a command.
pub(super) enum Work {
    /// Lookups in stores.
    Read(ReadJob),
    /// Reads of stores and tables.
    MixedRead(MixedReadJob),
    Scan(ScanJob),
    /// A range of rows is read or removed, a part of it per turn.
    Range(RangeJob),
    /// A join is dropped.
    Define(DefineJob),
    /// Data that the command needs is missing; it is executed again once the data has arrived.
    Retry(Retry),
    /// Several cores execute the command.
    Coordinated(CoordinatedCommand),
    /// A write to PostgreSQL.
    Write(WriteJob),
    /// The reads of stores in a transaction.
    Stores(StoresJob),
    Watch(WatchJob),
    Subscribe(SubscribeJob),
    /// A password, checked after a delay by the rate limit.
    Password,
    /// The command was executed; only the journal's back-pressure is waited for.
    Backpressure,
}

impl Work {
    fn needs_command(&self) -> bool {
        matches!(
            self,
            Work::MixedRead(_)
                | Work::Retry(_)
                | Work::Coordinated(_)
                | Work::Stores(_)
                | Work::Password
        )
    }

    /// Returns the memory held for further commands.
    fn memory_bytes(&self) -> usize {
        match self {
            Work::Retry(retry) => retry.memory_bytes(),
            Work::Coordinated(several) => several.memory_bytes(),
            _ => 0,
        }
    }
}

impl Pending {
    pub fn new(command: Command<'_>, work: Work) -> Pending {
        let kept = if work.needs_command() {
            command.owned()
        } else {
            shorten_args(command)
        };
        Pending {
            command: Rc::new(kept),
            started: Instant::now(),
            work,
        }
    }

    /// Returns the memory held for requests.
    pub fn memory_bytes(&self) -> usize {
        self.command.memory_bytes() + self.work.memory_bytes()
    }

    /// Records the statistics of the executed command.
    pub fn finish(mut self, state: &mut ConnectionState) {
        let command = self.command.command();
        record_command(state, command.spec, &mut self.started, command.args());
    }
}
