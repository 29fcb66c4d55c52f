//! A simulated cluster for the controller: nodes that die, are disconnected, lose their disks and return; owners that write;
//! reports that arrive late or twice. For some watched slots, every acknowledged write is recorded.

use std::collections::{BTreeMap, BTreeSet};

use larder_cluster::controller::{
    ControllerRequest, Decision, Inputs, Progress, Report, SyncedReplica, VersionProgress, decide,
    next_map,
};
use larder_cluster::map::{
    Change, ChangeId, ChangeRejected, Departure, DiskId, Epoch, Incarnation, Map, MemberState,
    NodeId, NodeName, Registration, ReplicaFill, RequestId, Roles, Settings, SyncChange,
    SyncChangeOrigin,
};

use crate::maps::{hand_over_change, registration};
use crate::random::Random;

/// Number of slots whose writes are watched: one in 256.
const WATCHED: u16 = 64;

pub struct Node {
    pub is_alive: bool,
    /// True if etcd has its lease.
    pub has_lease: bool,
    pub registration: Registration,
    /// The last map that the node received.
    seen: Map,
    /// The writes that it has, for each watched slot.
    rows: Vec<BTreeSet<u32>>,
    /// Replicas that are not in sync yet, but whose acknowledgements it awaits.
    promised: BTreeSet<(u16, NodeId, Epoch)>,
    synced: Vec<SyncedReplica>,
    versions: Vec<VersionProgress>,
    /// The epoch of the map of its last pull.
    epoch: Epoch,
    reported: Vec<Report>,
}

pub struct Cluster {
    pub random: Random,
    pub map: Map,
    pub now_ms: u64,
    pub nodes: BTreeMap<NodeName, Node>,
    reports: BTreeMap<NodeName, Report>,
    pub requests: Vec<(RequestId, ControllerRequest)>,
    pub answers: Vec<(RequestId, Result<String, String>)>,
    acknowledged: Vec<BTreeSet<u32>>,
    next_number: u32,
    pub changes: u64,
    pub blocked: Vec<String>,
    zones: u64,
}

impl Cluster {
    pub fn new(seed: u64) -> Cluster {
        let mut random = Random::new(seed);
        let settings = Settings {
            replicas: 1 + random.below(3) as u8,
            start_nodes: 1 + random.below(3) as u32,
            fill_slots_at_once: *random.of(&[1000, 4096, 16_384]),
            replace_after_ms: 60_000,
            push_silence_ms: 600_000,
            ..Settings::default()
        };
        let mut cluster = Cluster {
            map: Map::new("test", settings),
            now_ms: 1_000_000,
            nodes: BTreeMap::new(),
            reports: BTreeMap::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            acknowledged: vec![BTreeSet::new(); usize::from(WATCHED)],
            next_number: 1,
            changes: 0,
            blocked: Vec::new(),
            zones: 1 + random.below(3),
            random,
        };
        for _ in 0..3 + cluster.random.below(4) {
            cluster.start_new();
        }
        cluster
    }

    pub fn start_new(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        let zone = format!("zone-{}", self.random.below(self.zones));
        let mut registration = registration(number, &zone, 1 + self.random.below(2) as u32);
        if self.random.one_in(6) && number > 3 {
            registration.roles = *self.random.of(&[Roles::Base, Roles::Compute]);
        }
        let node = Node {
            is_alive: true,
            has_lease: true,
            seen: self.map.clone(),
            rows: vec![BTreeSet::new(); usize::from(WATCHED)],
            promised: BTreeSet::new(),
            synced: Vec::new(),
            versions: Vec::new(),
            epoch: Epoch(0),
            reported: Vec::new(),
            registration,
        };
        self.nodes.insert(node.registration.name.clone(), node);
    }

    /// Executes one random event.
    pub fn step(&mut self) {
        self.now_ms += self.random.below(3_000);
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        let name = self.random.of(&names).clone();
        match self.random.below(40) {
            0 => self.kill(&name),
            1 => self.cut_off(&name),
            2 | 3 => self.bring_back(&name),
            4 if names.len() < 8 => self.start_new(),
            5 => self.request(&name),
            6..=9 => self.deliver_map(&name),
            10..=19 => self.write(&name),
            20..=24 => self.work(&name),
            25..=28 => self.report(&name),
            29 => self.drop_a_replica(&name),
            _ => {
                self.control();
            }
        }
        // A lease expires some time after its node has died.
        if self.random.one_in(4) {
            for node in self.nodes.values_mut().filter(|node| !node.is_alive) {
                node.has_lease = false;
            }
        }
    }

    pub fn kill(&mut self, name: &NodeName) {
        self.node(name).is_alive = false;
        if self.random.one_in(8) {
            let disk = DiskId(1_000_000 + self.now_ms);
            let node = self.node(name);
            node.rows = vec![BTreeSet::new(); usize::from(WATCHED)];
            node.registration.disk = disk;
        }
    }

    /// The node loses its lease while it is alive, and continues with its last map.
    fn cut_off(&mut self, name: &NodeName) {
        self.node(name).has_lease = false;
    }

    pub fn bring_back(&mut self, name: &NodeName) {
        let map = self.map.clone();
        let node = self.node(name);
        if node.is_alive && node.has_lease {
            return;
        }
        node.is_alive = true;
        node.has_lease = true;
        node.registration.incarnation = Incarnation(node.registration.incarnation.0 + 1);
        node.promised.clear();
        node.synced.clear();
        node.reported.clear();
        node.seen = map;
    }

    /// The node receives the current map.
    pub fn deliver_map(&mut self, name: &NodeName) {
        let map = self.map.clone();
        let node = self.node(name);
        if !node.is_alive || !node.has_lease {
            return;
        }
        node.seen = map;
        // It discards the rows of slots that it no longer holds.
        if let Some(id) = node.id() {
            for watched in 0..WATCHED {
                let placed = &node.seen.slots().of(watched * 256).placement;
                if !placed.is_holder(id) && placed.filling(id).is_none() {
                    node.rows[usize::from(watched)].clear();
                }
            }
        }
    }

    /// The node writes to a slot that it owns according to its map.
    fn write(&mut self, name: &NodeName) {
        let watched = self.random.below(u64::from(WATCHED)) as u16;
        let slot = watched * 256;
        let node = &self.nodes[name];
        let Some(id) = node.id().filter(|_| node.is_alive) else {
            return;
        };
        let placed = &node.seen.slots().of(slot).placement;
        // Its own map must have it up in this incarnation; otherwise it has not been admitted yet.
        let is_let_in = node.seen.member(id).is_some_and(|it| {
            it.registration.incarnation == node.registration.incarnation
                && it.state != MemberState::Down
        });
        if placed.owner != Some(id) || !is_let_in {
            return;
        }
        let promised = placed
            .filling
            .iter()
            .filter(|it| node.promised.contains(&(slot, it.node, it.began)));
        let needed: Vec<NodeId> = placed
            .in_sync
            .iter()
            .copied()
            .chain(promised.map(|it| it.node))
            .collect();
        let term = placed.term;
        let names: Vec<NodeName> = needed
            .iter()
            .filter_map(|&it| Some(self.map.member(it)?.name().clone()))
            .collect();
        let write = self.next_number;
        self.next_number += 1;
        self.node(name).rows[usize::from(watched)].insert(write);
        let mut all = names.len() == needed.len();
        for other in names {
            let other = self.node(&other);
            let accepts = other.is_alive && other.seen.slots().of(slot).placement.term <= term;
            if accepts {
                other.rows[usize::from(watched)].insert(write);
            }
            all &= accepts;
        }
        if all {
            self.acknowledged[usize::from(watched)].insert(write);
            self.check_rows();
        }
    }

    /// The node fills replicas, and pulls versions.
    pub fn work(&mut self, name: &NodeName) {
        let node = &self.nodes[name];
        let Some(id) = node.id().filter(|_| node.is_alive) else {
            return;
        };
        let seen = node.seen.clone();
        for run in seen
            .slots()
            .runs()
            .iter()
            .filter(|run| run.placement.owner == Some(id))
        {
            for &ReplicaFill { node: other, began } in &run.placement.filling {
                let Some(other_name) = self.map.member(other).map(|it| it.name().clone()) else {
                    continue;
                };
                if self.random.one_in(4) {
                    continue;
                }
                let watched: Vec<u16> = (0..WATCHED)
                    .filter(|it| run.slots.contains(it * 256))
                    .collect();
                let accepts = {
                    let other = &self.nodes[&other_name];
                    let mut terms = watched
                        .iter()
                        .map(|it| other.seen.slots().of(it * 256).placement.term);
                    other.is_alive && terms.all(|term| term <= run.placement.term)
                };
                if !accepts {
                    continue;
                }
                for watched in watched {
                    let rows = self.nodes[name].rows[usize::from(watched)].clone();
                    self.node(&other_name).rows[usize::from(watched)] = rows;
                    self.node(name)
                        .promised
                        .insert((watched * 256, other, began));
                }
                let synced = SyncedReplica {
                    slots: run.slots,
                    term: run.placement.term,
                    node: other,
                    began,
                };
                self.node(name).synced.push(synced);
            }
        }
        self.pull(name, &seen);
    }

    fn pull(&mut self, name: &NodeName, seen: &Map) {
        self.node(name).epoch = seen.epoch();
        for (store_name, store) in seen.stores() {
            let pushed = store.push.iter().map(|push| &push.version);
            for version in store.live.iter().chain(&store.kept).chain(pushed) {
                let node = &self.nodes[name];
                if node.versions.iter().any(|it| {
                    it.store == *store_name
                        && it.version == version.version
                        && it.progress
                            == (Progress::Ready {
                                digest: version.digest.clone(),
                            })
                }) {
                    continue;
                }
                let live = store.live.as_ref() == Some(version);
                let progress = match self.random.below(12) {
                    0 if !live => Progress::Failed {
                        why: "the disk is full".into(),
                    },
                    1 if !live => Progress::Ready {
                        digest: "another".into(),
                    },
                    2..=4 => Progress::Pulling {
                        bytes: self.random.below(1000),
                        of_bytes: 1000,
                    },
                    _ => Progress::Ready {
                        digest: version.digest.clone(),
                    },
                };
                let (store, version) = (store_name.clone(), version.version);
                let node = self.node(name);
                node.versions
                    .retain(|it| it.store != store || it.version != version);
                node.versions.push(VersionProgress {
                    store,
                    version,
                    progress,
                });
            }
        }
    }

    /// The node reports. An older report of the same incarnation may arrive instead.
    pub fn report(&mut self, name: &NodeName) {
        let late = self.random.below(3) as usize;
        let node = self.node(name);
        if !node.has_lease || !node.is_alive {
            return;
        }
        node.reported.push(Report {
            incarnation: node.registration.incarnation,
            epoch: node.epoch,
            versions: node.versions.clone(),
            synced: node.synced.clone(),
            ..Report::default()
        });
        let at = node.reported.len().saturating_sub(1 + late);
        let report = node.reported[at].clone();
        self.reports.insert(name.clone(), report);
    }

    /// An owner drops a replica that does not acknowledge, by compare-and-swap on the map and its own lease.
    fn drop_a_replica(&mut self, name: &NodeName) {
        let node = &self.nodes[name];
        let Some(id) = node.id().filter(|_| node.is_alive && node.has_lease) else {
            return;
        };
        let runs = node.seen.slots().runs().iter();
        let owned =
            runs.filter(|run| run.placement.owner == Some(id) && !run.placement.in_sync.is_empty());
        let slots = owned.map(|run| SyncChange {
            slots: run.slots,
            term: run.placement.term,
            out: run.placement.in_sync[..1].to_vec(),
            into: Vec::new(),
        });
        let slots: Vec<SyncChange> = slots.take(3).collect();
        if self
            .map
            .apply(
                &Change::SyncChanged {
                    by: SyncChangeOrigin::Owner(id),
                    slots: slots.clone(),
                },
                &ChangeId("owner".into()),
            )
            .is_ok()
        {
            self.make(Change::SyncChanged {
                by: SyncChangeOrigin::Owner(id),
                slots,
            });
            self.deliver_map(&name.clone());
        }
    }

    fn request(&mut self, name: &NodeName) {
        let id = RequestId(format!("request-{}", self.now_ms));
        let node = name.clone();
        let store = "store".parse().expect("a name");
        let request = match self.random.below(7) {
            0 => ControllerRequest::Drain { node },
            1 | 2 => ControllerRequest::Keep { node },
            3 => ControllerRequest::RollBack { store, to: None },
            _ => ControllerRequest::Push {
                store,
                source: "s3://bucket".into(),
                digest: format!("digest-{}", self.now_ms),
                allow_missing_replicas: self.random.below(2) as u32,
                options: BTreeMap::new(),
            },
        };
        self.requests.push((id, request));
    }

    /// Runs one step of the controller. Returns whether it did anything.
    pub fn control(&mut self) -> bool {
        let with_lease = self.nodes.values().filter(|node| node.has_lease);
        let registered = with_lease
            .map(|node| (node.registration.name.clone(), node.registration.clone()))
            .collect();
        let world = Inputs {
            map: &self.map,
            now_ms: self.now_ms,
            registered: &registered,
            reports: &self.reports,
            requests: &self.requests,
        };
        let decision = decide(&world);
        if self.changes.is_multiple_of(8) {
            assert_eq!(decision, decide(&world), "it keeps nothing");
        }
        match decision {
            Decision::Change { change, .. } => {
                let id = ChangeId(format!("change-{}", self.map.epoch()));
                let next = next_map(&world, &change, &id);
                self.take(&change, next);
                true
            }
            Decision::Answer { request, answer } => {
                self.requests.retain(|(id, _)| *id != request);
                self.answers.push((request, answer));
                true
            }
            Decision::Wait { blocked, .. } => {
                self.blocked = blocked;
                self.hand_over()
            }
        }
    }

    /// Owners with the newest map hand over slots that other nodes should own.
    fn hand_over(&mut self) -> bool {
        let epoch = self.map.epoch();
        let change = hand_over_change(&self.map, |id| {
            let name = self.map.member(id).map(|it| it.name());
            let node = name.and_then(|name| self.nodes.get(name));
            node.is_some_and(|it| it.is_alive && it.has_lease && it.seen.epoch() == epoch)
        });
        let is_any = change.is_some();
        if let Some(change) = change {
            self.make(change);
        }
        is_any
    }

    fn make(&mut self, change: Change) {
        let id = ChangeId(format!("change-{}", self.map.epoch()));
        let next = self.map.apply(&change, &id);
        self.take(&change, next);
    }

    fn take(&mut self, change: &Change, next: Result<Map, ChangeRejected>) {
        let next = next.unwrap_or_else(|refused| panic!("{refused}: {change:?}"));
        assert_eq!(next.check(), Ok(()), "{change:?}");
        if let Change::VersionLive {
            missing: lacking,
            store,
            ..
        } = &change
        {
            self.check_live(&next, lacking, store);
        }
        if matches!(change, Change::RowsDiscarded { .. }) {
            for watched in 0..WATCHED {
                if next.slots().of(watched * 256).placement.owner.is_none() {
                    self.acknowledged[usize::from(watched)].clear();
                }
            }
        }
        for run in next.slots().runs() {
            let before = self.map.slots().of(run.slots.from).placement.term;
            assert!(run.placement.term >= before, "a term goes back");
        }
        self.map = next;
        self.changes += 1;
        self.check_rows();
    }

    fn check_live(&self, map: &Map, lacking: &[NodeId], store: &larder_types::StoreName) {
        let push = self.map.stores()[store]
            .push
            .as_ref()
            .expect("it was pushed");
        assert!(lacking.len() <= push.allow_missing_replicas as usize);
        for run in map
            .slots()
            .runs()
            .iter()
            .filter(|run| run.placement.owner.is_some())
        {
            assert!(
                run.placement.holders().any(|node| !lacking.contains(&node)),
                "{} are on no node",
                run.slots
            );
        }
    }

    /// Checks that every holder in the map has every acknowledged write, unless it lost its disk since.
    fn check_rows(&self) {
        for watched in 0..WATCHED {
            let placed = &self.map.slots().of(watched * 256).placement;
            for id in placed.holders() {
                let member = self.map.member(id).expect("holders are members");
                let node = &self.nodes[member.name()];
                if node.registration.disk == member.registration.disk {
                    let missing = self.acknowledged[usize::from(watched)]
                        .difference(&node.rows[usize::from(watched)]);
                    assert_eq!(
                        missing.count(),
                        0,
                        "{} lacks acknowledged writes of slot {}: {placed:?}",
                        member.name(),
                        watched * 256
                    );
                }
            }
        }
    }

    /// Brings all nodes back and runs until nothing is left to do. An operator acts where the controller requires it.
    pub fn settle(&mut self) {
        for _ in 0..400 {
            self.now_ms += 5_000;
            let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
            for name in &names {
                let is_removed = self
                    .map
                    .member_named(name)
                    .is_some_and(|it| it.leaving == Some(Departure::Remove));
                if is_removed {
                    let node = self.node(name);
                    (node.is_alive, node.has_lease) = (false, false);
                } else {
                    self.bring_back(name);
                }
                self.deliver_map(name);
                self.work(name);
                self.report(name);
            }
            let mut busy = false;
            for _ in 0..50 {
                busy |= self.control();
            }
            if !busy && self.is_settled() {
                return;
            }
            if !busy && !self.blocked.is_empty() {
                self.discard_lost_rows();
            }
        }
        panic!(
            "it does not settle: {:?}\n{}",
            self.blocked,
            self.map.to_text()
        );
    }

    fn is_settled(&self) -> bool {
        let runs = self.map.slots().runs();
        let placed = runs
            .iter()
            .all(|run| run.placement.is_settled() && run.placement.owner.is_some());
        let quiet = self
            .map
            .stores()
            .values()
            .all(|it| it.push.is_none() && it.lacking.is_empty());
        let base = self.map.members().iter().filter(|it| it.may_hold()).count();
        (placed || base < self.map.settings().start_nodes as usize)
            && quiet
            && self.requests.is_empty()
            && self.blocked.is_empty()
    }

    fn discard_lost_rows(&mut self) {
        let down = self
            .map
            .members()
            .iter()
            .filter(|it| it.state == MemberState::Down);
        let requests: Vec<ControllerRequest> = down
            .map(|it| ControllerRequest::Remove {
                node: it.name().clone(),
                lose_rows: true,
            })
            .collect();
        let requests = requests.into_iter().enumerate();
        self.requests
            .extend(requests.map(|(at, request)| {
                (RequestId(format!("give-up-{}-{at}", self.now_ms)), request)
            }));
    }

    fn node(&mut self, name: &NodeName) -> &mut Node {
        self.nodes.get_mut(name).expect("a node")
    }
}

impl Node {
    fn id(&self) -> Option<NodeId> {
        Some(self.seen.member_named(&self.registration.name)?.id)
    }
}
