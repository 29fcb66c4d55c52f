//! The numbers of the thesis. c is the city, a the address, p the postcode, t the telephone number; `-` is no subspace.

use larder_space::plan::{
    AttributeSet, Configuration, CostModel, Layout, Options, Thesis, ThesisModel, plan_by_thesis,
};

use super::{by, hotels, lists, update};

fn set(letters: &str) -> AttributeSet {
    AttributeSet::of(letters.chars().filter_map(|it| "capt".find(it)))
}

fn sets(text: &str) -> Vec<AttributeSet> {
    let texts = text.split(' ').filter(|it| *it != "-");
    texts.map(set).collect()
}

/// Subspaces, query, throughput, and the cost of an object in units of 1e-7 s.
const TABLE_4_2: [(&str, &str, f64, f64); 17] = [
    ("c", "c", 3118.0, 3.220),
    ("-", "c", 12.0, 3.268),
    ("ca", "c", 199.0, 3.153),
    ("cap", "c", 88.0, 2.964),
    ("capt", "c", 46.0, 3.410),
    ("c", "ca", 3018.0, 3.327),
    ("ca", "ca", 3165.0, 3.172),
    ("-", "ca", 14.0, 2.801),
    ("cap", "ca", 581.0, 2.986),
    ("capt", "ca", 201.0, 3.122),
    ("c", "cap", 3152.0, 3.185),
    ("ca", "cap", 3210.0, 3.128),
    ("cap", "cap", 3511.0, 3.285),
    ("cap", "capt", 3672.0, 3.1411),
    ("capt", "capt", 3150.0, 3.187),
    ("-", "cap", 11.0, 3.565),
    ("capt", "cap", 828.0, 3.031),
];

const TABLE_4_3: [(&str, &str, f64, f64); 10] = [
    ("c ca", "c", 2948.0, 3.406),
    ("ca ap", "c", 184.0, 3.410),
    ("c ca", "a", 162.0, 3.874),
    ("ca ap", "a", 180.0, 3.486),
    ("c ca", "ca", 2922.0, 3.436),
    ("ca ap", "ca", 3047.0, 3.295),
    ("c ca", "cap", 2922.0, 3.436),
    ("ca ap", "cap", 3113.0, 3.225),
    ("c ca", "capt", 2946.0, 3.408),
    ("ca ap", "capt", 3233.0, 3.106),
];

#[test]
fn tables_4_2_and_4_3_are_reproduced() {
    for (subspaces, query, throughput, expected) in TABLE_4_2.into_iter().chain(TABLE_4_3) {
        let beta = Thesis::beta_of(throughput, &sets(subspaces), set(query)) * 1e7;
        // Throughputs were printed as integers.
        let rounding = expected * 0.5 / throughput + 0.0015;
        assert!(
            (beta - expected).abs() <= rounding,
            "{subspaces}|{query}: {beta}"
        );
    }
}

/// Each row has the throughputs for replicas 1, 2 and 3, and the numbers of subspaces in which the object stays and
/// moves, without the key subspace.
#[test]
fn table_4_6_gives_alpha() {
    let thesis = Thesis::default();
    let mut alphas = Vec::new();
    for (throughputs, stay, moved) in [
        ([13891.0, 7244.0, 5014.0], 0, 1),
        ([11685.0, 6211.0, 4147.0], 1, 1),
        ([8333.0, 4351.0, 2933.0], 0, 2),
        ([9822.0, 5382.0, 3473.0], 2, 1),
        ([7344.0, 3726.0, 2521.0], 1, 2),
    ] {
        for (replicas, throughput) in (1..).zip(throughputs) {
            alphas.push(thesis.alpha_of(throughput, replicas, stay, moved));
        }
    }
    assert!(
        (alphas[0] - 2.527).abs() < 0.001,
        "the text's example: {}",
        alphas[0]
    );
    let mean = alphas.iter().sum::<f64>() / alphas.len() as f64;
    assert!((2.5..2.8).contains(&mean), "{alphas:?}");
}

const NAMES: [&str; 4] = ["region", "address", "postcode", "tel"];

fn best_of(queries: &[(f64, &[&str])], modifications: &[(f64, &[&str])]) -> (f64, Vec<String>) {
    let workload = hotels(
        &NAMES,
        queries.iter().map(|it| by(it.0, it.1)).collect(),
        modifications.iter().map(|it| update(it.0, it.1)).collect(),
    );
    let options = Options::default();
    let report = plan_by_thesis(&workload, Thesis::default(), lists(4), &options).expect("ok");
    assert!(report.proof.is_exhaustive && report.proof.is_proven);
    let throughput = (report.best.throughput * 1e4).round() / 1e4;
    (throughput, report.best.subspaces)
}

/// The configurator's choices, to the four digits it prints. Overlapping subspaces, which its program could not
/// propose, are not better.
#[test]
fn the_choices_of_the_thesis_are_reproduced() {
    let a_queries: [&[&str]; 4] = [
        &["region"],
        &["address", "postcode"],
        &["address", "region", "tel"],
        &["address", "postcode", "region", "tel"],
    ];
    let mix =
        |shares: [f64; 4]| -> Vec<(f64, &[&str])> { shares.into_iter().zip(a_queries).collect() };
    for (shares, write, expected) in [
        ([0.054, 0.117, 0.234, 0.495], 0.05, 3231.7423),
        ([0.03, 0.065, 0.13, 0.275], 0.25, 4481.2291),
        ([0.006, 0.013, 0.026, 0.055], 0.45, 7305.9088),
    ] {
        let writes: [(f64, &[&str]); 2] = [(write, &["address"]), (write, &["postcode"])];
        let (throughput, subspaces) = best_of(&mix(shares), &writes);
        assert_eq!(throughput, expected);
        assert!(subspaces == ["region:1", "address:1"] || subspaces == ["region:1", "postcode:1"]);
    }
    for (shares, writes, expected) in [
        ([0.495, 0.234, 0.117, 0.054], [0.075, 0.025], 3186.5566),
        ([0.275, 0.13, 0.065, 0.03], [0.375, 0.125], 4080.1033),
        ([0.055, 0.026, 0.013, 0.006], [0.675, 0.225], 5670.0494),
    ] {
        let writes: [(f64, &[&str]); 2] = [
            (writes[0], &["region"]),
            (writes[1], &["address", "postcode", "tel"]),
        ];
        assert_eq!(best_of(&mix(shares), &writes).0, expected);
    }
    let singles: [(f64, &[&str]); 4] = NAMES
        .each_ref()
        .map(|name| (0.0025, std::slice::from_ref(name)));
    let (throughput, subspaces) = best_of(&singles, &[(0.99, &NAMES)]);
    assert_eq!(throughput, 3362.1425);
    assert_eq!(subspaces.len(), 2, "two pairs, in any way: {subspaces:?}");
}

#[test]
fn a_prediction_is_the_sum_of_its_parts() {
    let workload = hotels(
        &NAMES,
        vec![by(0.5, &["region"])],
        vec![update(0.5, &["address"])],
    );
    let model = ThesisModel::new(&workload, Thesis::default()).expect("ok");
    let subspaces = vec![
        Layout {
            dimensions: vec![(0, 8)],
        },
        Layout {
            dimensions: vec![(1, 8)],
        },
    ];
    let upkeep: f64 = subspaces.iter().map(|it| model.upkeep(it)).sum();
    let seconds = model.fixed() + upkeep + model.with(0, &subspaces[0]);
    let prediction = model.predict(&Configuration {
        subspaces,
        indexes: AttributeSet::default(),
    });
    assert!((prediction.throughput * seconds - 1.0).abs() < 1e-12);
    let classes = &prediction.classes;
    assert_eq!(classes[0].regions, 1.0);
    assert_eq!(classes[0].subspace.as_deref(), Some("region:8"));
    // Two replicas of the key subspace and of region, where the object stays, and of address, where it moves.
    assert_eq!(classes[1].chain, 8.0);
}

/// Returns every family of disjoint sets of this many attributes, in the order of the thesis's program.
fn families(attributes: u8) -> Vec<Vec<Vec<u8>>> {
    let mut all = vec![Vec::new()];
    for attribute in 0..attributes {
        all = (all.into_iter())
            .flat_map(|family: Vec<Vec<u8>>| {
                let into = |at: usize| {
                    let mut family = family.clone();
                    family.resize(family.len().max(at + 1), Vec::new());
                    family[at].push(attribute);
                    family
                };
                let with: Vec<_> = (0..=family.len()).map(into).collect();
                with.into_iter().chain([family])
            })
            .collect();
    }
    all.retain(|family| !family.is_empty());
    all
}

/// A search or a modification as in the file: `M` or `S`, a share, and attributes.
type Operation = (String, f64, Vec<String>);

#[derive(serde::Deserialize)]
struct Vectors {
    workloads: std::collections::BTreeMap<String, Computed>,
}

/// The output of the thesis's program for a workload.
#[derive(serde::Deserialize)]
struct Computed {
    ops: Vec<Operation>,
    n_configs: usize,
    top: Vec<(f64, Vec<String>)>,
    bottom: Vec<(f64, Vec<String>)>,
    #[serde(rename = "sum_T")]
    sum: f64,
}

/// Not only the best ones: all 51 of four attributes, and all 4,139 of seven.
#[test]
fn all_predictions_agree_with_the_program_of_the_thesis() {
    let Some(file) = larder_testing::external_data("hyperdex-configurator-vectors.json") else {
        return;
    };
    let text = std::fs::read_to_string(file).expect("it can be read");
    let vectors: Vectors = serde_json::from_str(&text).expect("as it is described");
    assert!(vectors.workloads.len() >= 10);
    for (name, computed) in vectors.workloads {
        let attributes = computed.ops.iter().flat_map(|it| &it.2);
        let names: std::collections::BTreeSet<&str> = attributes.map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let of = |kind: &'static str| computed.ops.iter().filter(move |it| it.0 == kind);
        let texts = |it: &Operation| it.2.clone();
        let queries = of("S").map(|it| {
            let attributes = texts(it);
            by(
                it.1,
                &attributes.iter().map(String::as_str).collect::<Vec<_>>(),
            )
        });
        let modifications = of("M").map(|it| {
            let attributes = texts(it);
            update(
                it.1,
                &attributes.iter().map(String::as_str).collect::<Vec<_>>(),
            )
        });
        let workload = hotels(&names, queries.collect(), modifications.collect());
        let model = ThesisModel::new(&workload, Thesis::default()).expect("ok");
        let throughput = |family: &[Vec<u8>]| {
            let layout = |set: &Vec<u8>| Layout {
                dimensions: set.iter().map(|at| (*at, 1)).collect(),
            };
            let subspaces = family.iter().map(layout).collect();
            let indexes = AttributeSet::default();
            model
                .predict(&Configuration { subspaces, indexes })
                .throughput
        };
        let families = families(names.len() as u8);
        assert_eq!(families.len(), computed.n_configs, "{name}");
        let mut all: Vec<f64> = families.iter().map(|it| throughput(it)).collect();
        let sum: f64 = all.iter().sum();
        // The shares in the file are rounded.
        assert!((sum / computed.sum - 1.0).abs() < 1e-7, "{name}: {sum}");
        all.sort_by(f64::total_cmp);
        let best = all.iter().rev().zip(&computed.top);
        let worst = all.iter().zip(computed.bottom.iter().rev());
        for (own, (expected, _)) in best.chain(worst) {
            assert!((own - expected).abs() < 1e-3, "{name}: {own}, {expected}");
        }
        for (expected, family) in computed.top.iter().chain(&computed.bottom) {
            let at = |it: &str| {
                names
                    .iter()
                    .position(|name| *name == it)
                    .expect("one of them") as u8
            };
            let sets = family.iter().map(|set| set.split(',').map(at).collect());
            let own = throughput(&sets.collect::<Vec<Vec<u8>>>());
            assert!(
                (own - expected).abs() < 1e-3,
                "{name} {family:?}: {own}, {expected}"
            );
        }
    }
}
