//! A node: its sessions with the service, the controller if it is the leader, its rows, its stores.

mod store_reads;

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::controller::{
    ControllerRequest, Decision, Inputs, Report, SyncedReplica, decide, next_map,
};
use larder_cluster::coordination::{
    Change, Entry, Outcome, Revision, Writer, leader, put_candidate,
};
use larder_cluster::map::{
    Change as MapChange, ChangeId, Departure, DiskId, Epoch, Incarnation, Map, MemberState, NodeId,
    NodeName, Registration, RequestId, Roles, Settings, SlotRange, SyncChange, SyncChangeOrigin,
    Term,
};
use larder_cluster::replication::recovery::{Identity, prove_disk};
use larder_cluster::replication::{MapRequest, Outputs as Put, SlotMapChange};
use larder_sim::{Input, NodeId as At, Output, Outputs, Random, Start};
use larder_types::VersionId;

use super::agent::{Agent, ServiceEvent, WriteKind};
use super::joins::{Joins, MARGIN_MS, TRUST_MS};
use super::stores::{PartitionRead, Stores};
use super::view::{read_map, without};
use super::{SERVICE, SLOTS, Setup};
use crate::replication::host::Host;
use crate::replication::server::{read_identity, write_identity};
use crate::replication::wire::{Peer, Wire};

const TICK_US: u64 = 40_000;

pub struct Node {
    at: At,
    name: NodeName,
    began_ms: u64,
    setup: Setup,
    random: Random,
    pub host: Host,
    found: Option<Identity>,
    is_log_whole: bool,
    identity: Option<Identity>,
    /// The change that writes a new incarnation to the disk, which comes before the registration.
    identity_change: Option<u64>,
    is_registered: bool,
    /// The node was removed, and has ended.
    pub is_over: bool,
    agent: Agent,
    writers: BTreeMap<WriteKind, Writer>,
    controls: Writer,
    /// The newest known map.
    revision: Revision,
    pub map: Option<Arc<Map>>,
    is_member: bool,
    /// The map that results if the change in flight is made.
    map_to_be: Option<Arc<Map>>,
    /// The controller has not seen the latest changes, including those that a mirror recovered after a loss, at a revision that
    /// it already knew.
    has_news: bool,
    control_again_ms: u64,
    /// For slots without rows, the time when each fill was first seen.
    fills: BTreeMap<(SlotRange, Term, NodeId, Epoch), u64>,
    /// Slots with rows whose fill is complete.
    filled: BTreeMap<(u16, NodeId, Epoch), Term>,
    reported: Option<Report>,
    pub stores: Stores,
    partition_reads: BTreeMap<u64, PartitionRead>,
    look_numbers: u64,
}

impl Node {
    pub fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Wire>) -> Node {
        let name: NodeName = format!("n{}", start.me.0).parse().expect("a name");
        let mut host = Host::load(&start, SLOTS.to_vec(), setup.syncs_always, setup.bugs, out);
        host.joins = (setup.joins).map(|bug| Joins::new(start.me, setup.nodes, bug, start.now_us));
        let writer = |of: &str| Writer::new(format!("{of}-{name}"), start.seed);
        let writers = [
            (WriteKind::Register, "life"),
            (WriteKind::Map, "owner"),
            (WriteKind::Report, "report"),
            (WriteKind::Answer, "answer"),
        ];
        out.push(Output::Wake(start.now_us + 1));
        Node {
            at: start.me,
            began_ms: start.now_us / 1_000,
            setup: setup.clone(),
            random: Random::stream(start.seed, 3),
            host,
            found: read_identity(start.disk.read("identity")),
            is_log_whole: setup.syncs_always || !start.lost_power,
            identity: None,
            identity_change: None,
            is_registered: false,
            is_over: !start.disk.read("over").is_empty(),
            agent: Agent::new(),
            writers: writers.map(|(kind, of)| (kind, writer(of))).into(),
            controls: Writer::new(format!("controller-{name}"), start.seed),
            revision: Revision(0),
            map: None,
            is_member: false,
            map_to_be: None,
            has_news: true,
            control_again_ms: 0,
            fills: BTreeMap::new(),
            filled: BTreeMap::new(),
            reported: None,
            stores: Stores::load(start.disk.read("stores")),
            partition_reads: BTreeMap::new(),
            look_numbers: 0,
            name,
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        let is_late = self.at.0 == self.setup.nodes && now_us < self.setup.joins_us;
        if self.is_over || (is_late && matches!(input, Input::Tick)) {
            if matches!(input, Input::Tick) {
                out.push(Output::Wake(now_us + TICK_US));
            }
            return;
        }
        let now_ms = now_us / 1_000;
        let mut put = Put::default();
        match input {
            Input::Tick => {
                self.agent.tick(now_ms, out);
                self.host.tick(now_ms, &mut put, out);
                self.prove(now_ms, out);
                self.pull(now_ms, out);
                self.report(now_ms);
                self.hand_over_slots();
                self.control(now_ms, out);
                out.push(Output::Wake(now_us + TICK_US));
            }
            Input::Connected(SERVICE) => self.agent.connected(true),
            Input::Lost(SERVICE) => self.agent.connected(false),
            Input::Connected(peer) if self.is_node(peer) => self.host.connected(peer, out),
            Input::Lost(peer) if self.is_node(peer) => self.host.lost(peer, now_ms),
            Input::Message(from, wire) => self.receive(now_ms, from, wire, &mut put, out),
            Input::Synced(upto) => {
                self.host.synced(upto, &mut put);
                self.stores.synced(upto);
                if self.identity_change.is_some_and(|change| change <= upto) {
                    self.identity_change = None;
                    self.register();
                }
            }
            _ => {}
        }
        for request in self.host.end_turn(now_ms, put, out) {
            self.request_map_change(request);
        }
    }

    /// A description for debugging.
    pub fn shown(&self) -> String {
        let epoch = self.map.as_ref().map(|map| map.epoch());
        let life = self.identity.map(|it| it.incarnation);
        let acts = (self.is_member, self.is_registered);
        let leader = leader(&self.agent.mirror).map(|it| it.key.clone());
        format!(
            "{} life {life:?} {acts:?} epoch {epoch:?} behind {} missing {} lease {:?} leader {leader:?} {:?}\n",
            self.name,
            self.host.behind,
            self.host.missing,
            self.agent.lease_id(),
            self.stores
        )
    }

    fn is_node(&self, peer: At) -> bool {
        (1..=self.setup.nodes).contains(&peer.0)
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
            Wire::Answer(number, reply) => {
                if let Some(event) = self.agent.handle_reply(now_ms, number, *reply, out) {
                    self.handle_service_event(now_ms, event, put, out);
                }
                self.agent.tick(now_ms, out);
            }
            Wire::Heard(number, item) => {
                if let Some(event) = self.agent.handle_watch_item(number, item) {
                    self.handle_service_event(now_ms, event, put, out);
                }
                self.agent.tick(now_ms, out);
            }
            Wire::Hello(node) => self.host.hello(from, node, now_ms),
            Wire::Join(conversation, message) => {
                if let Some(joins) = &mut self.host.joins {
                    joins.receive(from, conversation, message, now_ms, out);
                }
            }
            Wire::Peer(Peer(bytes)) => self.host.receive(from, &bytes, now_ms, put),
            Wire::Request(number, mut call) => {
                call.slot = SLOTS[usize::from(call.slot)];
                self.host.execute(now_ms, from, number, call, put, out);
            }
            Wire::ReadVersions(number) => self.read_versions(from, number, out),
            Wire::Part(number, slot, version) => {
                let answer = self.partition_version(slot, version);
                out.push(Output::Send(from, Wire::PartOf(number, slot, answer)));
            }
            Wire::PartOf(number, slot, answer) => {
                self.handle_partition_reply(number, slot, answer, out)
            }
            _ => {}
        }
    }

    fn handle_service_event(
        &mut self,
        now_ms: u64,
        event: ServiceEvent,
        put: &mut Put,
        out: &mut Outputs<Wire>,
    ) {
        self.has_news = true;
        match event {
            ServiceEvent::Mirror => {
                if let Some(entry) = self.agent.mirror.get("map").cloned() {
                    self.take_map(now_ms, &entry, put, out);
                }
                self.prove(now_ms, out);
            }
            ServiceEvent::Renewed => self.extend_lease(),
            // A new lease starts a new incarnation.
            ServiceEvent::Leased => self.start_incarnation(out),
            ServiceEvent::LeaseEnded => {
                self.is_registered = false;
                self.map_to_be = None;
                self.extend_lease();
            }
            ServiceEvent::Changed(WriteKind::Register, outcome) => {
                self.is_registered = matches!(outcome, Some(Outcome::Done(_)));
                match outcome {
                    Some(Outcome::Done(_)) => self.extend_lease(),
                    Some(Outcome::Conflict(at)) => {
                        self.register_after(at.first().cloned().flatten())
                    }
                    None => {}
                }
            }
            ServiceEvent::Changed(WriteKind::Map, outcome) => {
                let to_be = self.map_to_be.take();
                match outcome {
                    Some(Outcome::Done(revision)) => {
                        // A late reply may concern a map that the watch has already delivered, with later ones.
                        if let Some(map) = to_be.filter(|_| revision > self.revision) {
                            self.apply_map(now_ms, revision, map, put, out);
                        }
                    }
                    Some(Outcome::Conflict(at)) => {
                        if let Some(Some(entry)) = at.first() {
                            self.take_map(now_ms, entry, put, out);
                        }
                    }
                    None => {}
                }
            }
            ServiceEvent::Changed(WriteKind::Report, outcome) => {
                if !matches!(outcome, Some(Outcome::Done(_))) {
                    self.reported = None;
                }
            }
            ServiceEvent::Changed(WriteKind::Answer, _) => {}
        }
        self.control(now_ms, out);
    }

    fn take_map(&mut self, now_ms: u64, entry: &Entry, put: &mut Put, out: &mut Outputs<Wire>) {
        if entry.key == "map" && entry.modified > self.revision {
            self.apply_map(now_ms, entry.modified, read_map(&entry.value), put, out);
        }
    }

    /// Proves the disk, or discards its contents. With joins, a new life must not end the one before while readers may still trust the rows
    /// that it sent, so the node waits.
    fn prove(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        let is_early = self.host.joins.is_some() && now_ms < self.began_ms + TRUST_MS + MARGIN_MS;
        if self.identity.is_some() || !self.agent.is_confirmed || is_early {
            return;
        }
        let member = self
            .map
            .as_ref()
            .and_then(|map| map.member_named(&self.name));
        let known = member.map(|it| Identity {
            disk: it.registration.disk,
            incarnation: it.registration.incarnation,
        });
        let proof = prove_disk(self.found, known, self.is_log_whole);
        let newest = [self.found, known].into_iter().flatten();
        let newest = newest.map(|it| it.incarnation).max();
        let disk = match proof {
            Ok(()) => self.found.expect("it is proven").disk,
            Err(_) => {
                self.host.forget(out);
                DiskId(self.random.word())
            }
        };
        self.identity = Some(Identity {
            disk,
            incarnation: newest.unwrap_or(Incarnation(0)),
        });
        self.start_incarnation(out);
    }

    /// Begins a new incarnation: it is written to the disk first, then to the service.
    fn start_incarnation(&mut self, out: &mut Outputs<Wire>) {
        let (Some(identity), Some(_)) = (&mut self.identity, &self.agent.lease) else {
            return;
        };
        identity.incarnation = Incarnation(identity.incarnation.0 + 1);
        let bytes = write_identity(*identity);
        self.is_member = false;
        self.identity_change = Some(self.host.replace("identity", bytes, out));
        self.host.sync_due = true;
        self.reported = None;
    }

    fn register(&mut self) {
        self.register_after(self.agent.mirror.get(&self.node_key()).cloned());
    }

    fn node_key(&self) -> String {
        format!("nodes/{}", self.name)
    }

    fn register_after(&mut self, before: Option<Entry>) {
        let (Some(identity), Some(lease)) = (self.identity, self.agent.lease_id()) else {
            return;
        };
        let registration = Registration {
            name: self.name.clone(),
            incarnation: identity.incarnation,
            disk: identity.disk,
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores: 1,
            zone: format!("zone{}", self.at.0 % self.setup.zones),
            weight: 1,
            roles: Roles::Both,
        };
        let modified = before.map_or(Revision(0), |entry| entry.modified);
        let value = serde_json::to_vec(&registration).expect("plain");
        let writer = self
            .writers
            .get_mut(&WriteKind::Register)
            .expect("all are there");
        let key = format!("nodes/{}", self.name);
        let change = writer
            .change()
            .if_unchanged(key.clone(), modified)
            .put_bound(key, value, Some(lease));
        let change = put_candidate(change, lease, self.name.as_str());
        self.agent.write(WriteKind::Register, change);
    }

    /// The lease applies to the slots of a map with this incarnation.
    fn extend_lease(&mut self) {
        let lease = self.agent.lease.as_ref();
        let until = lease.map_or(0, |lease| lease.held_until_ms());
        let acts = self.is_member && self.is_registered;
        self.host.set_lease(if acts { until } else { 0 });
    }

    fn apply_map(
        &mut self,
        now_ms: u64,
        revision: Revision,
        map: Arc<Map>,
        put: &mut Put,
        out: &mut Outputs<Wire>,
    ) {
        self.revision = revision;
        self.map = Some(map.clone());
        let Some(member) = map.member_named(&self.name) else {
            return;
        };
        let life = self.identity.map(|it| it.incarnation);
        self.is_member =
            life == Some(member.registration.incarnation) && member.state == MemberState::Up;
        let has_slots = map
            .slots()
            .runs()
            .iter()
            .any(|run| run.placement.includes(member.id));
        if member.leaving == Some(Departure::Remove) && !has_slots {
            self.is_over = true;
            self.host.replace("over", b"1".to_vec(), out);
            return;
        }
        if let Some(joins) = &mut self.host.joins {
            let at = |node: NodeId| At(map.name_of(node)[1..].parse().expect("n and a number"));
            let owner = |slot: &u16| map.slots().of(*slot).placement.owner.map(at);
            let owners = SLOTS.iter().map(owner).collect();
            let up = (map.members().iter()).filter(|it| it.state == MemberState::Up);
            joins.take_map(map.epoch().0, owners, up.map(|it| at(it.id)).collect());
            joins.start_incarnation(life.map_or(0, |it| it.0) * u64::from(self.is_member), out);
        }
        if self.is_member {
            self.host.begin(member.id, now_ms, put, out);
            self.host.assign(&map, true, now_ms, put);
        }
        self.extend_lease();
    }

    fn me(&self) -> Option<NodeId> {
        self.map.as_ref()?.member_named(&self.name).map(|it| it.id)
    }

    /// Handles a map change that replication requests: writes it, or reports it to the controller.
    fn request_map_change(&mut self, request: MapRequest) {
        let (Some(me), Some(map), true) = (self.me(), self.map.clone(), self.is_member) else {
            return;
        };
        let placed = &map.slots().of(request.slot).placement;
        if placed.owner != Some(me) || placed.term != request.term {
            return;
        }
        let slots = SlotRange::new(request.slot, request.slot);
        let change = match request.change {
            SlotMapChange::AddReplica(place, began) => {
                self.filled
                    .insert((request.slot, place.node, began), request.term);
                return;
            }
            SlotMapChange::RemoveReplica(place) => MapChange::SyncChanged {
                by: SyncChangeOrigin::Owner(me),
                slots: vec![SyncChange {
                    slots,
                    term: request.term,
                    out: vec![place.node],
                    into: Vec::new(),
                }],
            },
            SlotMapChange::AbortFill(place) => MapChange::FillsEnded {
                slots: vec![(slots, place.node)],
            },
            SlotMapChange::MoveOwnership(place, epoch) if epoch == map.epoch() => {
                MapChange::OwnersMoved {
                    slots: vec![(slots, place.node)],
                }
            }
            SlotMapChange::MoveOwnership(..) => return,
        };
        let Some(entry) = self.agent.mirror.get(&self.node_key()) else {
            return;
        };
        let created = entry.created;
        if !self.is_registered || self.agent.is_writing(WriteKind::Map) {
            return;
        }
        let writer = self
            .writers
            .get_mut(&WriteKind::Map)
            .expect("all are there");
        let write = writer.change();
        let id = ChangeId(write.mark.id.clone());
        if let Ok(next) = map.apply(&change, &id) {
            let key = format!("nodes/{}", self.name);
            let write = write.if_created_at(key, created);
            self.write_map(write, next);
        }
    }

    /// Hands over owned slots without rows as soon as the map requests it: no other node computes from them.
    fn hand_over_slots(&mut self) {
        let (Some(me), Some(map), true) = (self.me(), self.map.clone(), self.is_member) else {
            return;
        };
        let Some(entry) = self.agent.mirror.get(&self.node_key()) else {
            return;
        };
        let created = entry.created;
        let mut slots = Vec::new();
        for run in map.slots().runs() {
            if let Some(heir) = run
                .placement
                .next_owner()
                .filter(|_| run.placement.owner == Some(me))
            {
                let without = without(run.slots, &SLOTS).into_iter();
                slots.extend(without.map(|slots| (slots, heir)));
            }
        }
        if slots.is_empty() || !self.is_registered || self.agent.is_writing(WriteKind::Map) {
            return;
        }
        let writer = self
            .writers
            .get_mut(&WriteKind::Map)
            .expect("all are there");
        let write = writer.change();
        let id = ChangeId(write.mark.id.clone());
        if let Ok(next) = map.apply(&MapChange::OwnersMoved { slots }, &id) {
            let key = format!("nodes/{}", self.name);
            let write = write.if_created_at(key, created);
            self.write_map(write, next);
        }
    }

    fn write_map(&mut self, write: Change, next: Map) {
        let write = write.if_unchanged("map", self.revision);
        // The map is the first entry of a conflict.
        let mut write = write;
        write.compares.rotate_right(1);
        self.agent
            .write(WriteKind::Map, write.put("map", next.to_text()));
        self.map_to_be = Some(Arc::new(next));
    }

    /// Runs a step of the controller, if this node is the leader.
    fn control(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        let Some(lease) = self.agent.lease_id() else {
            return;
        };
        let mirror = &self.agent.mirror;
        let own = format!("controller/{lease}");
        let leads = leader(mirror).filter(|entry| entry.key == own);
        let Some(candidate) = leads.map(|entry| entry.created) else {
            return;
        };
        let is_busy =
            self.agent.is_writing(WriteKind::Map) || self.agent.is_writing(WriteKind::Answer);
        if is_busy || (!self.has_news && now_ms < self.control_again_ms) {
            return;
        }
        let registered = mirror
            .entries()
            .filter(|entry| entry.key.starts_with("nodes/"));
        let registered = registered.map(|entry| {
            let it: Registration = serde_json::from_slice(&entry.value).expect("a registration");
            (it.name.clone(), it)
        });
        let registered: BTreeMap<NodeName, Registration> = registered.collect();
        let reports = mirror.entries().filter_map(|entry| {
            let name = entry.key.strip_prefix("reports/")?.parse().ok()?;
            Some((
                name,
                serde_json::from_slice(&entry.value).expect("a report"),
            ))
        });
        let reports: BTreeMap<NodeName, Report> = reports.collect();
        let mut requests: Vec<(&Entry, (RequestId, ControllerRequest))> = Vec::new();
        for entry in mirror.entries() {
            if let Some(id) = entry.key.strip_prefix("asks/") {
                let request = serde_json::from_slice(&entry.value).expect("a request");
                requests.push((entry, (RequestId(id.to_owned()), request)));
            }
        }
        requests.sort_by_key(|(entry, _)| entry.created);
        let (entries, requests): (Vec<&Entry>, Vec<(RequestId, ControllerRequest)>) =
            requests.into_iter().unzip();
        let map = match &self.map {
            Some(map) => map.clone(),
            None => Arc::new(Map::new("test", self.settings())),
        };
        let world = Inputs {
            map: &map,
            now_ms,
            registered: &registered,
            reports: &reports,
            requests: &requests,
        };
        let decision = decide(&world);
        let fence = |write: Change| {
            if self.setup.planted.leads_without_a_lease {
                write
            } else {
                write.if_created_at(own, candidate)
            }
        };
        match decision {
            Decision::Change {
                change,
                why,
                request,
            } => {
                out.note(|| format!("controller: {why}"));
                let write = self.controls.change();
                let next = next_map(&world, &change, &ChangeId(write.mark.id.clone()));
                let next = next.unwrap_or_else(|refused| panic!("{refused}: {change:?}"));
                let mut write = fence(write);
                if let Some(at) = requests
                    .iter()
                    .position(|(id, _)| Some(id) == request.as_ref())
                {
                    let (key, modified) = (entries[at].key.clone(), entries[at].modified);
                    write = write.if_unchanged(key, modified);
                }
                if let MapChange::MembersLost { nodes, .. } = &change {
                    // A mirror that lost an event may not know that a node has registered.
                    for name in nodes
                        .iter()
                        .filter_map(|node| Some(map.member(*node)?.name()))
                    {
                        let key = format!("nodes/{name}");
                        let created = mirror.get(&key).map_or(Revision(0), |it| it.created);
                        write = write.if_created_at(key, created);
                    }
                }
                self.write_map(write, next);
            }
            Decision::Answer { request, answer } => {
                let at = requests
                    .iter()
                    .position(|(id, _)| *id == request)
                    .expect("it was asked");
                let (key, modified) = (entries[at].key.clone(), entries[at].modified);
                let text = answer.unwrap_or_else(|why| format!("no: {why}"));
                let writer = self
                    .writers
                    .get_mut(&WriteKind::Answer)
                    .expect("all are there");
                let write = writer
                    .change()
                    .if_unchanged("map", self.revision)
                    .if_unchanged(key.clone(), modified)
                    .delete(key);
                let write = fence(write).put(format!("answers/{request}"), text);
                self.agent.write(WriteKind::Answer, write);
            }
            Decision::Wait {
                wake_at_ms: look_again_at_ms,
                ..
            } => {
                self.has_news = false;
                self.control_again_ms = look_again_at_ms.unwrap_or(u64::MAX).max(now_ms + 100);
            }
        }
        self.agent.tick(now_ms, out);
    }

    fn settings(&self) -> Settings {
        Settings {
            replicas: self.setup.replicas,
            lease_ms: 2_000,
            start_nodes: self.setup.nodes as u32 - 1,
            fill_slots_at_once: 8_192,
            replace_after_ms: 3_000,
            push_silence_ms: 6_000,
            ..Settings::default()
        }
    }

    /// Returns completed fills: for slots with rows, when replication reports it; for others, after a delay.
    fn synced(&mut self, now_ms: u64) -> Vec<SyncedReplica> {
        let (Some(me), Some(map)) = (self.me(), &self.map) else {
            return Vec::new();
        };
        let (mut all, mut fills) = (Vec::new(), BTreeMap::new());
        let owned = map
            .slots()
            .runs()
            .iter()
            .filter(|run| run.placement.owner == Some(me));
        for run in owned {
            for filling in &run.placement.filling {
                let (term, node, began) = (run.placement.term, filling.node, filling.began);
                let synced = |slots| SyncedReplica {
                    slots,
                    term,
                    node,
                    began,
                };
                let key = (run.slots, term, node, began);
                let since = self.fills.get(&key).copied().unwrap_or(now_ms);
                fills.insert(key, since);
                let is_early = self.setup.planted.reports_fills_early;
                if now_ms >= since + 200 {
                    all.extend(without(run.slots, &SLOTS).into_iter().map(synced));
                }
                for slot in SLOTS.into_iter().filter(|slot| run.slots.contains(*slot)) {
                    let filled = self.filled.get(&(slot, node, began));
                    if filled == Some(&term) || is_early {
                        all.push(synced(SlotRange::new(slot, slot)));
                    }
                }
            }
        }
        self.fills = fills;
        all
    }

    fn report(&mut self, now_ms: u64) {
        if !self.is_member || !self.is_registered || self.agent.is_writing(WriteKind::Report) {
            return;
        }
        let (Some(map), Some(me)) = (self.map.clone(), self.me()) else {
            return;
        };
        let mut report = Report {
            incarnation: self.identity.expect("a member has one").incarnation,
            epoch: map.epoch(),
            versions: self.stores.report(&Stores::required_slots(&map, me)),
            synced: self.synced(now_ms),
            ..Report::default()
        };
        let fillings = map.slots().runs().iter();
        let newest = fillings
            .filter_map(|run| run.placement.filling(me))
            .map(|it| it.began)
            .max();
        if let Some(reported) = &self.reported {
            // A newer epoch alone is not reported, unless the map assigns slots to this node.
            let epoch = std::mem::replace(&mut report.epoch, reported.epoch);
            if report == *reported && newest.is_none_or(|began| began <= reported.epoch) {
                return;
            }
            report.epoch = epoch;
        }
        let key = format!("reports/{}", self.name);
        let before = self.agent.mirror.get(&key);
        let modified = before.map_or(Revision(0), |entry| entry.modified);
        let value = serde_json::to_vec(&report).expect("plain");
        let writer = self
            .writers
            .get_mut(&WriteKind::Report)
            .expect("all are there");
        let write = writer.change().if_unchanged(key.clone(), modified);
        self.agent.write(WriteKind::Report, write.put(key, value));
        self.reported = Some(report);
    }
}
