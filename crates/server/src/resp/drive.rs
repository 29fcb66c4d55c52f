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
use super::dispatch::begin;
use super::pending::{Pending, Work};
use super::place::place_of;
use super::reads::{ReadJob, ReadStep};
use super::spaces;
use super::state::State;
use super::subject::About;
use super::tables::{Merge, RangeJob, SeveralCores, To, header, one_row};
use crate::clients::Charge;
use crate::tables::postgres::{WriteJob, WriteReply};

/// Minimum execution time of a search before it is aborted because its client has disconnected.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// The destination of the replies to a connection's commands.
pub(super) trait Replies {
    /// All replies stay in memory until a command is complete, so that an error can still replace them.
    const STAY: bool = false;

    fn state(&mut self) -> &mut State;

    fn state_ref(&self) -> &State;

    /// Ready once the client has closed its connection, if that can be detected without sending.
    fn poll_gone(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Waits until there is room for more replies.
    async fn room(&mut self) -> io::Result<()>;

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
pub(super) enum Ended {
    Answered,
    /// Answered with an error: something that the command needs is unavailable.
    Refused,
}

/// Completes a pending command.
///
/// # Errors
/// The destination of the replies is gone.
pub(super) async fn drive<R: Replies>(replies: &mut R, pending: &mut Pending) -> io::Result<Ended> {
    let mut counted = Charge::executing(&replies.state().client);
    loop {
        counted.set(pending.memory_bytes());
        let state = replies.state();
        state.failed = false;
        state.keys = (0, 0);
        let next = match &mut pending.work {
            Work::Retry(retry) => {
                if retry.is_load() {
                    replies.flush().await?;
                }
                let ticket = replies.ticket();
                if let Err(refusal) = retry.wait(replies.state(), ticket).await {
                    replies.state().refuse(refusal);
                    return Ok(Ended::Refused);
                }
                let tables = replies.state().tables();
                tables.wait_while_paused(ticket).await;
                replies.note_moment();
                let (shared_batch, state) = (replies.shared_batch(), replies.state());
                let core = state.core.clone();
                let snapshot = core.shared.catalog.load();
                let command = pending.command.command();
                tables.in_shared_batch(shared_batch, || retry.again(state, &snapshot, command))
            }
            Work::Stores(stores) => stores.run(state).await,
            Work::Mixed(mixed) => mixed.run(state, pending.command.command()).await,
            Work::SeveralCores(several) => {
                let command = pending.command.clone();
                answer_by_several(replies, several, command).await?;
                None
            }
            Work::Range(range) => {
                let command = pending.command.clone();
                advance_range(replies, range, command.command()).await?;
                None
            }
            Work::Read(read) => {
                look_up(replies, read).await?;
                None
            }
            Work::Write(write) => {
                replies.flush().await?;
                write_through(replies.state(), write).await;
                None
            }
            Work::Password => {
                let shared = state.core.shared.clone();
                shared.guesses.wait_for_turn(state.client.addr.ip()).await;
                connection::give_password(state, pending.command.command());
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
            Work::Room => {
                state.tables().wait_for_disk().await;
                None
            }
        };
        match next {
            None => return Ok(Ended::Answered),
            Some(work) => pending.work = work,
        }
    }
}

/// Executes a write in PostgreSQL and appends its reply.
async fn write_through(state: &mut State, write: &WriteJob) {
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
async fn advance_range<R: Replies>(
    replies: &mut R,
    range: &mut RangeJob,
    command: Command<'_>,
) -> io::Result<()> {
    loop {
        replies.room().await?;
        let tables = replies.state().tables();
        if matches!(range, RangeJob::Remove(_)) {
            tables.wait_while_paused(replies.ticket()).await;
        }
        let (shared_batch, state) = (replies.shared_batch(), replies.state());
        let advanced = tables.executing(command, state.client.id, || {
            tables.in_shared_batch(shared_batch, || range.advance(state))
        });
        if advanced {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Executes the store lookups that need a disk read, or for which the output had no room.
pub(super) async fn look_up<R: Replies>(replies: &mut R, read: &mut ReadJob) -> io::Result<()> {
    loop {
        match read.advance(replies.state()) {
            ReadStep::Done => return Ok(()),
            ReadStep::OutputFull => {
                read.reply_has_left();
                replies.room().await?;
            }
            ReadStep::NeedsDisk => {
                let reads = read.start_reads();
                let state = replies.state();
                state.core.stats.disk_reads.add(reads.len() as u64);
                if !R::STAY {
                    // Replies that are ready are sent before the wait for the disk.
                    read.reply_has_left();
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

/// Waits for at least [`LOOK_AFTER`] and until the client has closed its connection. A client that closes its sending
/// side after its last request therefore still receives the replies of short commands.
async fn gone<R: Replies>(replies: &R) {
    tokio::time::sleep(LOOK_AFTER).await;
    poll_fn(|cx| replies.poll_gone(cx)).await;
}

/// Executes a command on several cores and appends the combined reply.
async fn answer_by_several<R: Replies>(
    replies: &mut R,
    several: &mut SeveralCores,
    command: Rc<OwnedCommand>,
) -> io::Result<()> {
    let state = replies.state();
    if command.spec.adds_up_figures() && !several.is_over_nodes() {
        let shared = state.core.shared.clone();
        shared.tables.refresh_figures().await;
        if state.is_of_node && command.spec.id == Id::DbSize {
            // Rows that moved during the count may have been counted by two nodes, or by none.
            let epoch = state.asked_at;
            let ensured = shared.tables.ensure_owners_since(None, epoch).await;
            if let Err(refusal) = ensured {
                state.refuse(refusal);
                return Ok(());
            }
        }
        let snapshot = shared.catalog.load();
        begin(state, &snapshot, command.command(), About::Server);
        return Ok(());
    }
    let is_of_one_node = several.is_over_nodes() && {
        let snapshot = state.core.shared.catalog.load();
        matches!(
            place_of(&state.core, &snapshot, command.command()),
            To::Core(_)
        )
    };
    let asked = several.range(command.command());
    let Some(asked) = asked.filter(|_| !is_of_one_node) else {
        let is_read = spaces::is_long_read(command.command());
        let answered = several.answer(replies.state_ref(), command);
        let answered = if is_read {
            tokio::select! {
                answered = answered => answered,
                () = gone(replies) => return Err(io::Error::other("the client has gone")),
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
                state.gate.join(done.gate);
                state.set_proto(done.proto);
                state.closing |= done.closing;
            }
            Err(refusal) => state.refuse(refusal),
        }
        return Ok(());
    };
    let shared = state.core.shared.clone();
    let begun = match asked {
        Ok(asked) if several.is_over_nodes() => {
            let (core, client) = (state.core.clone(), state.client.clone());
            Merge::over_nodes(&core, command.command(), &asked, &client)
                .await
                .map(|merge| (merge, asked.form))
        }
        Ok(asked) => {
            let (core, client) = (state.core.clone(), state.client.clone());
            let epoch = if state.is_of_node {
                state.asked_at
            } else {
                core.tables.epoch_of_map()
            };
            let begun = Merge::begin(&shared.tables, &asked, epoch, None, &client).await;
            let begun = match begun {
                // The rows have moved to another node since this command was routed.
                Err((Code::TryAgain, _)) if core.nodes.is_some() && !state.is_of_node => {
                    Merge::over_nodes(&core, command.command(), &asked, &client).await
                }
                begun => begun,
            };
            begun.map(|merge| (merge, asked.form))
        }
        Err(refusal) => Err(refusal),
    };
    let (mut merge, form) = match begun {
        Ok(begun) => begun,
        Err(refusal) => {
            state.refuse(refusal);
            return Ok(());
        }
    };
    header(&mut state.encoder(), form, merge.left);
    loop {
        match merge.next().await {
            Ok(Some((key, value))) => {
                one_row(&mut replies.state().encoder(), form, &key, &value);
            }
            Ok(None) if merge.left == 0 => return Ok(()),
            // The number of rows has already been sent, so a shorter reply must close the connection.
            _ => return Err(io::Error::other("a range could not be read to its end")),
        }
        replies.room().await?;
    }
}
