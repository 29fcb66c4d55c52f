//! Tests that a rebuilt map loses nothing acknowledged, whichever nodes answer.

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;

use larder_cluster::map::{
    Change, ChangeId, ClusterId, DiskId, Epoch, Incarnation, Map, MemberState, NodeId, ReplicaFill,
    SlotRange, SyncChangeOrigin, Term,
};
use larder_cluster::rebuild::{RecoveryPlan, StoredCopy, StoredState, plan};
use larder_cluster::replication::Position;
use larder_cluster::replication::recovery::Identity;

use crate::maps::{apply, members, registration, three};
use crate::random::Random;

const NODE_1: SlotRange = SlotRange { from: 0, to: 5460 };

fn three_with_id() -> Map {
    three().with_id(ClusterId(7))
}

fn position(term: u64, number: u64) -> Position {
    Position {
        term: Term(term),
        number,
    }
}

/// The stored state of node `number` of [`three`]: complete copies of these slots.
fn kept(number: u32, map: &Map, slots: SlotRange, term: u64, last: Position) -> StoredState {
    let member = registration(number, "", 1);
    StoredState {
        node: member.name,
        identity: Some(Identity {
            disk: member.disk,
            incarnation: member.incarnation,
        }),
        map: Some(map.clone()),
        copies: (slots.slots())
            .map(|slot| StoredCopy {
                slot,
                term: Term(term),
                last,
                is_complete: true,
            })
            .collect(),
    }
}

fn holders(plan: &RecoveryPlan, slot: u16) -> Vec<u32> {
    let found = plan.holders.iter().find(|(slots, _)| slots.contains(slot));
    found.map_or(Vec::new(), |(_, nodes)| {
        nodes.iter().map(|it| it.0).collect()
    })
}

#[test]
fn the_holder_with_the_last_change_becomes_the_owner() {
    let map = three_with_id();
    let term = map.slots().of(0).placement.term.0;
    let all = [
        kept(1, &map, NODE_1, term, position(term, 4)),
        kept(2, &map, NODE_1, term, position(term, 9)),
        // It is not a holder of these slots, whatever it has.
        kept(3, &map, NODE_1, term, position(term, 99)),
    ];
    let planned = plan(&all, None, None, &[]).unwrap();
    // Node 1 has everything that was acknowledged, so it remains a holder.
    assert_eq!(holders(&planned, 0), [2, 1]);
    assert_eq!(planned.unconfirmed, 0);
    let next = planned.map(&ChangeId::default(), 50).unwrap();
    assert_eq!(next.check(), Ok(()));
    assert_eq!(next.epoch(), Epoch(map.epoch().0 + 1_000));
    assert_eq!(next.id(), map.id());
    assert!(
        next.members()
            .iter()
            .all(|it| it.state == MemberState::Down)
    );
    assert_eq!(next.slots().of(0).placement.owner, Some(NodeId(2)));
    assert_eq!(next.slots().of(0).placement.term, Term(next.epoch().0));
    // The slots of nodes 2 and 3 wait: neither has a copy.
    assert_eq!(
        planned.waiting,
        BTreeMap::from([
            (vec![NodeId(2), NodeId(3)], 5462),
            (vec![NodeId(3), NodeId(1)], 5461)
        ])
    );
    assert_eq!(next.slots().of(6000).placement.owner, Some(NodeId(2)));
    // They return with new incarnations, and own the chosen slots.
    let mut back = registration(2, "zone-2", 1);
    back.incarnation = Incarnation(2);
    let change = Change::MemberReturned {
        node: NodeId(2),
        registration: back,
        at_ms: 60,
    };
    assert_eq!(
        apply(&next, change).slots().of(0).placement.owner,
        Some(NodeId(2))
    );
}

#[test]
fn holders_with_equal_copies_remain_and_the_owner_stays_the_owner() {
    let map = three_with_id();
    let term = map.slots().of(0).placement.term.0;
    let all = [2, 1].map(|number| kept(number, &map, NODE_1, term, position(term, 9)));
    assert_eq!(holders(&plan(&all, None, None, &[]).unwrap(), 0), [1, 2]);
}

#[test]
fn an_older_disk_or_another_one_does_not_count() {
    let mut map = three_with_id();
    let nodes = vec![NodeId(2)];
    let lost = Change::MembersLost {
        nodes: nodes.clone(),
        owners: vec![(SlotRange::new(5461, 10922), NodeId(3))],
        at_ms: 3,
    };
    map = apply(&map, lost);
    let mut back = registration(2, "zone-2", 1);
    back.incarnation = Incarnation(2);
    let change = Change::MemberReturned {
        node: NodeId(2),
        registration: back,
        at_ms: 4,
    };
    map = apply(&map, change);
    let old = kept(2, &map, SlotRange::ALL, 3, position(3, 99));
    let term = map.slots().of(0).placement.term.0;
    let good = kept(1, &map, NODE_1, term, position(term, 4));
    let planned = plan(&[good.clone(), old.clone()], None, None, &[]).unwrap();
    assert!(!planned.answered[&old.node]);
    assert_eq!(holders(&planned, 0), [1]);
    assert_eq!(holders(&planned, 6000), [] as [u32; 0]);
    let other = StoredState {
        identity: Some(Identity {
            disk: DiskId(99),
            incarnation: Incarnation(9),
        }),
        ..old
    };
    let planned = plan(&[good, other], None, None, &[]).unwrap();
    assert_eq!(planned.answered.values().filter(|it| **it).count(), 1);
}

#[test]
fn rows_of_a_later_term_than_in_the_map_are_used_and_counted() {
    let map = three_with_id();
    let all = [
        kept(1, &map, NODE_1, 40, position(40, 4)),
        kept(2, &map, NODE_1, 39, position(39, 9)),
    ];
    let planned = plan(&all, None, None, &[]).unwrap();
    assert_eq!(holders(&planned, 0), [1]);
    assert_eq!(planned.unconfirmed, NODE_1.count());
}

#[test]
fn an_unnecessary_or_impossible_recovery_is_rejected() {
    let map = three_with_id();
    let later = apply(
        &map,
        Change::MemberLeaving {
            node: NodeId(1),
            leaving: Some(larder_cluster::map::Departure::Drain),
        },
    );
    let none = SlotRange::new(0, 0);
    let own = kept(1, &map, none, 3, position(3, 1));
    let why = plan(from_ref(&own), None, Some(&later), &[]).unwrap_err();
    assert!(why.contains("nothing to recover"), "{why}");
    // The other node's copy, or the backup, is newer than the restored map.
    let newer = kept(2, &later, none, 3, position(3, 1));
    let planned = plan(&[own.clone(), newer.clone()], None, Some(&map), &[]).unwrap();
    assert_eq!(planned.base.epoch(), later.epoch());
    let from_backup = plan(from_ref(&own), Some(&later), Some(&map), &[]).unwrap();
    assert_eq!(from_backup.source, None);
    let stranger = StoredState {
        map: Some(later.clone().with_id(ClusterId(8))),
        ..newer
    };
    let why = plan(&[own, stranger.clone()], None, None, &[]).unwrap_err();
    assert!(why.contains("different clusters"), "{why}");
    // It replaces a cluster that was created in place of the lost one, at an epoch above both.
    let other = Map::new("test", map.settings().clone()).with_id(ClusterId(9));
    let planned = plan(&[stranger], None, Some(&other), &[]).unwrap();
    assert_eq!(planned.base.id(), ClusterId(8));
    let bare = StoredState {
        map: None,
        ..kept(1, &map, none, 3, position(3, 1))
    };
    let why = plan(&[bare], None, None, &[]).unwrap_err();
    assert!(why.contains("--from FILE"), "{why}");
}

#[test]
fn a_holder_without_a_copy_does_not_start_a_slot_while_another_holder_is_absent() {
    let map = three_with_id();
    // Nodes 1 and 2 are the holders. Node 1 handed over the slots after this copy of the map was made, and node 2 is absent.
    let bare = kept(1, &map, SlotRange::new(16_000, 16_000), 3, position(3, 1));
    let planned = plan(&[bare], None, None, &[]).unwrap();
    assert_eq!(holders(&planned, 0), [2]);
    assert_eq!(planned.waiting[&vec![NodeId(2)]], NODE_1.count());
    let next = planned.map(&ChangeId::default(), 50).unwrap();
    assert!(!next.slots().of(0).placement.is_holder(NodeId(1)));
}

#[test]
fn the_new_epoch_exceeds_all_terms_and_marks_and_a_missing_epoch_is_reported() {
    let map = three_with_id();
    let old = kept(1, &map, NODE_1, 5_000, position(5_000, 1));
    let planned = plan(from_ref(&old), None, None, &[]).unwrap();
    assert_eq!((planned.epoch, planned.missing_epoch), (Epoch(6_000), None));
    // etcd has this exact map again, but another node applied a later one.
    let marks = [(map.id(), Epoch(9_000)), (ClusterId(99), Epoch(80_000))];
    let planned = plan(from_ref(&old), None, Some(&map), &marks).unwrap();
    assert_eq!(planned.epoch, Epoch(10_000));
    assert_eq!(planned.missing_epoch, Some(Epoch(9_000)));
}

#[test]
fn rows_of_a_node_missing_from_the_newest_copy_are_not_ignored() {
    let map = three_with_id();
    let known = kept(1, &map, NODE_1, 3, position(3, 1));
    let mut stranger = kept(4, &map, NODE_1, 9, position(9, 1));
    stranger.map = None;
    let why = plan(&[known, stranger], None, None, &[]).unwrap_err();
    assert!(why.contains("is not a member in the newest copy"), "{why}");
}

/// The random history of one slot on up to five nodes: writes, replicas that are dropped and filled, owners that move and die.
struct History {
    map: Map,
    /// For each node, the terms of the changes in its copy, by number, and the last term in which it took part.
    logs: BTreeMap<NodeId, (Vec<u64>, u64)>,
    acknowledged: Vec<u64>,
    copies: BTreeMap<NodeId, Map>,
}

const SLOT: u16 = 77;

impl History {
    fn new() -> History {
        let goals = vec![(SlotRange::ALL, vec![NodeId(1), NodeId(2)])];
        let taken = Change::PlacementReplaced {
            goals,
            outputs: Vec::new(),
            from: 1,
        };
        let map = apply(&members(5, 2), taken).with_id(ClusterId(7));
        let term = map.slots().of(SLOT).placement.term.0;
        let logs = [1, 2].map(|node| (NodeId(node), (Vec::new(), term)));
        History {
            copies: (1..=5).map(|node| (NodeId(node), map.clone())).collect(),
            map,
            logs: logs.into(),
            acknowledged: Vec::new(),
        }
    }

    fn change(&mut self, change: Change, random: &mut Random) {
        let Ok(next) = self.map.apply(&change, &ChangeId::default()) else {
            return;
        };
        self.map = next;
        let placed = self.map.slots().of(SLOT).placement.clone();
        let (term, owner) = (placed.term.0, placed.owner.expect("somebody"));
        // Some nodes receive a map late. The owner has applied it before it acknowledges anything.
        for node in 1..=5 {
            if NodeId(node) == owner || !random.one_in(3) {
                self.copies.insert(NodeId(node), self.map.clone());
            }
        }
        // In-sync replicas follow the owner: changes that it lacks are cut, changes that they lack are sent.
        let log = self.logs[&owner].0.clone();
        for node in placed.holders() {
            self.logs.insert(node, (log.clone(), term));
        }
        for node in (1..=5).map(NodeId) {
            let is_known = placed.includes(node) || self.copies[&node].epoch() < self.map.epoch();
            if !is_known {
                self.logs.remove(&node);
            }
        }
    }

    fn write(&mut self, random: &mut Random) {
        let placed = self.map.slots().of(SLOT).placement.clone();
        let term = placed.term.0;
        let owner = placed.owner.expect("somebody");
        let mut reached = 1;
        self.logs.get_mut(&owner).expect("its log").0.push(term);
        for node in &placed.in_sync {
            if random.one_in(4) {
                break;
            }
            reached += 1;
            let log = self.logs[&owner].0.clone();
            self.logs.insert(*node, (log, term));
        }
        if reached == placed.holders().count() {
            self.acknowledged = self.logs[&owner].0.clone();
        }
    }

    fn step(&mut self, random: &mut Random) {
        let placed = self.map.slots().of(SLOT).placement.clone();
        let owner = placed.owner.expect("somebody");
        let node = NodeId(1 + random.below(5) as u32);
        let slots = vec![(SlotRange::ALL, node)];
        let at = |out: Vec<NodeId>, into: Vec<ReplicaFill>| Change::SyncChanged {
            by: SyncChangeOrigin::Owner(owner),
            slots: vec![larder_cluster::map::SyncChange {
                slots: SlotRange::ALL,
                term: placed.term,
                out,
                into,
            }],
        };
        match random.below(7) {
            0 => self.change(at(vec![node], Vec::new()), random),
            1 => self.change(Change::FillsBegun { slots }, random),
            2 => {
                if let Some(filling) = placed.filling.first() {
                    self.change(at(Vec::new(), vec![*filling]), random);
                }
            }
            3 => self.change(Change::OwnersMoved { slots }, random),
            _ => self.write(random),
        }
    }

    fn kept(&self, node: NodeId) -> StoredState {
        let none = SlotRange::new(0, 0);
        let mut kept = kept(node.0, &self.copies[&node], none, 0, position(0, 0));
        kept.copies.clear();
        if let Some((log, term)) = self.logs.get(&node) {
            kept.copies.push(StoredCopy {
                slot: SLOT,
                term: Term(*term),
                last: position(log.last().copied().unwrap_or(0), log.len() as u64),
                is_complete: true,
            });
        }
        kept
    }
}

#[test]
fn with_the_newest_map_no_acknowledged_write_is_lost() {
    let (mut chosen, mut waited) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut history = History::new();
        for _ in 0..60 {
            history.step(&mut random);
        }
        let nodes = (1..=5).map(NodeId);
        let answering: BTreeSet<NodeId> = nodes.filter(|_| !random.one_in(3)).collect();
        let newest = history.map.epoch();
        if !answering
            .iter()
            .any(|it| history.copies[it].epoch() == newest)
        {
            continue;
        }
        let all: Vec<StoredState> = answering.iter().map(|it| history.kept(*it)).collect();
        let planned = plan(&all, None, None, &[]).unwrap();
        assert_eq!(planned.unconfirmed, 0, "seed {seed}");
        let found = holders(&planned, SLOT);
        if found.is_empty() {
            let placed = &history.map.slots().of(SLOT).placement;
            let absent = placed.holders().all(|it| !answering.contains(&it));
            assert!(absent, "seed {seed}: a holder has answered");
            waited += 1;
        }
        for node in found {
            let log = &history.logs[&NodeId(node)].0;
            let has_all = log.starts_with(&history.acknowledged);
            assert!(
                has_all,
                "seed {seed}: node {node} lacks acknowledged writes"
            );
            chosen += 1;
        }
    }
    assert!(chosen > 200 && waited > 10, "{chosen} {waited}");
}
