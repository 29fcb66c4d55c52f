//! The search for the best configuration, compared with trying all of them.

use larder_space::plan::{
    AttributeSet, Choice, CostModel, Deployment, Heuristic, Layout, Options, Problem, Thesis,
    ThesisModel, Workload, choose, heuristic, plan,
};

use super::{by, hotels, lists, random_workload, update};

fn constrained(workload: &Workload) -> Vec<AttributeSet> {
    let index = |name: &String| workload.attribute(name);
    let sets = workload.queries.iter().map(|query| {
        let names = query.equal.iter().chain(query.range.keys());
        AttributeSet::of(names.filter_map(index))
    });
    sets.collect()
}

fn options() -> Options {
    Options {
        top: 5,
        random: 4,
        proof_steps: 0,
        ..Options::default()
    }
}

fn choice(workload: &Workload, layouts: Vec<Layout>, options: &Options) -> Choice {
    let model = ThesisModel::new(workload, Thesis::default()).expect("a workload");
    choose(
        &model,
        layouts,
        &[],
        &constrained(workload),
        options,
        |_| Vec::new(),
    )
}

/// The oracle: the costs of all sets of a problem, ascending.
fn all_costs(problem: &Problem) -> Vec<f64> {
    let count = problem.layouts().len() as u32;
    let sets = 0..1u32 << count;
    let mut costs: Vec<f64> = sets
        .map(|set| {
            let open: Vec<u32> = (0..count).filter(|at| set >> at & 1 == 1).collect();
            problem.cost(&open)
        })
        .collect();
    costs.sort_unstable_by(f64::total_cmp);
    costs
}

fn near(is: f64, expected: f64) -> bool {
    (is / expected - 1.0).abs() < 1e-9
}

#[test]
fn four_attributes_are_searched_exhaustively() {
    let workload = random_workload(4, 8, 0.3, 5);
    let choice = choice(&workload, lists(4), &options());
    assert!(choice.proof.is_exhaustive && choice.proof.is_proven);
    assert_eq!(choice.steps, 32_768 * 8, "each configuration once");
    let costs = all_costs(&choice.problem);
    assert_eq!(choice.top.len(), 5);
    for (found, expected) in choice.top.iter().zip(&costs) {
        assert!(near(found.0, *expected));
    }
}

/// Without writes a layout costs nothing, so a layout that no query uses could be in the best set too.
#[test]
fn every_layout_of_the_best_set_is_used() {
    for seed in 0..8 {
        let workload = random_workload(4, 3, 0.0, seed);
        let choice = choice(&workload, lists(4), &options());
        let (cost, open) = &choice.top[0];
        for one in open {
            let others: Vec<u32> = open.iter().copied().filter(|it| it != one).collect();
            let without = choice.problem.cost(&others);
            assert!(
                without > cost * (1.0 + 1e-12),
                "seed {seed}: {open:?} without {one}"
            );
        }
    }
}

/// Five attributes have 31 lists. A subset of 20 is searched both by steps and exhaustively.
#[test]
fn local_search_agrees_with_exhaustive_search() {
    for (writes, seed) in (0..12).map(|seed| ([0.1, 0.5, 0.9][seed as usize % 3], seed)) {
        let workload = random_workload(5, 10, writes, seed);
        let layouts: Vec<Layout> = lists(5);
        // All lists with the first attribute, and the lists of one: 20.
        let few: Vec<Layout> = layouts
            .iter()
            .filter(|it| it.attributes().contains(0) || it.attributes().count() == 1)
            .cloned()
            .collect();
        let exhaustive = choice(&workload, few.clone(), &options());
        assert!(exhaustive.proof.is_exhaustive);
        let mut padded = few;
        // One more list, which no query uses: now there are too many to try all.
        padded.push(Layout {
            dimensions: vec![(0, 0), (1, 1), (2, 1), (3, 1), (4, 1)],
        });
        let stepped = choice(&workload, padded, &options());
        assert!(!stepped.proof.is_exhaustive);
        assert!(near(stepped.cost(), exhaustive.cost()), "seed {seed}");
    }
}

/// Six additional layouts make the problem too large to try all sets. The proof finds the same optimum.
#[test]
fn a_proof_completes_and_agrees_with_exhaustive_search() {
    for seed in 0..10 {
        let workload = random_workload(4, 12, [0.1, 0.6][seed as usize % 2], seed);
        let exhaustive = choice(&workload, lists(4), &options());
        let mut padded = lists(4);
        for bits in 2..8 {
            padded.push(Layout {
                dimensions: vec![(0, bits), (1, 1)],
            });
        }
        let with_proof = Options {
            proof_steps: 10_000_000,
            ..options()
        };
        let proven = choice(&workload, padded, &with_proof);
        assert!(proven.proof.is_proven && !proven.proof.is_exhaustive);
        assert!(near(proven.proof.bound, exhaustive.cost()), "seed {seed}");
        assert!(near(proven.cost(), exhaustive.cost()));
    }
}

#[test]
fn a_bound_is_valid_even_when_the_steps_run_out() {
    for seed in 0..6 {
        let workload = random_workload(7, 20, 0.5, seed);
        let best = choice(
            &workload,
            lists(7),
            &Options {
                proof_steps: 1 << 40,
                ..options()
            },
        );
        assert!(best.proof.is_proven, "seed {seed}");
        for proof_steps in [1, 1000, 30_000, 200_000] {
            let some = choice(
                &workload,
                lists(7),
                &Options {
                    proof_steps,
                    ..options()
                },
            );
            assert!(some.proof.bound <= best.cost() * (1.0 + 1e-9));
            assert!(near(some.cost(), best.cost()));
            assert!(some.proof.gap >= some.cost() / best.cost() - 1.0 - 1e-9);
        }
    }
}

#[test]
fn ten_attributes_are_solved_and_proven_by_larders_model() {
    let workload = random_workload(10, 15, 0.3, 3);
    let deployment = Deployment {
        servers: 8,
        replicas: 2,
        ..Deployment::default()
    };
    let report = plan(&workload, &deployment, None, &options()).expect("a plan");
    assert!(report.proof.layouts > 900);
    let with_proof = Options {
        proof_steps: 100_000_000,
        top: 1,
        random: 0,
        starts: 0,
        ..options()
    };
    let proven = plan(&workload, &deployment, None, &with_proof).expect("a plan");
    assert!(proven.proof.gap <= 0.02, "{:?}", proven.proof);
    assert!(report.best.parts.with_skew() <= proven.best.parts.with_skew() * 1.02);
}

#[test]
fn no_heuristic_is_better_than_the_chosen_set() {
    for seed in 0..6 {
        let workload = random_workload(6, 10, [0.1, 0.5, 0.9][seed as usize % 3], seed);
        let choice = choice(&workload, lists(6), &options());
        for which in Heuristic::ALL {
            let open = heuristic(which, &choice.problem, &constrained(&workload));
            assert!(
                choice.problem.cost(&open) >= choice.cost() * (1.0 - 1e-9),
                "{which:?}"
            );
        }
    }
}

#[test]
fn heuristics_choose_the_documented_sets() {
    let workload = hotels(
        &["a", "b", "c"],
        vec![by(3.0, &["a"]), by(2.0, &["a", "b"]), by(0.01, &["c"])],
        vec![update(1.0, &["c"])],
    );
    let choice = choice(&workload, lists(3), &options());
    let sets = |which| -> Vec<Vec<usize>> {
        let open = heuristic(which, &choice.problem, &constrained(&workload));
        let layouts = open
            .iter()
            .map(|&at| &choice.problem.layouts()[at as usize]);
        layouts.map(|it| it.attributes().iter().collect()).collect()
    };
    assert!(sets(Heuristic::NoSubspace).is_empty());
    assert_eq!(sets(Heuristic::OneHyperspace), [[0, 1, 2]]);
    assert_eq!(sets(Heuristic::OnePerAttribute), [[0], [1], [2]]);
    assert_eq!(sets(Heuristic::Dominant), [[0]]);
    assert_eq!(sets(Heuristic::Greedy), [[0], [2]], "c pays, b would not");
}

/// A model of which the search knows only the costs, with at most two subspaces.
struct Limited;

impl CostModel for Limited {
    fn queries(&self) -> usize {
        5
    }

    fn without(&self, _query: usize) -> f64 {
        10.0
    }

    fn with(&self, query: usize, layout: &Layout) -> f64 {
        if layout.attributes().contains(query) {
            1.0
        } else {
            10.0
        }
    }

    fn upkeep(&self, layout: &Layout) -> f64 {
        layout.attributes().count().pow(2).into()
    }

    fn fixed(&self) -> f64 {
        1.0
    }

    fn subspaces_max(&self) -> usize {
        2
    }

    fn predict(
        &self,
        _configuration: &larder_space::plan::Configuration,
    ) -> larder_space::plan::Prediction {
        unreachable!("only costs are needed")
    }
}

#[test]
fn the_number_of_subspaces_is_limited() {
    for proof_steps in [0, 10_000_000] {
        let options = Options {
            proof_steps,
            ..options()
        };
        let constrained: Vec<AttributeSet> = (0..5).map(|it| AttributeSet::of([it])).collect();
        let choice = choose(&Limited, lists(5), &[], &constrained, &options, |_| {
            Vec::new()
        });
        assert!(choice.top.iter().all(|(_, open)| open.len() <= 2));
        // One list of three attributes and one of two: 1 + 9 + 4 + 5.
        assert_eq!(choice.cost(), 19.0);
    }
}
