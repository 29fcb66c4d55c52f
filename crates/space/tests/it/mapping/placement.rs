//! Regions on hash slots.

use larder_space::mapping::{
    Attribute, Constraint, Cut, Dimension, Place, Placement, Region, Subspace,
};
use larder_types::SLOTS;

/// Of eight nodes with a run of slots each.
fn owner_of(slot: u16) -> u16 {
    slot / (SLOTS / 8)
}

/// HyperDex's figures: a search by the first of two attributes needs one or two of eight servers, one by the second all.
#[test]
fn a_search_that_fixes_the_first_attribute_contacts_few_nodes() {
    let cut = |attribute| Dimension {
        attribute: Attribute(attribute),
        cut: Cut::by_hash(4).expect("few bits"),
    };
    let subspace = Subspace::new(vec![cut(0), cut(1)]).expect("a subspace");
    let placement = Placement::even(256, 1);
    let search = |fixed: u16| {
        let contacts = subspace.contacts(|attribute| match attribute.0 == fixed {
            true => Constraint::Equal(Place::Hash(0x7000_0000_0000_0000)),
            false => Constraint::Free,
        });
        placement.requests(&contacts, owner_of)
    };
    let by_first = search(0);
    assert!(by_first.len() <= 2, "{by_first:?}");
    let regions: Vec<u16> = by_first.into_values().flatten().flatten().collect();
    assert_eq!(regions, (112..=127).collect::<Vec<_>>());
    let by_second = search(1);
    assert_eq!(by_second.len(), 8);
    assert_eq!(by_second.into_values().flatten().count(), 16);
}

#[test]
fn regions_lie_at_equal_distances_and_each_subspace_begins_elsewhere() {
    let placement = Placement::even(256, 3);
    let mut slots: Vec<u16> = (0..256).map(|it| placement.slot(Region(it))).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|it| it[1] - it[0] == 64));
    assert_ne!(slots[0], Placement::even(256, 0).slot(Region(0)));
}
