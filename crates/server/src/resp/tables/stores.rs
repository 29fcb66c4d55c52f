//! What a transaction reads of stores: it is read before the rest is executed, since it may wait for the disk, and nothing
//! that the rest does changes it. All of it is of one snapshot of the catalog.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::{self, Command, Id};
use larder_protocol::resp::{Decoder, Step};

use super::super::dispatch::{self, Job};
use super::super::memory::Charge;
use super::super::mixed::{Split, is_mixed};
use super::super::reads::Need;
use super::super::session::State;
use super::ManyJob;
use super::transaction::Queued;
use crate::catalog::Snapshot;

pub(in crate::resp) struct StoresJob {
    snapshot: Arc<Snapshot>,
    pub started: Instant,
}

/// Whether a request that is of no table reads a store.
fn is_read(command: &Command) -> bool {
    matches!(
        command.id,
        Id::Get
            | Id::MGet
            | Id::Exists
            | Id::Touch
            | Id::StrLen
            | Id::GetRange
            | Id::SubStr
            | Id::Type
            | Id::Ttl
            | Id::PTtl
            | Id::ExpireTime
            | Id::PExpireTime
            | Id::Memory
            | Id::Scan
    )
}

impl StoresJob {
    /// If the connection's transaction has reads of stores that were not made yet.
    pub fn before_exec(state: &State, snapshot: &Snapshot) -> Option<StoresJob> {
        let transaction = state.transaction.as_ref()?;
        transaction.refuse().ok()?;
        let mut decoder = Decoder::new(state.core.limits);
        let is_waiting = transaction.requests().iter().any(|queued| {
            if queued.answer.is_some()
                || !is_read(queued.command)
                || !matches!(decoder.decode(&queued.bytes), Ok(Step::Request(_)))
            {
                return false;
            }
            let request = decoder.request(&queued.bytes);
            !super::is_of_tables(snapshot, queued.command, request)
                || is_mixed(snapshot, queued.command, request)
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
            if is_read(queued.command) && queued.answer.is_none() {
                match self.split(state, queued) {
                    None => {
                        queued.answer = self.read(state, queued.command, &queued.bytes).await;
                        kept += queued.answer.as_ref().map_or(0, Vec::len);
                    }
                    Some(split) => {
                        let stores = self.read(state, queued.command, &split.stores).await;
                        queued.bytes = split.rows.clone();
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
        let exec = commands::find(b"EXEC")?;
        let bytes = b"*1\r\n$4\r\nEXEC\r\n";
        let mut decoder = Decoder::new(state.core.limits);
        decoder.decode(bytes).ok()?;
        let request = decoder.request(bytes);
        if state.core.tables.shard().is_some() {
            return Some(Job::Many(ManyJob::new(state, exec, request)));
        }
        dispatch::dispatch(state, &self.snapshot, Some(exec), request)
    }

    /// If a read is of stores and of tables.
    fn split(&self, state: &State, queued: &Queued) -> Option<Split> {
        let mut decoder = Decoder::new(state.core.limits);
        decoder.decode(&queued.bytes).ok()?;
        let request = decoder.request(&queued.bytes);
        is_mixed(&self.snapshot, queued.command, request)
            .then(|| Split::of(&self.snapshot, request))
    }

    /// The reply to one read; nothing if it is not of a store.
    async fn read(
        &self,
        state: &State,
        command: &'static Command,
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let mut decoder = Decoder::new(state.core.limits);
        decoder.decode(bytes).ok()?;
        let request = decoder.request(bytes);
        if super::is_of_tables(&self.snapshot, command, request) {
            return None;
        }
        let mut apart = State::new(state.core.clone(), state.client.clone(), true);
        apart.proto = state.proto;
        apart.output.has_holes = true;
        let mut reply = Vec::new();
        match dispatch::answer(&mut apart, &self.snapshot, command, request) {
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
