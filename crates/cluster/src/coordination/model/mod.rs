//! A simulated etcd: several members that agree on one line of changes, driven by a seed and by the time it is told.
//!
//! A simulation calls [`Model::ask`] and [`Model::watch`], and [`Model::advance`] with the time; what comes out are
//! replies and what watches hear. It promises what etcd promises and breaks what etcd breaks:
//!
//! | promised | broken, as the [`Faults`] and the seed say |
//! |---|---|
//! | changes and reads of the latest are in one order, each between its request and its reply | a reply is late or lost, after the change was made too |
//! | a lease lasts its seconds since the last keepalive that arrived | it ends later; with a new leader all begin anew; a leader that was stuck ends those of others early (etcd 3.4) |
//! | a watch tells revisions whole and in order | it is late by any time, is cut, loses revisions in silence, begins below what is kept |
//! | | a read of any age comes from a member that is behind |
//!
//! Members are crashed, cut from each other and returned by whoever drives it; without most of them, or within an election, nothing is agreed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use larder_types::Random;

mod members;
mod serve;
mod watches;

use super::store::Store;
use super::{Error, Event, Keys, LeaseId, Request, Response, Revision, Watched};

/// A request or a watch, as the model numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What may go wrong, and how slow things are. Parts are of 1,000; `..Faults::none()` gives the rest.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A message takes up to so long.
    pub latency_ms: u64,
    /// A request never arrives.
    pub requests_lost: u64,
    /// A reply never arrives.
    pub replies_lost: u64,
    /// A watch is told up to so much later than it could be.
    pub watch_late_ms: u64,
    /// A watch is cut instead of being told.
    pub watches_cut: u64,
    /// A watch loses what it would have been told, in silence.
    pub watches_lossy: u64,
    /// A lease ends up to so much later than it might.
    pub leases_late_ms: u64,
    /// A new leader finds that the one before, which was stuck, has ended the leases of all nodes but those that spoke to itself.
    pub deposed_leaders_revoke: u64,
    /// A member learns of a change up to so much later.
    pub members_late_ms: u64,
    /// A compaction forgets all but the last so many revisions; zero: only [`Model::compact`] does.
    pub revisions_kept: u64,
}

impl Faults {
    /// Nothing goes wrong, and nothing takes time.
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

/// How long an election takes, as etcd comes from the box.
pub const ELECTION_MS: u64 = 1000;

/// A client that heard nothing for so long gives a request up.
pub const PATIENCE_MS: u64 = 4000;

/// A member without a leader tries for so long to serve a request.
const SERVED_MS: u64 = 7000;

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Reply(Ticket, Result<Response, Error>),
    Watched(Ticket, Watched),
    /// The watch was cut, and tells nothing more.
    Cut(Ticket),
}

#[derive(Debug)]
pub struct Model {
    now_ms: u64,
    random: Random,
    faults: Faults,
    /// What is agreed on.
    store: Store,
    events: Vec<Event>,
    /// Events after this revision are kept.
    kept_after: Revision,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
    members: Vec<Member>,
    leader: Option<usize>,
    /// Counts elections: one that was begun and overtaken means nothing.
    term: u64,
    watches: BTreeMap<Ticket, Watching>,
    /// Requests whose client has heard nothing yet.
    open: BTreeSet<Ticket>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    actions: BTreeMap<u64, Action>,
    numbers: u64,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Lease {
    ttl_ms: u64,
    ends_at_ms: u64,
    /// Whom its holder spoke to last.
    member: usize,
}

#[derive(Debug)]
struct Member {
    store: Store,
    is_up: bool,
    /// Other members do not hear it, nor it them.
    is_apart: bool,
}

#[derive(Debug)]
struct Watching {
    member: usize,
    keys: Keys,
    /// Told, or lost.
    through: Revision,
    /// A telling is under way.
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
    GiveUp(Ticket),
    Learn(usize, Revision),
    Tell(Ticket),
    EndLease(LeaseId),
    Elect(u64),
}

impl Model {
    /// So many members, all up; the first leads.
    pub fn new(seed: u64, members: usize, faults: Faults) -> Model {
        let member = || Member {
            store: Store::default(),
            is_up: true,
            is_apart: false,
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
            numbers: 0,
            outputs: Vec::new(),
        }
    }

    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// What is agreed on, as nobody outside can see it.
    pub fn truth(&self, keys: &Keys) -> super::Snapshot {
        self.store.read(keys)
    }

    pub fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Sends a request to a member. A reply comes, if only that the client gave up.
    pub fn ask(&mut self, member: usize, request: Request) -> Ticket {
        let ticket = self.ticket();
        self.open.insert(ticket);
        self.at(PATIENCE_MS, Action::GiveUp(ticket));
        if !self.happens(self.faults.requests_lost) {
            let latency = self.up_to(self.faults.latency_ms);
            let until_ms = self.now_ms + latency + SERVED_MS;
            self.at(
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

    /// Begins a watch at a member.
    pub fn watch(&mut self, member: usize, keys: Keys, after: Revision) -> Ticket {
        let ticket = self.ticket();
        let watching = Watching {
            member,
            keys,
            through: after,
            is_due: false,
        };
        self.watches.insert(ticket, watching);
        self.tell_soon(ticket);
        ticket
    }

    /// The client hears nothing of this watch any more.
    pub fn unwatch(&mut self, ticket: Ticket) {
        self.watches.remove(&ticket);
    }

    /// Whether the watch was neither cut nor ended.
    pub fn is_watched(&self, ticket: Ticket) -> bool {
        self.watches.contains_key(&ticket)
    }

    /// The first time at which something happens.
    pub fn next_ms(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Lets all happen that happens until this time.
    pub fn advance(&mut self, now_ms: u64) -> Vec<Output> {
        while let Some(Reverse((due, number))) = self.due.peek().copied()
            && due <= now_ms
        {
            self.due.pop();
            self.now_ms = due;
            if let Some(action) = self.actions.remove(&number) {
                self.act(action);
            }
        }
        self.now_ms = self.now_ms.max(now_ms);
        std::mem::take(&mut self.outputs)
    }

    /// The member stops, and its watches break. What it had agreed to is on its disk.
    pub fn crash(&mut self, member: usize) {
        self.members[member].is_up = false;
        self.cut_watches(Some(member));
        self.elect_if_needed();
    }

    pub fn restart(&mut self, member: usize) {
        self.members[member].is_up = true;
        self.catch_up(member);
        self.elect_if_needed();
    }

    /// The member hears no other any more, or again; clients hear it all the time.
    pub fn set_apart(&mut self, member: usize, is_apart: bool) {
        self.members[member].is_apart = is_apart;
        if !is_apart {
            self.catch_up(member);
        }
        self.elect_if_needed();
    }

    /// All watches at a member break; without a member, all.
    pub fn cut_watches(&mut self, member: Option<usize>) {
        let cut = |watching: &Watching| member.is_none_or(|member| watching.member == member);
        let tickets = self.watches.iter().filter(|(_, watching)| cut(watching));
        for ticket in tickets.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.watches.remove(&ticket);
            self.outputs.push(Output::Cut(ticket));
        }
    }

    /// Forgets all revisions but the last so many.
    pub fn compact(&mut self, kept: u64) {
        let kept_after = Revision(self.store.revision().0.saturating_sub(kept));
        self.kept_after = self.kept_after.max(kept_after);
        self.events.retain(|event| event.revision > kept_after);
    }

    fn act(&mut self, action: Action) {
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
            Action::GiveUp(ticket) => {
                if self.open.remove(&ticket) {
                    let why = Error::Unknown("the simulated etcd did not answer".to_owned());
                    self.outputs.push(Output::Reply(ticket, Err(why)));
                }
            }
            Action::Learn(member, revision) => self.learn(member, revision),
            Action::Tell(ticket) => self.tell(ticket),
            Action::EndLease(lease) => self.end_lease_if_due(lease),
            Action::Elect(term) => self.elect(term),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.numbers += 1;
        Ticket(self.numbers)
    }

    fn at(&mut self, later_ms: u64, action: Action) {
        self.numbers += 1;
        self.actions.insert(self.numbers, action);
        self.due
            .push(Reverse((self.now_ms + later_ms, self.numbers)));
    }

    fn happens(&mut self, of_1000: u64) -> bool {
        of_1000 > 0 && self.random.below(1000) < of_1000
    }

    fn up_to(&mut self, bound_ms: u64) -> u64 {
        match bound_ms {
            0 => 0,
            bound => self.random.below(bound + 1),
        }
    }
}
