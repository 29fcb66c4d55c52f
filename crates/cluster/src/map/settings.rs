//! The settings that must be equal on all nodes, and are therefore stored in the map.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The number of copies of each slot, including the owner's. 1 to 16.
    pub replicas: u8,
    /// The number of copies of a slot, including the owner's, that must be in sync for it to accept writes. 1 to `replicas`.
    /// Versions without this setting can read the map while it is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub min_copies: u8,
    /// The nodes that must have a write before it is acknowledged.
    pub acknowledge: Acknowledge,
    /// The TTL of a node's lease, in milliseconds.
    pub lease_ms: u64,
    /// The time after which the copies of a node that stays down are created elsewhere, in milliseconds.
    pub replace_after_ms: u64,
    /// The number of base nodes that must have registered before slots are placed for the first time.
    pub start_nodes: u32,
    /// True if a node that registers receives slots automatically.
    pub admit_new_nodes: bool,
    /// The percentage by which a node may exceed its share.
    pub spare_percent: u8,
    /// The number of slots with which a node is filled concurrently.
    pub fill_slots_at_once: u16,
    /// The number of versions of a store that are kept in addition to the live one.
    pub versions_kept: u8,
    /// A push is aborted if no node has reported progress for this time, in milliseconds.
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
    /// Only the owner.
    Owner,
    /// The owner and all in-sync replicas.
    Replicas,
}

impl Settings {
    /// Returns a message about the first setting that is out of bounds.
    pub fn out_of_bounds(&self) -> Option<String> {
        let wrong = match self {
            it if !(1..=16).contains(&it.replicas) => "replicas must be 1 to 16",
            it if !(1..=it.replicas).contains(&it.min_copies) => "min_copies must be 1 to replicas",
            it if it.lease_ms < 2_000 => {
                "lease_ms must be at least 2000, because etcd grants no shorter lease"
            }
            it if it.spare_percent > 100 => "spare_percent must be at most 100",
            it if it.fill_slots_at_once == 0 => "fill_slots_at_once must be at least 1",
            it if it.start_nodes == 0 => "start_nodes must be at least 1",
            _ => return None,
        };
        Some(wrong.to_owned())
    }
}
