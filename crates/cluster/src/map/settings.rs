//! The settings that must be the same on every node, so they are kept in the map.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How many nodes have each slot, the owner among them. 1 to 16.
    pub replicas: u8,
    /// How many copies of a slot, the owner's among them, must be in sync for its writes to be taken. 1 to `replicas`. Nodes of versions without this
    /// setting read the map as long as it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub min_copies: u8,
    /// Who must have a write before it is acknowledged.
    pub acknowledge: Acknowledge,
    /// How long a node may act on a lease that is not renewed.
    pub lease_ms: u64,
    /// When the copies of a node that stays down are made elsewhere.
    pub replace_after_ms: u64,
    /// How many base nodes must have registered before slots are given out for the first time.
    pub start_nodes: u32,
    /// Whether a node that registers is given slots without being asked for.
    pub admit_new_nodes: bool,
    /// How much more than its share a node may have, in percent of it.
    pub spare_percent: u8,
    /// How many slots a node is filled with at a time.
    pub fill_slots_at_once: u16,
    /// How many versions of a store are kept beside the live one.
    pub versions_kept: u8,
    /// A push is given up when no node has told of progress for so long.
    pub push_silence_ms: u64,
}

fn one() -> u8 {
    1
}

fn is_one(count: &u8) -> bool {
    *count == 1
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            replicas: 1,
            min_copies: 1,
            acknowledge: Acknowledge::Replicas,
            lease_ms: 4_000,
            replace_after_ms: 300_000,
            start_nodes: 1,
            admit_new_nodes: true,
            spare_percent: 5,
            fill_slots_at_once: 128,
            versions_kept: 2,
            push_silence_ms: 1_800_000,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledge {
    /// The owner alone.
    Owner,
    /// The owner and all replicas in sync.
    Replicas,
}

impl Settings {
    /// What is out of its bounds, in words.
    pub fn out_of_bounds(&self) -> Option<String> {
        let wrong = match self {
            it if !(1..=16).contains(&it.replicas) => "replicas must be 1 to 16",
            it if !(1..=it.replicas).contains(&it.min_copies) => "min_copies must be 1 to replicas",
            it if it.lease_ms < 2_000 => "a lease of less than 2 seconds is not kept by etcd",
            it if it.spare_percent > 100 => {
                "a node may have at most 100 percent more than its share"
            }
            it if it.fill_slots_at_once == 0 => "at least one slot must be filled at a time",
            it if it.start_nodes == 0 => "at least one node is needed to start",
            _ => return None,
        };
        Some(wrong.to_owned())
    }
}
