//! The configurator.

mod choose;
mod follow;
mod larder;
mod record;
mod report;
mod thesis;
mod workload;

use larder_space::plan::{
    AttributeProfile, Layout, Modification, ModificationKind, QueryClass, Workload,
};
use larder_types::Random;

/// Returns every list of this many attributes, each with one bit.
fn lists(attributes: u32) -> Vec<Layout> {
    let list = |set: u32| Layout {
        dimensions: (0..attributes as u8)
            .filter(|at| set >> at & 1 == 1)
            .map(|at| (at, 1))
            .collect(),
    };
    (1..1 << attributes).map(list).collect()
}

fn attribute(name: &str) -> AttributeProfile {
    AttributeProfile {
        name: name.to_owned(),
        ordered: true,
        lists: false,
        distinct: None,
        hot: Vec::new(),
    }
}

fn by(frequency: f64, equal: &[&str]) -> QueryClass {
    QueryClass {
        frequency,
        equal: equal.iter().map(|&it| it.to_owned()).collect(),
        ..QueryClass::default()
    }
}

fn update(frequency: f64, changes: &[&str]) -> Modification {
    Modification {
        frequency,
        changes: changes.iter().map(|&it| it.to_owned()).collect(),
        kind: ModificationKind::Update,
        name: String::new(),
    }
}

fn hotels(names: &[&str], queries: Vec<QueryClass>, modifications: Vec<Modification>) -> Workload {
    Workload {
        objects: 256_000,
        object_bytes: 200,
        gets: 0.0,
        unrecorded: 0.0,
        attributes: names.iter().map(|name| attribute(name)).collect(),
        queries,
        modifications,
    }
}

/// Returns queries of one to five attributes, some of them ranges, with Zipf-distributed frequencies, and three classes
/// of updates.
fn random_workload(attributes: usize, queries: usize, writes: f64, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let names: Vec<String> = (0..attributes).map(|at| format!("a{at}")).collect();
    let mut workload = hotels(&[], Vec::new(), Vec::new());
    for name in &names {
        let mut profile = attribute(name);
        profile.distinct = Some(1 << (2 + random.below(16)));
        workload.attributes.push(profile);
    }
    let draw = |random: &mut Random, most: usize| {
        let mut names = names.clone();
        random.shuffle(&mut names);
        names.truncate(1 + random.index(most));
        names
    };
    let mut total = 0.0;
    for rank in 0..queries {
        let frequency = 1.0 / (rank + 1) as f64;
        total += frequency;
        let mut class = by(frequency, &[]);
        for name in draw(&mut random, attributes.min(5)) {
            if random.below(5) == 0 {
                class.range.insert(name, 0.01 + random.unit() / 5.0);
            } else {
                class.equal.push(name);
            }
        }
        workload.queries.push(class);
    }
    for _ in 0..3 {
        let mut class = update(total * writes / (1.0 - writes) / 3.0, &[]);
        class.changes = draw(&mut random, attributes);
        workload.modifications.push(class);
    }
    workload
}
