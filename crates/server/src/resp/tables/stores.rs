//! The reads of stores in a transaction. They are executed before the rest of it, because they may wait for the disk
//! and the rest cannot change their results. All of them use one snapshot of the catalog.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::commands::{Command, Id, OwnedCommand};

use super::super::dispatch;
use super::super::drive::{Replies, look_up};
use super::super::mixed::Split;
use super::super::pending::Work;
use super::super::place::place_of;
use super::super::state::State;
use super::super::subject::About;
use super::{SeveralCores, To};
use crate::catalog::Snapshot;
use crate::clients::{Charge, as_reply};

pub(in crate::resp) struct StoresJob {
    snapshot: Arc<Snapshot>,
}

/// Returns whether a command reads stores, possibly together with rows of tables.
fn reads_stores(snapshot: &Snapshot, command: Command<'_>) -> bool {
    About::of(snapshot, command).has_records()
}

impl StoresJob {
    /// Returns the job if the connection's transaction contains reads of stores that have not been executed.
    pub fn before_exec(state: &State, snapshot: &Snapshot) -> Option<StoresJob> {
        let transaction = state.transaction.as_ref()?;
        transaction.refuse().ok()?;
        let is_waiting = transaction.requests().iter().any(|queued| {
            queued.answer.is_none() && reads_stores(snapshot, queued.command.command())
        });
        is_waiting.then(|| StoresJob {
            snapshot: state.core.shared.catalog.load().clone(),
        })
    }

    /// Executes the reads, and continues EXEC.
    pub async fn run(&self, state: &mut State) -> Option<Work> {
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
                        queued.stores = stores.map(|stores| Box::new((split, stores)));
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
            return Some(Work::SeveralCores(SeveralCores::of(state, Id::Exec)));
        }
        dispatch::begin(state, &self.snapshot, exec.command(), About::Rows)
    }

    /// Splits a read of both stores and tables.
    fn split(&self, command: &OwnedCommand) -> Option<Split> {
        let command = command.command();
        (About::of(&self.snapshot, command) == About::Both)
            .then(|| Split::of(&self.snapshot, command))
    }

    /// Returns the reply of one read; `None` if it does not read a store.
    async fn read(&self, state: &State, command: Command<'_>) -> Option<Vec<u8>> {
        if About::of(&self.snapshot, command).has_rows() {
            return None;
        }
        if state.core.nodes.is_some()
            && place_of(&state.core, &self.snapshot, command) != To::Core(state.core.index)
        {
            let mut several = SeveralCores::of_snapshot(&self.snapshot);
            return match several.answer(state, Rc::new(command.owned())).await {
                Ok(done) => Some(done.reply),
                Err(refusal) => Some(as_reply(refusal)),
            };
        }
        let mut apart = State::new(state.core.clone(), state.client.clone(), true);
        apart.proto = state.proto;
        apart.output.has_holes = true;
        let mut kept = Kept {
            state: apart,
            reply: Vec::new(),
        };
        let done = match dispatch::answer(&mut kept.state, &self.snapshot, command) {
            Some(Work::Scan(mut scan)) => {
                scan.run(&mut kept.state).await;
                Ok(())
            }
            Some(Work::Read(mut read)) => look_up(&mut kept, &mut read).await,
            _ => Ok(()),
        };
        if done.is_err() {
            // Otherwise, the server is stopping.
            let limits = state.core.clients.limits;
            return kept.is_too_long().then(|| limits.too_long_reply());
        }
        kept.reply.append(&mut kept.state.output.tail);
        Some(kept.reply)
    }
}

/// A reply that stays in memory, up to the limit of one client.
struct Kept {
    state: State,
    reply: Vec<u8>,
}

impl Kept {
    fn is_too_long(&self) -> bool {
        self.reply.len() > self.state.core.clients.limits.answer()
    }
}

impl Replies for Kept {
    const STAY: bool = true;

    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    fn state_ref(&self) -> &State {
        &self.state
    }

    async fn room(&mut self) -> io::Result<()> {
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
