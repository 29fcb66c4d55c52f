//! Lookup tables over a map, built once per map, for the execution of requests.

use std::collections::HashMap;

use larder_types::SLOTS;

use super::{Map, Member, NodeId, NodeName, Placed, SlotRange};

/// If a node is stopping, each block of this many adjacent slots gets the same new owner.
const SPREAD_SLOTS: usize = 64;

/// Constant-time lookups, where the map itself searches. Construction is linear in the size of the map. The tables take about 64
/// KiB, plus as much as the map's runs.
#[derive(Debug, Clone)]
pub struct Lookup {
    run_of: Vec<u16>,
    placed: Vec<Placed>,
    computes: Vec<Option<NodeId>>,
    names: HashMap<NodeName, NodeId>,
    held: HashMap<NodeId, Held>,
    stopping: Vec<NodeId>,
    listed: Vec<Served>,
    served: Vec<Served>,
}

/// The slots of one node, each list as runs in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    pub owned: Vec<SlotRange>,
    /// Slots of which it is an in-sync replica.
    pub in_sync: Vec<SlotRange>,
    pub filling: Vec<SlotRange>,
}

/// Adjacent slots with the same owner and replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub slots: SlotRange,
    pub owner: NodeId,
    /// In-sync replicas that are up.
    pub replicas: Vec<NodeId>,
}

impl Lookup {
    pub fn new(map: &Map) -> Lookup {
        let runs = map.slots().runs();
        let mut run_of = Vec::with_capacity(usize::from(SLOTS));
        let mut held: HashMap<NodeId, Held> = HashMap::new();
        let (mut listed, mut served) = (Vec::new(), Vec::new());
        for (at, run) in runs.iter().enumerate() {
            let at = u16::try_from(at).expect("there are no more runs than slots");
            run_of.resize(usize::from(run.slots.to) + 1, at);
            let placed = &run.placed;
            if let Some(owner) = placed.owner {
                extend(&mut held.entry(owner).or_default().owned, run.slots);
            }
            for &node in &placed.in_sync {
                extend(&mut held.entry(node).or_default().in_sync, run.slots);
            }
            for filling in &placed.filling {
                extend(
                    &mut held.entry(filling.node).or_default().filling,
                    run.slots,
                );
            }
            match placed.owner {
                None => {}
                Some(owner) if map.is_up(owner) => {
                    serve(&mut listed, run.slots, owner, &placed.in_sync);
                    serve(&mut served, run.slots, owner, &placed.in_sync);
                }
                // Then its in-sync replicas are down too.
                Some(owner) => serve(&mut listed, run.slots, owner, &[]),
            }
        }
        let mut computes = vec![None; usize::from(SLOTS)];
        for (slots, node) in map.outputs() {
            computes[usize::from(slots.from)..=usize::from(slots.to)].fill(Some(node));
        }
        let names = map.members().iter().map(|it| (it.name().clone(), it.id));
        Lookup {
            run_of,
            placed: runs.iter().map(|run| run.placed.clone()).collect(),
            computes,
            names: names.collect(),
            held,
            stopping: stopping(map),
            listed,
            served,
        }
    }

    /// Returns the owner, the replicas and the term of a slot.
    ///
    /// # Panics
    ///
    /// If `slot` is out of range.
    #[inline]
    pub fn placed(&self, slot: u16) -> &Placed {
        &self.placed[usize::from(self.run_of[usize::from(slot)])]
    }

    /// See [`Map::heir`].
    pub fn heir(&self, slot: u16) -> Option<NodeId> {
        heir_of(self.placed(slot), slot, &self.stopping)
    }

    /// Returns the node that computes the outputs of a slot: the owner, unless other nodes compute them.
    #[inline]
    pub fn computes(&self, slot: u16) -> Option<NodeId> {
        self.computes[usize::from(slot)].or(self.placed(slot).owner)
    }

    pub fn id_of(&self, name: &NodeName) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    pub fn member<'a>(&self, map: &'a Map, name: &NodeName) -> Option<&'a Member> {
        map.member(self.id_of(name)?)
    }

    /// Returns the slots that `node` holds or is being filled with; `None` if there are none.
    pub fn held(&self, node: NodeId) -> Option<&Held> {
        self.held.get(&node)
    }

    /// The content of `CLUSTER SLOTS`, in order. Includes slots whose owner is down, because clients require a complete table at
    /// start.
    pub fn listed(&self) -> &[Served] {
        &self.listed
    }

    /// Slots whose owner is up, in order.
    pub fn served(&self) -> &[Served] {
        &self.served
    }
}

/// Returns the members whose processes are stopping.
pub(super) fn stopping(map: &Map) -> Vec<NodeId> {
    let stopping = map.members().iter().filter(|it| it.is_stopping);
    stopping.map(|it| it.id).collect()
}

pub(super) fn heir_of(placed: &Placed, slot: u16, stopping: &[NodeId]) -> Option<NodeId> {
    let stays = |node: &NodeId| !stopping.contains(node);
    let heir = placed.heir().filter(stays);
    if heir.is_some() || placed.owner.as_ref().is_none_or(stays) {
        return heir;
    }
    let others: Vec<NodeId> = placed.in_sync.iter().copied().filter(stays).collect();
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

fn serve(served: &mut Vec<Served>, slots: SlotRange, owner: NodeId, replicas: &[NodeId]) {
    match served.last_mut() {
        Some(last)
            if last.slots.to + 1 == slots.from
                && last.owner == owner
                && last.replicas == replicas =>
        {
            last.slots.to = slots.to;
        }
        _ => served.push(Served {
            slots,
            owner,
            replicas: replicas.to_vec(),
        }),
    }
}
