//! The placement of regions on hash slots.

use std::collections::BTreeSet;

use larder_space::mapping::{
    Attribute, CellValue, Constraint, Cut, Dimension, Placement, Region, SlotOwner, Subspace,
};
use larder_types::{Random, SLOTS};

/// Returns the owner among eight nodes with a run of slots each.
fn owner_of(slot: u16) -> u16 {
    slot / (SLOTS / 8)
}

/// HyperDex's figures: a search by the first of two attributes contacts one or two of eight servers, a search by the
/// second contacts all.
#[test]
fn a_search_that_fixes_the_first_attribute_contacts_few_nodes() {
    let cut = |attribute| Dimension {
        attribute: Attribute(attribute),
        cut: Cut::by_hash(4).expect("few bits"),
    };
    let subspace = Subspace::new(vec![cut(0), cut(1)]).expect("a subspace");
    let placement = Placement::even(256, 1);
    let search = |fixed: u16| {
        let contacts = subspace.contacts(|attribute| {
            if attribute.0 == fixed {
                Constraint::Equal(CellValue::Hash(0x7000_0000_0000_0000))
            } else {
                Constraint::Free
            }
        });
        placement
            .requests(&contacts, usize::MAX, owner_of)
            .expect("there is no bound")
    };
    let by_first = search(0);
    assert!(by_first.len() <= 2, "{by_first:?}");
    let regions: Vec<u16> = by_first.into_values().flatten().flatten().collect();
    assert_eq!(regions, (112..=127).collect::<Vec<_>>());
    let by_second = search(1);
    assert_eq!(by_second.len(), 8);
    // A search that contacts as many nodes as there are does not use regions.
    let contacts = subspace.contacts(|_| Constraint::Free);
    let fewer_than = |nodes| placement.requests(&contacts, nodes, owner_of);
    assert_eq!(fewer_than(8), None);
    assert_eq!(fewer_than(9).map(|it| it.len()), Some(8));
    assert_eq!(by_second.into_values().flatten().count(), 16);
}

#[test]
fn regions_are_equidistant_and_each_subspace_starts_at_another_slot() {
    let placement = Placement::even(256, 3);
    let mut slots: Vec<u16> = (0..256).map(|it| placement.slot(Region(it))).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|it| it[1] - it[0] == 64));
    assert_ne!(slots[0], Placement::even(256, 0).slot(Region(0)));
}

/// As in a cluster: blocks of slots, each owned by any core of any node.
#[test]
fn adjacent_regions_have_slots_of_one_owner() {
    let mut random = Random::new(11);
    let runs_of = |owners: &[SlotOwner]| owners.chunk_by(|one, next| one == next).count();
    for round in 0..200 {
        let (bits, number) = (random.below(10) as u32, random.below(9) as u16);
        let (nodes, cores) = (1 + random.below(9), 1 + random.below(3));
        let block = 16 << random.below(5);
        let draw = |_| (7 * random.below(nodes) as u16, random.below(cores) as u16);
        let owners: Vec<SlotOwner> = (0..SLOTS / block).map(draw).collect();
        let owner = |slot: u16| owners[usize::from(slot / block)];
        let even = Placement::even(1 << bits, number);
        let along = even.clone().ordered_by_owner(owner);
        let slots = |of: &Placement| {
            let regions = (0..1 << bits).map(|it| of.slot(Region(it)));
            regions.collect::<Vec<u16>>()
        };
        let (mut before, mut after) = (slots(&even), slots(&along));
        let [unordered, ordered] =
            [&before, &after].map(|slots| slots.iter().map(|it| owner(*it)).collect::<Vec<_>>());
        let distinct: BTreeSet<SlotOwner> = ordered.iter().copied().collect();
        if along.runs().is_empty() {
            assert!(runs_of(&unordered) <= distinct.len() + 1, "round {round}")
        } else {
            assert_eq!(runs_of(&ordered), distinct.len(), "{round}: {ordered:?}");
            let nodes: Vec<SlotOwner> = ordered.iter().map(|it| (it.0, 0)).collect();
            let distinct: BTreeSet<SlotOwner> = nodes.iter().copied().collect();
            assert_eq!(runs_of(&nodes), distinct.len(), "{round}: {ordered:?}");
            assert_eq!(ordered[0].0, unordered[0].0, "it begins at the same node");
        }
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after, "on the same slots");
        let runs = along.runs();
        assert_eq!(Placement::of_runs(1 << bits, number, &runs), Some(along));
    }
}

#[test]
fn runs_that_do_not_contain_each_slot_once_are_rejected() {
    let of = |runs: &[(u16, u16)]| Placement::of_runs(8, 0, runs);
    assert!(of(&[(4, 4), (0, 4)]).is_some());
    let bad: [&[(u16, u16)]; 6] = [
        &[(0, 7)],
        &[(0, 9)],
        &[(0, 4), (3, 4)],
        &[(4, 8)],
        &[(u16::MAX, 4), (0, 4)],
        &[(0, u16::MAX), (0, u16::MAX)],
    ];
    for runs in bad {
        assert_eq!(of(runs), None, "{runs:?}");
    }
}
