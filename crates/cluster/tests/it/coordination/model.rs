//! The simulated etcd itself, without the trait: properties that hold under all faults, over many seeds.

use std::collections::BTreeMap;

use larder_cluster::coordination::model::{Faults, Model, Output, Ticket};
use larder_cluster::coordination::{
    Change, Error, Freshness, Keys, Lease, LeaseId, Mirror, Outcome, Request, Response, Revision,
    WatchItem, Writer, leader, put_candidate,
};
use larder_types::Random;

/// The number of seeds.
fn seeds() -> u64 {
    match std::env::var_os("LARDER_SLOW_TESTS") {
        Some(_) => 10_000,
        None => 300,
    }
}

/// All faults.
const ALL: Faults = Faults {
    latency_ms: 400,
    requests_lost: 100,
    replies_lost: 150,
    watch_late_ms: 3000,
    watches_cut: 100,
    watches_lossy: 50,
    leases_late_ms: 3000,
    deposed_leaders_revoke: 0,
    members_late_ms: 2000,
    revisions_kept: 2,
};

/// Occasionally crashes, partitions or restarts a member.
fn disturb(model: &mut Model, random: &mut Random, members: usize) {
    let member = random.index(members);
    match random.below(40) {
        0 => model.crash(member),
        1 => model.set_partitioned(member, true),
        2 => model.break_watches(Some(member)),
        3..=9 => {
            model.restart(member);
            model.set_partitioned(member, false);
        }
        _ => {}
    }
}

fn calm(model: &mut Model, members: usize) {
    model.set_faults(Faults::none());
    for member in 0..members {
        model.restart(member);
        model.set_partitioned(member, false);
    }
}

/// A client that repeatedly increments a counter, and retries whenever the outcome is unknown.
struct Counter {
    writer: Writer,
    /// The requested change, until it is known to be done.
    change: Option<Change>,
    done: u64,
    wanted: u64,
}

impl Counter {
    fn next(&mut self, answer: Option<Result<Response, Error>>) -> Option<Request> {
        match answer {
            Some(Ok(Response::Changed(Outcome::Done(_)))) => {
                self.done += 1;
                self.change = None;
            }
            Some(Ok(Response::Changed(Outcome::Conflict(_)))) => self.change = None,
            Some(Ok(Response::Read(snapshot))) => {
                let now = snapshot.entries.first();
                let modified = now.map_or(Revision(0), |entry| entry.modified);
                let value = now.map_or(0, |entry| number(&entry.value));
                let change = self.writer.change().if_unchanged("count", modified);
                self.change = Some(change.put("count", (value + 1).to_string()));
            }
            _ => {}
        }
        match &self.change {
            _ if self.done == self.wanted => None,
            Some(change) => Some(Request::Change(change.clone())),
            None => Some(Request::Read {
                keys: Keys::one("count"),
                freshness: Freshness::Latest,
            }),
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text)
        .expect("text")
        .parse()
        .expect("a number")
}

/// A copy that is maintained manually, like [`larder_cluster::coordination::Follower`].
struct Watcher {
    mirror: Mirror,
    watch: Option<Ticket>,
    asked: Option<Ticket>,
    asks_all: bool,
}

impl Watcher {
    fn ask(&mut self, model: &mut Model, member: usize) {
        if self.asked.is_none() {
            let keys = self.mirror.keys().clone();
            let request = if self.asks_all {
                Request::Read {
                    keys,
                    freshness: Freshness::Latest,
                }
            } else {
                Request::RecentWrites {
                    keys,
                    after: self.mirror.checked_revision(),
                }
            };
            if let Some(watch) = self.watch.take() {
                model.unwatch(watch);
            }
            self.asked = Some(model.send_request(member, request));
        }
    }

    fn handle(&mut self, model: &mut Model, member: usize, output: &Output) {
        match output {
            Output::Reply(ticket, reply) if self.asked == Some(*ticket) => {
                self.asked = None;
                match reply {
                    Ok(Response::Read(snapshot)) => {
                        let before = self.mirror.revision();
                        self.mirror.apply_snapshot(snapshot.clone());
                        assert!(self.mirror.revision() >= before);
                        self.asks_all = false;
                    }
                    Ok(Response::RecentWrites(recent)) => {
                        self.asks_all = !self.mirror.matches(recent)
                    }
                    _ => {}
                }
                if self.asks_all {
                    self.ask(model, member)
                } else {
                    let (keys, after) = (self.mirror.keys().clone(), self.mirror.revision());
                    self.watch = Some(model.watch(member, keys, after));
                }
            }
            Output::WatchItem(ticket, watched) if self.watch == Some(*ticket) => match watched {
                WatchItem::Events(events) => drop(self.mirror.apply_events(events.clone())),
                WatchItem::Compacted => {
                    self.watch = None;
                    self.asks_all = true;
                    self.ask(model, member);
                }
            },
            Output::WatchBroken(ticket) if self.watch == Some(*ticket) => self.watch = None,
            _ => {}
        }
    }
}

#[test]
fn each_change_is_applied_once_and_every_copy_converges() {
    const MEMBERS: usize = 3;
    let (mut gave_up, mut lost, mut compacted) = (0, 0, 0);
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut model = Model::new(seed, MEMBERS, ALL);
        let mut counters: Vec<Counter> = (0..3)
            .map(|number| Counter {
                writer: Writer::new(format!("w{number}"), seed),
                change: None,
                done: 0,
                wanted: 8,
            })
            .collect();
        let mut asked: BTreeMap<Ticket, usize> = BTreeMap::new();
        for (at, counter) in counters.iter_mut().enumerate() {
            let request = counter.next(None).expect("there is something to do");
            asked.insert(model.send_request(0, request), at);
        }
        let mut watcher = Watcher {
            mirror: Mirror::new(Keys::one("count")),
            watch: None,
            asked: None,
            asks_all: true,
        };
        let mut rounds = 0;
        let mut is_calm = false;
        while !asked.is_empty() {
            rounds += 1;
            if rounds > 3000 && !is_calm {
                is_calm = true;
                calm(&mut model, MEMBERS);
            }
            if !is_calm {
                disturb(&mut model, &mut random, MEMBERS);
            }
            if rounds % 20 == 0 {
                watcher.ask(&mut model, random.index(MEMBERS));
            }
            let next_ms = model.next_ms().expect("every request is answered");
            for output in model.advance(next_ms) {
                watcher.handle(&mut model, random.index(MEMBERS), &output);
                compacted +=
                    u64::from(matches!(output, Output::WatchItem(_, WatchItem::Compacted)));
                let Output::Reply(ticket, reply) = output else {
                    continue;
                };
                let Some(at) = asked.remove(&ticket) else {
                    continue;
                };
                gave_up += u64::from(matches!(reply, Err(Error::Unknown(_))));
                if let Some(request) = counters[at].next(Some(reply)) {
                    asked.insert(model.send_request(random.index(MEMBERS), request), at);
                }
            }
            assert!(rounds < 100_000, "seed {seed} comes to no end");
        }
        let truth = model.committed_state(&Keys::one("count"));
        assert_eq!(number(&truth.entries[0].value), 24, "seed {seed}");
        // Late requests of finished writers must change nothing.
        calm(&mut model, MEMBERS);
        drop(model.advance(model.now_ms() + 60_000));
        assert_eq!(
            number(&model.committed_state(&Keys::one("count")).entries[0].value),
            24,
            "seed {seed}"
        );
        // The copy is correct as soon as one comparison is answered.
        let was_right = watcher.mirror.entries().eq(&truth.entries);
        lost += u64::from(!was_right);
        watcher.asked = None;
        watcher.ask(&mut model, 0);
        while watcher.watch.is_none() {
            let next_ms = model.next_ms().expect("it is answered");
            for output in model.advance(next_ms) {
                watcher.handle(&mut model, 0, &output);
            }
        }
        let truth = model.committed_state(&Keys::one("count"));
        assert!(watcher.mirror.entries().eq(&truth.entries), "seed {seed}");
    }
    assert!(
        gave_up > seeds() && lost > 10 && compacted > 10,
        "{gave_up} {lost} {compacted}: faults happen"
    );
}

/// Nodes with leases of 3 s, whose clocks differ in speed by 4 %, and which assume leadership when they see themselves as the
/// oldest candidate.
#[test]
fn two_leaders_never_both_change_the_map_and_a_held_lease_is_there() {
    for seed in 0..seeds() {
        lead(seed, ALL);
    }
}

/// A stalled etcd leader ends leases early. A node may then still rely on its lease, but its change is rejected.
#[test]
fn a_lease_that_was_ended_early_fences_its_holder() {
    let early = Faults {
        deposed_leaders_revoke: 700,
        ..ALL
    };
    let believed: u64 = (0..seeds()).map(|seed| lead(seed, early)).sum();
    assert!(believed > 0, "leases were ended early");
}

struct Candidate {
    writer: Writer,
    /// The speed of its clock, in thousandths.
    speed: u64,
    lease: Option<Lease>,
    fence: Option<(String, Revision)>,
    asked: Option<(Ticket, u64, Asked)>,
    retry: Option<Change>,
    map: Revision,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Grant,
    KeepAlive,
    Candidacy,
    Look,
    Lead,
}

impl Candidate {
    fn clock(&self, model: &Model) -> u64 {
        model.now_ms() * self.speed / 1000
    }

    fn act(&mut self, model: &mut Model, member: usize) {
        if self.asked.is_some() {
            return;
        }
        let now = self.clock(model);
        let (kind, request) = match (&mut self.lease, &self.fence) {
            (None, _) => (Asked::Grant, Request::Grant { ttl_seconds: 3 }),
            (Some(lease), _) if now >= lease.renewal_at_ms() => {
                (Asked::KeepAlive, Request::KeepAlive(lease.id()))
            }
            (Some(lease), None) => {
                let id = lease.id();
                let change = self
                    .retry
                    .get_or_insert_with(|| put_candidate(self.writer.change(), id, "x"));
                (Asked::Candidacy, Request::Change(change.clone()))
            }
            (Some(_), Some(_)) if self.retry.is_none() => (
                Asked::Look,
                Request::Read {
                    keys: Keys::with_prefix(""),
                    freshness: Freshness::Latest,
                },
            ),
            (Some(_), Some(_)) => {
                let change = self.retry.clone().expect("it was looked at");
                (Asked::Lead, Request::Change(change))
            }
        };
        self.asked = Some((model.send_request(member, request), now, kind));
    }

    fn over(&mut self) {
        (self.lease, self.fence, self.retry) = (None, None, None);
    }

    fn handle(&mut self, reply: Result<Response, Error>) {
        let (_, sent, kind) = self.asked.take().expect("a request is in flight");
        match (kind, reply) {
            (_, Err(Error::LeaseEnded(_))) => self.over(),
            (_, Err(_)) => {}
            (_, Ok(Response::Granted { lease, ttl_seconds })) => {
                self.lease = Some(Lease::new(lease, ttl_seconds, sent));
            }
            (_, Ok(Response::KeptAlive(ttl_seconds))) => {
                let lease = self.lease.as_mut().expect("it has one");
                lease.record_reply(sent, ttl_seconds);
                if lease.has_ended() {
                    self.over();
                }
            }
            (Asked::Candidacy, Ok(Response::Changed(Outcome::Done(revision)))) => {
                let id = self.lease.as_ref().expect("it has one").id();
                self.fence = Some((format!("controller/{id}"), revision));
                self.retry = None;
            }
            (Asked::Look, Ok(Response::Read(snapshot))) => {
                let mut mirror = Mirror::new(Keys::with_prefix(""));
                mirror.apply_snapshot(snapshot);
                let (own, fence) = self.fence.clone().expect("it stands");
                if leader(&mirror).is_some_and(|leads| leads.key == own) {
                    self.map = mirror
                        .get("map")
                        .map_or(Revision(0), |entry| entry.modified);
                    let change = self.writer.change().if_unchanged("map", self.map);
                    self.retry = Some(change.if_created_at(own.clone(), fence).put("map", own));
                }
            }
            (Asked::Lead | Asked::Candidacy, Ok(Response::Changed(_))) => {
                let was_candidate = kind == Asked::Candidacy;
                self.retry = None;
                if was_candidate {
                    self.over();
                }
            }
            (_, Ok(other)) => panic!("unfitting: {other:?}"),
        }
    }
}

/// Returns how often a node relied on a lease that had been ended.
fn lead(seed: u64, faults: Faults) -> u64 {
    const MEMBERS: usize = 3;
    let mut random = Random::new(!seed);
    let mut model = Model::new(seed, MEMBERS, faults);
    let mut candidates: Vec<Candidate> = (0..3)
        .map(|number| Candidate {
            writer: Writer::new(format!("c{number}"), seed),
            speed: 980 + 20 * number,
            lease: None,
            fence: None,
            asked: None,
            retry: None,
            map: Revision(0),
        })
        .collect();
    let mut believed = 0;
    let mut last_map = Revision(0);
    while model.now_ms() < 60_000 {
        disturb(&mut model, &mut random, MEMBERS);
        for candidate in &mut candidates {
            // Some nodes are suspended for a while between any two steps.
            if random.below(4) == 0 {
                candidate.act(&mut model, random.index(MEMBERS));
            }
        }
        let step = model.now_ms() + 1 + random.below(200);
        for output in model.advance(step) {
            let Output::Reply(ticket, reply) = output else {
                continue;
            };
            let whose = |candidate: &&mut Candidate| {
                candidate
                    .asked
                    .as_ref()
                    .is_some_and(|(asked, ..)| *asked == ticket)
            };
            if let Some(candidate) = candidates.iter_mut().find(whose) {
                candidate.handle(reply);
            }
        }
        let truth = model.committed_state(&Keys::with_prefix(""));
        let stands = |id: LeaseId| truth.entries.iter().any(|entry| entry.lease == Some(id));
        for candidate in &candidates {
            let Some(lease) = &candidate.lease else {
                continue;
            };
            if candidate.fence.is_some()
                && lease.is_certainly_held(candidate.clock(&model))
                && !stands(lease.id())
            {
                believed += 1;
            }
        }
        // The writer of the map was the leader at that revision: its key existed, and was the oldest.
        if let Some(map) = truth.entries.iter().find(|entry| entry.key == "map")
            && map.modified > last_map
        {
            last_map = map.modified;
            let writer = String::from_utf8(map.value.to_vec()).expect("text");
            let older = truth
                .entries
                .iter()
                .filter(|entry| entry.key.starts_with("controller/"));
            let own = truth.entries.iter().find(|entry| entry.key == writer);
            if let Some(own) = own {
                let mut older = older.filter(|entry| entry.created < own.created);
                assert_eq!(older.next(), None, "seed {seed}: another led");
            }
        }
    }
    if faults.deposed_leaders_revoke == 0 {
        assert_eq!(
            believed, 0,
            "seed {seed}: a lease that was surely held had ended"
        );
    }
    believed
}
