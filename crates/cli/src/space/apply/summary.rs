//! Formats the effects of a plan for a terminal.

use std::time::Duration;

use larder_space::plan::Prediction;
use larder_space::schema::{Shape, SubspaceChange};

use super::super::plan::Plan;
use super::super::plan_text;
use super::change::{SpaceState, format_names};
use crate::output::{Column, Table, bytes, count, duration};

/// Formats which subspaces are dropped, added and kept, their predicted cost, and the cost of the move.
pub fn summarize(
    space: &str,
    plan: &Plan,
    state: &SpaceState,
    turnover: &SubspaceChange,
    [added, dropped]: [&[String]; 2],
) -> String {
    let mut text = format!("{space}: {} objects\n", count(state.objects));
    let lists = [
        ("kept", &turnover.kept),
        ("added", &turnover.added),
        ("dropped", &turnover.removed),
    ];
    for (word, shapes) in lists {
        let name = |shape: &Shape| format!("\n{word:<7} {}", state.definition.shape_text(shape));
        text.extend(shapes.iter().map(name));
    }
    let report = &plan.report;
    text += &format!(
        "\n\n{}",
        format_comparison(report.current.as_ref(), &report.chosen)
    );
    let copies = state.objects * turnover.added.len() as u64;
    let copy_us = plan
        .servers
        .costs
        .copy_us(state.definition.indexed().count());
    let processor = Duration::from_micros((copies as f64 * copy_us) as u64);
    text += &format!(
        "\n\nto copy: {} objects, about {} of a processor, over all servers",
        count(copies),
        duration(processor),
    );
    if plan.deployment.is_none() {
        text += "; costs are guesses";
    }
    text += &plan_text::warning_lines(plan_text::warnings(plan));
    match (added.is_empty(), dropped.is_empty()) {
        (true, true) => text += "\nindexes stay as they are",
        (false, true) => text += &format!("\nadded indexes: {}", format_names(added)),
        (true, false) => text += &format!("\ndropped indexes: {}", format_names(dropped)),
        (false, false) => {
            text += &format!(
                "\nadded indexes: {}; dropped indexes: {}",
                format_names(added),
                format_names(dropped)
            );
        }
    }
    text
}

fn format_comparison(now: Option<&Prediction>, then: &Prediction) -> String {
    let mut table = match now {
        Some(_) => Table::new([
            Column::Text("predicted"),
            Column::Number("now"),
            Column::Number("then"),
        ]),
        None => Table::new([Column::Text("predicted"), Column::Number("then")]),
    };
    let mut row = |name: &str, of: &dyn Fn(&Prediction) -> String| {
        let numbers = now.into_iter().chain([then]).map(of);
        let cells: Vec<String> = [name.to_owned()].into_iter().chain(numbers).collect();
        table.row(cells);
    };
    row("ops/s", &|it| count(it.throughput as u64));
    row("latency", &|it| {
        duration(Duration::from_nanos((it.latency_us * 1e3) as u64))
    });
    row("servers of a query", &|it| format!("{:.1}", it.servers));
    row("servers of a write", &|it| format!("{:.1}", it.chain));
    row("memory of all copies", &|it| bytes(it.storage_bytes as u64));
    table.render()
}

/// Formats a gain or a loss, such as `+12 %`.
pub fn format_signed_percent(share: f64) -> String {
    if share < 0.0 {
        format!("-{}", plan_text::percent(-share))
    } else {
        format!("+{}", plan_text::percent(share))
    }
}
