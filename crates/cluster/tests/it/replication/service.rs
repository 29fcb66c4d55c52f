//! A small model of the coordination service with a controller: leases, registrations, the map, and late or lost notifications.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::map::{
    Change, ChangeId, Map, MemberState, NodeId, NodeName, Registration, Settings, SlotRange,
    SyncChange, SyncChangeOrigin,
};
use larder_cluster::replication::{MapRequest, SlotMapChange};
use larder_sim::{NodeId as At, Outputs, Random};

use super::wire::{Shown, Wire, datagram};

pub const SLOTS: u16 = 3;
const TTL_US: u64 = super::TTL_MS * 1_000;

pub struct Service {
    pub map: Arc<Map>,
    registered: BTreeMap<NodeName, Registered>,
    servers: usize,
    random: Random,
    moves: bool,
    is_placed: bool,
}

struct Registered {
    registration: Registration,
    until_us: u64,
}

impl Service {
    pub fn new(servers: usize, replicas: u8, moves: bool, seed: u64) -> Service {
        let settings = Settings {
            replicas,
            ..Settings::default()
        };
        Service {
            map: Arc::new(Map::new("test", settings)),
            registered: BTreeMap::new(),
            servers,
            random: Random::stream(seed, 9),
            moves,
            is_placed: false,
        }
    }

    fn apply(&mut self, change: &Change) -> bool {
        match self.map.apply(change, &ChangeId::default()) {
            Ok(map) => {
                self.map = Arc::new(map);
                true
            }
            Err(_) => false,
        }
    }

    fn node(&self, name: &NodeName) -> Option<NodeId> {
        self.map.member_named(name).map(|it| it.id)
    }

    pub fn receive(&mut self, now_us: u64, from: At, wire: Wire, out: &mut Outputs<Wire>) {
        match wire {
            Wire::Poll => datagram(out, from, Wire::Map(Shown(self.map.clone()))),
            Wire::Register(registration, number) => {
                let known = self.registered.get(&registration.name);
                let is_new =
                    known.is_none_or(|it| it.registration.incarnation < registration.incarnation);
                if is_new {
                    let until_us = now_us + TTL_US;
                    let name = registration.name.clone();
                    let registered = Registered {
                        registration: *registration,
                        until_us,
                    };
                    self.registered.insert(name, registered);
                    datagram(out, from, Wire::Alive(number, true));
                }
            }
            Wire::KeepAlive(name, incarnation, number) => {
                let known = self.registered.get_mut(&name);
                let alive = known.filter(|it| {
                    it.registration.incarnation == incarnation && it.until_us > now_us
                });
                let is_alive = alive.is_some();
                if let Some(alive) = alive {
                    alive.until_us = now_us + TTL_US;
                }
                datagram(out, from, Wire::Alive(number, is_alive));
            }
            Wire::Ask(name, incarnation, ask) => {
                // An owner's change requires its own lease.
                let alive = self.registered.get(&name).is_some_and(|it| {
                    it.registration.incarnation == incarnation && it.until_us > now_us
                });
                if alive && self.ask(&name, &ask) {
                    self.tell_all(out);
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, name: &NodeName, ask: &MapRequest) -> bool {
        let slots = SlotRange::new(ask.slot, ask.slot);
        let Some(by) = self.node(name) else {
            return false;
        };
        let sync = |out: Vec<NodeId>, into| Change::SyncChanged {
            by: SyncChangeOrigin::Owner(by),
            slots: vec![SyncChange {
                slots,
                term: ask.term,
                out,
                into,
            }],
        };
        let placed = &self.map.slots().of(ask.slot).placement;
        let is_owner = placed.owner == Some(by) && placed.term == ask.term;
        let change = match ask.change {
            SlotMapChange::RemoveReplica(place) => sync(vec![place.node], Vec::new()),
            SlotMapChange::AddReplica(place, began) => {
                let filling = placed.filling(place.node).filter(|it| it.began == began);
                sync(Vec::new(), filling.into_iter().collect())
            }
            SlotMapChange::AbortFill(place) => Change::FillsEnded {
                slots: vec![(slots, place.node)],
            },
            SlotMapChange::MoveOwnership(place, _) => Change::OwnersMoved {
                slots: vec![(slots, place.node)],
            },
        };
        is_owner && self.apply(&change)
    }

    fn tell_all(&mut self, out: &mut Outputs<Wire>) {
        for server in 1..=self.servers {
            datagram(out, At(server), Wire::Map(Shown(self.map.clone())));
        }
    }

    /// Runs a step of the controller.
    pub fn tick(&mut self, now_us: u64, out: &mut Outputs<Wire>) {
        let before = self.map.epoch();
        let at_ms = now_us / 1_000;
        self.members(now_us, at_ms);
        self.place(at_ms);
        self.fill();
        if self.moves && now_us < super::MOVES_US && self.random.one_in(40) {
            self.move_one(out);
        }
        if self.map.epoch() != before {
            self.tell_all(out);
        }
    }

    fn is_alive(&self, node: NodeId, now_us: u64) -> bool {
        let member = self.map.member(node).expect("a member");
        let registered = self.registered.get(member.name());
        registered.is_some_and(|it| {
            it.until_us > now_us && it.registration.incarnation == member.registration.incarnation
        })
    }

    fn members(&mut self, now_us: u64, at_ms: u64) {
        let members: Vec<_> = self.map.members().to_vec();
        let up = members.iter().filter(|it| it.state != MemberState::Down);
        let lost: Vec<NodeId> = up
            .filter(|it| !self.is_alive(it.id, now_us))
            .map(|it| it.id)
            .collect();
        if !lost.is_empty() {
            let mut owners = Vec::new();
            for slot in 0..SLOTS {
                let placed = &self.map.slots().of(slot).placement;
                let is_lost = placed.owner.is_some_and(|owner| lost.contains(&owner));
                let alive: Vec<_> = placed
                    .in_sync
                    .iter()
                    .filter(|it| !lost.contains(it))
                    .collect();
                if is_lost && !alive.is_empty() {
                    let new = *alive[self.random.index(alive.len())];
                    owners.push((SlotRange::new(slot, slot), new));
                }
            }
            assert!(self.apply(&Change::MembersLost {
                nodes: lost,
                owners,
                at_ms
            }));
        }
        let alive: Vec<Registration> = self
            .registered
            .values()
            .filter(|it| it.until_us > now_us)
            .map(|it| it.registration.clone())
            .collect();
        for registration in alive {
            let known = self.map.member_named(&registration.name);
            let change = match known {
                None => Change::MemberAdded {
                    registration,
                    at_ms,
                },
                Some(member) if member.state == MemberState::Down => Change::MemberReturned {
                    node: member.id,
                    registration,
                    at_ms,
                },
                Some(_) => continue,
            };
            self.apply(&change);
        }
    }

    fn place(&mut self, at_ms: u64) {
        let joining = self.map.members().iter();
        let joining: Vec<NodeId> = joining
            .filter(|it| it.state == MemberState::Joining)
            .map(|it| it.id)
            .collect();
        if !joining.is_empty() {
            self.apply(&Change::MembersAdmitted {
                nodes: joining,
                at_ms,
            });
        }
        let up = self
            .map
            .members()
            .iter()
            .filter(|it| it.state == MemberState::Up);
        let up: Vec<NodeId> = up.map(|it| it.id).collect();
        if !self.is_placed && up.len() == self.servers {
            let replicas = usize::from(self.map.settings().replicas);
            let goal = |slot: u16| -> Vec<NodeId> {
                let from = usize::from(slot);
                (from..from + replicas)
                    .map(|at| up[at % up.len()])
                    .collect()
            };
            let goals = (0..SLOTS).map(|slot| (SlotRange::new(slot, slot), goal(slot)));
            let goals = goals.collect();
            self.is_placed = self.apply(&Change::PlacementReplaced {
                goals,
                outputs: Vec::new(),
                from: 1,
            });
        }
    }

    fn fill(&mut self) {
        for slot in 0..SLOTS {
            let placed = self.map.slots().of(slot).placement.clone();
            if placed.owner.is_none_or(|owner| !self.map.is_up(owner)) {
                continue;
            }
            for node in placed.goal() {
                if !placed.is_holder(node) && placed.filling(node).is_none() && self.map.is_up(node)
                {
                    let slots = vec![(SlotRange::new(slot, slot), node)];
                    self.apply(&Change::FillsBegun { slots });
                }
            }
        }
    }

    /// Swaps the owner and a replica; in half of the cases, by requesting it from the owner.
    fn move_one(&mut self, out: &mut Outputs<Wire>) {
        let slot = self.random.below(SLOTS.into()) as u16;
        let placed = self.map.slots().of(slot).placement.clone();
        let up: Vec<_> = placed
            .in_sync
            .iter()
            .filter(|it| self.map.is_up(**it))
            .collect();
        let (Some(owner), false) = (placed.owner, up.is_empty()) else {
            return;
        };
        let to = *up[self.random.index(up.len())];
        if self.random.one_in(2) {
            let name = self.map.name_of(owner);
            let at = At(name[1..].parse().expect("n and a number"));
            return datagram(out, at, Wire::HandOver(slot, to));
        }
        let slots = vec![(SlotRange::new(slot, slot), to)];
        self.apply(&Change::OwnersMoved { slots });
    }
}
