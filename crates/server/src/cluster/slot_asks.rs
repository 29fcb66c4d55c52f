//! Requests of slots' owners to change the map, and reports for the controller.
//!
//! Cores put their requests into one queue of the node. The writer of the map takes all of them and combines them into one
//! change. A request that is lost or late is repeated until the map shows the result.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use larder_cluster::controller::Synced;
use larder_cluster::map::{AtTerm, By, Change, Epoch, Map, NodeId, SlotRange, Term};
use larder_cluster::replication::{Ask, Wanted};
use tokio::sync::Notify;

/// The requests of all cores.
#[derive(Default)]
pub struct SlotAsks {
    waiting: Mutex<Vec<Ask>>,
    added: Notify,
}

impl SlotAsks {
    pub fn add(&self, asks: Vec<Ask>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(asks);
        drop(waiting);
        self.added.notify_one();
    }

    /// Returns all requests.
    pub fn take_now(&self) -> Vec<Ask> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }

    /// Returns all requests as soon as there are any.
    pub async fn take(&self) -> Vec<Ask> {
        loop {
            let taken = self.take_now();
            if !taken.is_empty() {
                return taken;
            }
            self.added.notified().await;
        }
    }
}

/// Returns the next change that fulfills requests of the owner `me` which the map does not fulfill yet; `None` if there is none.
/// Call it again with the resulting map.
pub fn change_of(map: &Map, me: NodeId, asks: &[Ask]) -> Option<Change> {
    let mut silent: BTreeMap<u16, (Term, Vec<NodeId>)> = BTreeMap::new();
    let mut ended: BTreeMap<u16, NodeId> = BTreeMap::new();
    let mut given: BTreeMap<u16, NodeId> = BTreeMap::new();
    for ask in asks {
        let placed = &map.slots().of(ask.slot).placed;
        if placed.term != ask.term || placed.owner != Some(me) {
            continue;
        }
        match ask.what {
            Wanted::Out(place) if placed.in_sync.contains(&place.node) => {
                let (_, out) = silent.entry(ask.slot).or_insert((ask.term, Vec::new()));
                if !out.contains(&place.node) {
                    out.push(place.node);
                    out.sort_unstable();
                }
            }
            Wanted::EndFill(place) if placed.filling(place.node).is_some() => {
                ended.insert(ask.slot, place.node);
            }
            // Under a later map, the owner may serve the slot again.
            Wanted::Move(place, epoch)
                if epoch == map.epoch() && map.heir(ask.slot) == Some(place.node) =>
            {
                given.insert(ask.slot, place.node);
            }
            // Completed fills are handled by the controller, which learns of them from the report.
            Wanted::Out(_) | Wanted::EndFill(_) | Wanted::Into(..) | Wanted::Move(..) => {}
        }
    }
    if !silent.is_empty() {
        let slots = runs(silent).map(|(slots, (term, out))| AtTerm {
            slots,
            term,
            out,
            into: Vec::new(),
        });
        let by = By::Owner(me);
        let slots = slots.collect();
        return Some(Change::SyncChanged { by, slots });
    }
    let slots: Vec<(SlotRange, NodeId)> = runs(ended).collect();
    if !slots.is_empty() {
        return Some(Change::FillsEnded { slots });
    }
    let slots: Vec<(SlotRange, NodeId)> = runs(given).collect();
    (!slots.is_empty()).then_some(Change::OwnersMoved { slots })
}

/// Returns the owner `me`'s report of replicas that have all changes. Removes requests that no longer match the map.
pub fn synced_of(map: &Map, me: NodeId, asked: &mut BTreeMap<(u16, NodeId), Ask>) -> Vec<Synced> {
    asked.retain(|(slot, node), ask| {
        let placed = &map.slots().of(*slot).placed;
        let began = match ask.what {
            Wanted::Into(_, began) => Some(began),
            _ => None,
        };
        let filling = placed.filling(*node).map(|it| it.began);
        placed.owner == Some(me) && placed.term == ask.term && filling == began && filling.is_some()
    });
    let mut by_node: BTreeMap<NodeId, BTreeMap<u16, (Term, Epoch)>> = BTreeMap::new();
    for ((slot, node), ask) in asked {
        if let Wanted::Into(_, began) = ask.what {
            let slots = by_node.entry(*node).or_default();
            slots.insert(*slot, (ask.term, began));
        }
    }
    let mut synced = Vec::new();
    for (node, slots) in by_node {
        synced.extend(runs(slots).map(|(slots, (term, began))| Synced {
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
    for (slot, wanted) in by_slot {
        match runs.last_mut() {
            Some((slots, last)) if slots.to + 1 == slot && *last == wanted => slots.to = slot,
            _ => runs.push((SlotRange::new(slot, slot), wanted)),
        }
    }
    runs.into_iter()
}
