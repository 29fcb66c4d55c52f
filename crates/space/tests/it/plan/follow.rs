//! Following a changed workload: a lasting change is followed once, an oscillation is not.

use larder_space::plan::{
    Configuration, Deployment, Follower, Options, Threshold, Verdict, Window, Workload, plan,
};

fn window(now_us: f64, best_us: f64) -> Window {
    Window {
        seconds: 60.0,
        operations: 60_000.0,
        now_us,
        best_us,
        move_us: 0.0,
    }
}

/// Returns the number of changes for a workload that alternates between two states with different best subspaces.
/// `is_other` is its state in each window.
fn changes(is_other: impl Iterator<Item = bool>) -> u32 {
    let mut follower = Follower::new(Threshold::default());
    let (mut has_other, mut changes) = (false, 0);
    for is_other in is_other {
        let now_us = if has_other == is_other { 50.0 } else { 100.0 };
        if let Verdict::Change { .. } = follower.step(Some(&window(now_us, 50.0))) {
            has_other = is_other;
            changes += 1;
        }
    }
    changes
}

#[test]
fn a_permanent_change_is_followed_once() {
    assert_eq!(changes((0..1000).map(|at| at >= 10)), 1);
    assert_eq!(changes((0..1000).map(|_| false)), 0);
    // Another change much later is followed as quickly as the first one.
    let mut follower = Follower::new(Threshold::default());
    let mut steps_until_change = |quiet: u32| {
        for _ in 0..quiet {
            follower.step(Some(&window(50.0, 50.0)));
        }
        let is_wait = |verdict| matches!(verdict, Verdict::Wait { .. });
        1 + (0..)
            .take_while(|_| is_wait(follower.step(Some(&window(100.0, 50.0)))))
            .count()
    };
    assert_eq!(steps_until_change(0), 3);
    assert_eq!(steps_until_change(5), 6);
    assert_eq!(steps_until_change(400), 3);
}

#[test]
fn an_oscillating_workload_is_not_followed_forever() {
    for period in 1..=60 {
        let count = changes((0..20_000).map(|at| at / period % 2 == 1));
        let most = match period {
            1..3 => 0,
            3..6 => 1,
            _ => 5,
        };
        assert!(count <= most, "every {period} windows: {count} changes");
    }
}

#[test]
fn a_gain_that_is_small_or_below_the_cost_of_the_move_is_ignored() {
    let threshold = Threshold::default();
    let step = |window: &Window| {
        Follower::new(Threshold {
            windows: 1,
            ..threshold
        })
        .step(Some(window))
    };
    let small = window(100.0, 91.0);
    assert!(matches!(step(&small), Verdict::Stay { gain } if (gain - 0.09).abs() < 1e-9));
    let mut dear = window(100.0, 50.0);
    assert!(matches!(step(&dear), Verdict::Change { .. }));
    // In an hour, 3,600,000 operations gain 180 seconds.
    dear.move_us = 150e6;
    assert!(matches!(step(&dear), Verdict::Stay { .. }));
    dear.move_us = 100e6;
    assert!(matches!(step(&dear), Verdict::Change { .. }));
    // A space without traffic is not changed.
    assert_eq!(
        step(&Window {
            operations: 50.0,
            ..dear
        }),
        Verdict::Idle
    );
    assert_eq!(Follower::new(threshold).step(None), Verdict::Idle);
    let nothing = Window {
        now_us: 0.0,
        ..dear
    };
    assert!(matches!(step(&nothing), Verdict::Stay { .. }));
}

#[test]
fn plans_of_a_workload_that_changes_once_are_applied_once() {
    let of = |by: &str| {
        let text = format!(
            "objects = 100000\n[[attribute]]\nname = \"city\"\ndistinct = 5000\n[[attribute]]\nname = \"street\"\ndistinct = 9000\n\
             [[query]]\nfrequency = 100\nequal = [\"{by}\"]\n[[modification]]\nfrequency = 30\nchanges = [\"city\", \"street\"]\n"
        );
        Workload::from_toml(&text).expect("valid input")
    };
    let deployment = Deployment {
        servers: 8,
        ..Deployment::default()
    };
    let run = |is_by_street: &dyn Fn(u32) -> bool| {
        let mut follower = Follower::new(Threshold::default());
        let (mut has, mut changes) = (vec!["city:8".to_owned()], Vec::new());
        for at in 0..60 {
            let workload = of(if is_by_street(at) { "street" } else { "city" });
            let lists: Vec<&str> = has.iter().map(String::as_str).collect();
            let current = Configuration::parse(&lists, &workload, 256).expect("valid input");
            let options = Options {
                top: 1,
                random: 0,
                starts: 1,
                proof_steps: 0,
                ..Options::default()
            };
            let report = plan(&workload, &deployment, Some(&current), &options).expect("it can be");
            let now = report.current.expect("the current configuration was given");
            let window = Window {
                seconds: 60.0,
                operations: 60_000.0,
                now_us: now.parts.with_skew(),
                best_us: report.best.parts.with_skew(),
                move_us: 100_000.0 * deployment.costs.move_us,
            };
            if let Verdict::Change { .. } = follower.step(Some(&window)) {
                has.clone_from(&report.best.subspaces);
                changes.push(at);
            }
        }
        changes
    };
    let once = run(&|at| at >= 10);
    assert!(once.len() == 1 && once[0] < 20, "{once:?}");
    assert!(run(&|at| at % 4 >= 2).is_empty());
}
