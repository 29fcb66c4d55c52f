//! The replication of committed changes to members, and the election of a leader.

use super::{Action, ELECTION_MS, Model};
use crate::coordination::{KeyEvent, Revision};

impl Model {
    /// Sends committed events to all members. The leader applies them immediately.
    pub(super) fn commit(&mut self, events: Vec<KeyEvent>) {
        let Some(revision) = events.first().map(|event| event.revision) else {
            return;
        };
        self.events.extend(events);
        for member in 0..self.members.len() {
            let late = if self.leader == Some(member) {
                0
            } else {
                self.random_up_to(self.faults.members_late_ms)
            };
            self.schedule(late, Action::Replicate(member, revision));
        }
        if self.faults.revisions_kept > 0 {
            self.compact(self.faults.revisions_kept);
        }
    }

    pub(super) fn replicate(&mut self, member: usize, through: Revision) {
        let at = &mut self.members[member];
        if !at.is_up || at.is_partitioned || at.store.revision() >= through {
            return;
        }
        // A member that is far behind receives the complete state from another member, which looks as if it had applied each
        // change.
        let known = at.store.revision();
        if known < self.kept_after {
            at.store = self.store.clone();
        } else {
            let new = self
                .events
                .iter()
                .filter(|event| event.revision > known && event.revision <= through);
            let new: Vec<KeyEvent> = new.cloned().collect();
            at.store.apply_events(&new);
        }
        let tickets = self
            .watches
            .iter()
            .filter(|(_, watch)| watch.member == member);
        for ticket in tickets.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.schedule_delivery(ticket);
        }
    }

    pub(super) fn catch_up(&mut self, member: usize) {
        let revision = self.store.revision();
        let late = self.random_up_to(self.faults.members_late_ms);
        self.schedule(late, Action::Replicate(member, revision));
    }

    pub(super) fn can_lead(&self, member: usize) -> bool {
        self.members[member].is_up && !self.members[member].is_partitioned
    }

    pub(super) fn has_quorum(&self) -> bool {
        let together = (0..self.members.len()).filter(|member| self.can_lead(*member));
        together.count() * 2 > self.members.len()
    }

    pub(super) fn elect_if_needed(&mut self) {
        let stays = self.leader.is_some_and(|leader| self.can_lead(leader)) && self.has_quorum();
        if !stays {
            self.leader = None;
            self.term += 1;
            if self.has_quorum() {
                self.schedule(ELECTION_MS, Action::Elect(self.term));
            }
        }
    }

    pub(super) fn elect(&mut self, term: u64) {
        if term != self.term || !self.has_quorum() {
            return;
        }
        let electable: Vec<usize> = (0..self.members.len())
            .filter(|member| self.can_lead(*member))
            .collect();
        let leader = electable[self.random.index(electable.len())];
        self.leader = Some(leader);
        let revision = self.store.revision();
        self.schedule(0, Action::Replicate(leader, revision));
        let early = self.happens(self.faults.deposed_leaders_revoke);
        let spared = self.random.index(self.members.len());
        for id in self.leases.keys().copied().collect::<Vec<_>>() {
            let now_ms = self.now_ms;
            let Some(lease) = self.leases.get_mut(&id) else {
                continue;
            };
            if early && lease.member != spared {
                self.end_lease(id);
                continue;
            }
            lease.ends_at_ms = now_ms + lease.ttl_ms + ELECTION_MS;
            self.end_lease_later(id);
        }
    }
}
