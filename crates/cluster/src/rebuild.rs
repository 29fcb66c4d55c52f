//! Rebuilds a lost cluster map from what each node stored: the last map that it applied, and the position of its copy of each
//! slot.
//!
//! ```text
//!   StoredState of each node ──► plan ──► RecoveryPlan: the newest map, each slot's future owner, what is unknown ──► RecoveryPlan::map
//! ```
//!
//! The newest copy of the map names the holders of each slot: its owner and its in-sync replicas. A write is acknowledged only
//! when all holders have it. Every holder that answered and whose disk is proven ([`prove_disk`]) therefore has all acknowledged
//! writes of the slot, and remains a holder. The holder with the last change becomes the owner and sends the other holders the
//! changes that they lack.
//!
//! If a node has rows of a later term than the newest map contains, a newer map existed. In that case, the copy with the highest
//! term, then the highest sequence number, is used, and the plan counts the slot as *unconfirmed*.
//!
//! If no holder that answered has a complete copy of a slot, the slot waits for its other holders. The plan keeps only those as
//! holders, because a node without a copy must not start the slot empty.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use larder_types::SLOTS;

use crate::map::{
    Change, ChangeId, ChangeRejected, ClusterId, Epoch, Map, NodeId, NodeName, Placement,
    SlotRange, Term,
};
use crate::replication::Position;
use crate::replication::recovery::{Identity, prove_disk};

/// Added to the latest known epoch, because a node that did not answer may have a copy that is some changes newer.
const EPOCHS_AHEAD: u64 = 1_000;

/// The state that one node stored in its data folder.
#[derive(Debug, Clone)]
pub struct StoredState {
    pub node: NodeName,
    /// `None` if the folder is new.
    pub identity: Option<Identity>,
    pub map: Option<Map>,
    /// At most one per slot.
    pub copies: Vec<StoredCopy>,
}

/// The position of a node's copy of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCopy {
    pub slot: u16,
    /// The last term in which the node took part.
    pub term: Term,
    /// The last change in the copy.
    pub last: Position,
    /// True if the copy has all rows up to `last`. `false` during a transfer.
    pub is_complete: bool,
}

/// The map that a recovery would write, and the slots that it would not restore.
#[derive(Debug, Clone)]
pub struct RecoveryPlan {
    /// The newest copy of the map.
    pub base: Map,
    /// The node with that copy; `None` if it is the backup.
    pub source: Option<NodeName>,
    /// The epoch of the map to write.
    pub epoch: Epoch,
    /// The nodes whose copies of each slot count. The first has the newest rows and becomes the owner.
    pub holders: Vec<(SlotRange, Vec<NodeId>)>,
    /// Members of the map that answered, and whether their disks match the map.
    pub answered: BTreeMap<NodeName, bool>,
    /// The number of slots that wait for one of these nodes, because no node that answered has their newest rows.
    pub waiting: BTreeMap<Vec<NodeId>, u32>,
    /// The number of slots whose rows are newer than the copy of the map.
    pub unconfirmed: u32,
    /// The epoch of a map that some node applied and that is newer than all available copies. Writes acknowledged under it may
    /// not be restored.
    pub missing_epoch: Option<Epoch>,
}

/// Plans a recovery.
///
/// `backup` is a copy of the map that an operator saved, and `found` is the map in the coordination service now. `marks` are the
/// highest epochs that nodes report to have applied, per cluster.
///
/// # Errors
/// A message that states why the map cannot be rebuilt from these copies, or why it need not be.
pub fn plan(
    kept: &[StoredState],
    backup: Option<&Map>,
    found: Option<&Map>,
    marks: &[(ClusterId, Epoch)],
) -> Result<RecoveryPlan, String> {
    let copies = kept
        .iter()
        .filter_map(|it| Some((Some(&it.node), it.map.as_ref()?)));
    let copies: Vec<(Option<&NodeName>, &Map)> =
        copies.chain(backup.map(|map| (None, map))).collect();
    let newest = copies
        .iter()
        .max_by_key(|(node, map)| (map.epoch(), Reverse(*node)));
    let Some(&(source, base)) = newest else {
        return Err(
            "no node that answered has a copy of the map: give a backup of it (--from FILE)"
                .to_owned(),
        );
    };
    if let Some((other, map)) = copies.iter().find(|(_, it)| it.id() != base.id()) {
        return Err(format!(
            "the copies of the map are of different clusters: that of {} has id {:016x}, that of {} has id {:016x}; exclude \
             the nodes of the cluster that you do not recover (--without NODE), and start them later with empty data folders",
            copy_name(source),
            base.id().0,
            copy_name(*other),
            map.id().0
        ));
    }
    let marks = marks.iter().filter(|(cluster, _)| *cluster == base.id());
    let marked = marks.map(|(_, epoch)| *epoch).max();
    let followed = marked.max(Some(base.epoch()));
    if let Some(found) = found
        && found.id() == base.id()
        && Some(found.epoch()) >= followed
    {
        return Err(format!(
            "etcd has the map of epoch {}, and no copy is newer: there is nothing to recover",
            found.epoch()
        ));
    }
    let has_rows =
        |it: &&StoredState| !it.copies.is_empty() && base.member_named(&it.node).is_none();
    if let Some(unknown) = kept.iter().find(has_rows) {
        return Err(format!(
            "node {} has rows but is not a member in the newest copy of the map, that of {}: give a newer backup (--from FILE), start \
             the nodes that have a newer copy, or exclude it and lose the rows that only it has (--without {})",
            unknown.node,
            copy_name(source),
            unknown.node
        ));
    }
    // A term is the epoch of the map that started it.
    let terms = kept.iter().flat_map(|it| &it.copies);
    let terms = terms.map(|copy| Epoch(copy.term.0)).max();
    let latest = [followed, found.map(Map::epoch), terms];
    let latest = latest.into_iter().flatten().max().unwrap_or(base.epoch());
    let mut plan = RecoveryPlan {
        base: base.clone(),
        source: source.cloned(),
        epoch: Epoch(latest.0 + EPOCHS_AHEAD),
        holders: Vec::new(),
        answered: BTreeMap::new(),
        waiting: BTreeMap::new(),
        unconfirmed: 0,
        missing_epoch: marked.filter(|marked| *marked > base.epoch()),
    };
    plan.choose_holders(kept);
    Ok(plan)
}

fn copy_name(node: Option<&NodeName>) -> String {
    node.map_or("the backup".to_owned(), |node| format!("node {node}"))
}

impl RecoveryPlan {
    /// Returns the map to write.
    ///
    /// # Errors
    /// The copy of the map is invalid: no cluster had it.
    pub fn map(&self, id: &ChangeId, at_ms: u64) -> Result<Map, ChangeRejected> {
        let change = Change::MapRecovered {
            epoch: self.epoch,
            holders: self.holders.clone(),
            at_ms,
        };
        self.base.apply(&change, id)
    }

    /// The number of slots that each node will own.
    pub fn owned(&self) -> BTreeMap<NodeId, u32> {
        let mut owned = BTreeMap::new();
        for (slots, holders) in &self.holders {
            *owned.entry(holders[0]).or_default() += slots.count();
        }
        owned
    }

    fn choose_holders(&mut self, kept: &[StoredState]) {
        let mut candidates: Vec<Vec<(NodeId, StoredCopy)>> = vec![Vec::new(); usize::from(SLOTS)];
        let mut proven = BTreeSet::new();
        for node in kept {
            let Some(member) = self.base.member_named(&node.node) else {
                continue;
            };
            let known = Identity {
                disk: member.registration.disk,
                incarnation: member.registration.incarnation,
            };
            let is_proven = prove_disk(node.identity, Some(known), true).is_ok();
            self.answered.insert(node.node.clone(), is_proven);
            if is_proven {
                proven.insert(member.id);
                for copy in node.copies.iter().filter(|it| it.is_complete) {
                    candidates[usize::from(copy.slot)].push((member.id, *copy));
                }
            }
        }
        let base = self.base.clone();
        for run in base.slots().runs() {
            for slot in run.slots.slots() {
                let copies = &candidates[usize::from(slot)];
                self.choose_slot_holders(slot, &run.placement, copies, &proven);
            }
        }
    }

    fn choose_slot_holders(
        &mut self,
        slot: u16,
        placement: &Placement,
        copies: &[(NodeId, StoredCopy)],
        proven: &BTreeSet<NodeId>,
    ) {
        let latest = copies.iter().map(|(_, it)| it.term).max();
        let is_newer = latest > Some(placement.term);
        let counts = |(node, copy): &&(NodeId, StoredCopy)| {
            if is_newer {
                Some(copy.term) == latest
            } else {
                placement.is_holder(*node)
            }
        };
        let counting = || copies.iter().filter(counts);
        let Some(last) = counting().map(|(_, it)| it.last).max() else {
            let mut holders: Vec<NodeId> = placement.holders().collect();
            let absent: Vec<NodeId> = (holders.iter().copied())
                .filter(|node| !proven.contains(node))
                .collect();
            if !absent.is_empty() && absent.len() < holders.len() {
                self.push_holders(slot, absent.clone());
                holders = absent;
            }
            if !holders.is_empty() {
                *self.waiting.entry(holders).or_default() += 1;
            }
            return;
        };
        self.unconfirmed += u32::from(is_newer);
        // If a newer map may have existed, a copy with fewer changes may lack acknowledged writes.
        let mut copies: Vec<&(NodeId, StoredCopy)> = counting()
            .filter(|(_, it)| !is_newer || it.last == last)
            .collect();
        // The current owner stays the owner if it has all changes.
        copies.sort_unstable_by_key(|(node, it)| {
            (Reverse(it.last), placement.owner != Some(*node), *node)
        });
        self.push_holders(slot, copies.into_iter().map(|(node, _)| *node).collect());
    }

    fn push_holders(&mut self, slot: u16, holders: Vec<NodeId>) {
        match self.holders.last_mut() {
            Some((slots, before)) if slots.to + 1 == slot && *before == holders => slots.to = slot,
            _ => self.holders.push((SlotRange::new(slot, slot), holders)),
        }
    }
}
