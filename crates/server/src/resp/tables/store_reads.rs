//! The reads of stores in a transaction. They are executed before the rest of it, because they may wait for the disk
//! and the rest cannot change their results. All of them use one snapshot of the catalog.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::commands::{Command, Id, OwnedCommand};

use super::super::dispatch;
use super::super::drive::{ReplySink, run_lookups};
use super::super::mixed_reads::SplitRequest;
use super::super::pending::Work;
use super::super::place::place_of;
use super::super::state::ConnectionState;
use super::super::subject::CommandSubject;
use super::{CoordinatedCommand, Destination};
use crate::catalog::Snapshot;
use crate::clients::{Charge, encode_refusal};

pub(in crate::resp) struct StoresJob {
    snapshot: Arc<Snapshot>,
}

/// Returns whether a command reads stores, possibly together with rows of tables.
fn reads_stores(snapshot: &Snapshot, command: Command<'_>) -> bool {
    CommandSubject::of(snapshot, command).has_records()
}

impl StoresJob {
    /// Returns the job if the connection's transaction contains reads of stores that have not been executed.
    pub fn for_exec(state: &ConnectionState, snapshot: &Snapshot) -> Option<StoresJob> {
        let transaction = state.transaction.as_ref()?;
        transaction.ensure_valid().ok()?;
        let has_unread = transaction.requests().iter().any(|queued| {
            queued.reply.is_none() && reads_stores(snapshot, queued.command.command())
        });
        has_unread.then(|| StoresJob {
            snapshot: state.core.shared.catalog.load().clone(),
        })
    }

    /// Executes the reads, and continues EXEC.
    pub async fn run(&self, state: &mut ConnectionState) -> Option<Work> {
        let mut transaction = state.transaction.take()?;
        let (limits, mut buffered) = (state.core.clients.limits, 0);
        let mut charge = Charge::new(&state.client);
        for queued in transaction.requests_mut() {
            if queued.reply.is_none() && reads_stores(&self.snapshot, queued.command.command()) {
                match self.split(&queued.command) {
                    None => {
                        queued.reply = self.read(state, queued.command.command()).await;
                        buffered += queued.reply.as_ref().map_or(0, Vec::len);
                    }
                    Some(split) => {
                        let stores = self.read(state, split.stores.command()).await;
                        queued.command = split.rows.clone();
                        buffered += stores.as_ref().map_or(0, Vec::len);
                        queued.stores = stores.map(|stores| Box::new((split, stores)));
                    }
                }
                charge.set(buffered);
                if buffered > limits.reply_bytes() {
                    (queued.reply, queued.stores) = (Some(limits.encode_reply_too_long()), None);
                }
            }
        }
        state.transaction = Some(transaction);
        let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
        if state.core.tables.shard().is_some() {
            return Some(Work::Coordinated(CoordinatedCommand::for_command(
                state,
                Id::Exec,
            )));
        }
        dispatch::start(state, &self.snapshot, exec.command(), CommandSubject::Rows)
    }

    /// Splits a read of both stores and tables.
    fn split(&self, command: &OwnedCommand) -> Option<SplitRequest> {
        let command = command.command();
        (CommandSubject::of(&self.snapshot, command) == CommandSubject::Both)
            .then(|| SplitRequest::split(&self.snapshot, command))
    }

    /// Returns the reply of one read; `None` if it does not read a store.
    async fn read(&self, state: &ConnectionState, command: Command<'_>) -> Option<Vec<u8>> {
        if CommandSubject::of(&self.snapshot, command).has_rows() {
            return None;
        }
        if state.core.nodes.is_some()
            && place_of(&state.core, &self.snapshot, command) != Destination::Core(state.core.index)
        {
            let mut several = CoordinatedCommand::with_snapshot(&self.snapshot);
            return match several.run(state, Rc::new(command.owned())).await {
                Ok(done) => Some(done.reply),
                Err(refusal) => Some(encode_refusal(refusal)),
            };
        }
        let mut scratch = ConnectionState::new(state.core.clone(), state.client.clone(), true);
        scratch.proto = state.proto;
        scratch.output.has_holes = true;
        let mut buffered = BufferedReply {
            state: scratch,
            reply: Vec::new(),
        };
        let done =
            match dispatch::execute_without_tables(&mut buffered.state, &self.snapshot, command) {
                Some(Work::Scan(mut scan)) => {
                    scan.run(&mut buffered.state).await;
                    Ok(())
                }
                Some(Work::Read(mut read)) => run_lookups(&mut buffered, &mut read).await,
                _ => Ok(()),
            };
        if done.is_err() {
            // Otherwise, the server is stopping.
            let limits = state.core.clients.limits;
            return buffered
                .is_too_long()
                .then(|| limits.encode_reply_too_long());
        }
        buffered.reply.append(&mut buffered.state.output.tail);
        Some(buffered.reply)
    }
}

/// A reply that stays in memory, up to the limit of one client.
struct BufferedReply {
    state: ConnectionState,
    reply: Vec<u8>,
}

impl BufferedReply {
    fn is_too_long(&self) -> bool {
        self.reply.len() > self.state.core.clients.limits.reply_bytes()
    }
}

impl ReplySink for BufferedReply {
    const BUFFERS_ALL: bool = true;

    fn state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    fn state_ref(&self) -> &ConnectionState {
        &self.state
    }

    async fn wait_for_room(&mut self) -> io::Result<()> {
        self.reply.append(&mut self.state.output.tail);
        if self.is_too_long() {
            Err(io::Error::other("the reply is too long"))
        } else {
            Ok(())
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
