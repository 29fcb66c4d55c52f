//! The end of a core's turn: sends records to the journal, then messages to other places, and handles the outcome of
//! both.

use std::time::Duration;

use larder_cluster::coordination::boot_ms;
use larder_cluster::replication::{Message, Outcome, ReplicationEvent};
use larder_join::{Engine, EngineMessage};
use larder_journal::AppendOutcome;

use super::commit_hold::UNNUMBERED;
use super::rows::AllRows;
use super::{Replicated, ReplicationState, Settlement, with_rows};
use crate::tables::{CoreMessage, Tables};

/// Interval at which replication checks the time, in milliseconds.
pub(super) const TICK_MS: u64 = 100;
/// Pause between steps of fillings.
const FILL_PAUSE: Duration = Duration::from_millis(2);

/// A slot with too few copies is a risk in itself, so fillings yield less than other background work.
const FILL_SHARE_MIN: f64 = 0.25;

impl Tables {
    /// Wakes maintenance at the interval of replication's clock. Never returns.
    pub async fn run_replication(self: std::rc::Rc<Self>) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let mut tick = tokio::time::interval(Duration::from_millis(TICK_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = replicated.fills.notified() => tokio::time::sleep(FILL_PAUSE).await,
            }
            self.end_subscriptions_without_lease();
            self.wake_maintenance();
        }
    }

    /// Passes the turn's records and changes to the journal, and its messages to their connections.
    pub(in crate::tables) fn end_replication_turn(&self) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let now_ms = boot_ms();
        self.process_journal_progress(replicated, now_ms);
        self.commit();
        // Records that need no sync are often durable immediately.
        if replicated.state.borrow().log.has_more(self) {
            self.process_journal_progress(replicated, now_ms);
            self.commit();
        }
        self.settle_changes(replicated);
    }

    /// Processes the journal's progress, and sends what follows from it.
    fn process_journal_progress(&self, replicated: &Replicated, now_ms: u64) {
        let engine = &mut *self.engine.borrow_mut();
        let mut state = replicated.state.borrow_mut();
        let durable = state.log.take_durable(self);
        let lease_until_ms = state.lease_until_ms();
        let is_due = now_ms >= state.ticked_ms + TICK_MS;
        if is_due {
            state.ticked_ms = now_ms;
            self.connect_replicas(replicated, &state);
        }
        with_rows!(state, &mut *engine, |replication, rows, out| {
            replication.owner.set_lease(lease_until_ms);
            if is_due && let Some(background) = self.handle.background.get() {
                let share = background(replication.owner.take_filled_bytes()).background;
                replication.owner.set_fill_share(share.max(FILL_SHARE_MIN));
            }
            if let Some(upto) = durable {
                replication.record_durable(upto, out);
            }
            if is_due {
                replication.tick(now_ms, out);
            }
            replication.flush(&*rows, now_ms, out);
            if replication.owner.is_fill_throttled() {
                replicated.fills.notify_one();
            }
        });
        self.release_slots(&mut state);
        let closed = self.apply_events(replicated, &mut state, engine);
        self.send_outputs(replicated, &mut state);
        drop(state);
        self.release_moved_slots(engine, &closed);
    }

    /// Appends to the journal first; messages about records that it rejects are not sent.
    fn send_outputs(&self, replicated: &Replicated, state: &mut ReplicationState) {
        if let Err(error) = state.append_records(&mut self.producer.borrow_mut()) {
            tracing::error!(%error, "records of slots cannot be appended to the journal");
            self.check_journal();
            state.out.messages.clear();
        }
        let carrier = replicated.carrier.borrow();
        for (to, message) in state.out.messages.drain(..) {
            let Some(carrier) = carrier.as_ref() else {
                continue;
            };
            match &message {
                Message::Stream { .. } => carrier.send_stream(to, &message),
                Message::Acknowledged { .. } | Message::Reply { .. } => {
                    if let Some(connection) = state.sources.get(&to) {
                        carrier.send_answer(to, *connection, &message);
                    }
                }
            }
        }
        let requests = std::mem::take(&mut state.out.requests);
        if !requests.is_empty() {
            self.handle.slot_requests.add(requests);
        }
    }

    /// Moves rows into and out of the engine. Returns the slots that were closed, with the terms of their new owners.
    pub(super) fn apply_events(
        &self,
        replicated: &Replicated,
        state: &mut ReplicationState,
        engine: &mut Engine,
    ) -> Vec<(u16, u64)> {
        if state.out.events.is_empty() {
            return Vec::new();
        }
        replicated.advance_progress();
        let events = std::mem::take(&mut state.out.events);
        let closed = |event: &ReplicationEvent| match event {
            ReplicationEvent::Closed(slot) => Some(*slot),
            _ => None,
        };
        let mut closed: Vec<u16> = events.iter().filter_map(closed).collect();
        if !closed.is_empty() {
            closed.sort_unstable();
            self.watched_keys
                .mark_moved(&|slot| closed.binary_search(&slot).is_ok());
            engine.discard_computed_from(&|slot| closed.binary_search(&slot).is_ok());
        }
        let ReplicationState {
            replication,
            groups,
            copies,
            reported_slots,
            withdrawn,
            ..
        } = state;
        let leaving: Vec<u16> = (events.iter())
            .filter_map(|event| match event {
                ReplicationEvent::MoveRequested(slot) => Some(*slot),
                _ => None,
            })
            .collect();
        let copy = |slot: u16| replication.as_ref()?.replica.copy(slot);
        let mut rows = AllRows {
            engine,
            groups,
            copies,
        };
        for event in events {
            match event {
                ReplicationEvent::Progress => {}
                ReplicationEvent::Opened(slot) => {
                    reported_slots.remove(&slot);
                    rows.open(slot);
                }
                ReplicationEvent::Closed(slot) => {
                    withdrawn.remove(&slot);
                    self.handle.outgoing_slots.remove(slot);
                    rows.close(slot);
                }
                ReplicationEvent::MoveRequested(slot) => self.handle.outgoing_slots.insert(slot),
                ReplicationEvent::MoveCancelled(slot) => {
                    withdrawn.remove(&slot);
                    self.handle.outgoing_slots.remove(slot);
                }
                ReplicationEvent::CopyMissing(slot) => {
                    let why = "has no complete copy on this node, its intended owner: bring back a node that had it, or discard its rows \
                        (see larder cluster remove)";
                    if reported_slots.insert(slot, why).is_none() {
                        tracing::error!(slot, "slot {slot} {why}");
                    }
                }
                ReplicationEvent::OwnerBehind(slot) => {
                    let why = "is not served by this node, its owner: a replica has acknowledged writes that this node's disk lacks, so it is an old \
                        disk. Stop this node and empty its data folder: the replica takes over, and fills it";
                    if reported_slots.insert(slot, why).is_none() {
                        tracing::error!(slot, "slot {slot} {why}");
                    }
                }
            }
        }
        if let (Some(sharing), false) = (&self.sharing, leaving.is_empty()) {
            // In order, because the slots of one map have ascending numbers.
            let mark = sharing.withdraw(&leaving);
            withdrawn.extend(leaving.iter().map(|slot| (*slot, mark)));
            self.wake_maintenance();
        }
        let of_term = |slot: u16| (slot, copy(slot).map_or(0, |copy| copy.term.0));
        closed.into_iter().map(of_term).collect()
    }

    /// Gives away slots whose readers have dropped the rows.
    fn release_slots(&self, state: &mut ReplicationState) {
        // Commands during a pause must not encounter such slots.
        if state.withdrawn.is_empty() || self.is_paused() {
            return;
        }
        let Some(sharing) = &self.sharing else { return };
        let ReplicationState {
            replication,
            withdrawn,
            out,
            ..
        } = state;
        let Some(replication) = replication else {
            return;
        };
        withdrawn.retain(|slot, mark| {
            let is_forgotten = sharing.is_acknowledged(*mark);
            if is_forgotten {
                replication.owner.complete_release(*slot, out);
            }
            !is_forgotten
        });
    }

    /// Determines the outcome of changes, and releases what waited for them.
    fn settle_changes(&self, replicated: &Replicated) {
        let mut state = replicated.state.borrow_mut();
        let ReplicationState {
            replication,
            changes,
            ..
        } = &mut *state;
        let before = changes.settlement();
        while let (Some(replication), Some(ticket)) = (&*replication, changes.waiting.front()) {
            match replication.owner.outcome(ticket) {
                Outcome::Waiting => break,
                Outcome::Acknowledged => {}
                Outcome::Unknown => changes.unknown += 1,
            }
            changes.waiting.pop_front();
            changes.settled += 1;
        }
        let now = changes.settlement();
        drop(state);
        let shared_upto = &replicated.pause_changes.shared_upto;
        let shared = shared_upto.get();
        let mut commit_hold = replicated.commit_hold.borrow_mut();
        if now.unknown > before.unknown {
            let mut readers = commit_hold.drop_all();
            drop(commit_hold);
            if shared.is_some() {
                let own_cores = 0..self.handle.cores() as u16;
                readers.retain(|reader| !own_cores.contains(reader));
                readers.extend(own_cores.filter(|core| usize::from(*core) != self.index));
            }
            readers
                .into_iter()
                .for_each(|reader| self.end_conversation_with(reader));
        } else if !commit_hold.is_empty() {
            let free = commit_hold.release_up_to(now.settled);
            drop(commit_hold);
            for (to, messages) in free {
                self.send_engine_messages(to, messages);
            }
        }
        if let Some(upto) = shared.filter(|_| now.settled > before.settled) {
            shared_upto.set(Some(upto).filter(|upto| now.settled < *upto));
            // Later changes have not been shared.
            self.send_settlement(Settlement {
                executed: upto,
                ..now
            });
        }
    }

    /// Takes from `messages` to another engine those that must be withheld, and keeps them.
    pub(in crate::tables) fn hold_uncommitted(&self, to: u16, messages: &mut Vec<EngineMessage>) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let (engine, pause_changes) = (self.engine.borrow(), &replicated.pause_changes);
        let is_own_core = usize::from(to) < self.handle.cores();
        let mut commit_hold = replicated.commit_hold.borrow_mut();
        commit_hold.hold(UNNUMBERED, to, messages, |message| {
            pause_changes.must_hold(&engine, is_own_core, message)
        });
        let changes = replicated.state.borrow().changes.settlement();
        if let Some((upto, _)) = changes.upto() {
            commit_hold.hold(upto, to, messages, EngineMessage::is_from_owner);
        }
    }

    /// Drops the withheld messages to a reader whose conversation has ended.
    pub(in crate::tables) fn drop_held_messages(&self, reader: u16) {
        if let Some(replicated) = &self.replicated {
            replicated.commit_hold.borrow_mut().drop_for(reader);
        }
    }

    /// Makes another engine drop the rows of this one: the outcome of some changes that it had to receive is unknown.
    fn end_conversation_with(&self, reader: u16) {
        if usize::from(reader) >= self.handle.cores() {
            // The reader drops the rows when the connection ends, and the owner waits until it has.
            let why =
                "the outcome of changes to rows that you read is unknown: read the rows again";
            return self.end_reader(reader, why);
        }
        let Some(sharing) = &self.sharing else { return };
        let from = self.index as u16;
        // Writes that the reader had to reflect wait until it has dropped the rows.
        let upto = sharing.end_reader(reader);
        let message = CoreMessage::OwnerLost { from, upto };
        self.handle.send(usize::from(reader), message);
    }
}

impl super::LoggedRecords {
    /// Returns the number of durable records, if it has grown.
    fn take_durable(&mut self, tables: &Tables) -> Option<u64> {
        let mut upto = None;
        while let Some((records, ticket)) = self.appended.front()
            && tables.outcome(*ticket) == AppendOutcome::Done
        {
            upto = Some(*records);
            self.appended.pop_front();
        }
        upto
    }

    fn has_more(&self, tables: &Tables) -> bool {
        let first = self.appended.front();
        first.is_some_and(|(_, ticket)| tables.outcome(*ticket) == AppendOutcome::Done)
    }
}
