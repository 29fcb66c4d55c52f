//! The replica of slots: checks terms, logs changes, acknowledges what is in its log, and hands over its copy when its place
//! becomes the owner.
//!
//! ```text
//!                 Begin(fill)            Filled             the map
//!   nothing ─────────────────► filling ────────► whole ───────────────► owner
//!                                 ▲                │ ▲
//!                                 └── Begin(fill) ─┘ └── Begin(in sync): cuts changes that the owner lacks
//! ```
//!
//! 1. Nothing is accepted from an owner of an older term than the latest one known from the map or from another owner.
//! 2. A message is acknowledged when its contents, and those of all messages before it, are in the log. Anything not accepted is
//!    rejected before that.
//! 3. A copy is discarded only for a fill, and by a map that contains the fill; never because an owner claims that an incomplete
//!    copy is in sync.

use std::collections::{BTreeMap, VecDeque};

use larder_types::BySlot;

use crate::map::{Epoch, Term};

use super::Bugs;
use super::change::{Place, Position, RowStore};
use super::message::{Begin, BeginKind, Message, ReplicaReply, SlotChanges, StreamPart};
use super::outputs::Outputs;
use super::record::{Record, SlotCopy};

#[derive(Default)]
pub struct Replica {
    bugs: Bugs,
    copies: BySlot<HeldCopy>,
    owners: BTreeMap<Place, ReplyQueue>,
    durable: u64,
}

#[derive(Default)]
struct HeldCopy {
    copy: SlotCopy,
    /// The owner of the last `Begin` in this connection, and its term. Changes are accepted if that is the latest term.
    follows: Option<(Place, Term)>,
    /// The epoch in which its fill began. Older maps do not contain the fill, although they may have the same term.
    began: Epoch,
}

/// The replies to an owner, in order, each to be sent once a number of records is durable.
#[derive(Default)]
struct ReplyQueue {
    replies: VecDeque<(u64, Message)>,
}

impl Replica {
    pub fn new(bugs: Bugs) -> Replica {
        Replica {
            bugs,
            ..Replica::default()
        }
    }

    pub fn copy(&self, slot: u16) -> Option<&SlotCopy> {
        self.copies.get(slot).map(|held| &held.copy)
    }

    pub fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        self.copies.slots()
    }

    /// Adds a copy that existed at the start, or that remains of a slot that was owned.
    pub(super) fn insert_copy(&mut self, slot: u16, copy: SlotCopy) {
        let held = HeldCopy {
            copy,
            ..HeldCopy::default()
        };
        self.copies.insert(slot, held);
    }

    /// Removes and returns the copy, to be owned or discarded.
    pub(super) fn remove_copy(&mut self, slot: u16) -> Option<SlotCopy> {
        self.copies.remove(slot).map(|held| held.copy)
    }

    /// Returns whether the slot is being filled by an owner whose map is newer than `epoch`.
    pub fn is_ahead_of(&self, slot: u16, epoch: Epoch) -> bool {
        let held = self.copies.get(slot);
        held.is_some_and(|held| held.began > epoch)
    }

    /// Records a term of the map: older owners are rejected.
    pub(super) fn record_term(&mut self, slot: u16, term: Term) {
        if let Some(held) = self.copies.get_mut(slot)
            && term > held.copy.term
            && !self.bugs.ignores_terms
        {
            held.copy.term = term;
        }
    }

    /// The connection to an owner was replaced or closed.
    pub(super) fn drop_owner(&mut self, owner: Place) {
        self.owners.remove(&owner);
        for (_, held) in self.copies.iter_mut() {
            if held.follows.is_some_and(|(it, _)| it == owner) {
                held.follows = None;
            }
        }
    }

    pub(super) fn record_durable(&mut self, upto: u64, out: &mut Outputs) {
        self.durable = upto;
        let places: Vec<Place> = self.owners.keys().copied().collect();
        places
            .into_iter()
            .for_each(|place| self.send_replies(place, out));
    }

    fn send_replies(&mut self, to: Place, out: &mut Outputs) {
        let stream = self.owners.entry(to).or_default();
        while let Some((mark, _)) = stream.replies.front()
            && *mark <= self.durable
        {
            let (_, message) = stream.replies.pop_front().expect("checked above");
            // Of consecutive acknowledgements, only the last is sent.
            let next = stream.replies.front();
            let is_superseded = matches!(message, Message::Acknowledged { .. })
                && next.is_some_and(|(mark, next)| {
                    *mark <= self.durable && matches!(next, Message::Acknowledged { .. })
                });
            if !is_superseded {
                out.messages.push((to, message));
            }
        }
    }

    /// Handles a message of an owner's stream. `owned` returns the term of a slot that this place itself owns.
    pub(super) fn receive(
        &mut self,
        from: Place,
        (sequence, part): (u64, StreamPart),
        owned: impl Fn(u16) -> Option<Term>,
        rows: &mut impl RowStore,
        logged: &mut u64,
        out: &mut Outputs,
    ) {
        let mut answers = Vec::new();
        match part {
            StreamPart::Begin(begin) => {
                let (slot, term) = (begin.slot, begin.term);
                let answer = match owned(slot) {
                    Some(own) => ReplicaReply::Rejected(own),
                    None => self.begin(from, begin, rows, logged, out),
                };
                answers.push((slot, term, answer));
            }
            StreamPart::Changes(slots) => {
                for changes in slots {
                    let (slot, term) = (changes.slot, changes.term);
                    if !self.apply_changes(from, changes, rows, logged, out) {
                        answers.push((slot, term, self.reject(slot)));
                    }
                }
            }
            StreamPart::Rows {
                slot,
                term,
                rows: chunk,
            } => {
                let copy = self.accepting_copy(from, slot, term);
                if copy.is_some_and(|copy| !copy.is_complete) {
                    let record = Record::Rows { slot, rows: chunk };
                    self.log(record, rows, logged, out);
                } else {
                    answers.push((slot, term, self.reject(slot)));
                }
            }
            StreamPart::Filled { slot, term, at } => {
                // All changes before the end have arrived; see invariant 1 of a copy.
                let copy = self.accepting_copy(from, slot, term);
                if copy.is_some_and(|copy| !copy.is_complete && copy.last().number <= at.number) {
                    self.log(Record::Filled { slot, at }, rows, logged, out);
                } else {
                    answers.push((slot, term, self.reject(slot)));
                }
            }
            StreamPart::Confirm(slots) => {
                for (slot, term) in slots {
                    let known = owned(slot).or(self.copy(slot).map(|it| it.term));
                    if let Some(known) = known.filter(|known| *known > term) {
                        answers.push((slot, term, ReplicaReply::Rejected(known)));
                    }
                }
            }
            StreamPart::Heartbeat => {}
        }
        let replies = &mut self.owners.entry(from).or_default().replies;
        for (slot, term, answer) in answers {
            replies.push_back((
                *logged,
                Message::Reply {
                    slot,
                    term,
                    reply: answer,
                },
            ));
        }
        let mark = if self.bugs.acknowledges_before_logging {
            0
        } else {
            *logged
        };
        replies.push_back((mark, Message::Acknowledged { sequence }));
        self.send_replies(from, out);
    }

    fn log(
        &mut self,
        record: Record,
        rows: &mut impl RowStore,
        logged: &mut u64,
        out: &mut Outputs,
    ) {
        let held = self.copies.get_or_default(record.slot());
        let mut copy = Some(std::mem::take(&mut held.copy));
        SlotCopy::replay(&mut copy, &record, rows);
        held.copy = copy.unwrap_or_default();
        *logged += 1;
        out.records.push(record);
    }

    /// Returns the copy, if changes of this term are accepted from this owner.
    fn accepting_copy(&mut self, from: Place, slot: u16, term: Term) -> Option<&mut SlotCopy> {
        let held = self.copies.get_mut(slot)?;
        let is_latest = term == held.copy.term && held.follows == Some((from, term));
        let is_followed = is_latest || self.bugs.ignores_terms;
        is_followed.then_some(&mut held.copy)
    }

    fn begin(
        &mut self,
        from: Place,
        begin: Begin,
        rows: &mut impl RowStore,
        logged: &mut u64,
        out: &mut Outputs,
    ) -> ReplicaReply {
        let (slot, term) = (begin.slot, begin.term);
        let held = self.copies.get(slot);
        let known = held.map_or(Term(0), |it| it.copy.term);
        if term < known && !self.bugs.ignores_terms {
            return ReplicaReply::Rejected(known);
        }
        let followed = held.and_then(|it| it.follows).map(|(place, _)| place);
        let kind = begin.kind;
        match kind {
            BeginKind::Fill(_) => {
                self.log(Record::Clear { slot }, rows, logged, out);
            }
            BeginKind::ResumeFill(_) if followed == Some(from) => {}
            BeginKind::ResumeFill(_) => return ReplicaReply::MissingChanges,
            // A slot that never had a row starts with its replicas in sync.
            BeginKind::InSync if held.is_none() && begin.floor.number == 0 => {
                let at = Position::default();
                self.log(Record::Filled { slot, at }, rows, logged, out);
            }
            BeginKind::InSync => {
                let Some(copy) = held.map(|it| &it.copy).filter(|it| it.is_complete) else {
                    return ReplicaReply::MissingChanges;
                };
                let owner_last = *begin.history.last().unwrap_or(&begin.floor);
                match find_common_position(copy, &begin) {
                    _ if self.bugs.promotes_without_reconciling => {
                        return self.start_following(
                            from,
                            (slot, term),
                            Some(owner_last),
                            logged,
                            out,
                        );
                    }
                    Ok(number) if self.bugs.keeps_tail => {
                        let at = Position { term, number };
                        return self.start_following(from, (slot, term), Some(at), logged, out);
                    }
                    Ok(number) if number < copy.last().number => {
                        self.log(Record::Cut { slot, number }, rows, logged, out);
                    }
                    Ok(_) => {}
                    Err(mismatch) => return mismatch,
                }
            }
        }
        let answer = self.start_following(from, (slot, term), None, logged, out);
        if let (BeginKind::Fill(began) | BeginKind::ResumeFill(began), Some(held)) =
            (kind, self.copies.get_mut(slot))
        {
            held.began = began;
        }
        answer
    }

    fn start_following(
        &mut self,
        from: Place,
        (slot, term): (u16, Term),
        reported_position: Option<Position>,
        logged: &mut u64,
        out: &mut Outputs,
    ) -> ReplicaReply {
        let held = self
            .copies
            .get_mut(slot)
            .expect("the replica has a copy of the slot");
        held.copy.term = term;
        held.follows = Some((from, term));
        *logged += 1;
        out.records.push(Record::Term { slot, term });
        ReplicaReply::At(reported_position.unwrap_or(held.copy.last()))
    }

    /// A rejection must be sent before the acknowledgement of the message that contained the rejected part; a fill that lacks it
    /// cannot continue.
    fn reject(&mut self, slot: u16) -> ReplicaReply {
        let Some(held) = self.copies.get_mut(slot) else {
            return ReplicaReply::Rejected(Term(0));
        };
        held.follows = None;
        ReplicaReply::Rejected(held.copy.term)
    }

    /// Returns whether all changes were accepted.
    fn apply_changes(
        &mut self,
        from: Place,
        changes: SlotChanges,
        rows: &mut impl RowStore,
        logged: &mut u64,
        out: &mut Outputs,
    ) -> bool {
        let SlotChanges {
            slot,
            term,
            settled,
            entries,
        } = changes;
        let accepts_gaps = self.bugs.keeps_tail || self.bugs.promotes_without_reconciling;
        for entry in entries {
            let Some(copy) = self.accepting_copy(from, slot, term) else {
                return false;
            };
            let last = copy.last().number;
            let fits = if copy.is_complete {
                entry.at.number == last + 1
            } else {
                entry.at.number > last
            };
            if !fits && !accepts_gaps {
                // An owner that skips a number must begin again.
                return false;
            }
            self.log(Record::Change { slot, entry }, rows, logged, out);
        }
        let Some(copy) = self.accepting_copy(from, slot, term) else {
            return false;
        };
        if copy.tail.front().is_some_and(|it| it.at.number <= settled) {
            let number = settled;
            self.log(Record::Settled { slot, number }, rows, logged, out);
        }
        true
    }
}

/// Returns the last change that both have, including all changes before it.
fn find_common_position(copy: &SlotCopy, begin: &Begin) -> Result<u64, ReplicaReply> {
    let owner_last = begin.history.last().unwrap_or(&begin.floor).number;
    if copy.settled.number > owner_last {
        return Err(ReplicaReply::Ahead(copy.settled));
    }
    let owner_term = |number: u64| {
        let mut after = begin.history.iter();
        let first = after.find(|at| at.number >= number);
        if number <= begin.floor.number {
            Some(begin.floor.term).filter(|_| number == begin.floor.number)
        } else {
            first.map(|at| at.term)
        }
    };
    let least = copy.settled.number.max(begin.floor.number);
    for entry in copy.tail.iter().rev() {
        let Position { term, number } = entry.at;
        if number >= least && owner_term(number) == Some(term) {
            return Ok(number);
        }
    }
    let settled = copy.settled;
    match owner_term(settled.number) {
        _ if settled.number < begin.floor.number => Err(ReplicaReply::MissingChanges),
        Some(term) if term == settled.term => Ok(settled.number),
        // The slot has no changes.
        _ if settled.number == 0 => Ok(0),
        _ => Err(ReplicaReply::Ahead(settled)),
    }
}
