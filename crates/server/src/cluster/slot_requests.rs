//! Requests of slots' owners to change the map, and reports for the controller.
//!
//! Cores put their requests into one queue of the node. The writer of the map takes all of them and combines them into one
//! change. A request that is lost or late is repeated until the map shows the result.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use larder_cluster::controller::SyncedReplica;
use larder_cluster::map::{
    Change, Epoch, Map, NodeId, SlotRange, SyncChange, SyncChangeOrigin, Term,
};
use larder_cluster::replication::{MapRequest, SlotMapChange};
use tokio::sync::Notify;

/// The requests of all cores.
#[derive(Default)]
pub struct SlotRequests {
    pending: Mutex<Vec<MapRequest>>,
    added: Notify,
}

impl SlotRequests {
    pub fn add(&self, requests: Vec<MapRequest>) {
        let mut waiting = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(requests);
        drop(waiting);
        self.added.notify_one();
    }

    /// Returns all requests.
    pub fn drain(&self) -> Vec<MapRequest> {
        let mut waiting = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }

    /// Returns all requests as soon as there are any.
    pub async fn next_batch(&self) -> Vec<MapRequest> {
        loop {
            let taken = self.drain();
            if !taken.is_empty() {
                return taken;
            }
            self.added.notified().await;
        }
    }
}

/// Returns the next change that fulfills requests of the owner `me` which the map does not fulfill yet; `None` if there is none.
/// Call it again with the resulting map.
pub fn plan_change(map: &Map, me: NodeId, requests: &[MapRequest]) -> Option<Change> {
    let mut silent: BTreeMap<u16, (Term, Vec<NodeId>)> = BTreeMap::new();
    let mut ended: BTreeMap<u16, NodeId> = BTreeMap::new();
    let mut handed_over: BTreeMap<u16, NodeId> = BTreeMap::new();
    for request in requests {
        let placed = &map.slots().of(request.slot).placement;
        if placed.term != request.term || placed.owner != Some(me) {
            continue;
        }
        match request.change {
            SlotMapChange::RemoveReplica(place) if placed.in_sync.contains(&place.node) => {
                let (_, out) = silent
                    .entry(request.slot)
                    .or_insert((request.term, Vec::new()));
                if !out.contains(&place.node) {
                    out.push(place.node);
                    out.sort_unstable();
                }
            }
            SlotMapChange::AbortFill(place) if placed.filling(place.node).is_some() => {
                ended.insert(request.slot, place.node);
            }
            // Under a later map, the owner may serve the slot again.
            SlotMapChange::MoveOwnership(place, epoch)
                if epoch == map.epoch() && map.next_owner(request.slot) == Some(place.node) =>
            {
                handed_over.insert(request.slot, place.node);
            }
            // Completed fills are handled by the controller, which learns of them from the report.
            SlotMapChange::RemoveReplica(_)
            | SlotMapChange::AbortFill(_)
            | SlotMapChange::AddReplica(..)
            | SlotMapChange::MoveOwnership(..) => {}
        }
    }
    if !silent.is_empty() {
        let slots = runs(silent).map(|(slots, (term, out))| SyncChange {
            slots,
            term,
            out,
            into: Vec::new(),
        });
        let by = SyncChangeOrigin::Owner(me);
        let slots = slots.collect();
        return Some(Change::SyncChanged { by, slots });
    }
    let slots: Vec<(SlotRange, NodeId)> = runs(ended).collect();
    if !slots.is_empty() {
        return Some(Change::FillsEnded { slots });
    }
    let slots: Vec<(SlotRange, NodeId)> = runs(handed_over).collect();
    (!slots.is_empty()).then_some(Change::OwnersMoved { slots })
}

/// Returns the owner `me`'s report of replicas that have all changes. Removes requests that no longer match the map.
pub fn collect_synced(
    map: &Map,
    me: NodeId,
    requests: &mut BTreeMap<(u16, NodeId), MapRequest>,
) -> Vec<SyncedReplica> {
    requests.retain(|(slot, node), request| {
        let placed = &map.slots().of(*slot).placement;
        let began = match request.change {
            SlotMapChange::AddReplica(_, began) => Some(began),
            _ => None,
        };
        let filling = placed.filling(*node).map(|it| it.began);
        placed.owner == Some(me)
            && placed.term == request.term
            && filling == began
            && filling.is_some()
    });
    let mut by_node: BTreeMap<NodeId, BTreeMap<u16, (Term, Epoch)>> = BTreeMap::new();
    for ((slot, node), request) in requests {
        if let SlotMapChange::AddReplica(_, began) = request.change {
            let slots = by_node.entry(*node).or_default();
            slots.insert(*slot, (request.term, began));
        }
    }
    let mut synced = Vec::new();
    for (node, slots) in by_node {
        synced.extend(runs(slots).map(|(slots, (term, began))| SyncedReplica {
            slots,
            term,
            node,
            began,
        }));
    }
    synced
}

/// Merges adjacent slots with equal values.
fn runs<T: PartialEq>(by_slot: BTreeMap<u16, T>) -> impl Iterator<Item = (SlotRange, T)> {
    let mut runs: Vec<(SlotRange, T)> = Vec::new();
    for (slot, value) in by_slot {
        match runs.last_mut() {
            Some((slots, last)) if slots.to + 1 == slot && *last == value => slots.to = slot,
            _ => runs.push((SlotRange::new(slot, slot), value)),
        }
    }
    runs.into_iter()
}
