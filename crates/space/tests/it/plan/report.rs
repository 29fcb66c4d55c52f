//! Reports: the best configuration compared with others.

use larder_space::plan::{
    Configuration, Deployment, Options, Prediction, Report, Thesis, plan, plan_by_thesis,
};

use super::{lists, random_workload};

fn options() -> Options {
    Options {
        top: 4,
        random: 8,
        starts: 4,
        proof_steps: 20_000_000,
        seed: 7,
        tolerance: 0.1,
        indexes: None,
    }
}

fn deployment() -> Deployment {
    Deployment {
        servers: 8,
        replicas: 2,
        regions: 64,
        ..Deployment::default()
    }
}

#[test]
fn a_report_ranks_and_nothing_in_it_beats_the_best() {
    for (seed, writes) in [(1, 0.1), (2, 0.5), (3, 0.9)] {
        let workload = random_workload(4, 8, writes, seed);
        let current = Configuration::parse(&["a0,a1,a2,a3"], &workload, 64).expect("ok");
        let report = plan(&workload, &deployment(), Some(&current), &options()).expect("ok");
        assert!(report.proof.is_proven, "{:?}", report.proof);
        let best = report.best.capacity;
        assert_eq!(report.top.len(), 4);
        assert_eq!(report.top[0], report.best);
        assert!(
            report
                .top
                .is_sorted_by(|one, other| one.capacity >= other.capacity)
        );
        let heuristics = report.heuristics.iter().map(|it| &it.prediction);
        let others = heuristics.chain(&report.random).chain(&report.current);
        for other in others {
            assert!(
                other.capacity <= best * (1.0 + 1e-9),
                "{}",
                other.configuration
            );
        }
        assert_eq!((report.heuristics.len(), report.random.len()), (5, 8));
        // The configuration for the original mix is never better than the best one for the changed mix.
        assert_eq!(report.shifts.len(), 2 + 8 + 1);
        for shift in &report.shifts {
            assert!(
                shift.throughput <= shift.throughput_best * (1.0 + 1e-9),
                "{}",
                shift.change
            );
            assert!((0.0..1.0).contains(&shift.loss));
        }
    }
}

/// The simplicity of a prediction: its number of subspaces, then the number of attributes in them.
fn size(it: &Prediction) -> (usize, usize) {
    let attributes = it.subspaces.iter().map(|list| list.split(',').count());
    (it.subspaces.len(), attributes.sum())
}

#[test]
fn the_simplest_configuration_within_the_tolerance_is_chosen() {
    let mut simpler = 0;
    for seed in 0..12 {
        let workload = random_workload(4, 6, 0.2 + 0.05 * seed as f64, seed);
        let plan_with = |tolerance: f64, current: Option<&Configuration>| {
            let options = Options {
                tolerance,
                ..options()
            };
            plan(&workload, &deployment(), current, &options).expect("ok")
        };
        let cost = |it: &Prediction| it.parts.with_skew();
        let exact = plan_with(0.0, None);
        let best = cost(&exact.best);
        assert!(cost(&exact.chosen) <= best * (1.0 + 1e-9));
        let report = plan_with(0.1, None);
        let limit = best * 1.1 * (1.0 + 1e-9);
        assert!(cost(&report.chosen) <= limit && size(&report.chosen) <= size(&report.best));
        let heuristics = report.heuristics.iter().map(|it| &it.prediction);
        let others = heuristics.chain(&report.top).chain(&report.random);
        for other in others.filter(|it| cost(it) <= best * 1.1 * (1.0 - 1e-9)) {
            assert!(
                size(&report.chosen) <= size(other),
                "{} {}",
                report.chosen.configuration,
                other.configuration
            );
        }
        simpler += usize::from(size(&report.chosen) < size(&report.best));
        // The current configuration is not replaced by a simpler one that is worse.
        let now = Configuration {
            subspaces: Configuration::parse(&strs(&report.best.subspaces), &workload, 64)
                .expect("ok")
                .subspaces,
            ..Configuration::default()
        };
        let with_current = plan_with(0.1, Some(&now));
        let current = with_current
            .current
            .as_ref()
            .expect("the current configuration was given");
        assert!(cost(&with_current.chosen) <= cost(current) * (1.0 + 1e-9));
    }
    assert!(simpler >= 4, "{simpler}");
}

fn strs(lists: &[String]) -> Vec<&str> {
    lists.iter().map(String::as_str).collect()
}

#[test]
fn a_report_is_deterministic_and_round_trips_through_json() {
    let workload = random_workload(4, 6, 0.3, 4);
    let report = plan(&workload, &deployment(), None, &options()).expect("ok");
    assert_eq!(
        plan(&workload, &deployment(), None, &options()),
        Ok(report.clone())
    );
    let json = serde_json::to_string(&report).expect("JSON");
    let read: Report = serde_json::from_str(&json).expect("JSON");
    assert_eq!(read.best.subspaces, report.best.subspaces);
    assert_eq!(read.top.len(), report.top.len());
    assert!(json.contains("\"throughput\"") && json.contains("\"skew\""));
}

#[test]
fn unused_local_indexes_are_omitted() {
    let mut workload = random_workload(3, 3, 0.9, 8);
    for class in &mut workload.queries {
        (class.equal, class.range) = (vec!["a0".to_owned()], Default::default());
    }
    workload.attributes[0].distinct = None;
    workload.modifications[0].changes = vec!["a1".to_owned()];
    let report = plan(&workload, &deployment(), None, &options()).expect("ok");
    assert!(
        report.best.configuration.ends_with("INDEX 1 a0"),
        "{}",
        report.best.configuration
    );
}

#[test]
fn a_report_by_the_thesis_names_its_model() {
    let workload = random_workload(4, 6, 0.3, 4);
    let thesis = Thesis::default();
    let report = plan_by_thesis(&workload, thesis, lists(4), &options()).expect("ok");
    assert_eq!(report.model, "thesis");
    assert!(report.proof.is_exhaustive);
    assert!(
        report
            .top
            .is_sorted_by(|one, other| one.throughput >= other.throughput)
    );
}

#[test]
fn a_plan_from_guessed_costs_or_an_incomplete_recording_is_not_proven() {
    let mut workload = random_workload(3, 3, 0.3, 8);
    let guessed = Deployment {
        guessed: vec!["move_us".to_owned()],
        ..deployment()
    };
    let [with_guess, measured] =
        [&guessed, &deployment()].map(|it| plan(&workload, it, None, &options()).expect("a plan"));
    assert!(measured.proof.is_proven && !with_guess.proof.is_proven);
    assert_eq!(with_guess.best, measured.best);
    workload.unrecorded = 1.0;
    let incomplete = plan(&workload, &deployment(), None, &options()).expect("a plan");
    assert!(!incomplete.proof.is_proven);
}

#[test]
fn an_impossible_storage_limit_is_rejected_with_the_minimum() {
    let workload = random_workload(3, 3, 0.3, 8);
    let limited = |bytes: u64| {
        let deployment = Deployment {
            storage_bytes_max: Some(bytes),
            ..deployment()
        };
        plan(&workload, &deployment, None, &options())
    };
    let least = 2 * workload.objects * workload.object_bytes;
    let refused = limited(least - 1).expect_err("nothing fits");
    let expected = format!("take {least} without any subspace; raise it to at least {least}");
    assert!(refused.ends_with(&expected), "{refused}");
    // Plans for higher limits stay within the limit, together with the chosen indexes.
    for bytes in [least, least + 1_000_000, 2 * least, 3 * least] {
        let report = limited(bytes).expect("a plan");
        for it in report.top.iter().chain([&report.chosen]) {
            assert!(it.storage_bytes <= bytes as f64, "{bytes}: {it:?}");
        }
    }
}
