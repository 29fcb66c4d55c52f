//! The results of the configurator for a workload, as plain data for tables, JSON and charts.

use larder_types::Random;
use serde::{Deserialize, Serialize};

use super::candidates;
use super::choose::{Choice, Options, Proof, choose, random_set};
use super::configuration::{AttributeSet, Configuration, Layout};
use super::deployment::Deployment;
use super::exhaustive::{DISJOINT_ATTRIBUTES_MAX, try_all};
use super::heuristics::{Heuristic, heuristic};
use super::larder::LarderModel;
use super::model::{CostModel, Prediction};
use super::problem::{LayoutSet, Problem, Top};
use super::simplest::simplest;
use super::thesis::{Thesis, ThesisModel};
use super::workload::{Workload, WorkloadError};

/// A prediction with a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedPrediction {
    pub name: String,
    pub prediction: Prediction,
}

/// The effect of a changed mix on the chosen configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shift {
    /// The change, such as `by city twice as often`.
    pub change: String,
    /// With the configuration chosen for the original mix.
    pub throughput: f64,
    /// With the best configuration for the changed mix.
    pub throughput_best: f64,
    /// The relative loss of the former compared with the latter.
    pub loss: f64,
    /// The best configuration for the changed mix.
    pub best: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `thesis` or `larder`.
    pub model: String,
    /// The simplest configuration that costs at most `tolerance` more than the best, and no more than the current one.
    /// It has the fewest subspaces, and then the fewest attributes in them.
    pub chosen: Prediction,
    /// As a share of the cost of the best configuration.
    pub tolerance: f64,
    /// The configuration with the lowest cost.
    pub best: Prediction,
    /// The best configurations, starting with `best`, at most one for the same attribute lists.
    pub top: Vec<Prediction>,
    /// The current configuration of the space, if given.
    pub current: Option<Prediction>,
    pub heuristics: Vec<NamedPrediction>,
    pub random: Vec<Prediction>,
    pub proof: Proof,
    pub shifts: Vec<Shift>,
    /// The number of layouts compared, counted for each query.
    pub steps: u64,
}

/// Returns the best configuration under larder's model.
///
/// # Errors
/// A description of the invalid part of the workload or the deployment, or the minimum of `storage_bytes_max` if not
/// even the objects without a subspace fit.
pub fn plan(
    workload: &Workload,
    deployment: &Deployment,
    current: Option<&Configuration>,
    options: &Options,
) -> Result<Report, String> {
    let everything = AttributeSet::of(0..workload.attributes.len());
    let model = LarderModel::new(workload, deployment, everything)?;
    let least = model.with_indexes(options.indexes.unwrap_or_default());
    least.ensure_fits().map_err(|error| error.to_string())?;
    let known = current.map_or(&[][..], |it| &it.subspaces);
    let (model, choice) = with_best_indexes(model, known, options);
    let simple = heuristics(&choice.problem, &constrained(&model));
    let configuration = |layouts: Vec<Layout>| Configuration {
        subspaces: layouts,
        indexes: model.indexes(),
    };
    let current = current.map(|it| model.predict(it));
    let now = current.as_ref().map(|it| it.parts.with_skew());
    let chosen = chosen(&choice, &simple, options.tolerance, now);
    let shifts = shifts(
        workload,
        deployment,
        &configuration(choice.problem.layouts_of(&chosen)),
        options,
    )?;
    Ok(Report {
        model: "larder".to_owned(),
        current,
        shifts,
        tolerance: options.tolerance,
        proof: Proof {
            is_proven: choice.proof.is_proven
                && deployment.guessed.is_empty()
                && workload.unrecorded == 0.0,
            ..choice.proof
        },
        ..report(&model, &choice, &chosen, &simple, options, configuration)
    })
}

/// Returns the best configuration of these attribute lists under the thesis's model, which ignores their bits.
///
/// # Errors
/// The workload is invalid.
pub fn plan_by_thesis(
    workload: &Workload,
    constants: Thesis,
    layouts: Vec<Layout>,
    options: &Options,
) -> Result<Report, WorkloadError> {
    let model = ThesisModel::new(workload, constants)?;
    let constrained = constrained_by_value(workload);
    let choice = choose(&model, layouts, &[], &constrained, options, |_| Vec::new());
    Ok(report_by_thesis(&model, workload, &choice, options))
}

/// Returns the best configuration under the thesis's model, among all sets of subspaces without a common attribute, as
/// in the thesis's program. For more than nine attributes, considers short lists instead, which may have common
/// attributes.
///
/// # Errors
/// The workload is invalid.
pub fn plan_disjoint_by_thesis(
    workload: &Workload,
    constants: Thesis,
    options: &Options,
) -> Result<Report, WorkloadError> {
    let model = ThesisModel::new(workload, constants)?;
    let attributes = workload.attributes.len() as u32;
    let layout = |set: AttributeSet| {
        let requested = vec![None; set.count() as usize];
        let bits = crate::mapping::allocate_bits(constants.regions, &requested, |_| None);
        // The model ignores the bits of a list.
        let bits = bits.unwrap_or_else(|_| vec![1; requested.len()]);
        let attributes = set.iter().map(|it| it as u8);
        Layout {
            dimensions: attributes.zip(bits).collect(),
        }
    };
    if attributes > DISJOINT_ATTRIBUTES_MAX {
        let all: Vec<usize> = (0..workload.attributes.len()).collect();
        let mut lists = Vec::new();
        let longest = if attributes <= 16 { 3 } else { 2 };
        candidates::combine(&all, longest, &mut Vec::new(), &mut lists);
        let layouts = lists.into_iter().map(layout).collect();
        return plan_by_thesis(workload, constants, layouts, options);
    }
    let lists = (1..1 << attributes).map(|list| layout(AttributeSet(list)));
    let problem = Problem::new(&model, lists);
    let mut top = Top::new(options.top);
    let sets = try_all(&problem, true, &mut top);
    let best: Vec<(f64, Vec<u32>)> = top
        .best()
        .map(|(cost, open)| (cost, open.clone()))
        .collect();
    let choice = Choice {
        proof: Proof {
            layouts: problem.count().into(),
            is_exhaustive: true,
            is_proven: true,
            bound: best[0].0,
            gap: 0.0,
        },
        steps: sets * problem.queries() as u64,
        top: best,
        problem,
    };
    Ok(report_by_thesis(&model, workload, &choice, options))
}

fn report_by_thesis(
    model: &ThesisModel<'_>,
    workload: &Workload,
    choice: &Choice,
    options: &Options,
) -> Report {
    let simple = heuristics(&choice.problem, &constrained_by_value(workload));
    let configuration = |layouts: Vec<Layout>| Configuration {
        subspaces: layouts,
        indexes: AttributeSet::default(),
    };
    let best = &choice.top[0].1;
    let report = report(model, choice, best, &simple, options, configuration);
    Report {
        model: "thesis".to_owned(),
        ..report
    }
}

/// Returns the attributes of each query that are constrained to one value.
fn constrained_by_value(workload: &Workload) -> Vec<AttributeSet> {
    let queries = workload.queries.iter();
    queries
        .map(|it| AttributeSet::of(it.equal.iter().filter_map(|name| workload.attribute(name))))
        .collect()
}

/// Returns the choice of each heuristic, in order.
fn heuristics(problem: &Problem, constrained: &[AttributeSet]) -> Vec<LayoutSet> {
    let all = Heuristic::ALL.iter();
    all.map(|&which| heuristic(which, problem, constrained))
        .collect()
}

/// Returns the simplest set that costs little more than the best, and no more than `now`.
fn chosen(choice: &Choice, simple: &[LayoutSet], tolerance: f64, now: Option<f64>) -> LayoutSet {
    let cost_max = choice.cost() * (1.0 + tolerance);
    let cost_max = now.map_or(cost_max, |now| cost_max.min(now));
    let top = choice.top.iter().map(|it| &it.1);
    let starts = top.chain(simple).cloned();
    let found = simplest(&choice.problem, starts, cost_max);
    found.unwrap_or_else(|| choice.top[0].1.clone())
}

fn report(
    model: &dyn CostModel,
    choice: &Choice,
    chosen: &[u32],
    simple: &[LayoutSet],
    options: &Options,
    configuration: impl Fn(Vec<Layout>) -> Configuration,
) -> Report {
    let problem: &Problem = &choice.problem;
    let predict = |open: &[u32]| model.predict(&configuration(problem.layouts_of(open)));
    let top: Vec<Prediction> = choice.top.iter().map(|(_, open)| predict(open)).collect();
    let named = |(which, open): (&Heuristic, &LayoutSet)| NamedPrediction {
        name: which.name().to_owned(),
        prediction: predict(open),
    };
    let heuristics = Heuristic::ALL.iter().zip(simple).map(named);
    let mut random = Random::stream(options.seed, 1);
    let drawn = (0..options.random).map(|_| predict(&random_set(problem, &mut random)));
    Report {
        model: String::new(),
        chosen: predict(chosen),
        tolerance: 0.0,
        best: top[0].clone(),
        random: drawn.collect(),
        heuristics: heuristics.collect(),
        top,
        current: None,
        proof: choice.proof,
        shifts: Vec::new(),
        steps: choice.steps,
    }
}

fn constrained(model: &LarderModel<'_>) -> Vec<AttributeSet> {
    let queries = 0..model.queries();
    queries.map(|it| model.query_attributes(it)).collect()
}

fn choose_layouts(model: &LarderModel<'_>, known: &[Layout], options: &Options) -> Choice {
    let layouts = candidates::layouts(model);
    let near = |layout: &Layout| candidates::neighbours(model, layout);
    choose(model, layouts, known, &constrained(model), options, near)
}

/// Chooses the local indexes together with the subspaces, because indexes belong to the space, not to a subspace.
/// Starting with all searched attributes, or with none if these exceed `storage_bytes_max`, adds or removes one index
/// at a time while that is better with the current subspaces. Then chooses the subspaces again. If the options specify
/// the indexes, uses those.
fn with_best_indexes<'a>(
    model: LarderModel<'a>,
    known: &[Layout],
    options: &Options,
) -> (LarderModel<'a>, Choice) {
    if let Some(indexes) = options.indexes {
        let model = model.with_indexes(indexes);
        let choice = choose_layouts(&model, known, options);
        return (model, choice);
    }
    let quick = Options {
        proof_steps: 0,
        ..*options
    };
    let searched = model.searched();
    let mut model = match model.with_indexes(searched) {
        model if model.ensure_fits().is_ok() => model,
        _ => model.with_indexes(AttributeSet::default()),
    };
    let mut choice = choose_layouts(&model, known, &quick);
    // Each round improves the result, so the loop ends. The bound limits its time.
    for _ in 0..4 {
        let best = choice.best();
        let flipped = flipped(&model, searched, &best);
        if flipped.indexes() == model.indexes() {
            break;
        }
        let next = choose_layouts(&flipped, &best, &quick);
        if next.cost() >= choice.cost() {
            break;
        }
        (model, choice) = (flipped, next);
    }
    if options.proof_steps > 0 {
        choice = choose_layouts(&model, &choice.best(), options);
    }
    (model, choice)
}

fn flipped<'a>(
    model: &LarderModel<'a>,
    searched: AttributeSet,
    subspaces: &[Layout],
) -> LarderModel<'a> {
    let cost = |model: &LarderModel<'a>| {
        let configuration = Configuration {
            subspaces: subspaces.to_vec(),
            indexes: model.indexes(),
        };
        model.predict(&configuration).parts.with_skew()
    };
    let mut model = model.clone();
    loop {
        let others = searched.iter().map(|attribute| {
            let indexes = AttributeSet(model.indexes().0 ^ 1 << attribute);
            model.with_indexes(indexes)
        });
        let others = others.filter(|model| model.ensure_fits().is_ok());
        let best = others.min_by(|one, other| cost(one).total_cmp(&cost(other)));
        match best {
            Some(best) if cost(&best) < cost(&model) => model = best,
            _ => return model,
        }
    }
}

fn shifts(
    workload: &Workload,
    deployment: &Deployment,
    chosen: &Configuration,
    options: &Options,
) -> Result<Vec<Shift>, String> {
    let mut mixes: Vec<(String, Workload)> = Vec::new();
    let mut shift = |change: String, edit: &dyn Fn(&mut Workload)| {
        let mut workload = workload.clone();
        edit(&mut workload);
        mixes.push((change, workload));
    };
    if !workload.modifications.is_empty() {
        for (change, times) in [
            ("twice the modifications", 2.0),
            ("half the modifications", 0.5),
        ] {
            shift(change.to_owned(), &|it| {
                for class in &mut it.modifications {
                    class.frequency *= times;
                }
            });
        }
    }
    for (at, class) in workload.queries.iter().enumerate() {
        let name = if class.name.is_empty() {
            format!("query[{at}]")
        } else {
            class.name.clone()
        };
        shift(format!("{name} twice as often"), &|it| {
            it.queries[at].frequency *= 2.0;
        });
    }
    shift("twice the objects".to_owned(), &|it| it.objects *= 2);
    let quick = Options {
        proof_steps: 0,
        starts: 2,
        ..*options
    };
    let mut shifts = Vec::new();
    for (change, workload) in mixes {
        let model = LarderModel::new(&workload, deployment, chosen.indexes)?;
        let choice = choose_layouts(&model, &chosen.subspaces, &quick);
        let configuration = Configuration {
            subspaces: choice.best(),
            indexes: chosen.indexes,
        };
        let (now, could) = (model.predict(chosen), model.predict(&configuration));
        shifts.push(Shift {
            change,
            throughput: now.capacity,
            throughput_best: could.capacity,
            loss: (1.0 - now.capacity / could.capacity).max(0.0),
            best: could.subspaces,
        });
    }
    Ok(shifts)
}
