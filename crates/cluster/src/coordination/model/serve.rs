//! The execution of requests at a member, and the end of leases.

use super::{Action, ELECTION_MS, Model, SimulatedLease, Ticket};
use crate::coordination::{Error, Freshness, LeaseId, Request, Response};

impl Model {
    /// Executes a request even if its client has given up.
    pub(super) fn arrive(
        &mut self,
        ticket: Ticket,
        member: usize,
        request: Request,
        until_ms: u64,
    ) {
        if !self.members[member].is_up {
            let refused = Error::NotDone(format!("member {member} is down"));
            return self.reply(ticket, Err(refused));
        }
        if let Request::Read {
            keys,
            freshness: Freshness::Any,
        } = &request
        {
            let snapshot = self.members[member].store.read(keys);
            return self.reply(ticket, Ok(Response::Read(snapshot)));
        }
        if self.leader.is_none() || self.members[member].is_partitioned {
            if self.now_ms < until_ms {
                self.schedule(
                    ELECTION_MS / 4,
                    Action::Arrive {
                        ticket,
                        member,
                        request,
                        until_ms,
                    },
                );
            }
            return;
        }
        let reply = self.serve(member, request);
        self.reply(ticket, reply);
    }

    pub(super) fn reply(&mut self, ticket: Ticket, reply: Result<Response, Error>) {
        if !self.happens(self.faults.replies_lost) {
            let latency = self.random_up_to(self.faults.latency_ms);
            self.schedule(latency, Action::Reply(ticket, reply));
        }
    }

    pub(super) fn serve(&mut self, member: usize, request: Request) -> Result<Response, Error> {
        match request {
            Request::Read { keys, .. } => Ok(Response::Read(self.store.read(&keys))),
            Request::RecentWrites { keys, after } => Ok(Response::RecentWrites(
                self.store.recent_writes(&keys, after),
            )),
            Request::Change(change) => {
                change.check()?;
                let bound = change.puts.iter().filter_map(|put| put.lease);
                if let Some(ended) = bound.clone().find(|id| !self.leases.contains_key(id)) {
                    return Err(Error::LeaseEnded(ended));
                }
                let (outcome, events) = self.store.change(&change);
                self.commit(events);
                Ok(Response::Changed(outcome))
            }
            Request::Grant { ttl_seconds } => {
                self.last_lease += 1;
                let lease = LeaseId(self.last_lease);
                let ttl_seconds = ttl_seconds.max(2);
                let ttl_ms = u64::from(ttl_seconds) * 1000;
                let ends_at_ms = self.now_ms + ttl_ms;
                let granted = SimulatedLease {
                    ttl_ms,
                    ends_at_ms,
                    member,
                };
                self.leases.insert(lease, granted);
                self.end_lease_later(lease);
                Ok(Response::Granted { lease, ttl_seconds })
            }
            Request::KeepAlive(id) => {
                let now_ms = self.now_ms;
                let Some(lease) = self.leases.get_mut(&id) else {
                    return Ok(Response::KeptAlive(None));
                };
                lease.ends_at_ms = lease.ends_at_ms.max(now_ms + lease.ttl_ms);
                lease.member = member;
                let ttl_seconds = (lease.ttl_ms / 1000) as u32;
                self.end_lease_later(id);
                Ok(Response::KeptAlive(Some(ttl_seconds)))
            }
            Request::Revoke(lease) => {
                self.end_lease(lease);
                Ok(Response::Revoked)
            }
        }
    }

    pub(super) fn end_lease_later(&mut self, id: LeaseId) {
        let late = self.random_up_to(self.faults.leases_late_ms);
        if let Some(lease) = self.leases.get(&id) {
            self.schedule(lease.ends_at_ms - self.now_ms + late, Action::EndLease(id));
        }
    }

    pub(super) fn end_lease_if_due(&mut self, id: LeaseId) {
        // Without a leader, the end cannot be committed. The next leader restarts the TTL.
        let is_due = |lease: &SimulatedLease| lease.ends_at_ms <= self.now_ms;
        if self.leader.is_some() && self.leases.get(&id).is_some_and(is_due) {
            self.end_lease(id);
        }
    }

    pub(super) fn end_lease(&mut self, id: LeaseId) {
        if self.leases.remove(&id).is_some() {
            let events = self.store.end_lease(id);
            self.commit(events);
        }
    }
}
