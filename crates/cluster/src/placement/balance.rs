//! Measures how balanced a placement is.

use std::collections::BTreeMap;

use super::{PlacementNode, Shares};
use crate::map::{NodeId, NodeName, SlotRange};

/// The load of each node and zone, with its share.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    pub nodes: Vec<NodeBalance>,
    pub zones: Vec<ZoneBalance>,
    /// The highest ratio of a node's load to its share: 1 if the placement is perfectly balanced.
    pub owned_worst: f64,
    pub held_worst: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NodeBalance {
    pub id: NodeId,
    pub name: NodeName,
    pub zone: String,
    pub owned: u32,
    /// Owned or replicated.
    pub held: u32,
    pub owned_share: f64,
    pub held_share: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ZoneBalance {
    pub zone: String,
    pub nodes: u32,
    pub owned: u32,
    pub held: u32,
    pub owned_share: f64,
    pub held_share: f64,
}

impl Balance {
    /// Computes the balance of a placement: slots with their current or target nodes, the owner first.
    pub fn of<'a>(
        slots: impl Iterator<Item = (SlotRange, &'a [NodeId])>,
        nodes: &[PlacementNode],
        replicas: u8,
    ) -> Balance {
        let mut owned: BTreeMap<NodeId, u32> = BTreeMap::new();
        let mut held: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (slots, holders) in slots {
            if let Some(&owner) = holders.first() {
                *owned.entry(owner).or_default() += slots.count();
            }
            for &node in holders {
                *held.entry(node).or_default() += slots.count();
            }
        }
        let shares = (!nodes.is_empty()).then(|| Shares::of(nodes, replicas, 0));
        let of_node = |(at, node): (usize, &PlacementNode)| {
            let shares = shares.as_ref().expect("the list of nodes is not empty");
            NodeBalance {
                id: node.id,
                name: node.name.clone(),
                zone: node.zone.clone(),
                owned: owned.get(&node.id).copied().unwrap_or(0),
                held: held.get(&node.id).copied().unwrap_or(0),
                owned_share: shares.owned[at].share,
                held_share: shares.held[at].share,
            }
        };
        let nodes: Vec<NodeBalance> = nodes.iter().enumerate().map(of_node).collect();
        let mut zones: BTreeMap<&str, ZoneBalance> = BTreeMap::new();
        for node in &nodes {
            let zone = zones.entry(&node.zone).or_insert_with(|| ZoneBalance {
                zone: node.zone.clone(),
                nodes: 0,
                owned: 0,
                held: 0,
                owned_share: 0.0,
                held_share: 0.0,
            });
            zone.nodes += 1;
            zone.owned += node.owned;
            zone.held += node.held;
            zone.owned_share += node.owned_share;
            zone.held_share += node.held_share;
        }
        let worst = |load: fn(&NodeBalance) -> f64| nodes.iter().map(load).fold(0.0, f64::max);
        Balance {
            owned_worst: worst(|it| f64::from(it.owned) / it.owned_share),
            held_worst: worst(|it| f64::from(it.held) / it.held_share),
            zones: zones.into_values().collect(),
            nodes,
        }
    }
}
