//! A simulated etcd: several members that agree on one sequence of changes, driven by a seed and by simulated time.
//!
//! A simulation calls [`Model::ask`] and [`Model::watch`], and [`Model::advance`] with the current time. The outputs are replies
//! and watch events. The model keeps etcd's guarantees and shows its failures:
//!
//! | guaranteed | may fail, depending on the [`Faults`] and the seed |
//! |---|---|
//! | changes and latest reads are linearizable | a reply is late or lost, even after the change was applied |
//! | a lease lasts for its TTL after the last keepalive that arrived | it ends later; a new leader restarts all TTLs; a stalled leader ends leases of other members' clients early (etcd 3.4) |
//! | a watch delivers complete revisions in order | it is late, is interrupted, silently loses revisions, or starts below the compacted revision |
//! | | a read of any freshness comes from a member that is behind |
//!
//! The caller crashes, partitions and restarts members. Without a quorum, or during an election, nothing is committed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use larder_types::Random;

mod members;
mod serve;
mod watches;

use super::store::Store;
use super::{Error, KeyEvent, Keys, LeaseId, Request, Response, Revision, WatchItem};

/// The model's number of a request or a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The faults and latencies of a simulation. Probabilities are per 1,000. `..Faults::none()` fills in the rest.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Maximum latency of a message.
    pub latency_ms: u64,
    /// A request never arrives.
    pub requests_lost: u64,
    /// A reply never arrives.
    pub replies_lost: u64,
    /// Maximum delay of a watch event.
    pub watch_late_ms: u64,
    /// A watch is interrupted instead of receiving an event.
    pub watches_cut: u64,
    /// A watch silently loses an event.
    pub watches_lossy: u64,
    /// Maximum delay of the end of a lease.
    pub leases_late_ms: u64,
    /// When a leader is elected, the previous leader, which was stalled, has ended the leases of all nodes except its own
    /// clients.
    pub deposed_leaders_revoke: u64,
    /// Maximum delay until a member applies a change.
    pub members_late_ms: u64,
    /// Number of revisions that an automatic compaction keeps. Zero: only [`Model::compact`] compacts.
    pub revisions_kept: u64,
}

impl Faults {
    /// No faults and no latency.
    pub fn none() -> Faults {
        Faults {
            latency_ms: 0,
            requests_lost: 0,
            replies_lost: 0,
            watch_late_ms: 0,
            watches_cut: 0,
            watches_lossy: 0,
            leases_late_ms: 0,
            deposed_leaders_revoke: 0,
            members_late_ms: 0,
            revisions_kept: 0,
        }
    }
}

/// The duration of an election with etcd's default settings.
pub const ELECTION_MS: u64 = 1000;

/// The time after which a client gives up a request without a reply.
pub const CLIENT_TIMEOUT_MS: u64 = 4000;

/// The time for which a member without a leader tries to serve a request.
const SERVE_TIMEOUT_MS: u64 = 7000;

/// An output to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Reply(Ticket, Result<Response, Error>),
    WatchItem(Ticket, WatchItem),
    /// The watch was interrupted and delivers nothing more.
    WatchBroken(Ticket),
}

#[derive(Debug)]
pub struct Model {
    now_ms: u64,
    random: Random,
    faults: Faults,
    /// The committed state.
    store: Store,
    events: Vec<KeyEvent>,
    /// Events after this revision are kept.
    kept_after: Revision,
    leases: BTreeMap<LeaseId, SimulatedLease>,
    last_lease: u64,
    members: Vec<SimulatedMember>,
    leader: Option<usize>,
    /// Counts elections. The result of an election with an older number is ignored.
    term: u64,
    watches: BTreeMap<Ticket, WatchState>,
    /// Requests whose client has not received a reply.
    open: BTreeSet<Ticket>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    actions: BTreeMap<u64, Action>,
    last_number: u64,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct SimulatedLease {
    ttl_ms: u64,
    ends_at_ms: u64,
    /// The member that its holder contacted last.
    member: usize,
}

#[derive(Debug)]
struct SimulatedMember {
    store: Store,
    is_up: bool,
    /// The member is partitioned from the other members.
    is_partitioned: bool,
}

#[derive(Debug)]
struct WatchState {
    member: usize,
    keys: Keys,
    /// The last revision delivered, or lost.
    through: Revision,
    /// A delivery is scheduled.
    is_due: bool,
}

#[derive(Debug)]
enum Action {
    Arrive {
        ticket: Ticket,
        member: usize,
        request: Request,
        until_ms: u64,
    },
    Reply(Ticket, Result<Response, Error>),
    TimeOut(Ticket),
    Replicate(usize, Revision),
    Deliver(Ticket),
    EndLease(LeaseId),
    Elect(u64),
}

impl Model {
    /// Creates the given number of members, all up. The first is the leader.
    pub fn new(seed: u64, members: usize, faults: Faults) -> Model {
        let member = || SimulatedMember {
            store: Store::default(),
            is_up: true,
            is_partitioned: false,
        };
        Model {
            now_ms: 0,
            random: Random::new(seed),
            faults,
            store: Store::default(),
            events: Vec::new(),
            kept_after: Revision(0),
            leases: BTreeMap::new(),
            last_lease: 0,
            members: (0..members).map(|_| member()).collect(),
            leader: Some(0),
            term: 1,
            watches: BTreeMap::new(),
            open: BTreeSet::new(),
            due: BinaryHeap::new(),
            actions: BTreeMap::new(),
            last_number: 0,
            outputs: Vec::new(),
        }
    }

    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns the committed state, which no client can observe directly.
    pub fn committed_state(&self, keys: &Keys) -> super::Snapshot {
        self.store.read(keys)
    }

    pub fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Sends a request to a member. Every request gets a reply, at the latest when the client times out.
    pub fn send_request(&mut self, member: usize, request: Request) -> Ticket {
        let ticket = self.ticket();
        self.open.insert(ticket);
        self.schedule(CLIENT_TIMEOUT_MS, Action::TimeOut(ticket));
        if !self.happens(self.faults.requests_lost) {
            let latency = self.random_up_to(self.faults.latency_ms);
            let until_ms = self.now_ms + latency + SERVE_TIMEOUT_MS;
            self.schedule(
                latency,
                Action::Arrive {
                    ticket,
                    member,
                    request,
                    until_ms,
                },
            );
        }
        ticket
    }

    /// Starts a watch at a member.
    pub fn watch(&mut self, member: usize, keys: Keys, after: Revision) -> Ticket {
        let ticket = self.ticket();
        let watch = WatchState {
            member,
            keys,
            through: after,
            is_due: false,
        };
        self.watches.insert(ticket, watch);
        self.schedule_delivery(ticket);
        ticket
    }

    /// Ends a watch on the client's side.
    pub fn unwatch(&mut self, ticket: Ticket) {
        self.watches.remove(&ticket);
    }

    /// Returns whether the watch has neither been interrupted nor ended.
    pub fn is_watched(&self, ticket: Ticket) -> bool {
        self.watches.contains_key(&ticket)
    }

    /// The time of the next event of the simulation.
    pub fn next_ms(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Executes all events up to this time.
    pub fn advance(&mut self, now_ms: u64) -> Vec<Output> {
        while let Some(Reverse((due, number))) = self.due.peek().copied()
            && due <= now_ms
        {
            self.due.pop();
            self.now_ms = due;
            if let Some(action) = self.actions.remove(&number) {
                self.execute(action);
            }
        }
        self.now_ms = self.now_ms.max(now_ms);
        std::mem::take(&mut self.outputs)
    }

    /// Stops the member and breaks its watches. Its disk keeps all data that it has accepted.
    pub fn crash(&mut self, member: usize) {
        self.members[member].is_up = false;
        self.break_watches(Some(member));
        self.elect_if_needed();
    }

    pub fn restart(&mut self, member: usize) {
        self.members[member].is_up = true;
        self.catch_up(member);
        self.elect_if_needed();
    }

    /// Partitions the member from the other members, or ends the partition. Clients can always reach it.
    pub fn set_partitioned(&mut self, member: usize, is_partitioned: bool) {
        self.members[member].is_partitioned = is_partitioned;
        if !is_partitioned {
            self.catch_up(member);
        }
        self.elect_if_needed();
    }

    /// Breaks all watches at a member, or all watches if `None`.
    pub fn break_watches(&mut self, member: Option<usize>) {
        let cut = |watch: &WatchState| member.is_none_or(|member| watch.member == member);
        let tickets = self.watches.iter().filter(|(_, watch)| cut(watch));
        for ticket in tickets.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.watches.remove(&ticket);
            self.outputs.push(Output::WatchBroken(ticket));
        }
    }

    /// Compacts all but the last `kept` revisions.
    pub fn compact(&mut self, kept: u64) {
        let kept_after = Revision(self.store.revision().0.saturating_sub(kept));
        self.kept_after = self.kept_after.max(kept_after);
        self.events.retain(|event| event.revision > kept_after);
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Arrive {
                ticket,
                member,
                request,
                until_ms,
            } => {
                self.arrive(ticket, member, request, until_ms);
            }
            Action::Reply(ticket, reply) => {
                if self.open.remove(&ticket) {
                    self.outputs.push(Output::Reply(ticket, reply));
                }
            }
            Action::TimeOut(ticket) => {
                if self.open.remove(&ticket) {
                    let why = Error::Unknown("the simulated etcd did not answer".to_owned());
                    self.outputs.push(Output::Reply(ticket, Err(why)));
                }
            }
            Action::Replicate(member, revision) => self.replicate(member, revision),
            Action::Deliver(ticket) => self.deliver(ticket),
            Action::EndLease(lease) => self.end_lease_if_due(lease),
            Action::Elect(term) => self.elect(term),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.last_number += 1;
        Ticket(self.last_number)
    }

    fn schedule(&mut self, later_ms: u64, action: Action) {
        self.last_number += 1;
        self.actions.insert(self.last_number, action);
        self.due
            .push(Reverse((self.now_ms + later_ms, self.last_number)));
    }

    fn happens(&mut self, of_1000: u64) -> bool {
        of_1000 > 0 && self.random.below(1000) < of_1000
    }

    fn random_up_to(&mut self, bound_ms: u64) -> u64 {
        match bound_ms {
            0 => 0,
            bound => self.random.below(bound + 1),
        }
    }
}
