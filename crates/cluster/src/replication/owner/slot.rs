//! One slot of an owner: its log of changes that somebody may still need, and its replicas.

use std::collections::VecDeque;

use super::super::Bugs;
use super::super::change::{Assignment, Entry, Place, Position};
use crate::map::{Epoch, Term};

pub(super) struct Logged {
    pub entry: Entry,
    /// A hash of slot and key.
    pub key: u64,
    /// The row's value before, to take the change back.
    pub before: Option<Vec<u8>>,
    /// The record of this place's log that has it.
    pub mark: u64,
}

pub(super) struct Owned {
    pub term: Term,
    /// Which ownership this is, of all that this place ever had.
    pub opened: u64,
    /// All up to here is gone from `log`: everybody in sync has it.
    pub floor: Position,
    pub committed: Position,
    /// What the log says of it.
    pub settled_on_disk: u64,
    /// Changes above `floor`, their numbers rising by one. Committed ones stay while a replica is to be sent them.
    pub log: VecDeque<Logged>,
    /// Of the committed ones among them.
    pub kept_bytes: usize,
    pub members: Vec<Member>,
    /// The record that says that the slot is owned in this term.
    pub term_mark: u64,
    /// It is in the owner's list of slots that wait for this place's log.
    pub is_waiting: bool,
    /// It is in the owner's list of slots that were changed in this turn.
    pub is_changed: bool,
    /// Who the map wants to own it next.
    pub heir: Option<Place>,
    pub moving_to: Option<Place>,
    /// Nobody computes from its rows any more, and nobody is answered: it may be another's at any time.
    pub is_released: bool,
    /// Of the map by which the move was asked for last.
    pub move_asked: Option<Epoch>,
    pub asked_ms: u64,
    /// By the map, fewer copies are in sync than its writes need.
    pub is_short: bool,
    /// Changes above the first number, up to the second, were made or under way while that was so.
    short: (u64, u64),
    /// A replica knows a later term.
    pub is_refused: bool,
    /// A replica has what is committed and is not here: this owner is not to be trusted.
    pub is_behind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    InSync,
    Filling { began: Epoch, is_asked_into: bool },
}

/// Whether the replica confirmed the slot's term, in this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    No,
    Asked,
    Yes,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub place: Place,
    pub role: Role,
    pub begun: Begun,
    /// Since when it has not been `Yes`.
    pub idle_since_ms: u64,
    /// The next change that it is to be sent, and the last that it acknowledged: of this connection.
    pub next: u64,
    pub acknowledged: u64,
    /// The filling under way in this connection.
    pub fill: Option<Fill>,
    /// It said that it cannot be in sync as it is.
    pub is_unfit: bool,
}

/// How far a filling is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Fill {
    /// The last key that was sent.
    pub after: Option<Vec<u8>>,
    /// All was sent, as of this number.
    pub filled: Option<u64>,
    /// The replica's log has all of it.
    pub is_there: bool,
}

impl Member {
    pub fn new(place: Place, role: Role, now_ms: u64) -> Member {
        Member {
            place,
            role,
            begun: Begun::No,
            idle_since_ms: now_ms,
            next: u64::MAX,
            acknowledged: 0,
            fill: None,
            is_unfit: false,
        }
    }

    /// Whether changes wait for its acknowledgement.
    pub fn counts(&self) -> bool {
        match self.role {
            Role::InSync => true,
            Role::Filling { is_asked_into, .. } => is_asked_into,
        }
    }

    /// The same member by another map.
    pub fn in_role(mut self, role: Role, now_ms: u64) -> Member {
        match (self.role, role) {
            // Whether it was asked for stays.
            (Role::Filling { began, .. }, Role::Filling { began: now, .. }) if began == now => {}
            (_, Role::InSync) => self.role = role,
            _ => return Member::new(self.place, role, now_ms),
        }
        self
    }

    /// What it confirmed is void: the connection is gone, or the term is another.
    pub fn begin_anew(&mut self, is_connected: bool, now_ms: u64) {
        if self.begun == Begun::Yes {
            self.idle_since_ms = now_ms;
        }
        self.begun = Begun::No;
        if !is_connected {
            self.fill = None;
            self.next = u64::MAX;
            self.acknowledged = 0;
        }
    }

    pub fn is_following(&self) -> bool {
        self.begun == Begun::Yes
    }

    /// Whether its filling has yet to begin, or to go on in another term: nobody waits for that.
    pub fn is_to_be_filled(&self) -> bool {
        self.begun == Begun::No && !self.is_unfit && !self.counts()
    }

    /// Whether it has all rows, and all that is committed.
    pub fn is_filled(&self, committed: u64) -> bool {
        let Some(fill) = self.fill.as_ref().filter(|fill| fill.is_there) else {
            return false;
        };
        let has_all = fill
            .filled
            .is_some_and(|at| self.acknowledged >= at && committed >= at);
        self.is_following() && has_all && self.acknowledged >= committed
    }
}

impl Owned {
    pub fn new(assignment: &Assignment, settled: Position, opened: u64, mark: u64) -> Owned {
        Owned {
            term: assignment.term,
            opened,
            floor: settled,
            committed: settled,
            settled_on_disk: settled.number,
            log: VecDeque::new(),
            kept_bytes: 0,
            members: Vec::new(),
            term_mark: mark,
            is_waiting: false,
            is_changed: false,
            heir: None,
            moving_to: None,
            is_released: false,
            move_asked: None,
            asked_ms: 0,
            is_short: false,
            short: (0, 0),
            is_refused: false,
            is_behind: false,
        }
    }

    /// The last change that was made.
    pub fn last(&self) -> Position {
        self.log.back().map_or(self.floor, |it| it.entry.at)
    }

    pub fn member(&mut self, place: Place) -> Option<&mut Member> {
        self.members.iter_mut().find(|it| it.place == place)
    }

    /// How many copies are in sync by the map, the owner's among them.
    pub fn copies(&self) -> usize {
        let is_in_sync = |it: &&Member| it.role == Role::InSync;
        1 + self.members.iter().filter(is_in_sync).count()
    }

    /// The members, or how many copies the slot must have, have changed.
    pub fn note_copies(&mut self, min_copies: usize) {
        self.is_short = self.copies() < min_copies;
        if self.is_short {
            self.note_short();
        }
    }

    /// There are too few copies: what is under way will not be acknowledged, though it is kept here.
    pub fn note_short(&mut self) {
        let (committed, last) = (self.committed.number, self.last().number);
        if committed < last {
            let (from, upto) = self.short;
            // Replies to changes of the same shortage may still wait.
            self.short = (if upto >= committed { from } else { committed }, last);
        }
    }

    /// Whether a change was made or under way while there were too few copies.
    pub fn was_short(&self, number: u64) -> bool {
        self.short.0 < number && number <= self.short.1
    }

    /// Nobody else could be made the owner.
    pub fn is_alone(&self) -> bool {
        !self.members.iter().any(Member::counts)
    }

    /// Where in the log a change is.
    pub fn index_of(&self, number: u64) -> usize {
        (number - self.floor.number - 1) as usize
    }

    /// Of the changes in the log, the last of each term.
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

    /// Up to which number everybody who counts has confirmed.
    pub fn acknowledged(&self, durable: u64, bugs: &Bugs) -> u64 {
        let committed = self.committed.number;
        if self.term_mark > durable || self.is_behind {
            return committed;
        }
        let counting = self.members.iter().filter(|it| it.counts());
        let has = |it: &Member| {
            if it.is_following() {
                it.acknowledged
            } else {
                0
            }
        };
        let by_members = match bugs.acknowledges_before_all {
            true => counting.map(has).max(),
            false => counting.map(has).min(),
        };
        let most = by_members.unwrap_or(u64::MAX).min(self.last().number);
        // This place's own log.
        let mut upto = committed;
        while upto < most && self.log[self.index_of(upto + 1)].mark <= durable {
            upto += 1;
        }
        // A transaction is committed as one.
        while upto > committed && self.log[self.index_of(upto)].entry.is_open {
            upto -= 1;
        }
        upto
    }

    /// Forgets changes that are committed and that nobody is to be sent any more.
    pub fn forget_sent(&mut self) {
        let mut upto = self.committed.number;
        for member in &self.members {
            upto = upto.min(member.next - 1);
        }
        while self.floor.number < upto {
            let first = self.log.pop_front().expect("committed changes are there");
            self.floor = first.entry.at;
            self.kept_bytes -= first.entry.row.size();
        }
    }

    /// Those that have yet to be sent committed changes begin anew. Says how many.
    pub fn restart_fillings(&mut self, now_ms: u64) -> u64 {
        let committed = self.committed.number;
        let lag = |it: &&mut Member| !it.counts() && it.next <= committed;
        let mut begun_anew = 0;
        for member in self.members.iter_mut().filter(lag) {
            member.begin_anew(false, now_ms);
            begun_anew += 1;
        }
        self.forget_sent();
        begun_anew
    }
}
