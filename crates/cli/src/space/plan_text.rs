//! Formats a plan for a terminal.

use std::time::Duration;

use larder_space::plan::{ClassKind, ClassPrediction, Deployment, Prediction, Workload};

use super::plan::Plan;
use crate::output::{Column, Table, bytes, count, duration};

pub fn format_plan(plan: &Plan, workload: &Workload) -> String {
    let report = &plan.report;
    let mut text = format!("{}\n\n{}", head(plan, workload), configurations(plan));
    let which = if is_simpler(plan) { "chosen" } else { "best" };
    text += &format!("\n\nwith the {which}:\n");
    text += &classes(&report.chosen, is_thesis(plan));
    // Report only losses larger than what the choice of a simple configuration may cost, and larger than rounding
    // errors.
    let least = (report.tolerance / (1.0 + report.tolerance)).max(0.005);
    let shifts: Vec<_> = (report.shifts.iter())
        .filter(|shift| shift.loss >= least)
        .collect();
    if !shifts.is_empty() {
        text += "\n\nif it were otherwise, another would be better:\n";
        let mut table = Table::new([
            Column::Text("if"),
            Column::Number("better by"),
            Column::Text("with"),
        ]);
        for shift in shifts {
            let gain = shift.throughput_best / shift.throughput - 1.0;
            table.row([
                shift.change.clone(),
                percent(gain),
                subspaces(&shift.best, false),
            ]);
        }
        text += &table.render();
    }
    text += &format!("\n\n{}", describe_proof(plan));
    if !is_thesis(plan) {
        text += &format!("\nto have it: FT.CREATE name {} SCHEMA ..", clauses(plan));
        if let Some(space) = &plan.space {
            text += &format!(
                "\nor, for the existing space {space}: repeat the command with --json > plan.json, then `larder space apply plan.json`"
            );
        }
    }
    text
}

pub fn is_thesis(plan: &Plan) -> bool {
    plan.report.model == "thesis"
}

/// Returns whether a simpler configuration than the best is chosen.
pub fn is_simpler(plan: &Plan) -> bool {
    plan.report.chosen.configuration != plan.report.best.configuration
}

/// Returns the clauses for FT.CREATE.
pub fn clauses(plan: &Plan) -> String {
    let regions = plan.servers.regions;
    let chosen = &plan.report.chosen.configuration;
    chosen.replacen(" INDEX", &format!(" REGIONS {regions} INDEX"), 1)
}

fn head(plan: &Plan, workload: &Workload) -> String {
    let queries = workload.queries.len();
    let modifications = workload.modifications.len();
    let of_queries: f64 = workload.queries.iter().map(|it| it.frequency).sum();
    let share = of_queries / workload.frequency();
    let mut text = format!(
        "{}: {} objects, {queries} classes of queries ({}), {modifications} of modifications\n",
        plan.workload,
        count(plan.objects),
        percent(share),
    );
    if is_thesis(plan) {
        text += "the thesis's model: 256 regions, 2 replicas, its constants";
        return text;
    }
    let servers = &plan.servers;
    text += &format!(
        "{}: servers: {}, cores of each: {}, replicas: {}, regions at most: {}, clients: {}",
        match &plan.deployment {
            Some(path) => path.as_str(),
            None => "costs are guesses",
        },
        servers.servers,
        servers.cores,
        servers.replicas,
        servers.regions,
        servers.clients,
    );
    text + &warning_lines(warnings(plan))
}

/// Reasons to distrust a plan: classes that its recording omitted, and the warnings of its costs.
pub fn warnings(plan: &Plan) -> impl Iterator<Item = String> {
    let unrecorded = (plan.unrecorded > 0.0).then(|| {
        let share = percent(plan.unrecorded);
        format!(
            "{share} of the recorded operations belong to rare classes, which the workload omits"
        )
    });
    let of_costs = plan
        .deployment
        .iter()
        .flat_map(|_| cost_warnings(&plan.servers));
    unrecorded.into_iter().chain(of_costs)
}

/// Formats each warning on a separate line, after a line break.
pub fn warning_lines(warnings: impl Iterator<Item = String>) -> String {
    warnings.map(|it| format!("\nwarning: {it}")).collect()
}

/// Reasons to distrust the costs of a deployment: guessed costs, and the warnings of its calibration.
pub fn cost_warnings(deployment: &Deployment) -> impl Iterator<Item = String> {
    let guessed = &deployment.guessed;
    let guessed = (!guessed.is_empty()).then(|| {
        format!(
            "these costs are guesses, not measured: {}",
            guessed.join(", ")
        )
    });
    guessed
        .into_iter()
        .chain(deployment.warnings.iter().cloned())
}

/// Returns the compared configurations: their names and predictions.
pub fn compared_configurations(plan: &Plan) -> Vec<(String, &Prediction)> {
    let report = &plan.report;
    let mut rows: Vec<(String, &Prediction)> = Vec::new();
    if is_simpler(plan) {
        rows.push(("chosen".to_owned(), &report.chosen));
    }
    for (at, prediction) in report.top.iter().enumerate() {
        let name = match at {
            0 => "best".to_owned(),
            at => format!("{}", at + 1),
        };
        rows.push((name, prediction));
    }
    if let Some(current) = &report.current {
        rows.push(("now".to_owned(), current));
    }
    let heuristics = report.heuristics.iter();
    rows.extend(heuristics.map(|it| (it.name.clone(), &it.prediction)));
    rows
}

fn configurations(plan: &Plan) -> String {
    let is_thesis = is_thesis(plan);
    let mut table = if is_thesis {
        Table::new([
            Column::Text(""),
            Column::Number("ops/s"),
            Column::Number("of best"),
            Column::Number("chain"),
            Column::Number("regions"),
            Column::Number("memory"),
            Column::Text("subspaces"),
        ])
    } else {
        Table::new([
            Column::Text(""),
            Column::Number("ops/s"),
            Column::Number("at most"),
            Column::Number("of best"),
            Column::Number("latency"),
            Column::Number("chain"),
            Column::Number("servers"),
            Column::Number("regions"),
            Column::Number("memory"),
            Column::Text("subspaces"),
        ])
    };
    let best = plan.report.best.capacity;
    for (name, it) in compared_configurations(plan) {
        let memory = bytes(it.storage_bytes as u64);
        let of_best = percent(it.capacity / best);
        let subspaces = subspaces(&it.subspaces, is_thesis);
        let row = if is_thesis {
            vec![
                name,
                decimal(it.throughput),
                of_best,
                short(it.chain),
                short(it.regions),
                memory,
                subspaces,
            ]
        } else {
            vec![
                name,
                count(it.throughput as u64),
                count(it.capacity as u64),
                of_best,
                micros(it.latency_us),
                short(it.chain),
                short(it.servers),
                short(it.regions),
                memory,
                subspaces,
            ]
        };
        table.row(row);
    }
    let mut text = table.render();
    text += "\n(chain: servers that a modification passes; servers and regions: those that a query contacts)";
    if is_simpler(plan) {
        let tolerance = percent(plan.report.tolerance);
        text += &format!(
            "\n(chosen: the simplest that costs at most {tolerance} more than the best; set the limit with --tolerance)"
        );
    }
    text
}

fn classes(chosen: &Prediction, is_thesis: bool) -> String {
    let mut table = Table::new([
        Column::Text("class"),
        Column::Number("share"),
        Column::Number("work"),
        Column::Number("latency"),
        Column::Number("servers"),
        Column::Number("regions"),
        Column::Number("looked at"),
        Column::Number("sent"),
        Column::Number("chain"),
        Column::Text("by"),
    ]);
    for it in &chosen.classes {
        let is_query = it.kind == ClassKind::Query;
        let of_query = |number: f64| {
            if is_query {
                short(number)
            } else {
                "-".to_owned()
            }
        };
        table.row([
            it.name.clone(),
            percent(it.share),
            micros(it.parts.work()),
            if is_thesis {
                "-".to_owned()
            } else {
                micros(it.latency_us)
            },
            if is_thesis {
                "-".to_owned()
            } else {
                of_query(it.servers)
            },
            of_query(it.regions),
            of_query(it.candidates),
            if is_thesis {
                "-".to_owned()
            } else {
                of_query(it.results)
            },
            if it.kind == ClassKind::Modification {
                short(it.chain)
            } else {
                "-".to_owned()
            },
            describe_access(it, is_thesis),
        ]);
    }
    table.render()
}

/// Describes where a query finds its objects.
pub fn describe_access(class: &ClassPrediction, is_thesis: bool) -> String {
    if class.kind != ClassKind::Query {
        return String::new();
    }
    let mut text = match &class.subspace {
        Some(list) => subspaces(std::slice::from_ref(list), is_thesis),
        None => "every server".to_owned(),
    };
    if let Some(index) = &class.index {
        text += &format!(", index of {index}");
    }
    text
}

/// Formats subspaces. In the thesis's model, attributes have no bits.
pub fn subspaces(lists: &[String], is_thesis: bool) -> String {
    if lists.is_empty() {
        return "none".to_owned();
    }
    let bare = |list: &String| {
        let names = list.split(',').map(|it| match it.rsplit_once(':') {
            Some((name, _)) if is_thesis => name,
            _ => it,
        });
        names.collect::<Vec<_>>().join(",")
    };
    lists.iter().map(bare).collect::<Vec<_>>().join(" ")
}

/// Describes how certain it is that no better configuration exists. With guessed costs or an incomplete workload,
/// nothing is called proven.
pub fn describe_proof(plan: &Plan) -> String {
    let proof = &plan.report.proof;
    let layouts = count(proof.layouts);
    let is_guessed = !plan.servers.guessed.is_empty();
    if !is_thesis(plan) && (is_guessed || plan.unrecorded > 0.0) {
        // A smaller gap is a rounding error.
        let by = if proof.gap > 1e-9 {
            format!(" by more than {}", percent(proof.gap))
        } else {
            String::new()
        };
        let (input, better) = if is_guessed {
            (
                "guessed costs",
                "measured costs may choose another (larder space calibrate)",
            )
        } else {
            ("a part of the workload", "the rest may choose another")
        };
        return format!(
            "by {input} no set of {layouts} possible subspaces is better{by}; {better}"
        );
    }
    if proof.is_exhaustive {
        return format!("all sets of {layouts} possible subspaces were tried: nothing is better");
    }
    if proof.is_proven {
        format!("proven: no set of {layouts} possible subspaces is better")
    } else {
        format!(
            "no set of {layouts} possible subspaces is better by more than {}",
            percent(proof.gap)
        )
    }
}

pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        it if it > 0.0 && it < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

fn micros(us: f64) -> String {
    duration(Duration::from_nanos((us * 1e3) as u64))
}

/// Formats a number with four decimals, like the thesis.
fn decimal(number: f64) -> String {
    format!("{number:.4}")
}

fn short(number: f64) -> String {
    match number {
        it if it >= 100.0 => count(it.round() as u64),
        it => format!("{it:.1}"),
    }
}
