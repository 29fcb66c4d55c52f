//! The decision to partition again.

use larder_space::mapping::{Attribute, Balance, CellValue, Cut, Dimension, Subspace};
use larder_types::Random;

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
        let region = space.region(|it| CellValue::Ordered(&values[usize::from(it.0)]), key);
        counts[usize::from(region.0)] += 1;
    }
    counts
}

#[test]
fn a_drift_requires_a_new_cut_of_the_drifted_attribute() {
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
    assert_eq!(balance.attributes_to_recut(), []);
    let after = objects(400);
    let balance = Balance::of(&old, &filled(&old, after.iter().copied()));
    assert!(balance.times_mean() > 2.0);
    assert_eq!(balance.attributes_to_recut(), [Attribute(1)]);
    let sample: Vec<u32> = after.iter().step_by(20).map(|it| it[1]).collect();
    let new = space([cut_of(3, &even), cut_of(3, &sample)]);
    let balance = Balance::of(&new, &filled(&new, after.iter().copied()));
    assert!(balance.times_mean() < 2.0);
}

#[test]
fn correlated_attributes_require_no_useless_cut() {
    let even: Vec<u32> = (0..1000).collect();
    let space = space([cut_of(3, &even), cut_of(3, &even)]);
    let objects = filled(&space, (0..40_000).map(|at| [at % 1000; 2]));
    let balance = Balance::of(&space, &objects);
    assert!(balance.times_mean() > 7.0);
    assert_eq!(balance.attributes_to_recut(), []);
}

#[test]
fn few_objects_require_no_cut() {
    let even: Vec<u32> = (0..1000).collect();
    let space = space([cut_of(3, &even), cut_of(3, &even)]);
    let balance = Balance::of(&space, &filled(&space, (0..4000).map(|_| [1, 1])));
    assert!(balance.times_mean() > 2.0);
    assert_eq!(balance.attributes_to_recut(), []);
}
