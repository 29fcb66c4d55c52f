//! The cluster state that a node uses at a time: the map, and the known places.
//!
//! ```text
//!   map, epoch 7 ─ View::next ─► View ──► cores, HTTP, pulls: read-only
//!                    ▲
//!   previous view ───┘  keeps the numbers of its places
//! ```
//!
//! A *place* is a core of a node. Each process numbers the places that it knows, and engines refer to each other only by these
//! numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::coordination::LeaseHandle;
use larder_cluster::map::{
    DiskId, Incarnation, Lookup, Map, Member, MemberState, NodeId, SlotRange,
};
use larder_cluster::replication::Place;
use larder_cluster::replication::recovery::ProofError;
use larder_join::{NO_OWNER, SlotOwners};
use larder_types::{SLOTS, StoreName};

/// An immutable snapshot, replaced when the map changes.
#[derive(Debug)]
pub struct View {
    pub map: Arc<Map>,
    pub lookup: Lookup,
    /// This node; 0 while it is not in the map.
    pub me: NodeId,
    pub places: Places,
    /// For each slot, the number of the place that owns it.
    pub owners: Arc<SlotOwners>,
    /// For each slot, the place that computes its outputs, if that is not its owner.
    pub computing: Option<Arc<SlotOwners>>,
    /// This node's current incarnation, if it has one.
    pub life: Option<Life>,
}

/// An incarnation of this node: from its registration until its lease ends. A lease counts only with views of its own
/// incarnation, so code that serves slots checks the incarnation of the view that assigns them.
#[derive(Debug, Clone)]
pub struct Life {
    pub incarnation: Incarnation,
    pub disk: DiskId,
    /// The time until which the lease is certainly held.
    pub held: LeaseHandle,
    /// The reason why the rows in the data folder at the start of this incarnation do not count, if so. The map then has another
    /// disk id.
    pub unproven: Option<ProofError>,
}

/// The numbers of places.
///
/// 1. The node's own cores come first, in order.
/// 2. A place keeps its number, which is never reused.
#[derive(Debug, Clone)]
pub struct Places {
    own_cores: u16,
    others: Vec<Place>,
    /// For each node, its first number and its number of cores.
    runs: BTreeMap<NodeId, (u16, u16)>,
    me: NodeId,
}

impl Places {
    fn new(own_cores: u16) -> Places {
        Places {
            own_cores,
            others: Vec::new(),
            runs: BTreeMap::new(),
            me: NodeId(0),
        }
    }

    /// Numbers the cores of a node, unless they have numbers.
    fn add(&mut self, node: NodeId, cores: u16) {
        if node == self.me || self.runs.get(&node).is_some_and(|run| run.1 == cores) {
            return;
        }
        let first = self.count();
        // The numbers suffice for thousands of nodes. A node without numbers cannot be contacted; requests to it fail with an
        // error.
        if usize::from(first) + usize::from(cores) >= usize::from(NO_OWNER) {
            return;
        }
        self.others
            .extend((0..cores).map(|core| Place { node, core }));
        self.runs.insert(node, (first, cores));
    }

    /// The number of numbered places.
    pub fn count(&self) -> u16 {
        self.own_cores + self.others.len() as u16
    }

    /// The number of this node's places, which have the first numbers.
    pub fn own_cores(&self) -> u16 {
        self.own_cores
    }

    /// Returns a place by its number.
    pub fn get(&self, number: u16) -> Option<Place> {
        match number.checked_sub(self.own_cores) {
            None => Some(Place {
                node: self.me,
                core: number,
            }),
            Some(at) => self.others.get(usize::from(at)).copied(),
        }
    }

    pub fn number(&self, place: Place) -> Option<u16> {
        let (first, cores) = self.run(place.node)?;
        (place.core < cores).then_some(first + place.core)
    }

    /// The first number of a node's cores, and their count.
    fn run(&self, node: NodeId) -> Option<(u16, u16)> {
        if node == self.me {
            Some((0, self.own_cores))
        } else {
            self.runs.get(&node).copied()
        }
    }
}

/// Replicas of one node's slots, each counted once per slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replicas {
    pub in_sync: u64,
    pub filling: u64,
    /// The number of replicas that are missing in the in-sync sets, including those being filled.
    pub missing: u64,
}

/// Returns the core of a node that has a slot.
pub fn core_of(slot: u16, cores: u16) -> u16 {
    (u32::from(slot) * u32::from(cores) / u32::from(SLOTS)) as u16
}

/// Returns the slots of a node's core: the inverse of [`core_of`]. `None` if there are more cores than slots and this one has
/// none.
pub fn slots_of(core: u16, cores: u16) -> Option<SlotRange> {
    let first = |core: u16| (u32::from(core) * u32::from(SLOTS)).div_ceil(u32::from(cores));
    let (from, next) = (first(core), first(core + 1));
    (from < next).then(|| SlotRange::new(from as u16, (next - 1) as u16))
}

impl View {
    /// Returns a view before there is a map with this node: it owns nothing.
    pub fn initial(map: impl Into<Arc<Map>>, own_cores: u16) -> View {
        View::build(map.into(), NodeId(0), None, Places::new(own_cores))
    }

    /// Returns the next view. If the map has an earlier incarnation of this node, the node owns nothing.
    pub fn next(&self, map: impl Into<Arc<Map>>, me: NodeId, life: Option<Life>) -> View {
        View::build(map.into(), me, life, self.places.clone())
    }

    fn build(map: Arc<Map>, me: NodeId, life: Option<Life>, mut places: Places) -> View {
        places.me = me;
        let is_past = |node: NodeId| {
            let registered = map.member(node).map(|it| it.registration.incarnation);
            node == me && registered != life.as_ref().map(|life| life.incarnation)
        };
        for member in map.members() {
            places.add(member.id, member.registration.cores);
        }
        let lookup = Lookup::new(&map);
        let cores_of = |node: NodeId| {
            if map.is_up(node) && !is_past(node) {
                places.run(node)
            } else {
                None
            }
        };
        let numbers = |node_of: &dyn Fn(u16) -> Option<NodeId>| {
            // Adjacent slots usually have the same owner.
            let mut last = (None, None);
            let number = |slot: u16| {
                let node = node_of(slot);
                if node != last.0 {
                    last = (node, node.and_then(cores_of));
                }
                last.1
                    .map_or(NO_OWNER, |(first, cores)| first + core_of(slot, cores))
            };
            Arc::new(SlotOwners::new((0..SLOTS).map(number).collect()))
        };
        let owners = numbers(&|slot| lookup.placement(slot).owner);
        let computing =
            (map.outputs().len() > 0).then(|| numbers(&|slot| lookup.compute_node(slot)));
        View {
            lookup,
            me,
            places,
            owners,
            computing,
            life,
            map,
        }
    }

    pub fn slots_owned(&self) -> u32 {
        let held = self.lookup.slots_of(self.me);
        let owned = held.map_or(&[][..], |held| &held.owned);
        owned.iter().map(|slots| slots.count()).sum()
    }

    /// Returns other nodes that are up and should have a store's records of one of these slots, owners first.
    pub fn nodes_with_store_slots(
        &self,
        store: &StoreName,
        slots: impl IntoIterator<Item = u16>,
    ) -> Vec<NodeId> {
        let store = self.map.stores().get(store);
        let (mut owners, mut others) = (Vec::new(), Vec::new());
        for slot in slots {
            let placed = self.lookup.placement(slot);
            for node in placed.holders() {
                let lacks = store.is_some_and(|store| store.lacking.contains(&node));
                if node == self.me || lacks || !self.map.is_up(node) {
                    continue;
                }
                let nodes = if placed.owner == Some(node) {
                    &mut owners
                } else {
                    &mut others
                };
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
        }
        others.retain(|node| !owners.contains(node));
        owners.append(&mut others);
        owners
    }

    /// The minimum number of in-sync replicas of own slots; 0 without own slots.
    pub fn in_sync_replicas_min(&self) -> usize {
        let slots = self.map.slots();
        let own = slots.runs().iter();
        let own = own.filter(|run| run.placement.owner == Some(self.me));
        own.map(|run| run.placement.in_sync.len())
            .min()
            .unwrap_or(0)
    }

    /// Counts the replicas of this node's slots.
    pub fn replicas(&self) -> Replicas {
        let required = usize::from(self.map.settings().replicas).saturating_sub(1);
        let mut all = Replicas::default();
        for run in self.map.slots().runs() {
            if run.placement.owner != Some(self.me) {
                continue;
            }
            let slots = u64::from(run.slots.count());
            let (in_sync, filling) = (run.placement.in_sync.len(), run.placement.filling.len());
            all.in_sync += slots * in_sync as u64;
            all.filling += slots * filling as u64;
            all.missing += slots * required.saturating_sub(in_sync) as u64;
        }
        all
    }

    /// This node, if it is in the map.
    pub fn own(&self) -> Option<&Member> {
        self.map.member(self.me)
    }

    /// Returns whether this node is up in the map, in its current incarnation.
    pub fn is_up(&self) -> bool {
        let life = self.life.as_ref().map(|life| life.incarnation);
        self.own().is_some_and(|own| {
            own.state == MemberState::Up && Some(own.registration.incarnation) == life
        })
    }

    /// Returns whether this node certainly may serve the slots that this view assigns to it, because its lease is valid. The
    /// time is [`larder_cluster::coordination::boot_ms`], read after the decision that depends on the answer.
    #[inline]
    pub fn has_valid_lease(&self, now_ms: u64) -> bool {
        self.life
            .as_ref()
            .is_some_and(|life| life.held.is_certainly_held(now_ms))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use larder_cluster::map::{Change, ChangeId, Registration, Roles, Settings, SlotRange};

    use super::*;

    pub fn registration(name: &str, cores: u16) -> Registration {
        Registration {
            name: name.parse().unwrap(),
            incarnation: Incarnation(1),
            disk: Default::default(),
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores,
            zone: String::new(),
            weight: 1,
            roles: Roles::Both,
        }
    }

    fn life(incarnation: u64) -> Life {
        Life {
            incarnation: Incarnation(incarnation),
            disk: Default::default(),
            held: LeaseHandle::unlimited(),
            unproven: None,
        }
    }

    fn changed(map: &Map, change: Change) -> Map {
        map.apply(&change, &ChangeId::default()).unwrap()
    }

    fn added(map: &Map, name: &str, cores: u16) -> Map {
        let registration = registration(name, cores);
        let change = Change::MemberAdded {
            registration,
            at_ms: 0,
        };
        changed(map, change)
    }

    fn place(node: u32, core: u16) -> Place {
        Place {
            node: NodeId(node),
            core,
        }
    }

    #[test]
    fn the_slots_of_a_core_are_the_inverse_of_the_core_of_a_slot() {
        for cores in [1, 2, 3, 7, 64, 1000, u16::MAX] {
            for core in (0..cores).step_by(1 + usize::from(cores / 50)) {
                let own = (0..SLOTS).filter(|slot| core_of(*slot, cores) == core);
                let slots = slots_of(core, cores).into_iter().flat_map(|it| it.slots());
                assert!(own.eq(slots), "core {core} of {cores}");
            }
        }
    }

    #[test]
    fn places_keep_their_numbers_when_nodes_join_and_change_their_cores() {
        let map = added(&Map::new("c", Settings::default()), "a", 3);
        let map = added(&map, "b", 2);
        let first = View::initial(map.clone(), 2);
        assert_eq!(first.places.number(place(1, 0)), Some(2));
        let second = first.next(map.clone(), NodeId(2), None);
        assert_eq!(second.places.number(place(2, 1)), Some(1));
        assert_eq!(second.places.get(1), Some(place(2, 1)));
        assert_eq!(second.places.number(place(1, 0)), Some(2));
        let mut registration = registration("a", 4);
        registration.incarnation = Incarnation(1);
        let node = NodeId(1);
        let map = changed(&map, Change::MemberUpdated { node, registration });
        let later = second.next(map, NodeId(2), None);
        let number = later.places.number(place(1, 3)).unwrap();
        assert!(number >= second.places.count());
        assert_eq!(later.places.get(number), Some(place(1, 3)));
        assert_eq!(
            later.places.get(2),
            Some(place(1, 0)),
            "its old number is not reused"
        );
        assert_eq!(later.places.get(later.places.count()), None);
    }

    #[test]
    fn a_slot_has_no_owner_while_its_node_is_down() {
        let map = added(&Map::new("c", Settings::default()), "a", 2);
        let map = added(&map, "b", 1);
        let nodes = vec![NodeId(1), NodeId(2)];
        let map = changed(
            &map,
            Change::MembersAdmitted {
                nodes: nodes.clone(),
                at_ms: 0,
            },
        );
        let half = SlotRange { from: 0, to: 8191 };
        let rest = SlotRange {
            from: 8192,
            to: SLOTS - 1,
        };
        let goals = vec![(half, vec![nodes[1]]), (rest, vec![nodes[0]])];
        let taken = Change::PlacementReplaced {
            goals,
            outputs: Vec::new(),
            from: 1,
        };
        let map = changed(&map, taken);
        let view = View::initial(map.clone(), 2).next(map.clone(), NodeId(1), Some(life(1)));
        let other = view.places.number(place(2, 0)).unwrap();
        assert_eq!(
            [0, 8191, 8192, SLOTS - 1].map(|slot| view.owners.owner_of(slot)),
            [other, other, 1, 1]
        );
        let lost = Change::MembersLost {
            nodes: vec![nodes[1]],
            owners: Vec::new(),
            at_ms: 0,
        };
        let view = view.next(changed(&map, lost), NodeId(1), Some(life(1)));
        assert_eq!(
            [0, 8192].map(|slot| view.owners.owner_of(slot)),
            [NO_OWNER, 1],
            "no node that is up has the first"
        );
        let view = view.next(map, NodeId(1), Some(life(2)));
        assert_eq!(
            [0, 8192].map(|slot| view.owners.owner_of(slot)),
            [other, NO_OWNER],
            "the map has an earlier incarnation"
        );
        assert!(!view.is_up());
    }
}
