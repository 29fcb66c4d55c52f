//! The end of a core's turn: sends records to the journal, then messages to other places, and handles the outcome of
//! both.

use std::time::Duration;

use larder_cluster::coordination::boot_ms;
use larder_cluster::replication::{Event, Message, Outcome};
use larder_join::{Engine, EngineMessage};
use larder_journal::AppendOutcome;

use super::kept_back::UNNUMBERED;
use super::rows::AllRows;
use super::{Replicated, Settlement, State, with_rows};
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
        self.pass_on(replicated, now_ms);
        self.commit();
        // Records that need no sync are often durable immediately.
        if replicated.state.borrow().log.has_more(self) {
            self.pass_on(replicated, now_ms);
            self.commit();
        }
        self.settle_changes(replicated);
    }

    /// Processes the journal's progress, and sends what follows from it.
    fn pass_on(&self, replicated: &Replicated, now_ms: u64) {
        let engine = &mut *self.engine.borrow_mut();
        let mut state = replicated.state.borrow_mut();
        let durable = state.log.durable(self);
        let lease_until_ms = state.lease_until_ms();
        let is_due = now_ms >= state.ticked_ms + TICK_MS;
        if is_due {
            state.ticked_ms = now_ms;
            self.reach(replicated, &state);
        }
        with_rows!(state, &mut *engine, |replication, rows, out| {
            replication.owner.set_lease(lease_until_ms);
            if is_due && let Some(background) = self.handle.background.get() {
                let share = background(replication.owner.take_filled_bytes()).background;
                replication.owner.share_fillings(share.max(FILL_SHARE_MIN));
            }
            if let Some(upto) = durable {
                replication.durable(upto, out);
            }
            if is_due {
                replication.tick(now_ms, out);
            }
            replication.flush(&*rows, now_ms, out);
            if replication.owner.waits_to_fill() {
                replicated.fills.notify_one();
            }
        });
        self.release_slots(&mut state);
        let closed = self.act_on_events(replicated, &mut state, engine);
        self.send_out(replicated, &mut state);
        drop(state);
        self.disown(engine, &closed);
    }

    /// Appends to the journal first; messages about records that it rejects are not sent.
    fn send_out(&self, replicated: &Replicated, state: &mut State) {
        if let Err(error) = state.append_records(&mut self.producer.borrow_mut()) {
            tracing::error!(%error, "what happened to slots is not in the journal");
            self.check_journal();
            state.out.messages.clear();
        }
        let carrier = replicated.carrier.borrow();
        for (to, message) in state.out.messages.drain(..) {
            let Some(carrier) = carrier.as_ref() else {
                continue;
            };
            match &message {
                Message::Stream { .. } => carrier.stream(to, &message),
                Message::Acknowledged { .. } | Message::Answer { .. } => {
                    if let Some(connection) = state.sources.get(&to) {
                        carrier.answer(to, *connection, &message);
                    }
                }
            }
        }
        let asks = std::mem::take(&mut state.out.asks);
        if !asks.is_empty() {
            self.handle.slot_asks.add(asks);
        }
    }

    /// Moves rows into and out of the engine. Returns the slots that were closed, with the terms of their new owners.
    pub(super) fn act_on_events(
        &self,
        replicated: &Replicated,
        state: &mut State,
        engine: &mut Engine,
    ) -> Vec<(u16, u64)> {
        if state.out.events.is_empty() {
            return Vec::new();
        }
        replicated.note_progress();
        let events = std::mem::take(&mut state.out.events);
        let closed = |event: &Event| match event {
            Event::Closed(slot) => Some(*slot),
            _ => None,
        };
        let mut closed: Vec<u16> = events.iter().filter_map(closed).collect();
        if !closed.is_empty() {
            closed.sort_unstable();
            self.watched
                .note_moved(&|slot| closed.binary_search(&slot).is_ok());
            engine.forget_computed_from(&|slot| closed.binary_search(&slot).is_ok());
        }
        let State {
            replication,
            groups,
            copies,
            troubled,
            withdrawn,
            ..
        } = state;
        let leaving: Vec<u16> = (events.iter())
            .filter_map(|event| match event {
                Event::Leaving(slot) => Some(*slot),
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
                Event::Progress => {}
                Event::Opened(slot) => {
                    troubled.remove(&slot);
                    rows.open(slot);
                }
                Event::Closed(slot) => {
                    withdrawn.remove(&slot);
                    self.handle.leaving.end(slot);
                    rows.close(slot);
                }
                Event::Leaving(slot) => self.handle.leaving.begin(slot),
                Event::Stays(slot) => {
                    withdrawn.remove(&slot);
                    self.handle.leaving.end(slot);
                }
                Event::Missing(slot) => {
                    let why = "has no whole copy on this node, which is to be its owner: bring back a node that had it, or give its rows up \
                        (larder cluster remove says how)";
                    if troubled.insert(slot, why).is_none() {
                        tracing::error!(slot, "slot {slot} {why}");
                    }
                }
                Event::Behind(slot) => {
                    let why = "is refused by this node, its owner: a replica has acknowledged writes that this node's disk lacks, so it is an old \
                        disk. Stop this node and empty its data folder: the replica takes over, and fills it";
                    if troubled.insert(slot, why).is_none() {
                        tracing::error!(slot, "slot {slot} {why}");
                    }
                }
            }
        }
        if let (Some(sharing), false) = (&self.sharing, leaving.is_empty()) {
            // In order, because the slots of one map have ascending numbers.
            let told = sharing.withdraw(&leaving);
            withdrawn.extend(leaving.iter().map(|slot| (*slot, told)));
            self.wake_maintenance();
        }
        let of_term = |slot: u16| (slot, copy(slot).map_or(0, |copy| copy.term.0));
        closed.into_iter().map(of_term).collect()
    }

    /// Gives away slots whose readers have dropped the rows.
    fn release_slots(&self, state: &mut State) {
        // Commands during a pause must not encounter such slots.
        if state.withdrawn.is_empty() || self.is_paused() {
            return;
        }
        let Some(sharing) = &self.sharing else { return };
        let State {
            replication,
            withdrawn,
            out,
            ..
        } = state;
        let Some(replication) = replication else {
            return;
        };
        withdrawn.retain(|slot, told| {
            let is_forgotten = sharing.is_acknowledged(*told);
            if is_forgotten {
                replication.owner.released(*slot, out);
            }
            !is_forgotten
        });
    }

    /// Determines the outcome of changes, and releases what waited for them.
    fn settle_changes(&self, replicated: &Replicated) {
        let mut state = replicated.state.borrow_mut();
        let State {
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
        let shared_upto = &replicated.in_pause.shared_upto;
        let shared = shared_upto.get();
        let mut kept_back = replicated.kept_back.borrow_mut();
        if now.unknown > before.unknown {
            let mut readers = kept_back.drop_all();
            drop(kept_back);
            if shared.is_some() {
                let own_cores = 0..self.handle.cores() as u16;
                readers.retain(|reader| !own_cores.contains(reader));
                readers.extend(own_cores.filter(|core| usize::from(*core) != self.index));
            }
            readers
                .into_iter()
                .for_each(|reader| self.end_conversation_with(reader));
        } else if !kept_back.is_empty() {
            let free = kept_back.let_go(now.settled);
            drop(kept_back);
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
    pub(in crate::tables) fn keep_back(&self, to: u16, messages: &mut Vec<EngineMessage>) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let (engine, in_pause) = (self.engine.borrow(), &replicated.in_pause);
        let is_own_core = usize::from(to) < self.handle.cores();
        let mut kept_back = replicated.kept_back.borrow_mut();
        kept_back.keep(UNNUMBERED, to, messages, |message| {
            in_pause.is_held(&engine, is_own_core, message)
        });
        let changes = replicated.state.borrow().changes.settlement();
        if let Some((upto, _)) = changes.upto() {
            kept_back.keep(upto, to, messages, EngineMessage::is_of_owner);
        }
    }

    /// Drops the withheld messages to a reader whose conversation has ended.
    pub(in crate::tables) fn drop_kept_back(&self, reader: u16) {
        if let Some(replicated) = &self.replicated {
            replicated.kept_back.borrow_mut().drop_for(reader);
        }
    }

    /// Makes another engine drop the rows of this one: the outcome of some changes that it had to receive is unknown.
    fn end_conversation_with(&self, reader: u16) {
        if usize::from(reader) >= self.handle.cores() {
            // The reader drops the rows when the connection ends, and the owner waits until it has.
            let why =
                "whether some rows that you are to be told of were kept is unknown: read them anew";
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
    fn durable(&mut self, tables: &Tables) -> Option<u64> {
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
