//! One slot of an owner: its log of changes that may still be needed, and its replicas.

use std::collections::VecDeque;

use super::super::Bugs;
use super::super::change::{Assignment, LogEntry, Place, Position};
use crate::map::{Epoch, Term};

pub(super) struct LoggedChange {
    pub entry: LogEntry,
    /// A hash of slot and key.
    pub key: u64,
    /// The row's previous value, to undo the change.
    pub before: Option<Vec<u8>>,
    /// The number of its record in this place's log.
    pub mark: u64,
}

pub(super) struct OwnedSlot {
    pub term: Term,
    /// The number of this ownership, unique within this place.
    pub opened: u64,
    /// Changes up to this position have been removed from `log`: all in-sync replicas have them.
    pub floor: Position,
    pub committed: Position,
    /// The settled position in the log.
    pub settled_on_disk: u64,
    /// Changes above `floor`, with consecutive numbers. Committed ones are kept until all replicas have been sent them.
    pub log: VecDeque<LoggedChange>,
    /// The bytes of the committed ones.
    pub retained_bytes: usize,
    pub members: Vec<ReplicaProgress>,
    /// The record that logs the ownership in this term.
    pub term_mark: u64,
    /// The slot is in the owner's list of slots that wait for this place's log.
    pub is_waiting: bool,
    /// The slot is in the owner's list of slots that were changed in this turn.
    pub is_changed: bool,
    /// The next owner according to the map.
    pub next_owner: Option<Place>,
    pub moving_to: Option<Place>,
    /// No other node computes from its rows, and no requests are served: another node may become the owner at any time.
    pub is_released: bool,
    /// The epoch of the map under which the move was last requested.
    pub move_requested: Option<Epoch>,
    pub requested_ms: u64,
    /// According to the map, fewer copies are in sync than its writes need.
    pub is_under_replicated: bool,
    /// Changes above the first number, up to the second, were made or in flight during a shortage.
    under_replicated: (u64, u64),
    /// A replica knows a later term.
    pub is_refused: bool,
    /// A replica has committed changes that are not here: this owner must not serve.
    pub is_behind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    InSync,
    Filling {
        began: Epoch,
        is_add_requested: bool,
    },
}

/// The replica's confirmation of the slot's term in this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BeginState {
    NotSent,
    Sent,
    Confirmed,
}

#[derive(Debug, Clone)]
pub(super) struct ReplicaProgress {
    pub place: Place,
    pub role: Role,
    pub begin_state: BeginState,
    /// The time since which it has not been `Confirmed`.
    pub idle_since_ms: u64,
    /// The next change to send to it, and the last that it acknowledged, in this connection.
    pub next: u64,
    pub acknowledged: u64,
    /// The fill in progress in this connection.
    pub fill: Option<Fill>,
    /// The replica reported that its copy cannot be in sync.
    pub cannot_sync: bool,
}

/// The progress of a fill.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Fill {
    /// The last key that was sent.
    pub after: Option<Vec<u8>>,
    /// Everything was sent, as of this number.
    pub filled: Option<u64>,
    /// The replica's log has all of it.
    pub is_logged: bool,
}

impl ReplicaProgress {
    pub fn new(place: Place, role: Role, now_ms: u64) -> ReplicaProgress {
        ReplicaProgress {
            place,
            role,
            begin_state: BeginState::NotSent,
            idle_since_ms: now_ms,
            next: u64::MAX,
            acknowledged: 0,
            fill: None,
            cannot_sync: false,
        }
    }

    /// Returns whether changes wait for its acknowledgement.
    pub fn is_counted(&self) -> bool {
        match self.role {
            Role::InSync => true,
            Role::Filling {
                is_add_requested: is_asked_into,
                ..
            } => is_asked_into,
        }
    }

    /// Returns the same member with its role in another map.
    pub fn in_role(mut self, role: Role, now_ms: u64) -> ReplicaProgress {
        match (self.role, role) {
            // A pending request to add it to the in-sync set stays.
            (Role::Filling { began, .. }, Role::Filling { began: now, .. }) if began == now => {}
            (_, Role::InSync) => self.role = role,
            _ => return ReplicaProgress::new(self.place, role, now_ms),
        }
        self
    }

    /// Voids the confirmation, because the connection is gone or the term has changed.
    pub fn reset(&mut self, is_connected: bool, now_ms: u64) {
        if self.begin_state == BeginState::Confirmed {
            self.idle_since_ms = now_ms;
        }
        self.begin_state = BeginState::NotSent;
        if !is_connected {
            self.fill = None;
            self.next = u64::MAX;
            self.acknowledged = 0;
        }
    }

    pub fn is_following(&self) -> bool {
        self.begin_state == BeginState::Confirmed
    }

    /// Returns whether its fill must begin, or continue in another term. No write waits for that.
    pub fn needs_fill(&self) -> bool {
        self.begin_state == BeginState::NotSent && !self.cannot_sync && !self.is_counted()
    }

    /// Returns whether it has all rows and all committed changes.
    pub fn is_filled(&self, committed: u64) -> bool {
        let Some(fill) = self.fill.as_ref().filter(|fill| fill.is_logged) else {
            return false;
        };
        let has_all = fill
            .filled
            .is_some_and(|at| self.acknowledged >= at && committed >= at);
        self.is_following() && has_all && self.acknowledged >= committed
    }
}

impl OwnedSlot {
    pub fn new(assignment: &Assignment, settled: Position, opened: u64, mark: u64) -> OwnedSlot {
        OwnedSlot {
            term: assignment.term,
            opened,
            floor: settled,
            committed: settled,
            settled_on_disk: settled.number,
            log: VecDeque::new(),
            retained_bytes: 0,
            members: Vec::new(),
            term_mark: mark,
            is_waiting: false,
            is_changed: false,
            next_owner: None,
            moving_to: None,
            is_released: false,
            move_requested: None,
            requested_ms: 0,
            is_under_replicated: false,
            under_replicated: (0, 0),
            is_refused: false,
            is_behind: false,
        }
    }

    /// The last change that was made.
    pub fn last(&self) -> Position {
        self.log.back().map_or(self.floor, |it| it.entry.at)
    }

    pub fn member(&mut self, place: Place) -> Option<&mut ReplicaProgress> {
        self.members.iter_mut().find(|it| it.place == place)
    }

    /// The number of in-sync copies according to the map, including the owner's.
    pub fn copies(&self) -> usize {
        let is_in_sync = |it: &&ReplicaProgress| it.role == Role::InSync;
        1 + self.members.iter().filter(is_in_sync).count()
    }

    /// Updates the shortage after a change of the members or of the required number of copies.
    pub fn update_shortage(&mut self, min_copies: usize) {
        self.is_under_replicated = self.copies() < min_copies;
        if self.is_under_replicated {
            self.record_shortage();
        }
    }

    /// Records a shortage: changes in flight will not be acknowledged, although they are kept here.
    pub fn record_shortage(&mut self) {
        let (committed, last) = (self.committed.number, self.last().number);
        if committed < last {
            let (from, upto) = self.under_replicated;
            // Replies to changes of the same shortage may still wait.
            self.under_replicated = (if upto >= committed { from } else { committed }, last);
        }
    }

    /// Returns whether a change was made or in flight during a shortage.
    pub fn was_under_replicated(&self, number: u64) -> bool {
        self.under_replicated.0 < number && number <= self.under_replicated.1
    }

    /// Returns whether no other node could become the owner.
    pub fn is_alone(&self) -> bool {
        !self.members.iter().any(ReplicaProgress::is_counted)
    }

    /// The index of a change in the log.
    pub fn index_of(&self, number: u64) -> usize {
        (number - self.floor.number - 1) as usize
    }

    /// The last change of each term in the log.
    pub fn history(&self) -> Vec<Position> {
        let mut history: Vec<Position> = Vec::new();
        for it in &self.log {
            match history.last_mut() {
                Some(last) if last.term == it.entry.at.term => *last = it.entry.at,
                _ => history.push(it.entry.at),
            }
        }
        history
    }

    /// The number up to which all counting members have confirmed.
    pub fn acknowledged(&self, durable: u64, bugs: &Bugs) -> u64 {
        let committed = self.committed.number;
        if self.term_mark > durable || self.is_behind {
            return committed;
        }
        let counting = self.members.iter().filter(|it| it.is_counted());
        let has = |it: &ReplicaProgress| {
            if it.is_following() {
                it.acknowledged
            } else {
                0
            }
        };
        let by_members = if bugs.acknowledges_before_all {
            counting.map(has).max()
        } else {
            counting.map(has).min()
        };
        let most = by_members.unwrap_or(u64::MAX).min(self.last().number);
        // Limited by this place's own log.
        let mut upto = committed;
        while upto < most && self.log[self.index_of(upto + 1)].mark <= durable {
            upto += 1;
        }
        // A transaction is committed atomically.
        while upto > committed && self.log[self.index_of(upto)].entry.is_open {
            upto -= 1;
        }
        upto
    }

    /// Removes changes from the log that are committed and sent to all members.
    pub fn trim_log(&mut self) {
        let mut upto = self.committed.number;
        for member in &self.members {
            upto = upto.min(member.next - 1);
        }
        while self.floor.number < upto {
            let first = self
                .log
                .pop_front()
                .expect("the log contains all committed changes");
            self.floor = first.entry.at;
            self.retained_bytes -= first.entry.row.size();
        }
    }

    /// Restarts the fills of members that have not been sent all committed changes. Returns their number.
    pub fn restart_lagging_fills(&mut self, now_ms: u64) -> u64 {
        let committed = self.committed.number;
        let lag = |it: &&mut ReplicaProgress| !it.is_counted() && it.next <= committed;
        let mut restarts = 0;
        for member in self.members.iter_mut().filter(lag) {
            member.reset(false, now_ms);
            restarts += 1;
        }
        self.trim_log();
        restarts
    }
}
