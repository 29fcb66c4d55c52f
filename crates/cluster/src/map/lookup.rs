//! Lookup tables over a map, built once per map, for the execution of requests.

use std::collections::HashMap;

use larder_types::SLOTS;

use super::{Map, Member, NodeId, NodeName, Placement, SlotRange};

/// If a node is stopping, each block of this many adjacent slots gets the same new owner.
const SPREAD_SLOTS: usize = 64;

/// Constant-time lookups, where the map itself searches. Construction is linear in the size of the map. The tables take about 64
/// KiB, plus as much as the map's runs.
#[derive(Debug, Clone)]
pub struct Lookup {
    run_of: Vec<u16>,
    placements: Vec<Placement>,
    compute_nodes: Vec<Option<NodeId>>,
    names: HashMap<NodeName, NodeId>,
    slots_by_node: HashMap<NodeId, NodeSlots>,
    stopping: Vec<NodeId>,
    listed_ranges: Vec<ServedRange>,
    served_ranges: Vec<ServedRange>,
}

/// The slots of one node, each list as runs in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSlots {
    pub owned: Vec<SlotRange>,
    /// Slots of which it is an in-sync replica.
    pub in_sync: Vec<SlotRange>,
    pub filling: Vec<SlotRange>,
}

/// Adjacent slots with the same owner and replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRange {
    pub slots: SlotRange,
    pub owner: NodeId,
    /// In-sync replicas that are up.
    pub replicas: Vec<NodeId>,
}

impl Lookup {
    pub fn new(map: &Map) -> Lookup {
        let runs = map.slots().runs();
        let mut run_of = Vec::with_capacity(usize::from(SLOTS));
        let mut held: HashMap<NodeId, NodeSlots> = HashMap::new();
        let (mut listed, mut served) = (Vec::new(), Vec::new());
        for (at, run) in runs.iter().enumerate() {
            let at = u16::try_from(at).expect("there are no more runs than slots");
            run_of.resize(usize::from(run.slots.to) + 1, at);
            let placement = &run.placement;
            if let Some(owner) = placement.owner {
                extend(&mut held.entry(owner).or_default().owned, run.slots);
            }
            for &node in &placement.in_sync {
                extend(&mut held.entry(node).or_default().in_sync, run.slots);
            }
            for filling in &placement.filling {
                extend(
                    &mut held.entry(filling.node).or_default().filling,
                    run.slots,
                );
            }
            match placement.owner {
                None => {}
                Some(owner) if map.is_up(owner) => {
                    push_served(&mut listed, run.slots, owner, &placement.in_sync);
                    push_served(&mut served, run.slots, owner, &placement.in_sync);
                }
                // Then its in-sync replicas are down too.
                Some(owner) => push_served(&mut listed, run.slots, owner, &[]),
            }
        }
        let mut computes = vec![None; usize::from(SLOTS)];
        for (slots, node) in map.outputs() {
            computes[usize::from(slots.from)..=usize::from(slots.to)].fill(Some(node));
        }
        let names = map.members().iter().map(|it| (it.name().clone(), it.id));
        Lookup {
            run_of,
            placements: runs.iter().map(|run| run.placement.clone()).collect(),
            compute_nodes: computes,
            names: names.collect(),
            slots_by_node: held,
            stopping: stopping(map),
            listed_ranges: listed,
            served_ranges: served,
        }
    }

    /// Returns the owner, the replicas and the term of a slot.
    ///
    /// # Panics
    ///
    /// If `slot` is out of range.
    #[inline]
    pub fn placement(&self, slot: u16) -> &Placement {
        &self.placements[usize::from(self.run_of[usize::from(slot)])]
    }

    /// See [`Map::next_owner`].
    pub fn next_owner(&self, slot: u16) -> Option<NodeId> {
        find_next_owner(self.placement(slot), slot, &self.stopping)
    }

    /// Returns the node that computes the outputs of a slot: the owner, unless other nodes compute them.
    #[inline]
    pub fn compute_node(&self, slot: u16) -> Option<NodeId> {
        self.compute_nodes[usize::from(slot)].or(self.placement(slot).owner)
    }

    pub fn id_of(&self, name: &NodeName) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    pub fn member<'a>(&self, map: &'a Map, name: &NodeName) -> Option<&'a Member> {
        map.member(self.id_of(name)?)
    }

    /// Returns the slots that `node` holds or is being filled with; `None` if there are none.
    pub fn slots_of(&self, node: NodeId) -> Option<&NodeSlots> {
        self.slots_by_node.get(&node)
    }

    /// The content of `CLUSTER SLOTS`, in order. Includes slots whose owner is down, because clients require a complete table at
    /// start.
    pub fn listed_ranges(&self) -> &[ServedRange] {
        &self.listed_ranges
    }

    /// Slots whose owner is up, in order.
    pub fn served_ranges(&self) -> &[ServedRange] {
        &self.served_ranges
    }
}

/// Returns the members whose processes are stopping.
pub(super) fn stopping(map: &Map) -> Vec<NodeId> {
    let stopping = map.members().iter().filter(|it| it.is_stopping);
    stopping.map(|it| it.id).collect()
}

pub(super) fn find_next_owner(
    placement: &Placement,
    slot: u16,
    stopping: &[NodeId],
) -> Option<NodeId> {
    let is_staying = |node: &NodeId| !stopping.contains(node);
    let heir = placement.next_owner().filter(is_staying);
    if heir.is_some() || placement.owner.as_ref().is_none_or(is_staying) {
        return heir;
    }
    let others: Vec<NodeId> = placement
        .in_sync
        .iter()
        .copied()
        .filter(is_staying)
        .collect();
    // Spreads the slots over all replicas, in blocks of adjacent slots.
    let at = usize::from(slot) / SPREAD_SLOTS % others.len().max(1);
    others.get(at).copied()
}

fn extend(ranges: &mut Vec<SlotRange>, slots: SlotRange) {
    match ranges.last_mut() {
        Some(last) if last.to + 1 == slots.from => last.to = slots.to,
        _ => ranges.push(slots),
    }
}

fn push_served(
    served: &mut Vec<ServedRange>,
    slots: SlotRange,
    owner: NodeId,
    replicas: &[NodeId],
) {
    match served.last_mut() {
        Some(last)
            if last.slots.to + 1 == slots.from
                && last.owner == owner
                && last.replicas == replicas =>
        {
            last.slots.to = slots.to;
        }
        _ => served.push(ServedRange {
            slots,
            owner,
            replicas: replicas.to_vec(),
        }),
    }
}
