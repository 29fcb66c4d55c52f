//! Subspaces: the regions of objects, and the regions that searches contact.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

use larder_space::mapping::{
    Attribute, Balance, CellValue, Constraint, Cut, Dimension, Region, Subspace, SubspaceError,
};
use larder_types::{Random, key_hash};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Zipf, bytes, cut_of};

fn dimension(attribute: u16, cut: Cut) -> Dimension {
    Dimension {
        attribute: Attribute(attribute),
        cut,
    }
}

fn hashed(attribute: u16, bits: u8) -> Dimension {
    dimension(attribute, Cut::by_hash(bits).expect("few bits"))
}

#[test]
fn a_search_contacts_one_region_for_each_unconstrained_cell() {
    let space = Subspace::new(vec![hashed(0, 4), hashed(1, 3), hashed(2, 1)]).expect("a subspace");
    let count = |fixed: &[u16]| {
        let constraint = |attribute: Attribute| {
            if fixed.contains(&attribute.0) {
                Constraint::Equal(CellValue::Hash(12345 << 40))
            } else {
                Constraint::Free
            }
        };
        let contacts = space.contacts(constraint);
        assert_eq!(contacts.count() as usize, contacts.regions().count());
        (contacts.count(), contacts.runs().count())
    };
    // The number of regions, and of runs of adjacent ones. The regions of one value of the first attribute form one
    // run.
    assert_eq!(count(&[]), (256, 1));
    assert_eq!(count(&[0]), (16, 1));
    assert_eq!(count(&[1]), (32, 16));
    assert_eq!(count(&[2]), (128, 128));
    assert_eq!(count(&[0, 1, 2]), (1, 1));
    let nothing = space.contacts(|_| Constraint::Nothing);
    assert!(nothing.is_empty() && nothing.runs().next().is_none());
}

#[test]
fn a_range_contacts_its_share_of_the_cells_and_one_more() {
    let prices: Vec<u32> = (0..10_000).collect();
    let space = Subspace::new(vec![hashed(0, 2), dimension(1, cut_of(6, &prices))]).expect("ok");
    let (low, high) = (bytes(3000), bytes(4000));
    let contacts = space.contacts(|attribute| match attribute.0 {
        0 => Constraint::Equal(CellValue::Hash(0)),
        _ => Constraint::Range(Bound::Included(&low), Bound::Excluded(&high)),
    });
    assert_eq!(contacts.count(), 7, "a tenth of 64 cells, and one");
    assert_eq!(contacts.runs().count(), 1);
}

#[test]
fn two_hot_values_of_an_object_spread_it_independently() {
    let hot = |bits| cut_of(bits, &vec![5; 100]);
    let space = Subspace::new(vec![dimension(0, hot(3)), dimension(1, hot(3))]).expect("ok");
    let value = bytes(5);
    let mut objects = vec![0; 64];
    for key in 0..64_000u32 {
        let region = space.region(|_| CellValue::Ordered(&value), key_hash(&bytes(key)));
        objects[usize::from(region.0)] += 1;
    }
    let balance = Balance::of(&space, &objects);
    assert!(balance.times_mean() < 1.2, "{balance:?}");
}

#[test]
fn zipf_attributes_fill_regions_within_twice_the_mean() {
    let mut random = Random::new(3);
    let zipf = Zipf::new(1000);
    let sample =
        |random: &mut Random| -> Vec<u32> { (0..5000).map(|_| zipf.draw(random)).collect() };
    let cuts = [
        cut_of(4, &sample(&mut random)),
        cut_of(4, &sample(&mut random)),
    ];
    let [one, other] = cuts;
    let space = Subspace::new(vec![dimension(0, one), dimension(1, other)]).expect("ok");
    let mut objects = vec![0; 256];
    for _ in 0..256 * 400 {
        let values = [0, 1].map(|_| bytes(zipf.draw(&mut random)));
        let region = space.region(
            |it| CellValue::Ordered(&values[usize::from(it.0)]),
            random.word(),
        );
        objects[usize::from(region.0)] += 1;
    }
    let balance = Balance::of(&space, &objects);
    assert!(balance.times_mean() < 2.0, "{balance:?}");
    assert_eq!(balance.attributes_to_recut(), []);
}

#[test]
fn invalid_subspaces_are_rejected() {
    assert_eq!(Subspace::new(vec![]), Err(SubspaceError::NoAttribute));
    assert_eq!(
        Subspace::new(vec![hashed(3, 1), hashed(3, 2)]),
        Err(SubspaceError::Twice(Attribute(3)))
    );
    assert_eq!(
        Subspace::new(vec![hashed(0, 8), hashed(1, 7)]),
        Err(SubspaceError::TooManyBits(15))
    );
}

#[derive(Debug, Clone)]
enum TestConstraint {
    Free,
    OneOf(Vec<u8>),
    Range(Bound<u8>, Bound<u8>),
}

impl TestConstraint {
    fn passes(&self, value: Option<u8>) -> bool {
        match (self, value) {
            (TestConstraint::Free, _) => true,
            (TestConstraint::OneOf(values), Some(value)) => values.contains(&value),
            (TestConstraint::Range(low, high), Some(value)) => (*low, *high).contains(&value),
            (_, None) => false,
        }
    }
}

fn bound() -> impl Strategy<Value = Bound<u8>> {
    prop_oneof![
        Just(Bound::Unbounded),
        (0u8..9).prop_map(Bound::Included),
        (0u8..9).prop_map(Bound::Excluded),
    ]
}

fn any_constraint() -> impl Strategy<Value = TestConstraint> {
    prop_oneof![
        Just(TestConstraint::Free),
        vec(0u8..9, 0..4).prop_map(TestConstraint::OneOf),
        (bound(), bound()).prop_map(|(low, high)| TestConstraint::Range(low, high)),
    ]
}

/// Returns the place of a value from 0 to 8. Even attributes are ordered, odd ones are not.
fn place(attribute: usize, value: &Option<[u8; 1]>) -> CellValue<'_> {
    match value {
        None => CellValue::Missing,
        Some(value) if attribute.is_multiple_of(2) => CellValue::Ordered(value),
        Some(value) => CellValue::Hash(key_hash(value)),
    }
}

proptest! {
    #[test]
    fn a_search_contacts_the_region_of_every_matching_object(
        dimensions in vec((0u8..4, vec(0u8..9, 0..40)), 1..4),
        asked in vec(any_constraint(), 4),
        objects in vec((vec(proptest::option::of(0u8..9), 4), any::<u64>()), 1..60),
    ) {
        let dimensions = dimensions.iter().enumerate().map(|(attribute, (bits, sample))| {
            let encoded: Vec<Vec<u8>> = sample.iter().map(|&value| match attribute % 2 {
                0 => vec![value],
                _ => key_hash(&[value]).to_be_bytes().to_vec(),
            }).collect();
            let cut = Cut::by_quantiles(*bits, encoded.iter().map(|it| &it[..])).expect("few bits");
            dimension(attribute as u16, cut)
        });
        let space = Subspace::new(dimensions.collect()).expect("a subspace");
        let contacts = contacts_of(&space, &asked);
        let regions: BTreeSet<Region> = contacts.regions().collect();
        prop_assert_eq!(regions.len() as u32, contacts.count());
        prop_assert!(contacts.runs().collect::<Vec<_>>().windows(2).all(|it| it[0].end() + 1 < *it[1].start()));
        for region in 0..space.regions() {
            let region = Region(region as u16);
            prop_assert_eq!(contacts.contains(region), regions.contains(&region));
        }
        for (values, key) in &objects {
            let encoded: Vec<Option<[u8; 1]>> = values.iter().map(|value| value.map(|it| [it])).collect();
            let region = space.region(|it| place(it.0.into(), &encoded[usize::from(it.0)]), *key);
            prop_assert!(u32::from(region.0) < space.regions());
            let is_hit = (0..space.dimensions().len()).all(|at| asked[at].passes(values[at]));
            // An unordered attribute has no ranges.
            if is_hit {
                prop_assert!(contacts.contains(region));
            }
        }
    }
}

fn contacts_of(space: &Subspace, asked: &[TestConstraint]) -> larder_space::mapping::Contacts {
    let encoded: Vec<Option<[u8; 1]>> = (0u8..9).map(|value| Some([value])).collect();
    let places: Vec<Vec<CellValue<'_>>> = (0..)
        .zip(asked)
        .map(|(attribute, asked)| match asked {
            TestConstraint::OneOf(values) => {
                let values = values.iter();
                values
                    .map(|&value| place(attribute, &encoded[usize::from(value)]))
                    .collect()
            }
            _ => Vec::new(),
        })
        .collect();
    let single: Vec<[u8; 1]> = (0u8..9).map(|value| [value]).collect();
    let edge = |bound: &Bound<u8>| bound.map(|value| &single[usize::from(value)][..]);
    space.contacts(|attribute| {
        let at = usize::from(attribute.0);
        match &asked[at] {
            TestConstraint::Free => Constraint::Free,
            TestConstraint::OneOf(_) if places[at].len() == 1 => Constraint::Equal(places[at][0]),
            TestConstraint::OneOf(_) => Constraint::OneOf(&places[at]),
            TestConstraint::Range(..) if at % 2 == 1 => Constraint::Free,
            TestConstraint::Range(low, high) => Constraint::Range(edge(low), edge(high)),
        }
    })
}
