//! The owner's inputs: connections, acknowledgements, answers to its `Begin`; and the confirmation that it is still the owner.

use super::super::change::{Place, Position};
use super::super::message::{ReplicaReply, StreamPart};
use super::super::outputs::{Outputs, ReplicationEvent};
use super::peer::Peer;
use super::slot::{BeginState, Fill, ReplicaProgress, Role};
use super::{Confirmation, Outcome, Owner, Term};

impl Owner {
    pub(in super::super) fn handle_connect(&mut self, from: Place, now_ms: u64) {
        let peer = self.peer_mut(from, now_ms);
        peer.connect(now_ms);
        self.reset_streams(from, true, now_ms);
    }

    pub(in super::super) fn handle_disconnect(&mut self, from: Place, now_ms: u64) {
        self.peer_mut(from, now_ms).disconnect();
        self.reset_streams(from, false, now_ms);
    }

    fn reset_streams(&mut self, place: Place, is_connected: bool, now_ms: u64) {
        for (slot, owned) in self.slots.iter_mut() {
            if let Some(member) = owned.member(place) {
                member.reset(false, now_ms);
                if is_connected && let Some(peer) = self.peers.get_mut(&place) {
                    peer.dirty.insert(slot);
                }
                owned.trim_log();
            }
        }
    }

    pub(in super::super) fn handle_acknowledgement(
        &mut self,
        from: Place,
        sequence: u64,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        let Owner {
            peers,
            totals: done,
            ..
        } = self;
        let peer = peers.entry(from).or_insert_with(|| Peer::new(now_ms));
        let upto = peer.acknowledge(sequence, now_ms, done);
        out.events.push(ReplicationEvent::Progress);
        for carried in upto {
            let Some(owned) = self.slots.get_mut(carried.slot) else {
                continue;
            };
            let is_latest = owned.term == carried.term || self.bugs.ignores_terms;
            let Some(member) = owned.member(from) else {
                continue;
            };
            // A fill continues in another term. A rejected part of it restarts it.
            let counts = is_latest && (member.is_following() || self.bugs.ignores_terms);
            if counts || !member.is_counted() {
                member.acknowledged = member.acknowledged.max(carried.number);
                if let Some(fill) = &mut member.fill {
                    fill.is_logged |= carried.is_filled;
                }
                self.commit(carried.slot, out);
            }
        }
    }

    pub(in super::super) fn handle_reply(
        &mut self,
        from: Place,
        (slot, term): (u16, Term),
        answer: ReplicaReply,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        let Some(owned) = self.slots.get_mut(slot).filter(|it| it.term == term) else {
            return;
        };
        let (floor, last) = (owned.floor, owned.last());
        let Some(member) = owned.member(from) else {
            return;
        };
        match answer {
            ReplicaReply::At(at) if member.begin_state == BeginState::Sent => {
                // An invalid answer of a replica must not crash the owner.
                let is_filled = matches!(
                    member.role,
                    Role::Filling {
                        is_add_requested: false,
                        ..
                    }
                );
                if is_filled {
                    start_fill(member, last);
                } else if (floor.number..=last.number).contains(&at.number) {
                    member.next = at.number + 1;
                    member.acknowledged = at.number;
                    member.begin_state = BeginState::Confirmed;
                    // Its copy is complete. The request to add it to the in-sync set may have to be repeated.
                    member.fill = Some(Fill {
                        after: None,
                        filled: Some(at.number),
                        is_logged: true,
                    });
                } else {
                    member.cannot_sync = true;
                }
            }
            ReplicaReply::At(_) => {}
            ReplicaReply::Rejected(known) => {
                member.reset(false, now_ms);
                if known > term {
                    // The map with the later term will follow; a repetition is useless.
                    member.begin_state = BeginState::Sent;
                    owned.is_refused = true;
                    out.events.push(ReplicationEvent::Progress);
                }
            }
            ReplicaReply::MissingChanges => {
                member.reset(false, now_ms);
                member.cannot_sync = member.is_counted();
            }
            ReplicaReply::Ahead(_) => {
                owned.is_behind = true;
                out.events.push(ReplicationEvent::OwnerBehind(slot));
            }
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.dirty.insert(slot);
            peer.last_received_ms = now_ms;
        }
        self.commit(slot, out);
    }

    /// Starts a confirmation by the in-sync replicas that there is no other owner. Their answers from now on suffice for reads
    /// that have already begun. `None` if not all replicas are available now; retry after [`ReplicationEvent::Progress`].
    pub fn confirm(&mut self, slot: u16, now_ms: u64, out: &mut Outputs) -> Option<Confirmation> {
        let owned = self.slots.get(slot)?;
        if owned.is_refused || owned.is_behind {
            return None;
        }
        let counting = owned.members.iter().filter(|it| it.is_counted());
        let places: Vec<(Place, bool)> = counting.map(|it| (it.place, it.is_following())).collect();
        if places.iter().any(|(_, is_following)| !is_following) {
            return None;
        }
        let mut needs = Vec::with_capacity(places.len());
        for (place, _) in places {
            let peer = self.peers.get_mut(&place)?;
            let part = StreamPart::Confirm(vec![(slot, owned.term)]);
            let sequence = peer.send(place, part, 0, Vec::new(), now_ms, out);
            needs.push((place, peer.connection, sequence));
        }
        Some(Confirmation {
            slot,
            term: owned.term,
            opened: owned.opened,
            needs,
        })
    }

    /// `Acknowledged`: reads that had begun when the confirmation started may be answered, once their keys are acknowledged.
    pub fn is_confirmed(&self, confirmation: &Confirmation) -> Outcome {
        let Some(owned) = self.slots.get(confirmation.slot) else {
            return Outcome::Unknown;
        };
        let same = owned.opened == confirmation.opened && owned.term == confirmation.term;
        if !same || owned.is_refused || owned.is_behind {
            return Outcome::Unknown;
        }
        let mut all = true;
        for (place, connection, sequence) in &confirmation.needs {
            match self.peers.get(place) {
                Some(peer) if peer.connection == *connection && peer.is_connected => {
                    all &= peer.acknowledged >= *sequence;
                }
                _ => return Outcome::Unknown,
            }
        }
        if all {
            Outcome::Acknowledged
        } else {
            Outcome::Waiting
        }
    }
}

fn start_fill(member: &mut ReplicaProgress, last: Position) {
    member.begin_state = BeginState::Confirmed;
    if member.fill.is_none() {
        member.fill = Some(Fill::default());
        member.next = last.number + 1;
        member.acknowledged = 0;
    }
}
