//! Weighted rendezvous hashing: every node has a score for every block, and the node with the highest score is chosen.

use super::PlacementNode;

/// The node's contribution to the hash.
pub(super) fn seed(node: &PlacementNode) -> u64 {
    // FNV-1a; `score` then mixes in the block.
    let name = node.name.as_str().bytes();
    name.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The score of a node for a block: `-w / ln h`, where `h` between 0 and 1 depends on both. A node with twice the weight of
/// another has the higher score in two of three blocks. If a node is removed, only its own blocks get another first choice.
pub(super) fn score(seed: u64, block: u16, weight: u32) -> f64 {
    let mut mixed = seed ^ u64::from(block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -f64::from(weight) / unit.ln()
}
