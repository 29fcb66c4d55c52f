//! The report: measurements compared with predictions, and both with the targets.

use std::fmt::Write as _;

use super::classes::{CLASSES, WORKLOADS, shares};
use super::plot::{Series, plot};
use super::{
    MeasuredConfiguration, Measurements, Median, PredictedCosts, SpaceModelArgs, heuristics,
    predictions,
};
use crate::Result;
use crate::report::{command, median, verdict};

const SEARCHES_BAR: f64 = 5.0;
const MODIFICATIONS_BAR: f64 = 5.0;
const MIXES_BAR: f64 = 8.0;
/// Returns the error as a percentage of the measured value.
fn error(measured: f64, predicted: f64) -> f64 {
    (predicted / measured - 1.0).abs() * 100.0
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), it| (sum + it, count + 1.0));
    sum / count
}

/// Returns the mean of the classes, weighted by their shares.
fn mixed(shares: &[f64], classes: &[f64]) -> f64 {
    shares
        .iter()
        .zip(classes)
        .map(|(share, us)| share * us)
        .sum()
}

/// The results for one workload.
struct WorkloadResults {
    name: String,
    /// The configurations with which the mix was measured, and the results.
    at: Vec<usize>,
    measured: Vec<Median>,
    predicted: Vec<f64>,
    /// For each configuration, the weighted means of the measured and of the predicted classes.
    of_classes: Vec<(f64, f64)>,
}

impl WorkloadResults {
    fn all(bench: &Measurements) -> Result<Vec<WorkloadResults>> {
        let predicted = predictions(bench)?;
        let of = |(number, workload): (usize, &(char, u8, f64))| {
            let shares = shares(*workload);
            let measured = bench.all.iter().enumerate().filter_map(|(at, it)| {
                let turns = it.mixes_us.get(number)?;
                Some((at, Median::of_turns(turns)?))
            });
            let (at, measured): (Vec<usize>, Vec<Median>) = measured.unzip();
            let of_classes = bench.all.iter().zip(&predicted).map(|(one, predicted)| {
                let classes: Vec<f64> = one.classes().iter().map(|it| it.us).collect();
                (mixed(&shares, &classes), mixed(&shares, &predicted.classes))
            });
            WorkloadResults {
                name: format!("{}{}", workload.0, workload.1),
                of_classes: of_classes.collect(),
                predicted: at.iter().map(|at| predicted[*at].mixes[number]).collect(),
                at,
                measured,
            }
        };
        Ok(WORKLOADS.iter().enumerate().map(of).collect())
    }

    /// Returns the configuration with the lowest measured cost.
    fn cheapest_measured(&self) -> usize {
        least(self.measured.iter().map(|it| it.us))
    }

    fn cheapest_predicted(&self) -> usize {
        least(self.predicted.iter().copied())
    }

    /// Returns the configuration chosen for this workload in this way.
    fn chosen(&self, bench: &Measurements, way: &str) -> Option<usize> {
        let name = format!("{} {way}", self.name);
        self.at
            .iter()
            .position(|at| bench.all[*at].origins.contains(&name))
    }

    /// Returns the heuristic whose choice has the lowest measured cost.
    fn best_heuristic(&self, bench: &Measurements) -> Option<(&'static str, usize)> {
        let rules = heuristics().filter_map(|name| Some((name, self.chosen(bench, name)?)));
        rules.min_by(|one, other| {
            self.measured[one.1]
                .us
                .total_cmp(&self.measured[other.1].us)
        })
    }
}

/// Returns the configurations that matter for a ranking: the cheapest measured one of each workload and its ties, the
/// first by prediction, the chosen one, and the best heuristic.
pub fn contenders(bench: &Measurements) -> Result<Vec<usize>> {
    const TIES_MAX: usize = 3;
    let mut all = Vec::new();
    for of in WorkloadResults::all(bench)? {
        if of.measured.is_empty() {
            continue;
        }
        let cheapest = of.cheapest_measured();
        let mut own = vec![cheapest, of.cheapest_predicted()];
        own.extend(of.chosen(bench, "chosen"));
        own.extend(of.best_heuristic(bench).map(|it| it.1));
        let is_tie = |at: &usize| of.measured[*at].is_tie(of.measured[cheapest]);
        own.extend((0..of.measured.len()).filter(is_tie).take(TIES_MAX));
        all.extend(own.into_iter().map(|it| of.at[it]));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

pub fn write(args: &SpaceModelArgs, bench: &Measurements) -> Result<()> {
    let predicted = predictions(bench)?;
    let workloads = WorkloadResults::all(bench)?;
    let drawn = bench
        .all
        .iter()
        .filter(|it| it.origins.iter().any(|by| by == "drawn"))
        .count();
    let mut text = format!(
        "## Predictions of the subspace model, and measurements\n\n{} hotels with the towns, postcodes, stars, kinds and rooms of French ones; {}; {} clients that each wait \
         for a reply. {} configurations, {drawn} of them drawn. The measured figure is the servers' processor time (INFO cpu) for one operation: the median of {} turns of {} s for each class and configuration, in rounds over the classes. The {} configurations whose ranking is close are measured in up to {} turns, also in rounds. \
         The prediction uses the costs that `larder space calibrate` measured on the same servers just before, and the classes that SPACE.RECORD recorded.\n\n{}",
        args.hotels,
        args.deployed(),
        args.clients,
        bench.all.len(),
        args.turns,
        args.seconds,
        contenders(bench)?.len(),
        args.turns * (args.rounds + 1),
        speeds(bench),
    );
    classes(&mut text, bench, &predicted)?;
    let series = mixes(&mut text, &workloads)?;
    choices(&mut text, bench, &workloads)?;
    writeln!(
        text,
        "\nCosts:\n\n```\n{}```\n\nCommand: `{}`",
        bench.deployment.to_toml(),
        command()
    )?;
    println!("{text}");
    std::fs::write(args.path("md"), &text)?;
    let svg = plot(
        "Processor time of an operation, by configuration and workload",
        "us",
        &series,
    );
    std::fs::write(args.path("svg"), svg)?;
    Ok(())
}

/// Returns the speed of the machine, relative to the calibration.
fn speeds(bench: &Measurements) -> String {
    let read_us = bench.read_us;
    let reads = bench.all.iter().flat_map(|it| &it.reads_us);
    let mut times: Vec<f64> = reads.map(|us| us / read_us).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
    if times.is_empty() {
        String::new()
    } else {
        format!(
            "The processors are not always as fast: a read by key took {read_us:.1} us just before and after the costs were measured, and {:.2} to {:.2} times that beside nine of ten turns. \
             Times are divided by the median of the reads about each.\n\n",
            at(0.05),
            at(0.95)
        )
    }
}

fn classes(text: &mut String, bench: &Measurements, predicted: &[PredictedCosts]) -> Result<()> {
    writeln!(
        text,
        "| class | measured us, median | least | most | mean error % | mean of predicted / measured |\n|---|---|---|---|---|---|"
    )?;
    let mut of_kind = [Vec::new(), Vec::new()];
    for (at, class) in CLASSES.iter().enumerate() {
        let pairs = bench
            .all
            .iter()
            .zip(predicted)
            .filter_map(|(one, predicted)| {
                Some((
                    Median::of_turns(&one.classes_us[at])?.us,
                    predicted.classes[at],
                ))
            });
        let pairs: Vec<(f64, f64)> = pairs.collect();
        let measured: Vec<f64> = pairs.iter().map(|it| it.0).collect();
        let errors = || pairs.iter().map(|it| error(it.0, it.1));
        of_kind[usize::from(class.set.is_none())].extend(errors());
        let least = measured.iter().copied().fold(f64::INFINITY, f64::min);
        let most = measured.iter().copied().fold(0.0, f64::max);
        let set = class.set.map_or(String::new(), |set| format!("{set}: "));
        writeln!(
            text,
            "| {set}{} | {:.1} | {least:.1} | {most:.1} | {:.1} | {:.2} |",
            class.name,
            median(&measured),
            mean(errors()),
            mean(pairs.iter().map(|it| it.1 / it.0)),
        )?;
    }
    for (name, errors, bar) in [
        ("Searches", &of_kind[0], SEARCHES_BAR),
        ("Modifications", &of_kind[1], MODIFICATIONS_BAR),
    ] {
        let error = mean(errors.iter().copied());
        writeln!(
            text,
            "\n{name}: {error:.1} % on average (bar {bar}; {}).",
            verdict(error <= bar)
        )?;
    }
    writeln!(text)?;
    Ok(())
}

fn mixes(text: &mut String, workloads: &[WorkloadResults]) -> Result<Vec<Series>> {
    writeln!(
        text,
        "| workload | mean error %, by classes | the mix itself: configurations | mean error % |\n|---|---|---|---|"
    )?;
    let mut series: Vec<Series> = Vec::new();
    let mut of_sets: Vec<(char, Vec<f64>)> = Vec::new();
    for (at, workload) in workloads.iter().enumerate() {
        let mixes = || {
            let measured = workload.measured.iter().map(|it| it.us);
            measured.zip(workload.predicted.iter().copied())
        };
        let mixed: Vec<f64> = mixes().map(|it| error(it.0, it.1)).collect();
        writeln!(
            text,
            "| {} | {:.1} | {} | {:.1} |",
            workload.name,
            mean(workload.of_classes.iter().map(|it| error(it.0, it.1))),
            mixed.len(),
            mean(mixed.iter().copied()),
        )?;
        let set = WORKLOADS[at].0;
        match of_sets.iter_mut().find(|it| it.0 == set) {
            Some((_, all)) => all.extend(mixed),
            None => {
                of_sets.push((set, mixed));
                series.push(Series {
                    name: format!("workload {set}"),
                    points: Vec::new(),
                });
            }
        }
        series
            .last_mut()
            .expect("one is there")
            .points
            .extend(mixes());
    }
    for (set, errors) in of_sets {
        let error = mean(errors.into_iter());
        writeln!(
            text,
            "\nMixed, {set}: {error:.1} % (bar {MIXES_BAR}; {}).",
            verdict(error <= MIXES_BAR)
        )?;
    }
    writeln!(text)?;
    Ok(series)
}

/// Returns the position of the lowest value.
fn least(values: impl Iterator<Item = f64>) -> usize {
    let all = values
        .enumerate()
        .min_by(|one, other| one.1.total_cmp(&other.1));
    all.map_or(0, |it| it.0)
}

fn choices(text: &mut String, bench: &Measurements, workloads: &[WorkloadResults]) -> Result<()> {
    writeln!(
        text,
        "The configuration that the model ranks first among those with which the mix was measured, and the one measured as cheapest; then the choice of `plan`, and that of the best heuristic. Two tie if they differ by no more than \
         their spreads together; a spread is how far the middle half of the turns is apart, over the root of their number.\n"
    )?;
    writeln!(
        text,
        "| workload | ranked first | us | predicted | cheapest measured | us | predicted | more % | chosen | us | predicted | best simple rule | us | predicted | more % | tau |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    let (mut first, mut ties, mut beats, mut even) = (0, 0, 0, 0);
    for of in workloads {
        if of.measured.is_empty() {
            continue;
        }
        let (ranked, cheapest) = (of.cheapest_predicted(), of.cheapest_measured());
        let (of_ranked, of_cheapest) = (of.measured[ranked], of.measured[cheapest]);
        first += usize::from(ranked == cheapest);
        ties += usize::from(ranked != cheapest && of_ranked.is_tie(of_cheapest));
        let text_of = |at: usize| lists(&bench.all[of.at[at]]);
        let shown = |at: usize| {
            let Median { us, spread_us } = of.measured[at];
            format!("{us:.1} ± {spread_us:.1} | {:.1}", of.predicted[at])
        };
        write!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} |",
            of.name,
            text_of(ranked),
            shown(ranked),
            text_of(cheapest),
            shown(cheapest),
            (of_ranked.us / of_cheapest.us - 1.0) * 100.0
        )?;
        if let (Some(chosen), Some((name, rule))) =
            (of.chosen(bench, "chosen"), of.best_heuristic(bench))
        {
            let (of_chosen, of_rule) = (of.measured[chosen], of.measured[rule]);
            let is_even = of_chosen.is_tie(of_rule);
            beats += usize::from(of_chosen.us < of_rule.us && !is_even);
            even += usize::from(is_even);
            write!(
                text,
                " {} | {} | {name}: {} | {} | {:.1} |",
                text_of(chosen),
                shown(chosen),
                text_of(rule),
                shown(rule),
                (of_chosen.us / of_rule.us - 1.0) * 100.0
            )?;
        }
        writeln!(text, " {:.2} |", tau(of))?;
    }
    let all = workloads.len();
    writeln!(
        text,
        "\nThe cheapest is ranked first in {first} of {all}, and a configuration that ties with it in {ties} more ({}). \
        The choice of `plan` beats the best heuristic in {beats} of {all}, and ties with it in {even} more ({}).",
        verdict(first + ties == all),
        verdict(beats + even == all)
    )?;
    Ok(())
}

fn lists(one: &MeasuredConfiguration) -> String {
    if one.lists.is_empty() {
        "none".to_owned()
    } else {
        one.lists.join(" ")
    }
}

/// Returns Kendall's rank correlation: 1 if both orders agree.
fn tau(of: &WorkloadResults) -> f64 {
    let (mut sum, mut pairs) = (0.0, 0.0);
    for one in 0..of.measured.len() {
        for other in 0..one {
            let measured = of.measured[one].us - of.measured[other].us;
            let predicted = of.predicted[one] - of.predicted[other];
            let product = measured * predicted;
            sum += if product == 0.0 {
                0.0
            } else {
                product.signum()
            };
            pairs += 1.0;
        }
    }
    sum / pairs
}
