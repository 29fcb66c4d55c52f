//! Formats a plan as a self-contained HTML page with charts and tables.

use std::fmt::{self, Write as _};

use larder_page::chart::{Axis, MarkStyle, Point, Scale, Series, bars, plot};
use larder_page::figures::{count, escape, micros, number, short};
use larder_space::plan::{CostParts, Prediction};

use super::plan::Plan;
use super::plan_text::{
    clauses, compared_configurations, describe_access, describe_proof, is_simpler, is_thesis,
    percent, subspaces, warnings,
};
use crate::output::bytes;

pub fn page(plan: &Plan) -> String {
    let mut page = larder_page::head(&format!("Subspaces for {}", plan.workload));
    // Writing to a string cannot fail.
    let _ = head(&mut page, plan)
        .and_then(|()| charts(&mut page, plan))
        .and_then(|()| configurations(&mut page, plan))
        .and_then(|()| classes(&mut page, plan))
        .and_then(|()| shifts(&mut page, plan));
    page
}

fn head(out: &mut String, plan: &Plan) -> fmt::Result {
    let chosen = &plan.report.chosen;
    let lists = subspaces(&chosen.subspaces, is_thesis(plan));
    let title = if is_simpler(plan) {
        "Chosen subspaces"
    } else {
        "Best subspaces"
    };
    writeln!(out, "<h1>{title}: {}</h1>", escape(&lists))?;
    let by = if is_thesis(plan) {
        "by the thesis's model".to_owned()
    } else {
        format!(
            "on {} servers, {} of each object and copy, with {} clients",
            plan.servers.servers, plan.servers.replicas, plan.servers.clients
        )
    };
    writeln!(
        out,
        "<p class=sub>{} operations/s predicted for <code>{}</code> ({} objects) {by}; {}.</p>",
        count(chosen.throughput),
        escape(&plan.workload),
        count(plan.objects as f64),
        escape(&describe_proof(plan)),
    )?;
    if is_thesis(plan) {
        return Ok(());
    }
    if plan.deployment.is_none() {
        writeln!(
            out,
            "<p class=warning>The costs are estimates, suited only for comparisons; none was measured.</p>"
        )?;
    }
    for warning in warnings(plan) {
        writeln!(out, "<p class=warning>Warning: {}.</p>", escape(&warning))?;
    }
    writeln!(
        out,
        "<pre>FT.CREATE name {} SCHEMA ..</pre>",
        escape(&clauses(plan))
    )
}

fn charts(out: &mut String, plan: &Plan) -> fmt::Result {
    let axis = |title: &str, scale: Scale, label: fn(f64) -> String| Axis {
        title: title.to_owned(),
        scale,
        label,
    };
    let rate = || axis("max. operations/s", Scale::Linear, short);
    writeln!(out, "<h2>Comparison with other configurations</h2>")?;
    let rows = compared_configurations(plan);
    let named: Vec<(String, f64)> = (rows.iter())
        .filter(|(name, _)| name.parse::<u32>().is_err())
        .map(|(name, it)| (name.clone(), it.capacity))
        .collect();
    writeln!(out, "{}", bars("", &rate(), &named, "a"))?;
    let report = &plan.report;
    let heuristics: Vec<&Prediction> = (report.heuristics.iter())
        .map(|it| &it.prediction)
        .collect();
    let of = |predictions: Vec<&Prediction>, x: fn(&Prediction) -> f64| -> Vec<Point> {
        let point = |it: &Prediction| Point {
            x: x(it),
            y: it.capacity,
            description: format!(
                "{}: {} operations/s, {}",
                subspaces(&it.subspaces, is_thesis(plan)),
                count(it.capacity),
                micros(it.latency_us)
            ),
        };
        predictions.into_iter().map(point).collect()
    };
    let series = |x: fn(&Prediction) -> f64| {
        let one = |name: &str, class, style, predictions| Series {
            name: name.to_owned(),
            class,
            style,
            points: of(predictions, x),
        };
        [
            one(
                "random",
                "c",
                MarkStyle::Dots,
                report.random.iter().collect(),
            ),
            one("heuristics", "b", MarkStyle::Crosses, heuristics.clone()),
            one("best", "met", MarkStyle::Dots, report.top.iter().collect()),
            one(
                "now",
                "missed",
                MarkStyle::Rings,
                report.current.iter().collect(),
            ),
        ]
    };
    if !is_thesis(plan) {
        writeln!(out, "<h3>Latency and throughput</h3>")?;
        let latency = axis("mean latency", Scale::Log, micros);
        writeln!(
            out,
            "{}",
            plot(&latency, &rate(), &series(|it| it.latency_us))
        )?;
        writeln!(out, "<h3>Servers per query</h3>")?;
        let servers = axis("mean servers per query", Scale::Linear, number);
        writeln!(out, "{}", plot(&servers, &rate(), &series(|it| it.servers)))?;
    }
    writeln!(out, "<h3>Servers per modification</h3>")?;
    let chain = axis("mean chain length", Scale::Linear, number);
    writeln!(out, "{}", plot(&chain, &rate(), &series(|it| it.chain)))?;
    let parts = parts(&report.chosen.parts);
    if !parts.is_empty() {
        writeln!(out, "<h3>Time per operation with these subspaces</h3>")?;
        let time = axis("CPU time, all servers", Scale::Linear, micros);
        writeln!(out, "{}", bars("", &time, &parts, "b"))?;
    }
    Ok(())
}

/// Returns the parts that are not zero.
fn parts(parts: &CostParts) -> Vec<(String, f64)> {
    let all = [
        ("gets", parts.gets),
        ("queries", parts.queries),
        ("servers", parts.servers),
        ("regions", parts.regions),
        ("candidates", parts.candidates),
        ("results", parts.results),
        ("chain", parts.stages),
        ("moves", parts.moves),
        ("indexes", parts.index_entries),
        ("contention", parts.contention),
        ("skew", parts.skew),
    ];
    let some = all.into_iter().filter(|(_, time)| *time > 0.0);
    some.map(|(name, time)| (name.to_owned(), time)).collect()
}

fn configurations(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(
        out,
        "<h2>Configurations</h2><div class=wide><table><tr><th class=text><th>operations/s<th>max.<th>of best\
         <th>latency<th>chain<th>servers<th>regions<th>memory<th class=text>subspaces"
    )?;
    let best = plan.report.best.capacity;
    for (at, (name, it)) in compared_configurations(plan).into_iter().enumerate() {
        writeln!(
            out,
            "<tr{}><td class=name>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td class=text>{}",
            if at == 0 { " class=best" } else { "" },
            escape(&name),
            count(it.throughput),
            count(it.capacity),
            percent(it.capacity / best),
            micros(it.latency_us),
            number(it.chain),
            number(it.servers),
            number(it.regions),
            bytes(it.storage_bytes as u64),
            escape(&subspaces(&it.subspaces, is_thesis(plan))),
        )?;
    }
    writeln!(out, "</table></div>")?;
    if !is_simpler(plan) {
        return Ok(());
    }
    writeln!(
        out,
        "<p class=sub>Chosen is the simplest configuration that costs at most {} more than the best: the one with the fewest subspaces, and the fewest attributes in them.</p>",
        percent(plan.report.tolerance)
    )
}

fn classes(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(
        out,
        "<h2>Operation classes with these subspaces</h2><div class=wide><table><tr><th class=text>class<th>share<th>work<th>latency\
         <th>servers<th>regions<th>examined<th>returned<th>chain<th class=text>by"
    )?;
    for it in &plan.report.chosen.classes {
        writeln!(
            out,
            "<tr><td class=name>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td class=text>{}",
            escape(&it.name),
            percent(it.share),
            micros(it.parts.work()),
            micros(it.latency_us),
            number(it.servers),
            number(it.regions),
            number(it.candidates),
            number(it.results),
            number(it.chain),
            escape(&describe_access(it, is_thesis(plan))),
        )?;
    }
    writeln!(out, "</table></div>")
}

fn shifts(out: &mut String, plan: &Plan) -> fmt::Result {
    if plan.report.shifts.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<h2>Sensitivity</h2><p class=sub>The loss of these subspaces compared with the best ones if the mix of operations changes.</p>\
         <div class=wide><table><tr><th class=text>change<th>operations/s<th>best<th>loss<th class=text>with"
    )?;
    for shift in &plan.report.shifts {
        writeln!(
            out,
            "<tr><td class=name>{}<td>{}<td>{}<td>{}<td class=text>{}",
            escape(&shift.change),
            count(shift.throughput),
            count(shift.throughput_best),
            percent(shift.loss),
            escape(&subspaces(&shift.best, false)),
        )?;
    }
    writeln!(out, "</table></div>")
}
