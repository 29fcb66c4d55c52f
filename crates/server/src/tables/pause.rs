//! Pauses all cores, so that an operation on several of them is atomic: a transaction, or a definition.
//!
//! ```text
//!  coordinator ── Pause ─► core 0 ─ granted ─► core 1 ─ granted ─► ... ─► its commands, one after another ─► Release
//! ```
//!
//! 1. Cores are paused in ascending order, each after the previous one has granted it, so that two coordinators never
//!    deadlock.
//! 2. A paused core executes only the commands of the ticket's holder. The exchange between engines continues, so that
//!    the holder's commands can wait for rows.
//! 3. Changes during the pause are collected, and the coordinator passes the changes of all cores to the journal as one
//!    batch. When a core grants the pause, it passes on its earlier changes, so the log has the order of the changes.
//! 4. Commands that waited for a pause have a turn before the core grants the next one, however many requests there
//!    are. An endless sequence of transactions therefore starves no client.
//! 5. A pause that ends incomplete, because its coordinator or a core has left, leaves nothing in the journal: the
//!    cores do not pass on their changes, and execute no further commands of the pause. This happens when the server
//!    stops.
//! 6. Updates from PostgreSQL during a pause are applied afterwards. Before the first command of a pause, all cores
//!    have applied the same updates; see `postgres`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use larder_join::LogEntry;
use tokio::sync::oneshot;

use super::{CoreMessage, Gate, Refusal, Tables, TablesHandle};
use crate::error::Error;

/// The state of a core's pause.
#[derive(Default)]
pub struct Pause {
    holder: Option<u64>,
    pending: VecDeque<(u64, oneshot::Sender<PostgresPosition>)>,
    /// Tasks whose commands wait for the end of the pause.
    waiting_tasks: Vec<Waker>,
    /// True if those tasks have their turn (invariant 4), and no pause is granted.
    is_waiters_turn: bool,
    /// Number of pauses so far. It is the same on all cores, except while a pause is being released.
    epoch: u64,
}

/// A core's progress in applying updates from PostgreSQL when it grants a pause.
#[derive(Debug, Clone, Copy)]
pub struct PostgresPosition {
    pub number: u64,
    /// True if the core's outputs reflect these updates.
    pub is_reflected: bool,
}

/// A pause of all cores. Until it is dropped, they execute only commands with this ticket.
pub struct PausedCores {
    handle: Arc<TablesHandle>,
    pub ticket: u64,
    /// True if the operation is incomplete.
    is_abandoned: bool,
}

impl PausedCores {
    /// # Errors
    /// The server is stopping.
    pub async fn pause_all(handle: &Arc<TablesHandle>) -> Result<PausedCores, Error> {
        let paused = PausedCores {
            handle: handle.clone(),
            ticket: handle.next_ticket(),
            is_abandoned: true,
        };
        let mut stands = Vec::with_capacity(handle.cores());
        for core in 0..handle.cores() {
            let (granted, grant) = oneshot::channel();
            let ticket = paused.ticket;
            handle.send(core, CoreMessage::Pause { ticket, granted });
            stands.push(grant.await.map_err(|_| stopping_error())?);
        }
        paused.align_postgres_positions(&stands).await?;
        Ok(paused)
    }

    async fn align_postgres_positions(&self, stands: &[PostgresPosition]) -> Result<(), Error> {
        let last = stands.iter().map(|stand| stand.number).max().unwrap_or(0);
        let is_there = |stand: &PostgresPosition| stand.number == last && stand.is_reflected;
        let lagging = (0..stands.len()).filter(|&core| !is_there(&stands[core]));
        let follow = move |tables: Rc<Tables>| async move { tables.apply_up_to(last).await };
        let tasks: Vec<_> = lagging
            .map(|core| self.handle.start_on(core, Some(self.ticket), follow))
            .collect();
        for followed in tasks {
            followed.await.map_err(|_| stopping_error())?;
        }
        Ok(())
    }

    /// Passes all changes of the pause to the journal as one batch, and resumes the cores. `gate` then waits for the
    /// batch.
    ///
    /// # Errors
    /// The journal has stopped, or the server is stopping.
    pub async fn finish(self, tables: &Rc<Tables>, gate: &mut Gate) -> Result<(), Refusal> {
        if tables.is_replicated() {
            return self.finish_numbered(gate).await;
        }
        let take = |tables: Rc<Tables>| async move { tables.take_transaction_changes() };
        let taken = self.handle.run_on_all(Some(self.ticket), take).await;
        let taken = taken.map_err(super::stopping)?;
        self.append_changes(taken, tables, gate)
    }

    /// As [`PausedCores::finish`], if the changes of the cores are known.
    ///
    /// # Errors
    /// As [`PausedCores::finish`].
    pub async fn finish_with_changes(
        self,
        taken: Vec<Vec<LogEntry>>,
        tables: &Rc<Tables>,
        gate: &mut Gate,
    ) -> Result<(), Refusal> {
        if tables.is_replicated() {
            self.finish_numbered(gate).await
        } else {
            self.append_changes(taken, tables, gate)
        }
    }

    /// In a cluster, each core numbers and logs the changes of its slots, and `gate` waits for all of them. The
    /// operation is therefore atomic on each core.
    async fn finish_numbered(mut self, gate: &mut Gate) -> Result<(), Refusal> {
        let number = |tables: Rc<Tables>| async move { tables.number_transaction() };
        let handle = self.handle.clone();
        let numbered = handle.run_on_all(Some(self.ticket), number).await;
        let numbered = numbered.map_err(super::stopping)?;
        self.is_abandoned = false;
        drop(self);
        let mut refused = Ok(());
        let mut waiting = Vec::with_capacity(numbered.len());
        for (core, numbered) in numbered.into_iter().enumerate() {
            match numbered {
                Ok(mut gate) => {
                    waiting.push(handle.start_on(core, None, move |tables| async move {
                        poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await.is_ok()
                    }))
                }
                Err(refusal) => refused = Err(refusal),
            }
        }
        for opened in waiting {
            gate.failed |= !opened.await.unwrap_or(false);
        }
        refused
    }

    fn append_changes(
        mut self,
        taken: Vec<Vec<LogEntry>>,
        tables: &Rc<Tables>,
        gate: &mut Gate,
    ) -> Result<(), Refusal> {
        let mut changes: Vec<LogEntry> = Vec::new();
        for (core, own) in taken.into_iter().enumerate() {
            // All cores have the same definitions.
            let is_kept = |change: &LogEntry| {
                core == 0 || !matches!(change, LogEntry::Create { .. } | LogEntry::Drop { .. })
            };
            changes.extend(own.into_iter().filter(is_kept));
        }
        self.is_abandoned = false;
        if changes.is_empty() {
            return Ok(());
        }
        let appended = tables.append(&changes, gate);
        // Before another core logs a later change of the same rows.
        tables.commit();
        appended
    }

    /// Resumes the cores after an operation without writes.
    pub fn resume_after_reads(mut self) {
        self.is_abandoned = false;
    }
}

fn stopping_error() -> Error {
    Error::Io("the server is stopping".to_owned())
}

impl Drop for PausedCores {
    fn drop(&mut self) {
        for core in 0..self.handle.cores() {
            let release = CoreMessage::Release {
                ticket: self.ticket,
                is_abandoned: self.is_abandoned,
            };
            self.handle.send(core, release);
        }
    }
}

impl Tables {
    pub fn is_paused(&self) -> bool {
        self.pause.borrow().holder.is_some()
    }

    /// Number of coordinators that wait for a pause.
    #[cfg(test)]
    pub fn pending_pauses(&self) -> usize {
        self.pause.borrow().pending.len()
    }

    /// If several cores read base rows in the same epoch, either all of them see a transaction's changes or none does.
    pub fn epoch(&self) -> u64 {
        self.pause.borrow().epoch
    }

    /// As [`Tables::epoch`], including rows of PostgreSQL and rows computed from them.
    pub fn moment(&self) -> (u64, u64) {
        (self.epoch(), self.postgres_position())
    }

    /// Waits until commands with this ticket, or without one, are executed.
    pub async fn wait_while_paused(&self, ticket: Option<u64>) {
        poll_fn(|cx| {
            let mut pause = self.pause.borrow_mut();
            if pause.holder.is_none() || pause.holder == ticket {
                return Poll::Ready(());
            }
            pause.waiting_tasks.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub fn pause(&self, ticket: u64, granted: oneshot::Sender<PostgresPosition>) {
        let mut pause = self.pause.borrow_mut();
        if pause.holder.is_some() || pause.is_waiters_turn {
            return pause.pending.push_back((ticket, granted));
        }
        drop(pause);
        self.grant(ticket, granted);
    }

    fn grant_next(&self) {
        let mut pause = self.pause.borrow_mut();
        pause.is_waiters_turn = false;
        let next = pause.pending.pop_front();
        drop(pause);
        if let Some((ticket, granted)) = next {
            self.grant(ticket, granted);
        }
    }

    fn grant(&self, ticket: u64, granted: oneshot::Sender<PostgresPosition>) {
        self.commit();
        // Send earlier messages first: they contain no changes of the pause, which other nodes receive later.
        self.send_exchange();
        *self.transaction_changes.borrow_mut() = Some(Vec::new());
        self.pause.borrow_mut().holder = Some(ticket);
        // An error means that the coordinator is gone; it releases every granted pause, including this one.
        let _ = granted.send(self.postgres_state());
    }

    /// Returns whether commands with this ticket may be executed; without a ticket, always.
    pub fn may_execute_with(&self, ticket: Option<u64>) -> bool {
        ticket.is_none() || self.pause.borrow().holder == ticket
    }

    pub fn release(self: &Rc<Self>, ticket: u64, is_abandoned: bool) {
        let mut pause = self.pause.borrow_mut();
        if pause.holder != Some(ticket) {
            pause.pending.retain(|(waiting, _)| *waiting != ticket);
            return;
        }
        pause.holder = None;
        pause.epoch += 1;
        let held = std::mem::take(&mut pause.waiting_tasks);
        pause.is_waiters_turn = !held.is_empty();
        drop(pause);
        let rest = self
            .transaction_changes
            .borrow_mut()
            .take()
            .unwrap_or_default();
        if !is_abandoned {
            // Expired rows were removed. A failure is recorded and makes the next write fail.
            if self.is_replicated() {
                let _ = self.number_transaction();
            } else if !rest.is_empty() {
                let _ = self.append(&rest, &mut Gate::default());
            }
        }
        self.apply_held_updates();
        self.apply_deferred_view();
        // Rows that expired during the pause could not be removed.
        self.wake_maintenance();
        if held.is_empty() {
            return self.grant_next();
        }
        held.into_iter().for_each(Waker::wake);
        // Queued behind those tasks. A task that needs more than this turn waits for the next one.
        let tables = self.clone();
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            tables.grant_next();
        });
    }

    /// Numbers and logs the changes of a pause on a cluster's node. Returns the conditions to wait for.
    fn number_transaction(&self) -> Result<Gate, Refusal> {
        let mut gate = Gate::default();
        self.take_transaction_changes();
        if let Some(replicated) = &self.replicated {
            self.number_changes(replicated, &mut self.engine.borrow_mut(), &mut gate)?;
            self.finish_unnumbered(replicated, &mut gate);
        }
        self.commit();
        Ok(gate)
    }

    pub fn take_transaction_changes(&self) -> Vec<LogEntry> {
        let mut together = self.transaction_changes.borrow_mut();
        together.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
