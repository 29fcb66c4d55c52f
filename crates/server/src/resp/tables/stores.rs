//! What a transaction reads of stores: it is read before the rest is executed, since it may wait for the disk, and nothing
//! that the rest does changes it. All of it is of one snapshot of the catalog.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::{Command, Id, OwnedCommand, Subject};

use super::super::dispatch::{self, Job};
use super::super::memory::Charge;
use super::super::mixed::{Split, is_mixed};
use super::super::reads::Need;
use super::super::session::State;
use super::ManyJob;
use crate::catalog::Snapshot;

pub(in crate::resp) struct StoresJob {
    snapshot: Arc<Snapshot>,
    pub started: Instant,
}

/// Whether a command reads a store, or several, perhaps beside rows of tables.
fn reads_stores(snapshot: &Snapshot, command: Command<'_>) -> bool {
    command.spec.subject == Subject::Keys
        && (!super::is_of_tables(snapshot, command) || is_mixed(snapshot, command))
}

impl StoresJob {
    /// If the connection's transaction has reads of stores that were not made yet.
    pub fn before_exec(state: &State, snapshot: &Snapshot) -> Option<StoresJob> {
        let transaction = state.transaction.as_ref()?;
        transaction.refuse().ok()?;
        let is_waiting = transaction.requests().iter().any(|queued| {
            queued.answer.is_none() && reads_stores(snapshot, queued.command.command())
        });
        is_waiting.then(|| StoresJob {
            snapshot: state.core.shared.catalog.load().clone(),
            started: Instant::now(),
        })
    }

    /// Makes the reads, and says how EXEC goes on.
    pub async fn run(&self, state: &mut State) -> Option<Job> {
        let mut transaction = state.transaction.take()?;
        let (limits, mut kept) = (state.core.clients.limits, 0);
        let mut counted = Charge::new(&state.client);
        for queued in transaction.requests_mut() {
            if queued.answer.is_none() && reads_stores(&self.snapshot, queued.command.command()) {
                match self.split(&queued.command) {
                    None => {
                        queued.answer = self.read(state, queued.command.command()).await;
                        kept += queued.answer.as_ref().map_or(0, Vec::len);
                    }
                    Some(split) => {
                        let stores = self.read(state, split.stores.command()).await;
                        queued.command = split.rows.clone();
                        kept += stores.as_ref().map_or(0, Vec::len);
                        queued.stores = stores.map(|stores| (split, stores));
                    }
                }
                counted.set(kept);
                if kept > limits.answer() {
                    (queued.answer, queued.stores) = (Some(limits.too_long_reply()), None);
                }
            }
        }
        state.transaction = Some(transaction);
        let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
        if state.core.tables.shard().is_some() {
            return Some(Job::Many(ManyJob::new(state, exec.command())));
        }
        dispatch::dispatch(state, &self.snapshot, exec.command())
    }

    /// If a read is of stores and of tables.
    fn split(&self, command: &OwnedCommand) -> Option<Split> {
        let command = command.command();
        is_mixed(&self.snapshot, command).then(|| Split::of(&self.snapshot, command))
    }

    /// The reply to one read; nothing if it is not of a store.
    async fn read(&self, state: &State, command: Command<'_>) -> Option<Vec<u8>> {
        if super::is_of_tables(&self.snapshot, command) {
            return None;
        }
        let mut apart = State::new(state.core.clone(), state.client.clone(), true);
        apart.proto = state.proto;
        apart.output.has_holes = true;
        let mut reply = Vec::new();
        match dispatch::answer(&mut apart, &self.snapshot, command) {
            Some(Job::Scan(mut scan)) => scan.run(&mut apart).await,
            Some(Job::Read(mut read)) => loop {
                match read.advance(&mut apart) {
                    Need::Nothing => break,
                    Need::Room => {
                        read.reply_has_left();
                        reply.append(&mut apart.output.tail);
                        let limits = state.core.clients.limits;
                        if reply.len() > limits.answer() {
                            return Some(limits.too_long_reply());
                        }
                    }
                    Need::Disk => {
                        for disk_read in read.start_reads() {
                            // An error means that the server is stopping.
                            let found = disk_read.await.ok()?;
                            read.deliver(&mut apart, found);
                        }
                    }
                }
            },
            _ => {}
        }
        reply.append(&mut apart.output.tail);
        Some(reply)
    }
}
