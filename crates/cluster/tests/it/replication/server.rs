//! A server of the simulated cluster: one place, its lease and its identity.

use std::sync::Arc;

use larder_cluster::map::{DiskId, Incarnation, Map, MemberState, NodeName, Registration, Roles};
use larder_cluster::replication::recovery::{Identity, prove_disk};
use larder_cluster::replication::{Outputs as Put, RenewalLease};
use larder_sim::{Input, NodeId as At, Output, Outputs, Random, Start};

use super::host::{Host, place};
use super::service::SLOTS;
use super::wire::{Peer, Wire, datagram};
use super::{SERVICE, Setup, TTL_MS};

const TICK_US: u64 = 40_000;
const KEEPALIVE_MS: u64 = TTL_MS / 4;

pub struct Server {
    name: NodeName,
    setup: Setup,
    random: Random,
    /// The identity of this incarnation; not valid until it is on the disk.
    identity: Identity,
    is_known: bool,
    identity_change: Option<u64>,
    found: Option<Identity>,
    is_log_whole: bool,
    pub host: Host,
    map: Option<Arc<Map>>,
    /// The map has this node up in its current incarnation.
    is_member: bool,
    lease: RenewalLease,
    keepalives: u64,
    sent_keepalive_ms: u64,
}

impl Server {
    pub fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Wire>) -> Server {
        let found = read_identity(start.disk.read("identity"));
        let slots = (0..SLOTS).collect();
        let host = Host::load(&start, slots, setup.syncs_always, setup.bugs, out);
        out.push(Output::Wake(start.now_us + 1));
        Server {
            name: format!("n{}", start.me.0).parse().expect("a name"),
            setup: setup.clone(),
            random: Random::stream(start.seed, 3),
            identity: Identity {
                disk: DiskId(0),
                incarnation: Incarnation(0),
            },
            is_known: false,
            identity_change: None,
            found,
            is_log_whole: setup.syncs_always || !start.lost_power,
            host,
            map: None,
            is_member: false,
            lease: new_lease(setup),
            keepalives: 0,
            sent_keepalive_ms: 0,
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        let now_ms = now_us / 1_000;
        let mut put = Put::default();
        match input {
            Input::Tick => {
                self.tick(now_ms, &mut put, out);
                out.push(Output::Wake(now_us + TICK_US));
            }
            Input::Connected(peer) => {
                if (1..=self.setup.servers).contains(&peer.0) {
                    self.host.connected(peer, out);
                }
            }
            Input::Lost(peer) => self.host.lost(peer, now_ms),
            Input::Message(from, wire) | Input::Datagram(from, wire) => {
                self.receive(now_ms, from, wire, &mut put, out);
            }
            Input::Synced(upto) => {
                self.host.synced(upto, &mut put);
                if self.identity_change.is_some_and(|change| change <= upto) {
                    self.identity_change = None;
                    self.register(now_ms, out);
                }
            }
        }
        for ask in self.host.end_turn(now_ms, put, out) {
            let (name, life) = (self.name.clone(), self.identity.incarnation);
            if self.is_member {
                datagram(out, SERVICE, Wire::Ask(name, life, ask));
            }
        }
    }

    fn receive(
        &mut self,
        now_ms: u64,
        from: At,
        wire: Wire,
        put: &mut Put,
        out: &mut Outputs<Wire>,
    ) {
        match wire {
            Wire::Map(map) => self.apply_map(now_ms, map.0, put, out),
            Wire::Alive(number, true) => {
                self.lease.answered(number, now_ms);
                self.extend_lease();
            }
            // This incarnation is over; a new one begins.
            Wire::Alive(_, false) if self.is_known => {
                self.lease.ended();
                self.extend_lease();
                let disk = self.identity.disk;
                self.start_incarnation(disk, out);
            }
            Wire::HandOver(slot, to) => {
                if let Some(replication) = &mut self.host.replication {
                    replication.owner.hand_over(slot, place(to));
                }
            }
            Wire::Hello(node) => self.host.hello(from, node, now_ms),
            Wire::Peer(Peer(bytes)) => self.host.receive(from, &bytes, now_ms, put),
            Wire::Request(number, call) => self.host.execute(now_ms, from, number, call, put, out),
            _ => {}
        }
    }

    /// The lease applies to the slots of a map with this incarnation.
    fn extend_lease(&mut self) {
        let until = if self.is_member {
            self.lease.until_ms()
        } else {
            0
        };
        self.host.set_lease(until);
    }

    fn apply_map(&mut self, now_ms: u64, map: Arc<Map>, put: &mut Put, out: &mut Outputs<Wire>) {
        if self
            .map
            .as_ref()
            .is_some_and(|known| known.epoch() >= map.epoch())
        {
            return;
        }
        let member = map.member_named(&self.name).cloned();
        if self.map.is_none() {
            let known = member.as_ref().map(|it| Identity {
                disk: it.registration.disk,
                incarnation: it.registration.incarnation,
            });
            let proof = prove_disk(self.found, known, self.is_log_whole);
            let newest = [self.found, known].into_iter().flatten();
            let newest = newest.map(|it| it.incarnation).max();
            self.identity.incarnation = newest.unwrap_or(Incarnation(0));
            let disk = match proof {
                Ok(()) => self.found.expect("it is proven").disk,
                Err(_) => {
                    self.host.forget(out);
                    DiskId(self.random.word())
                }
            };
            self.start_incarnation(disk, out);
        }
        self.map = Some(map.clone());
        let Some(member) = member else {
            return;
        };
        self.host.begin(member.id, now_ms, put, out);
        self.is_member = member.registration.incarnation == self.identity.incarnation
            && member.state == MemberState::Up
            && self.is_known;
        if self.is_member {
            self.host.assign(&map, false, now_ms, put);
        }
        self.extend_lease();
    }

    /// Begins a new incarnation: it is written to the disk first, then to the service.
    fn start_incarnation(&mut self, disk: DiskId, out: &mut Outputs<Wire>) {
        self.is_known = false;
        self.is_member = false;
        self.identity = Identity {
            disk,
            incarnation: Incarnation(self.identity.incarnation.0 + 1),
        };
        let bytes = write_identity(self.identity);
        let change = self.host.replace("identity", bytes, out);
        out.push(Output::Sync);
        self.identity_change = Some(change);
    }

    fn register(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        self.is_known = true;
        self.lease = new_lease(&self.setup);
        let registration = Registration {
            name: self.name.clone(),
            incarnation: self.identity.incarnation,
            disk: self.identity.disk,
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores: 1,
            zone: String::new(),
            weight: 1,
            roles: Roles::Base,
        };
        self.keepalives += 1;
        self.sent_keepalive_ms = now_ms;
        self.lease.sent(self.keepalives, now_ms);
        let wire = Wire::Register(Box::new(registration), self.keepalives);
        datagram(out, SERVICE, wire);
    }

    fn tick(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        datagram(out, SERVICE, Wire::Poll);
        if self.is_known && now_ms >= self.sent_keepalive_ms + KEEPALIVE_MS {
            // The registration may have been lost.
            let is_registered = self.lease.until_ms() > 0;
            if is_registered {
                self.keepalives += 1;
                self.sent_keepalive_ms = now_ms;
                self.lease.sent(self.keepalives, now_ms);
                let (name, life) = (self.name.clone(), self.identity.incarnation);
                datagram(out, SERVICE, Wire::KeepAlive(name, life, self.keepalives));
            } else {
                let disk = self.identity.disk;
                self.start_incarnation(disk, out);
            }
        }
        self.host.tick(now_ms, put, out);
    }
}

pub fn read_identity(text: &[u8]) -> Option<Identity> {
    let word = |at: usize| u64::from_le_bytes(text[at..at + 8].try_into().expect("8"));
    (text.len() == 16).then(|| Identity {
        disk: DiskId(word(0)),
        incarnation: Incarnation(word(8)),
    })
}

pub fn write_identity(identity: Identity) -> Vec<u8> {
    let words = [identity.disk.0, identity.incarnation.0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn new_lease(setup: &Setup) -> RenewalLease {
    let lease = RenewalLease::new(TTL_MS, 3_000);
    if setup.counts_leases_from_answers {
        lease.with_reply_time_bug()
    } else {
        lease
    }
}
