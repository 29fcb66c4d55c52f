//! When to cut anew, and what that concerns.

use larder_space::mapping::{
    Attribute, Balance, Cut, Difference, Dimension, Place, Region, Subspace,
};
use larder_types::Random;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{bytes, cut_of};

fn space(cuts: impl IntoIterator<Item = Cut>) -> Subspace {
    let dimensions = (0..).zip(cuts).map(|(attribute, cut)| Dimension {
        attribute: Attribute(attribute),
        cut,
    });
    Subspace::new(dimensions.collect()).expect("a subspace")
}

fn filled(space: &Subspace, objects: impl Iterator<Item = [u32; 2]>) -> Vec<u64> {
    let mut counts = vec![0; space.regions() as usize];
    for (key, values) in (0u64..).zip(objects) {
        let values = values.map(bytes);
        let region = space.region(|it| Place::Ordered(&values[usize::from(it.0)]), key);
        counts[usize::from(region.0)] += 1;
    }
    counts
}

#[test]
fn a_drift_asks_for_a_new_cut_of_the_attribute_that_drifted() {
    let even: Vec<u32> = (0..1000).collect();
    let old = space([cut_of(3, &even), cut_of(3, &even)]);
    let mut random = Random::new(1);
    let mut objects = |shift: u32| -> Vec<[u32; 2]> {
        (0..40_000)
            .map(|_| [random.below(1000) as u32, shift + random.below(1000) as u32])
            .collect()
    };
    let before = objects(0);
    let balance = Balance::of(&old, &filled(&old, before.iter().copied()));
    assert_eq!(balance.to_recut(), []);
    let after = objects(400);
    let balance = Balance::of(&old, &filled(&old, after.iter().copied()));
    assert!(balance.times_mean() > 2.0);
    assert_eq!(balance.to_recut(), [Attribute(1)]);
    let sample: Vec<u32> = after.iter().step_by(20).map(|it| it[1]).collect();
    let new = space([cut_of(3, &even), cut_of(3, &sample)]);
    let balance = Balance::of(&new, &filled(&new, after.iter().copied()));
    assert!(balance.times_mean() < 2.0);
}

#[test]
fn attributes_that_go_together_ask_for_no_cut_that_would_not_help() {
    let even: Vec<u32> = (0..1000).collect();
    let space = space([cut_of(3, &even), cut_of(3, &even)]);
    let objects = filled(&space, (0..40_000).map(|at| [at % 1000; 2]));
    let balance = Balance::of(&space, &objects);
    assert!(balance.times_mean() > 7.0);
    assert_eq!(balance.to_recut(), []);
}

#[test]
fn few_objects_ask_for_no_cut() {
    let even: Vec<u32> = (0..1000).collect();
    let space = space([cut_of(3, &even), cut_of(3, &even)]);
    let balance = Balance::of(&space, &filled(&space, (0..4000).map(|_| [1, 1])));
    assert!(balance.times_mean() > 2.0);
    assert_eq!(balance.to_recut(), []);
}

#[test]
fn a_cut_that_moves_one_bound_concerns_its_two_cells() {
    let old: Vec<u32> = (0..800).collect();
    let new: Vec<u32> = old
        .iter()
        .map(|&value| match value {
            300..400 => 310 + (value - 300) * 9 / 10,
            value => value,
        })
        .collect();
    let fixed = cut_of(1, &old);
    let (old, new) = (
        space([cut_of(3, &old), fixed.clone()]),
        space([cut_of(3, &new), fixed]),
    );
    let difference = Difference::between(&old, &new).expect("the same attributes");
    let concerned: Vec<u16> = difference.concerned().iter().map(|it| it.0).collect();
    // Values from 300 to 309 went from the fourth cell to the third.
    assert_eq!(concerned, [6, 7]);
    let targets: Vec<u16> = difference
        .targets(Region(6))
        .regions()
        .map(|it| it.0)
        .collect();
    assert_eq!(targets, [4, 6]);
    let same = Difference::between(&old, &old).expect("the same attributes");
    assert_eq!(same.concerned(), []);
}

#[test]
fn other_attributes_concern_everything() {
    let cut = || Cut::by_hash(2).expect("few bits");
    let one = space([cut()]);
    assert_eq!(Difference::between(&one, &space([cut(), cut()])), None);
    let finer = space([Cut::by_hash(3).expect("few bits")]);
    let difference = Difference::between(&one, &finer).expect("the same attributes");
    assert_eq!(difference.concerned().len(), 4);
    let targets: Vec<u16> = difference
        .targets(Region(3))
        .regions()
        .map(|it| it.0)
        .collect();
    assert_eq!(targets, [6, 7]);
}

proptest! {
    #[test]
    fn what_moves_is_among_the_targets_of_its_region(
        old_bits in 0u8..4, new_bits in 0u8..4, old in vec(0u32..20, 0..50), new in vec(0u32..20, 0..50), objects in vec((0u32..21, any::<u64>()), 1..100),
    ) {
        let (old, new) = (space([cut_of(old_bits, &old)]), space([cut_of(new_bits, &new)]));
        let difference = Difference::between(&old, &new).expect("the same attributes");
        for (value, key) in objects {
            let value = bytes(value);
            let before = old.region(|_| Place::Ordered(&value), key);
            let after = new.region(|_| Place::Ordered(&value), key);
            prop_assert!(difference.targets(before).contains(after));
            prop_assert!(before == after || difference.concerns(before));
        }
    }
}
