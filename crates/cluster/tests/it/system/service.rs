//! The simulated etcd as a node of the world. Its members fail on their own, and each committed map is checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::coordination::model::{Faults, Model, Output as Notice, Ticket};
use larder_cluster::coordination::{Keys, Revision, Snapshot};
use larder_cluster::map::Map;
use larder_sim::{Input, NodeId as At, Output, Outputs, Random};
use larder_types::VersionId;

use super::view::read_map;
use super::{FAULTS_US, Setup, store_name};
use crate::replication::wire::Wire;

const MEMBERS: usize = 3;

pub struct Service {
    model: Model,
    random: Random,
    asked: BTreeMap<Ticket, (At, u64)>,
    watched: BTreeMap<Ticket, (At, u64)>,
    wake_at_ms: u64,
    fails_at_ms: Option<u64>,
    mends_at_ms: Option<u64>,
    is_calm: bool,
    revision: Revision,
    pub map: Option<Arc<Map>>,
    /// The time from which each version was live.
    pub live: Vec<(u64, Option<VersionId>)>,
}

impl Service {
    pub fn new(setup: &Setup, seed: u64) -> Service {
        let mut random = Random::stream(seed, 21);
        let sometimes = |random: &mut Random, most: u64| {
            if random.one_in(2) {
                random.below(most + 1)
            } else {
                0
            }
        };
        let faults = Faults {
            latency_ms: random.between(1, 20),
            requests_lost: sometimes(&mut random, 30),
            replies_lost: sometimes(&mut random, 50),
            watch_late_ms: sometimes(&mut random, 3_000),
            watches_cut: sometimes(&mut random, 30),
            watches_lossy: sometimes(&mut random, 100),
            leases_late_ms: sometimes(&mut random, 1_000),
            deposed_leaders_revoke: 0,
            members_late_ms: sometimes(&mut random, 300),
            revisions_kept: sometimes(&mut random, 1) * 40,
        };
        // If a disk is lost, no other node may lose its lease, because two concurrent failures may lose rows.
        let faults = if setup.loses_a_disk {
            Faults {
                requests_lost: 0,
                replies_lost: 0,
                ..faults
            }
        } else {
            faults
        };
        Service {
            model: Model::new(seed, MEMBERS, faults),
            asked: BTreeMap::new(),
            watched: BTreeMap::new(),
            wake_at_ms: 0,
            fails_at_ms: (setup.service_fails && !setup.loses_a_disk)
                .then(|| random.between(2_000, 8_000)),
            mends_at_ms: None,
            is_calm: false,
            revision: Revision(0),
            map: None,
            live: vec![(0, None)],
            random,
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        let now_ms = now_us / 1_000;
        self.advance(now_us, out);
        match input {
            Input::Tick => self.fail(now_us),
            Input::Message(from, Wire::Call(number, request)) => {
                let member = self.random.index(MEMBERS);
                let ticket = self.model.send_request(member, request);
                self.asked.insert(ticket, (from, number));
            }
            Input::Message(from, Wire::Watch(number, keys, after)) => {
                let member = self.random.index(MEMBERS);
                let ticket = self.model.watch(member, keys, after);
                self.watched.insert(ticket, (from, number));
            }
            Input::Message(from, Wire::Unwatch(number)) => {
                let of = self.watched.iter().find(|(_, of)| **of == (from, number));
                if let Some(ticket) = of.map(|(ticket, _)| *ticket) {
                    self.watched.remove(&ticket);
                    self.model.unwatch(ticket);
                }
            }
            Input::Lost(peer) => {
                let model = &mut self.model;
                self.asked.retain(|_, (from, _)| *from != peer);
                self.watched.retain(|ticket, (from, _)| {
                    if *from == peer {
                        model.unwatch(*ticket);
                    }
                    *from != peer
                });
            }
            _ => {}
        }
        self.advance(now_us, out);
        let next_ms = self.model.next_ms().unwrap_or(u64::MAX).min(now_ms + 100);
        if self.wake_at_ms <= now_ms || next_ms < self.wake_at_ms {
            self.wake_at_ms = next_ms.max(now_ms + 1);
            out.push(Output::Wake(self.wake_at_ms * 1_000));
        }
    }

    /// Returns its final contents without the map.
    pub fn held(&self) -> String {
        let all = self.model.committed_state(&Keys::with_prefix("")).entries;
        let lines = all.iter().filter(|it| it.key != "map").map(|it| {
            let value = String::from_utf8_lossy(&it.value);
            format!("{} @{}: {value}\n", it.key, it.modified)
        });
        lines.collect()
    }

    /// Advances event by event, so that every map is seen.
    fn advance(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        let now_ms = now_us / 1_000;
        loop {
            let next_ms = self.model.next_ms().unwrap_or(u64::MAX).min(now_ms);
            let before = self
                .model
                .committed_state(&Keys::with_prefix("controller/"));
            for notice in self.model.advance(next_ms) {
                self.send_notice(notice, out);
            }
            self.check_map_change(now_us, &before);
            if next_ms == now_ms && self.model.next_ms().is_none_or(|next| next > now_ms) {
                return;
            }
        }
    }

    fn send_notice(&mut self, notice: Notice, out: &mut Outputs<Wire>) {
        match notice {
            Notice::Reply(ticket, reply) => {
                if let Some((from, number)) = self.asked.remove(&ticket) {
                    out.push(Output::Send(from, Wire::Answer(number, Box::new(reply))));
                }
            }
            Notice::WatchItem(ticket, heard) => {
                if let Some((from, number)) = self.watched.get(&ticket) {
                    out.push(Output::Send(*from, Wire::Heard(*number, Some(heard))));
                }
            }
            Notice::WatchBroken(ticket) => {
                if let Some((from, number)) = self.watched.remove(&ticket) {
                    out.push(Output::Send(from, Wire::Heard(number, None)));
                }
            }
        }
    }

    /// Checks that a committed map follows from the previous one, and was written by the controller.
    fn check_map_change(&mut self, now_us: u64, before: &Snapshot) {
        let truth = self.model.committed_state(&Keys::one("map"));
        let Some(entry) = truth.entries.first() else {
            return;
        };
        if entry.modified == self.revision {
            return;
        }
        self.revision = entry.modified;
        let map = read_map(&entry.value);
        if let Some(known) = &self.map {
            assert!(
                map.epoch() > known.epoch(),
                "epoch {} follows {}",
                map.epoch(),
                known.epoch()
            );
            for run in map.slots().runs() {
                let term = known.slots().of(run.slots.from).placement.term;
                assert!(run.placement.term >= term, "a term goes back");
            }
        }
        let marks = self
            .model
            .committed_state(&Keys::with_prefix("marks/"))
            .entries;
        let by = marks.iter().find(|it| it.modified == entry.modified);
        if let Some(name) = by.and_then(|it| it.key.strip_prefix("marks/controller-")) {
            // A mirror that lost an event may consider itself the oldest, but never without a lease.
            let after = self
                .model
                .committed_state(&Keys::with_prefix("controller/"));
            let mut candidates = before.entries.iter().chain(&after.entries);
            assert!(
                candidates.any(|it| it.value == name.as_bytes()),
                "{name} changes the map, and its lease has ended"
            );
        }
        let live = map
            .stores()
            .get(&store_name())
            .and_then(|it| it.live.as_ref());
        let live = live.map(|it| it.version);
        if self.live.last().is_some_and(|(_, last)| *last != live) {
            self.live.push((now_us, live));
        }
        self.map = Some(map);
    }

    /// Members crash or are partitioned; sometimes two together, so that there is no quorum.
    fn fail(&mut self, now_us: u64) {
        let now_ms = now_us / 1_000;
        if now_us >= FAULTS_US && !self.is_calm {
            self.is_calm = true;
            self.fails_at_ms = None;
            self.mends_at_ms = Some(now_ms);
            self.model.set_faults(Faults {
                latency_ms: 5,
                ..Faults::none()
            });
        }
        if self.mends_at_ms.is_some_and(|at| at <= now_ms) {
            self.mends_at_ms = None;
            for member in 0..MEMBERS {
                self.model.set_partitioned(member, false);
                self.model.restart(member);
            }
        }
        if self.fails_at_ms.is_some_and(|at| at <= now_ms) {
            self.fails_at_ms = Some(now_ms + self.random.between(2_000, 8_000));
            self.mends_at_ms = Some(now_ms + self.random.between(100, 4_000));
            for _ in 0..self.random.between(1, 2) {
                let member = self.random.index(MEMBERS);
                match self.random.below(3) {
                    0 => self.model.crash(member),
                    1 => self.model.set_partitioned(member, true),
                    _ => self.model.break_watches(Some(member)),
                }
            }
        }
    }
}
