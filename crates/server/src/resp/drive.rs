//! Completes commands that must wait, while the core serves its other connections.
//!
//! ```text
//!  Pending ─ drive ─► waits ─► further Work, of the same kind or another ─► ... ─► complete
//!                │ room, flush
//!                ▼
//!            Replies: a session's socket, or (remote) the core of the connection, or (kept) memory
//! ```

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;

use super::connection;
use super::dispatch::start;
use super::pending::{Pending, Work};
use super::place::place_of;
use super::reads::{ReadJob, ReadStep};
use super::spaces;
use super::state::ConnectionState;
use super::subject::CommandSubject;
use super::tables::{CoordinatedCommand, Destination, Merge, RangeJob, encode_header, encode_row};
use crate::clients::Charge;
use crate::tables::postgres::{WriteJob, WriteReply};

/// Minimum execution time of a search before it is aborted because its client has disconnected.
const DISCONNECT_CHECK_DELAY: Duration = Duration::from_secs(1);

/// The destination of the replies to a connection's commands.
pub(super) trait ReplySink {
    /// All replies stay in memory until a command is complete, so that an error can still replace them.
    const BUFFERS_ALL: bool = false;

    fn state(&mut self) -> &mut ConnectionState;

    fn state_ref(&self) -> &ConnectionState;

    /// Ready once the client has closed its connection, if that can be detected without sending.
    fn poll_disconnected(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Waits until there is room for more replies.
    async fn wait_for_room(&mut self) -> io::Result<()>;

    /// Sends the replies that are ready, before a long wait.
    async fn flush(&mut self) -> io::Result<()>;

    /// Returns the ticket of the pause during which the commands are executed.
    fn ticket(&self) -> Option<u64> {
        None
    }

    /// Returns the journal's shared batch that the commands' writes belong to; see
    /// `crate::tables::Tables::in_shared_batch`.
    fn shared_batch(&self) -> Option<u64> {
        None
    }

    /// Records the moment (see `Tables::moment`) at which a command is executed.
    fn note_moment(&mut self) {}
}

/// The outcome of a command that had to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    Answered,
    /// Answered with an error: something that the command needs is unavailable.
    Refused,
}

/// Completes a pending command.
///
/// # Errors
/// The destination of the replies is gone.
pub(super) async fn drive<R: ReplySink>(
    replies: &mut R,
    pending: &mut Pending,
) -> io::Result<Completion> {
    let mut charge = Charge::for_execution(&replies.state().client);
    loop {
        charge.set(pending.memory_bytes());
        let state = replies.state();
        state.failed = false;
        state.keys = (0, 0);
        let next_work = match &mut pending.work {
            Work::Retry(retry) => {
                if retry.is_load() {
                    replies.flush().await?;
                }
                let ticket = replies.ticket();
                if let Err(refusal) = retry.wait(replies.state(), ticket).await {
                    replies.state().refuse(refusal);
                    return Ok(Completion::Refused);
                }
                let tables = replies.state().tables();
                tables.wait_while_paused(ticket).await;
                replies.note_moment();
                let (shared_batch, state) = (replies.shared_batch(), replies.state());
                let core = state.core.clone();
                let snapshot = core.shared.catalog.load();
                let command = pending.command.command();
                tables.in_shared_batch(shared_batch, || retry.attempt(state, &snapshot, command))
            }
            Work::Stores(stores) => stores.run(state).await,
            Work::MixedRead(mixed) => mixed.run(state, pending.command.command()).await,
            Work::Coordinated(several) => {
                let command = pending.command.clone();
                execute_on_several(replies, several, command).await?;
                None
            }
            Work::Range(range) => {
                let command = pending.command.clone();
                advance_range(replies, range, command.command()).await?;
                None
            }
            Work::Read(read) => {
                run_lookups(replies, read).await?;
                None
            }
            Work::Write(write) => {
                replies.flush().await?;
                write_through(replies.state(), write).await;
                None
            }
            Work::Password => {
                let shared = state.core.shared.clone();
                shared
                    .guess_limiter
                    .wait_for_turn(state.client.addr.ip())
                    .await;
                connection::authenticate_after_delay(state, pending.command.command());
                None
            }
            Work::Watch(watch) => {
                watch.run(state).await;
                None
            }
            Work::Subscribe(subscribe) => {
                subscribe.run(state).await;
                None
            }
            Work::Scan(scan) => {
                scan.run(state).await;
                None
            }
            Work::Define(define) => {
                define.run(state).await;
                None
            }
            Work::Backpressure => {
                state.tables().wait_for_disk().await;
                None
            }
        };
        match next_work {
            None => return Ok(Completion::Answered),
            Some(work) => pending.work = work,
        }
    }
}

/// Executes a write in PostgreSQL and appends its reply.
async fn write_through(state: &mut ConnectionState, write: &WriteJob) {
    let shared = state.core.shared.clone();
    let Some(postgres) = &shared.postgres else {
        return;
    };
    match write.run(postgres).await {
        Ok(WriteReply::Ok) => state.encoder().ok(),
        Ok(WriteReply::Null) => state.encoder().null(),
        Ok(WriteReply::Number(number)) => state.encoder().integer(number),
        Err(refusal) => state.refuse(refusal),
    }
}

/// Reads or removes the rows of a range, a limited number per turn of the core's loop.
async fn advance_range<R: ReplySink>(
    replies: &mut R,
    range: &mut RangeJob,
    command: Command<'_>,
) -> io::Result<()> {
    loop {
        replies.wait_for_room().await?;
        let tables = replies.state().tables();
        if matches!(range, RangeJob::Remove(_)) {
            tables.wait_while_paused(replies.ticket()).await;
        }
        let (shared_batch, state) = (replies.shared_batch(), replies.state());
        let is_complete = tables.with_executing_command(command, state.client.id, || {
            tables.in_shared_batch(shared_batch, || range.advance(state))
        });
        if is_complete {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Executes the store lookups that need a disk read, or for which the output had no room.
pub(super) async fn run_lookups<R: ReplySink>(
    replies: &mut R,
    read: &mut ReadJob,
) -> io::Result<()> {
    loop {
        match read.advance(replies.state()) {
            ReadStep::Done => return Ok(()),
            ReadStep::OutputFull => {
                read.mark_partly_sent();
                replies.wait_for_room().await?;
            }
            ReadStep::NeedsDisk => {
                let reads = read.start_reads();
                let state = replies.state();
                state.core.stats.disk_reads.add(reads.len() as u64);
                if !R::BUFFERS_ALL {
                    // Replies that are ready are sent before the wait for the disk.
                    read.mark_partly_sent();
                    replies.flush().await?;
                }
                for disk_read in reads {
                    let found = disk_read.await.map_err(io::Error::other)?;
                    read.deliver(replies.state(), found);
                }
            }
        }
    }
}

/// Waits for at least [`DISCONNECT_CHECK_DELAY`] and until the client has closed its connection. A client that closes its sending
/// side after its last request therefore still receives the replies of short commands.
async fn wait_for_disconnect<R: ReplySink>(replies: &R) {
    tokio::time::sleep(DISCONNECT_CHECK_DELAY).await;
    poll_fn(|cx| replies.poll_disconnected(cx)).await;
}

/// Executes a command on several cores and appends the combined reply.
async fn execute_on_several<R: ReplySink>(
    replies: &mut R,
    several: &mut CoordinatedCommand,
    command: Rc<OwnedCommand>,
) -> io::Result<()> {
    let state = replies.state();
    if command.spec.sums_replies() && !several.spans_nodes() {
        let shared = state.core.shared.clone();
        shared.tables.refresh_stats().await;
        if state.executes_part && command.spec.id == Id::DbSize {
            // Rows that moved during the count may have been counted by two nodes, or by none.
            let epoch = state.routing_epoch;
            let ensured = shared.tables.ensure_owners_since(None, epoch).await;
            if let Err(refusal) = ensured {
                state.refuse(refusal);
                return Ok(());
            }
        }
        let snapshot = shared.catalog.load();
        start(state, &snapshot, command.command(), CommandSubject::Server);
        return Ok(());
    }
    let is_of_one_node = several.spans_nodes() && {
        let snapshot = state.core.shared.catalog.load();
        matches!(
            place_of(&state.core, &snapshot, command.command()),
            Destination::Core(_)
        )
    };
    let range_request = several.range(command.command());
    let Some(range_request) = range_request.filter(|_| !is_of_one_node) else {
        let is_read = spaces::is_long_read(command.command());
        let answered = several.run(replies.state_ref(), command);
        let answered = if is_read {
            tokio::select! {
                answered = answered => answered,
                () = wait_for_disconnect(replies) => return Err(io::Error::other("the client has disconnected")),
            }
        } else {
            answered.await
        };
        let state = replies.state();
        match answered {
            Ok(done) => {
                let limits = state.core.clients.limits;
                if !limits.fits(state.output.len(), done.reply.len()) {
                    replies.flush().await?;
                }
                let state = replies.state();
                state.failed = done.reply.first() == Some(&b'-');
                state.output.tail.extend_from_slice(&done.reply);
                state.gate.merge(done.gate);
                state.set_proto(done.proto);
                state.closing |= done.closing;
            }
            Err(refusal) => state.refuse(refusal),
        }
        return Ok(());
    };
    let shared = state.core.shared.clone();
    let merging = match range_request {
        Ok(range_request) if several.spans_nodes() => {
            let (core, client) = (state.core.clone(), state.client.clone());
            Merge::over_nodes(&core, command.command(), &range_request, &client)
                .await
                .map(|merge| (merge, range_request.form))
        }
        Ok(range_request) => {
            let (core, client) = (state.core.clone(), state.client.clone());
            let epoch = if state.executes_part {
                state.routing_epoch
            } else {
                core.tables.map_epoch()
            };
            let merging = Merge::begin(&shared.tables, &range_request, epoch, None, &client).await;
            let merging = match merging {
                // The rows have moved to another node since this command was routed.
                Err((Code::TryAgain, _)) if core.nodes.is_some() && !state.executes_part => {
                    Merge::over_nodes(&core, command.command(), &range_request, &client).await
                }
                merging => merging,
            };
            merging.map(|merge| (merge, range_request.form))
        }
        Err(refusal) => Err(refusal),
    };
    let (mut merge, form) = match merging {
        Ok(merging) => merging,
        Err(refusal) => {
            state.refuse(refusal);
            return Ok(());
        }
    };
    encode_header(&mut state.encoder(), form, merge.left);
    loop {
        match merge.next().await {
            Ok(Some((key, value))) => {
                encode_row(&mut replies.state().encoder(), form, &key, &value);
            }
            Ok(None) if merge.left == 0 => return Ok(()),
            // The number of rows has already been sent, so a shorter reply must close the connection.
            _ => return Err(io::Error::other("the range could not be read completely")),
        }
        replies.wait_for_room().await?;
    }
}
