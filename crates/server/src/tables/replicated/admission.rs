//! Admission: the commands that may be executed here now, and the conditions of their replies.
//!
//! ```text
//!   write ─ admit ─► executed ─► numbered ─► the gate has its tickets ─► all acknowledged: the reply is sent
//!   read  ─ admit ─► executed;  the gate has the tickets of changes that it may show and, without a lease, confirmations of replicas
//! ```
//!
//! 1. A reply is sent when all changes that it shows or reports are committed. If that can no longer be determined, the
//!    connection is closed.
//! 2. Without a lease that is certainly valid, nothing is changed. Base rows of one slot can be read if all its in-sync
//!    replicas confirm that there is no other owner; other reads are rejected.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use larder_cluster::coordination::boot_ms;
use larder_cluster::replication::{Admission, Confirmation, Outcome, ReadWait, Ticket};
use larder_join::{Engine, range_slot, row_slot};
use larder_protocol::commands::{Command, Group, Id, Keys};
use larder_protocol::errors::Code;
use larder_types::{text_row, with_object_row};

use super::{Replicated, ReplicationState, Settlement};
use crate::tables::{Gate, Refusal, Tables};

/// Maximum time for which a reply is delayed after the lease has expired. The outcome is then unknown.
const UNKNOWN_AFTER: Duration = Duration::from_secs(5);

/// The decision on the execution of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitOutcome {
    Now,
    /// Retry when [`Tables::replication_progress`] has changed.
    Later,
}

/// The replication conditions of a gate.
#[derive(Debug, Default)]
pub struct ReplyConditions {
    tickets: Vec<Ticket>,
    /// All changes of the core up to this one, and the number of changes with unknown outcome when this was recorded.
    upto: Option<(u64, u64)>,
    /// The same for other cores of the node, by number.
    other_cores: Vec<(usize, (u64, u64))>,
    confirmations: Vec<Confirmation>,
}

impl ReplyConditions {
    pub fn wait_for(&mut self, ticket: Ticket) {
        if !self.tickets.iter_mut().any(|own| own.join(&ticket)) {
            self.tickets.push(ticket);
        }
    }

    /// Adds the other's conditions.
    pub fn join(&mut self, other: ReplyConditions) {
        other.tickets.into_iter().for_each(|it| self.wait_for(it));
        self.upto = match (self.upto, other.upto) {
            (Some(own), Some(other)) => Some(combine(own, other)),
            (own, other) => own.or(other),
        };
        for (core, upto) in other.other_cores {
            match self.other_cores.iter_mut().find(|(own, _)| *own == core) {
                Some((_, own)) => *own = combine(*own, upto),
                None => self.other_cores.push((core, upto)),
            }
        }
        self.confirmations.extend(other.confirmations);
    }

    fn has_changes(&self) -> bool {
        !self.tickets.is_empty() || self.upto.is_some() || !self.other_cores.is_empty()
    }

    fn is_met(&self) -> bool {
        !self.has_changes() && self.confirmations.is_empty()
    }
}

/// Combines two conditions: the changes of both, none of which may have an unknown outcome.
fn combine(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0.max(other.0), one.1.min(other.1))
}

impl Tables {
    /// Returns whether the rows of this core belong to a cluster.
    #[inline]
    pub fn is_replicated(&self) -> bool {
        self.replicated.is_some()
    }

    /// A number that changes whenever a task that waits for replication may continue.
    pub fn replication_progress(&self) -> u64 {
        let replicated = self.replicated.as_ref();
        replicated.map_or(0, |replicated| replicated.progress.get())
    }

    /// Checks that a command on rows may be executed; must be called right before the execution. `gate` then has the
    /// conditions of the reply, apart from the command's own changes. `in_transaction` is true if the command belongs to an
    /// admitted transaction that has begun.
    ///
    /// # Errors
    /// The reason why it is rejected.
    pub fn admit(
        &self,
        command: Command<'_>,
        gate: &mut Gate,
        in_transaction: bool,
    ) -> Result<AdmitOutcome, Refusal> {
        let Some(replicated) = self.replicated.as_ref().filter(|_| accesses_rows(command)) else {
            return Ok(AdmitOutcome::Now);
        };
        let engine = self.engine.borrow();
        let mut state = replicated.state.borrow_mut();
        state.refresh_lease();
        let now_ms = boot_ms();
        if command.writes() {
            state.admit_write(command, now_ms, &engine, in_transaction)
        } else {
            let Some(awaits) = state.admit_read(command, now_ms, &engine)? else {
                return Ok(AdmitOutcome::Later);
            };
            let has_asked = !awaits.confirmations.is_empty();
            if !awaits.is_met() {
                gate.replicated.get_or_insert_default().join(awaits);
            }
            drop(state);
            if has_asked {
                self.wake_maintenance();
            }
            Ok(AdmitOutcome::Now)
        }
    }

    /// Number of changes that were numbered.
    pub fn numbered_changes(&self) -> u64 {
        let replicated = self.replicated.as_ref();
        replicated.map_or(0, |replicated| replicated.state.borrow().numbered)
    }

    /// For a write that left some of its rows unchanged: makes the reply wait for the earlier changes of these rows, as
    /// for a read, because it shows their state.
    pub fn wait_for_unchanged_rows(&self, command: Command<'_>, gate: &mut Gate) {
        self.wait_for_sent_changes(command, gate);
        let Some(replicated) = self.replicated.as_ref().filter(|_| accesses_rows(command)) else {
            return;
        };
        let engine = self.engine.borrow();
        let mut state = replicated.state.borrow_mut();
        state.refresh_lease();
        // An error would have rejected the write.
        if let Ok(Some(awaits)) = state.admit_read(command, boot_ms(), &engine)
            && !awaits.is_met()
        {
            gate.replicated.get_or_insert_default().join(awaits);
            self.wake_maintenance();
        }
    }

    /// Waits until everything that was executed on this core is committed, for reads of several slots without a gate.
    ///
    /// # Errors
    /// The lease may have expired, or the outcome of some changes will be unknown.
    pub async fn wait_until_committed(&self) -> Result<(), Refusal> {
        let Some(replicated) = &self.replicated else {
            return Ok(());
        };
        let mut awaits = replicated.state.borrow().executed_conditions()?;
        let polled = poll_fn(|cx| {
            let polled = replicated.poll(&mut awaits);
            if polled.is_pending() {
                self.waiting.borrow_mut().push(cx.waker().clone());
            }
            polled
        });
        let unknown = |why: &'static str| (Code::ClusterDown, why.to_owned());
        polled.await.map_err(unknown)
    }

    /// Checks that writes are possible at all.
    ///
    /// # Errors
    /// The lease may have expired.
    pub(in crate::tables) fn ensure_lease(&self) -> Result<(), Refusal> {
        match &self.replicated {
            None => Ok(()),
            Some(replicated) => replicated.state.borrow().ensure_lease(boot_ms()),
        }
    }
}

impl Replicated {
    /// Returns ready when all conditions of a gate are met.
    ///
    /// # Errors
    /// The outcome will be unknown.
    pub fn poll(&self, awaits: &mut ReplyConditions) -> Poll<Result<(), &'static str>> {
        let state = self.state.borrow();
        let Some(replication) = &state.replication else {
            return Poll::Ready(Err("this node is not a member of the cluster any more"));
        };
        let owner = &replication.owner;
        let mut is_unknown = false;
        awaits.tickets.retain(|ticket| match owner.outcome(ticket) {
            Outcome::Acknowledged => false,
            Outcome::Waiting => true,
            Outcome::Unknown => {
                is_unknown = true;
                false
            }
        });
        awaits
            .confirmations
            .retain(|confirmation| match owner.is_confirmed(confirmation) {
                Outcome::Acknowledged => false,
                Outcome::Waiting => true,
                Outcome::Unknown => {
                    is_unknown = true;
                    false
                }
            });
        if let Some((upto, unknown)) = awaits.upto {
            is_unknown |= state.changes.unknown > unknown;
            if state.changes.settled >= upto {
                awaits.upto = None;
            }
        }
        awaits.other_cores.retain(|(core, (upto, unknown))| {
            let settlement = state.other_cores[*core];
            is_unknown |= settlement.unknown > *unknown;
            settlement.settled < *upto
        });
        if is_unknown {
            return Poll::Ready(Err(
                "the slot moved to another node, or has fewer copies than cluster.min_copies; it is unknown whether this write is durable",
            ));
        }
        if awaits.is_met() {
            return Poll::Ready(Ok(()));
        }
        if !awaits.has_changes() {
            // Replicas confirm a read without a lease, or their connection ends.
            return Poll::Pending;
        }
        let without_ms = boot_ms().saturating_sub(state.lease_until_ms());
        if Duration::from_millis(without_ms) > UNKNOWN_AFTER {
            Poll::Ready(Err(
                "this node cannot serve its slots any more; it is unknown whether this write is durable",
            ))
        } else {
            Poll::Pending
        }
    }
}

impl ReplicationState {
    fn ensure_lease(&self, now_ms: u64) -> Result<(), Refusal> {
        if now_ms < self.lease_until_ms() {
            Ok(())
        } else {
            Err(no_lease())
        }
    }

    /// Returns the condition that everything executed is committed.
    fn executed_conditions(&self) -> Result<ReplyConditions, Refusal> {
        self.ensure_lease(boot_ms())?;
        let mut awaits = ReplyConditions::default();
        self.add_executed(&mut awaits);
        Ok(awaits)
    }

    /// Waits for all changes that a read of outputs may show.
    fn add_executed(&self, awaits: &mut ReplyConditions) {
        awaits.upto = self.changes.settlement().upto();
        let others = self.other_cores.iter().enumerate();
        let others = others.filter_map(|(core, settlement)| Some((core, settlement.upto()?)));
        awaits.other_cores.extend(others);
    }

    fn ensure_log(&self) -> Result<(), Refusal> {
        if self.is_broken {
            let message = "the journal lacks records of slots: restart this node";
            Err((Code::Io, message.to_owned()))
        } else {
            Ok(())
        }
    }

    fn admit_write(
        &self,
        command: Command<'_>,
        now_ms: u64,
        engine: &Engine,
        in_transaction: bool,
    ) -> Result<AdmitOutcome, Refusal> {
        self.ensure_log()?;
        if !in_transaction {
            self.ensure_lease(now_ms)?;
        }
        let mut outcome = AdmitOutcome::Now;
        let range = match command.spec.keys {
            Keys::Range => range_slot(command.arg(1), command.arg(2)),
            _ => None,
        };
        let keys = command.keys().filter(|key| !engine.is_supplied(key));
        for slot in keys.map(row_slot).chain(range) {
            let replication = self.replication.as_ref();
            let admission = replication.map_or(Admission::NotOwner, |replication| {
                replication.owner.may_write(slot, now_ms)
            });
            match admission {
                Admission::Now => {}
                // A transaction that has begun is completed; if necessary, its outcome is unknown.
                Admission::Later | Admission::NoLease | Admission::TooFewCopies { .. }
                    if in_transaction => {}
                Admission::TooFewCopies { copies, needed } => {
                    return Err(too_few_copies(slot, copies, needed));
                }
                Admission::Later => outcome = AdmitOutcome::Later,
                Admission::NoLease => return Err(no_lease()),
                Admission::NotOwner => return Err(self.not_owner(slot)),
            }
        }
        Ok(outcome)
    }

    /// Returns the conditions of a read; `None` if it must be retried.
    fn admit_read(
        &mut self,
        command: Command<'_>,
        now_ms: u64,
        engine: &Engine,
    ) -> Result<Option<ReplyConditions>, Refusal> {
        let mut awaits = ReplyConditions::default();
        let is_base = |key: &[u8]| engine.table_of(key) != Some(true) && !engine.is_supplied(key);
        let mut is_wide = false;
        match command.spec.keys {
            // Rows of many slots, some of which may get another owner at any time.
            Keys::None if self.has_released() => return Ok(None),
            Keys::None | Keys::JoinRange => is_wide = true,
            Keys::Range => {
                let (lo, hi) = (command.arg(1), command.arg(2));
                match range_slot(lo, hi).filter(|_| is_base(lo)) {
                    Some(slot) => {
                        if !self.admit_slot_read(slot, None, now_ms, &mut awaits)? {
                            return Ok(None);
                        }
                    }
                    // Many slots, some of which may get another owner at any time.
                    None if is_base(lo) && self.has_released() => return Ok(None),
                    None => is_wide = true,
                }
            }
            _ => {
                for key in command.keys() {
                    let slot = row_slot(key);
                    if !is_base(key) {
                        is_wide = true;
                        continue;
                    }
                    if !self.admit_slot_read(slot, Some(&text_row(key)), now_ms, &mut awaits)? {
                        return Ok(None);
                    }
                    if engine.has_objects() {
                        with_object_row(key, |row| {
                            self.add_row_conditions(slot, row, now_ms, &mut awaits);
                        });
                    }
                }
            }
        }
        if is_wide {
            self.ensure_lease(now_ms)?;
            self.add_executed(&mut awaits);
        }
        Ok(Some(awaits))
    }

    fn has_released(&self) -> bool {
        let replication = self.replication.as_ref();
        replication.is_some_and(|it| it.owner.has_released())
    }

    /// Returns whether rows of a slot may be read now.
    fn admit_slot_read(
        &mut self,
        slot: u16,
        key: Option<&[u8]>,
        now_ms: u64,
        awaits: &mut ReplyConditions,
    ) -> Result<bool, Refusal> {
        let waits = self.waits_for_replicas;
        let Some(replication) = &mut self.replication else {
            return Err(self.not_owner(slot));
        };
        match replication.owner.read(slot, key, now_ms) {
            ReadWait::Now => Ok(true),
            ReadWait::Later => Ok(false),
            ReadWait::NotOwner => Err(self.not_owner(slot)),
            ReadWait::After {
                acknowledged,
                confirmed,
            } => {
                if let Some(ticket) = acknowledged.filter(|_| waits) {
                    awaits.wait_for(ticket);
                }
                if confirmed {
                    let confirmation = replication.owner.confirm(slot, now_ms, &mut self.out);
                    awaits
                        .confirmations
                        .push(confirmation.ok_or_else(no_lease)?);
                }
                Ok(true)
            }
        }
    }

    /// Adds the uncommitted changes of another row of a slot that is read.
    fn add_row_conditions(&self, slot: u16, row: &[u8], now_ms: u64, awaits: &mut ReplyConditions) {
        let Some(replication) = self
            .replication
            .as_ref()
            .filter(|_| self.waits_for_replicas)
        else {
            return;
        };
        if let ReadWait::After {
            acknowledged: Some(ticket),
            ..
        } = replication.owner.read(slot, Some(row), now_ms)
        {
            awaits.wait_for(ticket);
        }
    }

    fn not_owner(&self, slot: u16) -> Refusal {
        match self.reported_slots.get(&slot) {
            Some(why) => (Code::ClusterDown, format!("slot {slot} {why}")),
            None => {
                let why = "is not owned by this node at present; send the command again";
                (Code::TryAgain, format!("slot {slot} {why}"))
            }
        }
    }
}

impl super::ExecutedChanges {
    pub(super) fn settlement(&self) -> Settlement {
        Settlement {
            executed: self.executed,
            settled: self.settled,
            unknown: self.unknown,
        }
    }
}

fn accesses_rows(command: Command<'_>) -> bool {
    // Reads of spaces are checked where they are executed.
    command.spec.group != Group::Spaces
        && !matches!(
            command.id(),
            Id::JoinCreate
                | Id::JoinDrop
                | Id::JoinList
                | Id::JoinInfo
                | Id::JoinExplain
                | Id::Unsubscribe
                | Id::PUnsubscribe
                | Id::Unwatch
        )
}

fn too_few_copies(slot: u16, copies: usize, needed: usize) -> Refusal {
    let message = format!(
        "Not enough good replicas to write: {copies} of the {needed} copies of slot {slot} that cluster.min_copies requires are in sync; send it again when \
         more copies are in sync"
    );
    (Code::NoReplicas, message)
}

fn no_lease() -> Refusal {
    let message = "this node may not serve its slots at present: it has not reached the cluster's coordination service for the time of its \
        lease, and another node may take over; send it again";
    (Code::ClusterDown, message.to_owned())
}
