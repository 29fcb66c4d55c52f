//! Regions on hash slots.

use std::collections::BTreeMap;

use larder_space::mapping::{
    Attribute, Constraint, Cut, Dimension, Place, Placement, Region, SlotOwner, Subspace,
};
use larder_types::{Random, SLOTS};

/// Blocks of slots in a random order, dealt to nodes in proportion to their weights, as a cluster's placement does.
fn owners(weights: &[usize], block: u16, seed: u64) -> Vec<SlotOwner<usize>> {
    let total: usize = weights.iter().sum();
    let blocks = usize::from(SLOTS / block);
    let mut nodes: Vec<usize> = Vec::new();
    for (node, weight) in weights.iter().enumerate() {
        nodes.resize(nodes.len() + blocks * weight / total, node);
    }
    let rest = blocks - nodes.len();
    nodes.extend(0..rest);
    Random::new(seed).shuffle(&mut nodes);
    (0..)
        .zip(nodes)
        .map(|(at, node)| SlotOwner {
            slots: at * block..=at * block + (block - 1),
            node,
        })
        .collect()
}

fn owner_of(owners: &[SlotOwner<usize>]) -> impl Fn(u16) -> usize + '_ {
    |slot| {
        let owner = owners.iter().find(|it| it.slots.contains(&slot));
        owner.expect("every slot has an owner").node
    }
}

fn counts(placement: &Placement, owners: &[SlotOwner<usize>]) -> BTreeMap<usize, u32> {
    let owner = owner_of(owners);
    let mut counts = BTreeMap::new();
    for region in 0..placement.regions() {
        *counts
            .entry(owner(placement.slot(Region(region as u16))))
            .or_default() += 1;
    }
    counts
}

#[test]
fn every_node_has_its_share_of_the_regions() {
    for (nodes, block) in [(1, 256), (2, 256), (3, 256), (5, 128), (8, 128), (13, 64)] {
        let owners = owners(&vec![1; nodes], block, 9);
        for subspace in 0..4 {
            let placement = Placement::balanced(256, subspace, &owners);
            let counts = counts(&placement, &owners);
            let (least, most) = (counts.values().min(), counts.values().max());
            let share = 256.0 / nodes as f64;
            let within = |count: Option<&u32>| {
                let count = f64::from(*count.expect("there are nodes"));
                // The nodes' slots are equal to a block.
                (count - share).abs() <= 1.0 + share * 0.11
            };
            assert!(
                counts.len() == nodes && within(least) && within(most),
                "{counts:?}"
            );
        }
    }
}

#[test]
fn a_node_of_twice_the_weight_has_twice_the_regions() {
    let owners = owners(&[2, 1, 1], 256, 4);
    let counts = counts(&Placement::balanced(256, 0, &owners), &owners);
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [128, 64, 64]);
}

/// HyperDex's figures: a search by the first of two attributes needs one or two of eight servers, one by the second all.
#[test]
fn a_search_that_fixes_the_first_attribute_contacts_one_node() {
    let owners = owners(&[1; 8], 128, 2);
    let cut = |attribute| Dimension {
        attribute: Attribute(attribute),
        cut: Cut::by_hash(4).expect("few bits"),
    };
    let subspace = Subspace::new(vec![cut(0), cut(1)]).expect("a subspace");
    let placement = Placement::balanced(256, 1, &owners);
    let search = |fixed: u16| {
        let contacts = subspace.contacts(|attribute| match attribute.0 == fixed {
            true => Constraint::Equal(Place::Hash(0x7000_0000_0000_0000)),
            false => Constraint::Free,
        });
        placement.requests(&contacts, owner_of(&owners))
    };
    let by_first = search(0);
    assert_eq!(by_first.len(), 1);
    assert_eq!(by_first.into_values().next(), Some(vec![112..=127]));
    let by_second = search(1);
    assert_eq!(by_second.len(), 8);
    assert!(by_second.values().all(|runs| runs.len() == 2));
}

#[test]
fn a_node_that_joins_takes_about_its_share_with_its_slots() {
    let before = owners(&[1; 8], 128, 2);
    let placement = Placement::balanced(256, 0, &before);
    // The ninth node takes every ninth block.
    let mut after = before.clone();
    for owner in after.iter_mut().step_by(9) {
        owner.node = 8;
    }
    let counts = counts(&placement, &after);
    assert!((10..=50).contains(&counts[&8]), "{counts:?}");
}

#[test]
fn with_no_owners_regions_lie_at_equal_distances() {
    let placement = Placement::balanced::<u32>(256, 3, &[]);
    assert_eq!(placement, Placement::even(256, 3));
    let mut slots: Vec<u16> = (0..256).map(|it| placement.slot(Region(it))).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|it| it[1] - it[0] == 64));
    assert_ne!(slots[0], Placement::even(256, 0).slot(Region(0)));
}

#[test]
fn what_was_kept_is_the_same_placement() {
    for placement in [
        Placement::even(64, 5),
        Placement::balanced(64, 5, &owners(&[1, 1, 2], 256, 1)),
    ] {
        let kept = Placement::from_pieces(64, placement.pieces()).expect("it was one");
        for region in 0..64 {
            assert_eq!(kept.slot(Region(region)), placement.slot(Region(region)));
        }
    }
    assert_eq!(Placement::from_pieces(64, vec![]), None);
    assert_eq!(Placement::from_pieces(64, vec![(Region(1), 0)]), None);
    assert_eq!(Placement::from_pieces(64, vec![(Region(0), SLOTS)]), None);
    assert_eq!(
        Placement::from_pieces(64, vec![(Region(0), 0), (Region(64), 0)]),
        None
    );
}

#[test]
fn a_node_of_less_than_a_block_has_its_regions_on_its_own_slots() {
    let owners = vec![
        SlotOwner {
            slots: 0..=4,
            node: 0,
        },
        SlotOwner {
            slots: 5..=16_383,
            node: 1,
        },
    ];
    let counts = counts(&Placement::balanced(16_384, 0, &owners), &owners);
    assert_eq!(counts[&0], 5);
}
