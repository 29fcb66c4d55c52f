//! Recorded workloads, compared with the mix from which the operations were drawn.

use std::ops::Bound;

use larder_space::plan::{
    AttributeSet, CLASSES_MAX, Configuration, CostModel, Deployment, HotValue, LarderModel,
    ModificationKind, RecordedConstraint, Recorder, Workload,
};
use larder_types::{Random, key_hash};

use super::{by, hotels, update};

fn near(is: f64, expected: f64, within: f64) {
    assert!((is - expected).abs() <= within, "{is}, not {expected}");
}

/// Draws a city. The first city has a tenth of the objects and half of the queries; prices are from 0 to 999.
fn city(random: &mut Random, first: f64) -> u64 {
    if random.unit() < first {
        0
    } else {
        1 + random.below(4999)
    }
}

fn recorded(operations: u32) -> Workload {
    recorded_by(1, operations)
}

/// Records with several recorders, and merges them as nodes do.
fn recorded_by(recorders: usize, operations: u32) -> Workload {
    let mut random = Random::new(5);
    let new = |seed| Recorder::new([("city", false), ("price", true), ("stars", false)], seed);
    let mut all: Vec<Recorder> = (0..recorders as u64).map(|it| new(it + 1)).collect();
    for at in 0..50_000 {
        let recorder = &mut all[at % recorders];
        recorder.object(0, &city(&mut random, 0.1).to_be_bytes());
        recorder.object(1, &random.below(1000).to_be_bytes());
        recorder.object(2, &random.below(6).to_be_bytes());
    }
    for at in 0..operations {
        let recorder = &mut all[at as usize % recorders];
        let constraint = RecordedConstraint::Equal(key_hash(&city(&mut random, 0.5).to_be_bytes()));
        match random.below(10) {
            0..4 => recorder.query(&[(0, constraint)], Some(2500), 10),
            4..6 => {
                let low = random.below(900);
                let (low, high) = (low.to_be_bytes(), (low + 100).to_be_bytes());
                let range =
                    RecordedConstraint::Range(Bound::Included(&low), Bound::Excluded(&high));
                recorder.query(&[(0, constraint), (1, range)], Some(250), 10);
            }
            6 => {
                let stars = [1u64, 2].map(|it| key_hash(&it.to_be_bytes()));
                recorder.query(&[(2, RecordedConstraint::OneOf(&stars))], Some(17_000), 100);
            }
            7 => recorder.get(),
            8 => recorder.modification(ModificationKind::Update, &[1]),
            _ => recorder.modification(ModificationKind::Create, &[]),
        }
    }
    let mut together = all.remove(0);
    for other in all {
        let bytes = other.encode();
        for at in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            Recorder::decode(&bytes[..at]).expect_err("truncated input");
        }
        together.merge(&Recorder::decode(&bytes).expect("a recorder"));
    }
    assert_eq!(together.dropped_share(), 0.0);
    assert_eq!(together.count(), f64::from(operations));
    together.workload(50_000, 200)
}

#[test]
fn one_or_several_recorders_record_the_generated_mix() {
    for recorders in [1, 3, 16] {
        check_recorded_mix(recorders);
    }
}

fn check_recorded_mix(recorders: usize) {
    let operations = 20_000;
    let workload = recorded_by(recorders, operations);
    workload.check().expect("it is a workload");
    assert_eq!(workload.frequency(), f64::from(operations));
    let share = |frequency: f64| frequency / f64::from(operations);
    near(share(workload.gets), 0.1, 0.01);
    let class = |equal: &[&str], ranges: usize| {
        let is =
            |it: &&larder_space::plan::QueryClass| it.equal == equal && it.range.len() == ranges;
        workload
            .queries
            .iter()
            .find(is)
            .expect("the class is there")
    };
    near(share(class(&["city"], 0).frequency), 0.4, 0.01);
    near(class(&["city"], 0).selectivity["city"], 0.05, 1e-9);
    near(share(class(&["city"], 1).frequency), 0.2, 0.01);
    near(class(&["city"], 1).range["price"], 0.1, 0.03);
    assert_eq!(class(&["city"], 1).results, Some(10.0));
    let histogram = &class(&["city"], 0).histogram;
    let mean: f64 = histogram.iter().map(|it| it.share * it.matches).sum();
    near(mean, class(&["city"], 0).matches.expect("known"), 1e-6);
    near(class(&[], 0).one_of["stars"], 2.0, 1e-9);
    let kinds: Vec<ModificationKind> = workload.modifications.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [ModificationKind::Update, ModificationKind::Create]);
    let [city, price, stars] = &workload.attributes[..] else {
        panic!("three attributes");
    };
    near(city.distinct.expect("counted") as f64, 5000.0, 400.0);
    near(price.distinct.expect("counted") as f64, 1000.0, 80.0);
    near(stars.distinct.expect("counted") as f64, 6.0, 0.0);
    near(city.hot[0].objects, 0.1, 0.01);
    near(city.hot[0].queries, 0.5, 0.01);
    assert_eq!(stars.hot.len(), 6);
    for hot in &stars.hot {
        near(hot.objects, 1.0 / 6.0, 0.01);
    }
}

/// Predictions from a recording agree with predictions from the mix itself.
#[test]
fn a_recorded_workload_yields_the_predictions_of_the_true_one() {
    let mut with_price = by(2.0, &["city"]);
    with_price.range.insert("price".to_owned(), 0.1);
    let mut by_stars = by(1.0, &[]);
    by_stars.one_of.insert("stars".to_owned(), 2.0);
    by_stars.selectivity.insert("stars".to_owned(), 0.34);
    let mut create = update(1.0, &[]);
    create.kind = ModificationKind::Create;
    let mut truth = hotels(
        &["city", "price", "stars"],
        vec![by(4.0, &["city"]), with_price, by_stars],
        vec![update(1.0, &["price"]), create],
    );
    truth.queries[0].selectivity.insert("city".to_owned(), 0.05);
    for (class, results) in truth.queries.iter_mut().zip([10.0, 10.0, 100.0]) {
        class.results = Some(results);
    }
    (truth.objects, truth.gets) = (50_000, 1.0);
    for (attribute, distinct) in truth.attributes.iter_mut().zip([5000, 1000, 6]) {
        attribute.distinct = Some(distinct);
    }
    let hot = |objects| HotValue {
        objects,
        queries: 0.5,
    };
    truth.attributes[0].hot = vec![hot(0.1)];
    // All queries request the same two of six values.
    truth.attributes[2].hot = vec![hot(1.0 / 6.0), hot(1.0 / 6.0)];
    let seen = recorded(20_000);
    let deployment = Deployment {
        servers: 8,
        ..Deployment::default()
    };
    for lists in [&[][..], &["city"], &["city,price", "stars"]] {
        let capacity = |workload: &Workload| {
            let model = LarderModel::new(workload, &deployment, AttributeSet::default());
            let configuration = Configuration::parse(lists, workload, 64).expect("lists");
            model.expect("a workload").predict(&configuration).capacity
        };
        let ratio = capacity(&seen) / capacity(&truth);
        assert!((0.93..1.07).contains(&ratio), "{lists:?}: {ratio}");
    }
}

#[test]
fn the_most_frequent_classes_are_kept() {
    let names: Vec<String> = (0..12).map(|at| format!("a{at}")).collect();
    let mut recorder = Recorder::new(names.iter().map(|it| (&it[..], false)), 1);
    let mut random = Random::new(2);
    for _ in 0..10_000 {
        if random.below(2) == 0 {
            recorder.query(&[(0, RecordedConstraint::Equal(7))], Some(1), 1);
        } else {
            let set = random.below(1 << 12);
            let constraints: Vec<(usize, RecordedConstraint<'_>)> = (0..12)
                .filter(|at| set >> at & 1 == 1)
                .map(|at| (at, RecordedConstraint::Equal(1)))
                .collect();
            recorder.query(&constraints, Some(1), 1);
        }
    }
    let workload = recorder.workload(1000, 100);
    assert_eq!(workload.queries.len(), CLASSES_MAX);
    let most = workload
        .queries
        .iter()
        .map(|it| it.frequency)
        .fold(0.0, f64::max);
    near(most, 5000.0, 200.0);
    assert!(recorder.dropped_share() > 0.4 && recorder.dropped_share() < 0.5);
    let left_out = workload.unrecorded / (workload.unrecorded + workload.frequency());
    assert_eq!(left_out, recorder.dropped_share());
}

#[test]
fn older_operations_weigh_less() {
    let mut recorder = Recorder::new([("a", false), ("b", false)], 1);
    for _ in 0..1000 {
        recorder.query(&[(0, RecordedConstraint::Equal(1))], Some(4), 2);
    }
    for _ in 0..3 {
        recorder.age();
    }
    for _ in 0..1000 {
        recorder.query(&[(1, RecordedConstraint::Equal(1))], Some(4), 2);
    }
    let workload = recorder.workload(100, 100);
    let frequencies: Vec<f64> = workload.queries.iter().map(|it| it.frequency).collect();
    assert_eq!(frequencies, [125.0, 1000.0]);
    assert_eq!(workload.queries[0].results, Some(2.0));
}
