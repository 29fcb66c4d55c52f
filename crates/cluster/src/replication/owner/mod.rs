//! The owner of slots: orders their changes, sends them to the replicas, and reports when each is acknowledged.
//!
//! ```text
//!   change ──► log of the slot ──► flush: a message per replica and turn ──► Acknowledged ──► committed ──► replies may leave
//!                  ▲                                                             │
//!   durable ───────┴─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Based on PacificA (Lin, Yang, Zhang, Zhou, MSR-TR-2008-25), with these differences. A change that all in-sync replicas have
//! logged is *committed*, but the owner's rows contain it as soon as it is executed, so reads of keys with uncommitted changes
//! wait. When an owner begins with a replica, the two compare their logs by the term of each change. No exact commit point has to
//! be known for that (the problem of Kafka's KIP-101 and 279).
//!
//! Invariants:
//!
//! 1. A change is committed when it is in this place's log and in the log of each in-sync replica, and each of these has
//!    confirmed the slot's term.
//! 2. A replica counts as in sync from the moment in which its addition to the in-sync set is requested, because the time of the
//!    map's change is not known. Before the request, it has all committed changes.
//! 3. A replica counts until the map removes it.
//! 4. No write is accepted without a lease that certainly lasts.
//! 5. Only the owner hands over a slot: when all its changes are acknowledged, no other node computes from its rows
//!    ([`Owner::complete_release`]), and the owner serves no requests for it. A node that learns late of the new owner, even the previous
//!    owner, therefore has no stale data.
//!
//! A write costs one allocation (the row, shared by log and streams), a push to the slot's log, and an entry in the table of
//! uncommitted keys. Each replica adds a shared pointer in the turn's message. Without replicas, a host has no `Owner` and no
//! cost; a slot of an `Owner` without replicas costs the same except for the messages.

mod peer;
mod receive;
mod send;
mod slot;
mod stats;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use larder_types::BySlot;

use crate::map::{Epoch, Term};

use super::change::{Assignment, ExecutedChange, LogEntry, Place, Position, Row, RowStore};
use super::outputs::{MapRequest, Outputs, ReplicationEvent, SlotMapChange};
use super::record::{Record, SlotCopy};
use super::{Bugs, Limits};
use peer::Peer;
use slot::{LoggedChange, OwnedSlot, ReplicaProgress, Role};
pub use stats::ReplicationStats;

/// The interval at which settled positions are logged. Without it, a start would replay long tails.
const SETTLE_MS: u64 = 1_000;

/// A change that was made here. It is answered when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub slot: u16,
    number: u64,
    /// The number of the ownership of the slot.
    opened: u64,
}

impl Ticket {
    /// Merges a ticket of the same ownership of the same slot, and waits for the later change. Returns whether the tickets match.
    pub fn join(&mut self, other: &Ticket) -> bool {
        let is_same = (self.slot, self.opened) == (other.slot, other.opened);
        if is_same {
            self.number = self.number.max(other.number);
        }
        is_same
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Waiting,
    Acknowledged,
    /// The slot went to another owner, or had fewer copies than [`Owner::set_min_copies`] requires: the change may be kept or
    /// lost.
    Unknown,
}

/// The state of an owned slot beyond its committed rows.
#[derive(Debug)]
pub struct Uncommitted<'a> {
    pub term: Term,
    pub committed: Position,
    /// The uncommitted changes, each with the row's previous value.
    pub changes: Vec<(&'a LogEntry, Option<&'a [u8]>)>,
}

/// The decision about a write: it may be executed now, or the reason why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Now,
    NotOwner,
    /// The lease may have expired.
    NoLease,
    /// Fewer copies are in sync than a write needs.
    TooFewCopies {
        copies: usize,
        needed: usize,
    },
    /// Too much is unacknowledged, or the slot is being handed over: retry after [`ReplicationEvent::Progress`].
    Later,
}

/// The condition under which a read may be answered from the current rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadWait {
    Now,
    /// When this change is acknowledged, and, if the lease may have expired, when the in-sync replicas have confirmed that there
    /// is no other owner ([`Owner::confirm`]).
    After {
        acknowledged: Option<Ticket>,
        confirmed: bool,
    },
    NotOwner,
    /// Another node may become the owner at any time: retry after [`ReplicationEvent::Progress`].
    Later,
}

/// The condition for which a read without a lease waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    slot: u16,
    term: Term,
    opened: u64,
    /// For each in-sync replica, the message that it must acknowledge, and the connection.
    needs: Vec<(Place, u64, u64)>,
}

/// The keys are hashes already, so this hasher returns them unchanged.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

pub struct Owner {
    limits: Limits,
    bugs: Bugs,
    slots: BySlot<OwnedSlot>,
    peers: BTreeMap<Place, Peer>,
    /// The last uncommitted change of each key, by a hash of slot and key.
    in_flight: HashMap<u64, u64, BuildHasherDefault<IdentityHasher>>,
    /// Slots whose log has waiting changes, or whose term is not durable.
    waiting: VecDeque<u16>,
    /// Slots that were changed in this turn.
    changed: Vec<u16>,
    /// Uncommitted changes of all slots.
    uncommitted: usize,
    /// The bytes of these changes.
    bytes: usize,
    lease_until_ms: u64,
    min_copies: usize,
    /// Owned slots that are being handed over.
    moving: BTreeSet<u16>,
    /// The epoch of the map that this place uses.
    epoch: Epoch,
    durable: u64,
    /// The number of ownerships that began here.
    opened: u64,
    tokens: send::TokenBucket,
    waits_to_fill: bool,
    ticked_ms: u64,
    /// The time at which settled positions were last logged.
    settled_ms: u64,
    /// Cumulative statistics; [`Owner::stats`] adds the current state.
    totals: ReplicationStats,
}

impl Owner {
    pub fn new(limits: Limits, bugs: Bugs) -> Owner {
        Owner {
            tokens: send::TokenBucket::new(limits.fill_bytes_per_second),
            waits_to_fill: false,
            limits,
            bugs,
            slots: BySlot::default(),
            peers: BTreeMap::new(),
            in_flight: HashMap::default(),
            waiting: VecDeque::new(),
            changed: Vec::new(),
            uncommitted: 0,
            bytes: 0,
            lease_until_ms: 0,
            min_copies: 1,
            moving: BTreeSet::new(),
            epoch: Epoch(0),
            durable: 0,
            opened: 0,
            ticked_ms: 0,
            settled_ms: 0,
            totals: ReplicationStats::default(),
        }
    }

    pub fn stats(&self) -> ReplicationStats {
        ReplicationStats {
            unacknowledged: self.uncommitted as u64,
            unacknowledged_bytes: self.bytes as u64,
            ..self.totals
        }
    }

    /// Limits fills to this fraction of their rate, between 0 (exclusive) and 1.
    pub fn set_fill_share(&mut self, share: f64) {
        let rate = self.limits.fill_bytes_per_second as f64 * share;
        self.tokens.set_rate(rate as u64);
    }

    /// Returns the bytes that fills have sent since the last call.
    pub fn take_filled_bytes(&mut self) -> u64 {
        self.tokens.take_spent()
    }

    /// Returns whether fills wait only for time to pass: end a turn in some milliseconds.
    pub fn is_fill_throttled(&self) -> bool {
        self.waits_to_fill
    }

    pub fn is_owner(&self, slot: u16) -> bool {
        self.slots.contains(slot)
    }

    pub fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        self.slots.slots()
    }

    /// Sets the time until which the lease certainly lasts, on this node's clock: see [`super::RenewalLease`]. After a new incarnation,
    /// it may be set only once the slots have been assigned by a map with that incarnation, because an earlier map may predate
    /// another owner.
    pub fn set_lease(&mut self, until_ms: u64) {
        self.lease_until_ms = until_ms;
    }

    /// Sets the number of copies of a slot, including this one, that must be in sync for its writes to be accepted. Changes that
    /// are made or in flight while there are fewer end as [`Outcome::Unknown`].
    pub fn set_min_copies(&mut self, min_copies: usize) {
        if self.min_copies != min_copies {
            self.min_copies = min_copies;
            let slots = self.slots.iter_mut();
            slots.for_each(|(_, owned)| owned.update_shortage(min_copies));
        }
    }

    pub fn has_lease(&self, now_ms: u64) -> bool {
        now_ms < self.lease_until_ms
    }

    pub fn may_write(&self, slot: u16, now_ms: u64) -> Admission {
        let Some(owned) = self.slots.get(slot).filter(|it| !it.is_behind) else {
            return Admission::NotOwner;
        };
        if !self.has_lease(now_ms) {
            return Admission::NoLease;
        }
        if owned.is_under_replicated {
            return Admission::TooFewCopies {
                copies: owned.copies(),
                needed: self.min_copies,
            };
        }
        if owned.moving_to.is_some() || self.bytes >= self.limits.unacknowledged_bytes_max {
            Admission::Later
        } else {
            Admission::Now
        }
    }

    /// Records an executed change. `before` is the row's previous value. The caller checks [`Owner::may_write`] first.
    ///
    /// # Panics
    /// If the slot is not owned.
    pub(super) fn change(
        &mut self,
        slot: u16,
        changed: ExecutedChange<'_>,
        before: Option<Vec<u8>>,
        logged: &mut u64,
        out: &mut Outputs,
    ) -> Ticket {
        let owned = self.slots.get_mut(slot).expect("the slot is owned");
        let at = Position {
            term: owned.term,
            number: owned.last().number + 1,
        };
        let entry = LogEntry {
            at,
            row: Row::new(changed.key, changed.value),
            is_open: changed.is_open,
        };
        *logged += 1;
        out.records.push(Record::Change {
            slot,
            entry: entry.clone(),
        });
        let opened = owned.opened;
        self.append(slot, entry, before, *logged);
        Ticket {
            slot,
            number: at.number,
            opened,
        }
    }

    fn append(&mut self, slot: u16, entry: LogEntry, before: Option<Vec<u8>>, mark: u64) {
        let owned = self.slots.get_mut(slot).expect("the slot is owned");
        let key = key_of(slot, entry.row.key());
        self.in_flight.insert(key, entry.at.number);
        self.uncommitted += 1;
        self.bytes += entry.row.size();
        if !owned.is_waiting {
            owned.is_waiting = true;
            self.waiting.push_back(slot);
        }
        if !owned.is_changed && !owned.members.is_empty() {
            owned.is_changed = true;
            self.changed.push(slot);
        }
        owned.log.push_back(LoggedChange {
            entry,
            key,
            before,
            mark,
        });
        if owned.is_under_replicated {
            owned.record_shortage();
        }
    }

    pub fn outcome(&self, ticket: &Ticket) -> Outcome {
        match self.slots.get(ticket.slot) {
            Some(owned) if owned.opened != ticket.opened || owned.is_behind => Outcome::Unknown,
            Some(owned) if owned.was_under_replicated(ticket.number) => Outcome::Unknown,
            Some(owned) if owned.committed.number >= ticket.number => Outcome::Acknowledged,
            Some(_) => Outcome::Waiting,
            None => Outcome::Unknown,
        }
    }

    /// For a read of one key, or (`None`) of any rows of the slot.
    #[inline]
    pub fn read(&self, slot: u16, key: Option<&[u8]>, now_ms: u64) -> ReadWait {
        let Some(owned) = self.slots.get(slot).filter(|it| !it.is_behind) else {
            return ReadWait::NotOwner;
        };
        if owned.is_released {
            return ReadWait::Later;
        }
        let confirmed = !self.has_lease(now_ms) && !owned.is_alone();
        let mut acknowledged = None;
        if self.uncommitted > 0 && !self.bugs.reads_uncommitted && owned.committed != owned.last() {
            let number = match key {
                Some(key) => self.in_flight.get(&key_of(slot, key)).copied(),
                None => Some(owned.last().number),
            };
            acknowledged = number.map(|number| Ticket {
                slot,
                number,
                opened: owned.opened,
            });
        }
        if acknowledged.is_some() || confirmed {
            ReadWait::After {
                acknowledged,
                confirmed,
            }
        } else {
            ReadWait::Now
        }
    }

    /// Hands over a slot to an in-sync replica. No other node computes from its rows.
    pub fn hand_over(&mut self, slot: u16, to: Place) {
        if let Some(owned) = self.slots.get_mut(slot)
            && owned.member(to).is_some_and(|it| it.role == Role::InSync)
        {
            owned.moving_to = Some(to);
            owned.is_released = true;
            self.moving.insert(slot);
        }
    }

    /// Returns whether the map assigns this owned slot to another node. Its writes then wait.
    #[inline]
    pub fn is_moving(&self, slot: u16) -> bool {
        !self.moving.is_empty() && self.moving.contains(&slot)
    }

    /// Returns whether another node may become the owner of any owned slot at any time.
    pub fn has_released(&self) -> bool {
        let is_released = |slot: &u16| self.slots.get(*slot).is_some_and(|it| it.is_released);
        self.moving.iter().any(is_released)
    }

    /// Completes the release after [`ReplicationEvent::Departure`]: the nodes that computed from the slot's rows have discarded the results,
    /// and receive no more of its rows until the map names the owner. From now on, no requests for the slot are served, and it is
    /// handed over when all its changes are acknowledged.
    pub fn complete_release(&mut self, slot: u16, out: &mut Outputs) {
        if let Some(owned) = self.slots.get_mut(slot)
            && owned.moving_to.is_some()
        {
            owned.is_released = true;
            self.request_move(slot, out);
        }
    }

    /// Records that a map of this epoch was applied.
    pub(super) fn record_epoch(&mut self, epoch: Epoch, out: &mut Outputs) {
        if self.epoch == epoch {
            return;
        }
        self.epoch = epoch;
        for slot in self.moving.clone() {
            self.request_move(slot, out);
        }
    }

    /// Requests the move, once per map, because the request is valid only for that map.
    fn request_move(&mut self, slot: u16, out: &mut Outputs) {
        let Some(owned) = self.slots.get_mut(slot) else {
            return;
        };
        if let Some(to) = owned.moving_to
            && owned.is_released
            && owned.committed == owned.last()
            && owned.move_requested != Some(self.epoch)
        {
            owned.move_requested = Some(self.epoch);
            out.requests.push(MapRequest {
                slot,
                term: owned.term,
                change: SlotMapChange::MoveOwnership(to, self.epoch),
            });
        }
    }

    /// Sets the next owner according to the map.
    fn set_next_owner(&mut self, slot: u16, heir: Option<Place>, out: &mut Outputs) {
        let owned = self.slots.get_mut(slot).expect("the slot is owned");
        owned.next_owner = heir;
        if owned.moving_to == heir {
            return;
        }
        let was_moving = owned.moving_to.is_some();
        owned.moving_to = heir;
        match heir {
            Some(_) if was_moving => {}
            Some(_) => {
                self.moving.insert(slot);
                out.events.push(ReplicationEvent::MoveRequested(slot));
            }
            None => {
                owned.is_released = false;
                self.moving.remove(&slot);
                out.events.push(ReplicationEvent::MoveCancelled(slot));
            }
        }
    }

    /// Becomes the owner of a slot with this copy. Its tail is already in the rows; `before` contains the previous values.
    pub(super) fn open(
        &mut self,
        slot: u16,
        (copy, before): (SlotCopy, Vec<Option<Vec<u8>>>),
        assignment: &Assignment,
        logged: &mut u64,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        self.opened += 1;
        *logged += 1;
        out.records.push(Record::Term {
            slot,
            term: assignment.term,
        });
        let owned = OwnedSlot::new(assignment, copy.settled, self.opened, *logged);
        self.slots.insert(slot, owned);
        for (entry, before) in copy.tail.into_iter().zip(before) {
            self.append(slot, entry, before, 0);
        }
        let owned = self.slots.get_mut(slot).expect("just opened");
        if self.bugs.promotes_without_reconciling {
            owned.committed = owned.last();
        }
        if !owned.is_waiting {
            owned.is_waiting = true;
            self.waiting.push_back(slot);
        }
        self.update_members(slot, assignment, true, now_ms);
        out.events.push(ReplicationEvent::Opened(slot));
        self.set_next_owner(slot, assignment.next_owner, out);
        self.commit(slot, out);
    }

    /// Applies a new assignment of a slot that this owner keeps.
    pub(super) fn reassign(
        &mut self,
        slot: u16,
        assignment: &Assignment,
        logged: &mut u64,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        let owned = self.slots.get_mut(slot).expect("the slot is owned");
        let is_new_term = owned.term != assignment.term;
        if is_new_term {
            *logged += 1;
            out.records.push(Record::Term {
                slot,
                term: assignment.term,
            });
            owned.term = assignment.term;
            owned.term_mark = *logged;
            owned.is_refused = false;
            if !owned.is_waiting {
                owned.is_waiting = true;
                self.waiting.push_back(slot);
            }
        }
        self.update_members(slot, assignment, is_new_term, now_ms);
        // The new term cancels a hand-over that the host requested itself.
        let is_new = is_new_term
            || self
                .slots
                .get(slot)
                .is_some_and(|it| it.next_owner != assignment.next_owner);
        if is_new {
            self.set_next_owner(slot, assignment.next_owner, out);
        }
        self.commit(slot, out);
    }

    /// Keeps the state of members that stay. In a new term, all of them must confirm it.
    fn update_members(
        &mut self,
        slot: u16,
        assignment: &Assignment,
        is_new_term: bool,
        now_ms: u64,
    ) {
        let owned = self.slots.get_mut(slot).expect("the slot is owned");
        let mut before = std::mem::take(&mut owned.members);
        let in_sync = assignment.in_sync.iter().map(|it| (*it, Role::InSync));
        let filling = assignment.filling.iter().map(|(it, began)| {
            let role = Role::Filling {
                began: *began,
                is_add_requested: false,
            };
            (*it, role)
        });
        for (place, role) in in_sync.chain(filling) {
            let known = before.iter().position(|it| it.place == place);
            let mut member = match known {
                Some(at) => {
                    let member = before.swap_remove(at);
                    let was_filled = member.role != Role::InSync && role == Role::InSync;
                    self.totals.filled += u64::from(was_filled);
                    member.in_role(role, now_ms)
                }
                None => ReplicaProgress::new(place, role, now_ms),
            };
            if is_new_term {
                member.reset(true, now_ms);
            }
            owned.members.push(member);
            let peer = self.peers.entry(place);
            let peer = peer.or_insert_with(|| Peer::new(now_ms));
            peer.dirty.insert(slot);
        }
        owned.update_shortage(self.min_copies);
    }

    fn peer_mut(&mut self, place: Place, now_ms: u64) -> &mut Peer {
        let peer = self.peers.entry(place);
        peer.or_insert_with(|| Peer::new(now_ms))
    }

    /// Ends the ownership of a slot. Its uncommitted changes are removed from the rows, and are the tail of the remaining copy.
    pub(super) fn close(
        &mut self,
        slot: u16,
        term: Term,
        rows: &mut impl RowStore,
        out: &mut Outputs,
    ) -> SlotCopy {
        let mut owned = self.slots.remove(slot).expect("the slot is owned");
        self.moving.remove(&slot);
        let mut tail = VecDeque::new();
        while let Some(last) = owned.log.pop_back() {
            let row = &last.entry.row;
            if last.entry.at.number > owned.committed.number {
                self.bytes -= row.size();
                self.uncommitted -= 1;
                self.in_flight.remove(&last.key);
                rows.set(slot, row.key(), last.before.as_deref());
                tail.push_front(last.entry);
            }
        }
        out.events.push(ReplicationEvent::Closed(slot));
        SlotCopy {
            term: term.max(owned.term),
            is_complete: true,
            settled: owned.committed,
            tail,
        }
    }

    /// The first `upto` records are in this place's log.
    pub(super) fn record_durable(&mut self, upto: u64, out: &mut Outputs) {
        self.durable = upto;
        for _ in 0..self.waiting.len() {
            let slot = self
                .waiting
                .pop_front()
                .expect("the loop pops as many slots as there were");
            if let Some(owned) = self.slots.get_mut(slot) {
                owned.is_waiting = false;
                self.commit(slot, out);
                let owned = self.slots.get_mut(slot).expect("commit keeps the slot");
                let waits = owned.committed != owned.last() || owned.term_mark > upto;
                if waits && !owned.is_waiting {
                    owned.is_waiting = true;
                    self.waiting.push_back(slot);
                }
            }
        }
    }

    /// Commits changes according to invariant 1.
    fn commit(&mut self, slot: u16, out: &mut Outputs) {
        let Some(owned) = self.slots.get_mut(slot) else {
            return;
        };
        let durable = if self.bugs.ignores_own_log {
            u64::MAX
        } else {
            self.durable
        };
        let upto = owned.acknowledged(durable, &self.bugs);
        let mut is_new = false;
        while owned.committed.number < upto {
            let first = &owned.log[owned.index_of(owned.committed.number + 1)];
            let size = first.entry.row.size();
            is_new = true;
            self.uncommitted -= 1;
            self.bytes -= size;
            if self.in_flight.get(&first.key) == Some(&first.entry.at.number) {
                self.in_flight.remove(&first.key);
            }
            owned.committed = first.entry.at;
            owned.retained_bytes += size;
        }
        if is_new {
            if out.events.last() != Some(&ReplicationEvent::Progress) {
                out.events.push(ReplicationEvent::Progress);
            }
            for member in &owned.members {
                if let Some(peer) = self.peers.get_mut(&member.place) {
                    peer.settled.insert(slot);
                }
            }
        }
        owned.trim_log();
        if owned.retained_bytes > 2 * self.limits.unacknowledged_bytes_max {
            // A fill that is slower than the writes must not delay them, so it is restarted. The log may hold one large row and
            // twice the limit of unacknowledged bytes, because in-sync replicas may acknowledge all of them together.
            self.totals.fill_restarts += owned.restart_lagging_fills(self.ticked_ms);
        }
        if is_new && self.is_moving(slot) {
            self.request_move(slot, out);
        }
    }

    /// Handles the passage of time: requests the removal of silent replicas, and repeats unanswered requests.
    pub(super) fn tick(&mut self, now_ms: u64, logged: &mut u64, out: &mut Outputs) {
        let passed = now_ms.saturating_sub(self.ticked_ms);
        self.ticked_ms = now_ms;
        // If this process stalled, the silence is not the replicas' fault: the messages that arrived meanwhile are read first.
        let silent_ms = self.limits.silent_ms;
        let stalled_ms = passed.saturating_sub(silent_ms / 5);
        let slowest = self.limits.slowest_bytes_per_second;
        for peer in self.peers.values_mut() {
            peer.last_received_ms = (peer.last_received_ms + stalled_ms).min(now_ms);
            peer.tick(now_ms, self.limits.heartbeat_ms);
        }
        for (slot, owned) in self.slots.iter_mut() {
            let is_due = now_ms >= owned.requested_ms + self.limits.request_retry_ms;
            if owned.committed.number > owned.settled_on_disk
                && now_ms >= self.settled_ms + SETTLE_MS
            {
                owned.settled_on_disk = owned.committed.number;
                *logged += 1;
                let number = owned.committed.number;
                out.records.push(Record::Settled { slot, number });
            }
            let (committed, is_quiet) = (owned.committed.number, owned.committed == owned.last());
            let mut changes = Vec::new();
            for member in &mut owned.members {
                member.idle_since_ms = (member.idle_since_ms + stalled_ms).min(now_ms);
                let idle_ms = if member.is_following() {
                    self.peers[&member.place].silent_ms(now_ms, slowest)
                } else {
                    now_ms - member.idle_since_ms
                };
                let is_silent = idle_ms > silent_ms || member.cannot_sync;
                let is_filled = member.is_filled(committed);
                match &mut member.role {
                    Role::InSync if is_silent => {
                        changes.push(SlotMapChange::RemoveReplica(member.place))
                    }
                    Role::InSync => {}
                    Role::Filling {
                        is_add_requested: true,
                        ..
                    } if is_silent => changes.push(SlotMapChange::AbortFill(member.place)),
                    _ if !is_filled => {}
                    Role::Filling {
                        began,
                        is_add_requested: is_asked_into,
                    } if is_due => {
                        // See invariant 2.
                        *is_asked_into = true;
                        changes.push(SlotMapChange::AddReplica(member.place, *began));
                    }
                    Role::Filling { .. } => {}
                }
            }
            if let Some(to) = owned.moving_to
                && is_quiet
                && owned.is_released
            {
                changes.push(SlotMapChange::MoveOwnership(to, self.epoch));
            }
            if is_due && !changes.is_empty() {
                owned.requested_ms = now_ms;
                let term = owned.term;
                let requests = changes
                    .into_iter()
                    .map(|change| MapRequest { slot, term, change });
                out.requests.extend(requests);
            }
        }
        if now_ms >= self.settled_ms + SETTLE_MS {
            self.settled_ms = now_ms;
        }
    }

    /// Returns an owned slot as a copy, for a snapshot.
    pub fn uncommitted(&self, slot: u16) -> Option<Uncommitted<'_>> {
        let owned = self.slots.get(slot)?;
        let from = owned.index_of(owned.committed.number + 1);
        let changes = owned.log.range(from..);
        let changes = changes.map(|it| (&it.entry, it.before.as_deref()));
        Some(Uncommitted {
            term: owned.term,
            committed: owned.committed,
            changes: changes.collect(),
        })
    }

    pub fn term(&self, slot: u16) -> Option<Term> {
        self.slots.get(slot).map(|it| it.term)
    }

    /// The committed position of a slot, for observers.
    pub fn committed(&self, slot: u16) -> Option<Position> {
        self.slots.get(slot).map(|it| it.committed)
    }

    /// The replicas of a slot whose acknowledgements are awaited, and whether each follows.
    pub fn replicas(&self, slot: u16) -> Vec<(Place, bool)> {
        let members = self.slots.get(slot).map(|it| it.members.as_slice());
        let counting = members
            .unwrap_or_default()
            .iter()
            .filter(|it| it.is_counted());
        counting.map(|it| (it.place, it.is_following())).collect()
    }
}

fn key_of(slot: u16, key: &[u8]) -> u64 {
    larder_types::key_hash(key) ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
