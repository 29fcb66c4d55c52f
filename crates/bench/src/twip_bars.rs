//! The results of the join engine in process, compared with their targets.
//!
//! Each case runs in a process of its own, which isolates its memory. Cases take turns, so that changes in the
//! machine's speed affect all equally. The contents of timelines are verified: cases with the same load read the same
//! number of rows.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use serde_json::Value;

use crate::Result;
use crate::report::{self, median, spread};

#[derive(Args)]
pub struct TwipBarsArgs {
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A file with lines `follower followed`, run as an additional case
    #[arg(long)]
    edges: Option<PathBuf>,
    /// Write twip-in-process.md and twip-in-process.jsonl to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

struct Case {
    name: &'static str,
    args: Vec<String>,
    runs: Vec<Value>,
}

pub fn run(args: &TwipBarsArgs) -> Result<()> {
    let mut cases = vec![
        case("join", "twip"),
        case("join, text keys", "twip --text-keys"),
        case("pull", "twip --mode pull"),
        case("client fan-out", "twip --mode client-push"),
        case("auto", "twip --mode auto"),
        case("celebrities by hand", "twip --mode celebrity"),
        case("join, 40 MB", "twip --memory-limit 40"),
        case(
            "join, ten times the users",
            "twip --users 100000 --operations 5000000",
        ),
        case("karma", "karma"),
    ];
    if let Some(path) = &args.edges {
        let mut graph = case("join, graph of a file", "twip --edges");
        graph.args.push(path.display().to_string());
        cases.push(graph);
    }
    for round in 0..args.rounds {
        for case in &mut cases {
            eprintln!("round {}: {} ...", round + 1, case.name);
            case.run()?;
        }
    }
    same_rows(&cases)?;
    let raw: Vec<Value> = cases
        .iter()
        .flat_map(|case| {
            case.runs
                .iter()
                .map(|run| serde_json::json!({"case": case.name, "run": run}))
        })
        .collect();
    report::keep(
        args.out.as_deref(),
        "twip-in-process",
        &markdown(&cases),
        &raw,
    )
}

fn case(name: &'static str, args: &str) -> Case {
    Case {
        name,
        args: args.split(' ').map(str::to_owned).collect(),
        runs: Vec::new(),
    }
}

impl Case {
    fn run(&mut self) -> Result<()> {
        let output = Command::new(std::env::current_exe()?)
            .args(&self.args)
            .arg("--json")
            .output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", self.name, why.trim()).into());
        }
        self.runs.push(serde_json::from_slice(&output.stdout)?);
        Ok(())
    }

    fn figures(&self, of: impl Fn(&Value) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter_map(of).collect()
    }

    fn get(&self, name: &str) -> f64 {
        median(&self.figures(|run| run[name].as_f64()))
    }

    fn us_per_operation(&self) -> f64 {
        self.get("cpu_seconds") * 1e6 / self.get("operations")
    }
}

/// Checks that all cases with the default load read the same number of rows.
fn same_rows(cases: &[Case]) -> Result<()> {
    let load = |case: &Case| (case.get("users"), case.get("operations"));
    let first = &cases[0];
    for case in cases.iter().filter(|case| load(case) == load(first)) {
        if case.get("rows_read") != first.get("rows_read") {
            return Err(format!("{} read other rows than {}", case.name, first.name).into());
        }
    }
    Ok(())
}

fn markdown(cases: &[Case]) -> String {
    let mut text = format!(
        "# Twip and karma, in process\n\nThe join engine alone, one core, {} rounds.\n\ncommand: `{}`\n\n\
         | case | CPU s | us/op | rows read | rows | engine MB | resident MB | evicted |\n|---|---|---|---|---|---|---|---|\n",
        cases[0].runs.len(),
        report::command()
    );
    let find = |name: &str| {
        cases
            .iter()
            .find(|case| case.name == name)
            .expect("it is a case")
    };
    for case in cases.iter().filter(|case| case.name != "karma") {
        text += &format!(
            "| {} | {} | {:.2} | {} | {} | {:.1} | {:.1} | {} |\n",
            case.name,
            spread(&case.figures(|run| run["cpu_seconds"].as_f64()), 2),
            case.us_per_operation(),
            case.get("rows_read"),
            case.get("rows"),
            case.get("engine_bytes") / 1e6,
            case.get("resident_bytes") / 1e6,
            case.get("evicted")
        );
    }
    let karma = find("karma");
    let ns = |name: &str| spread(&karma.figures(|run| run[name].as_f64()), 0);
    text += &format!(
        "\n| karma | ns a vote |\n|---|---|\n| counted in bulk, by one read | {} |\n| counted one by one, with the put, anywhere | {} |\n| the same, votes for an article together | {} |\n",
        ns("bulk_ns"),
        ns("live_ns"),
        ns("live_together_ns")
    );
    text += "\n| | measured | bar | |\n|---|---|---|---|\n";
    let (join, limited) = (find("join"), find("join, 40 MB"));
    let ten = find("join, ten times the users");
    let bars = [
        ("500,000 operations, CPU s", join.get("cpu_seconds"), 1.0),
        (
            "memory of 1.71M rows (resident, scaled from the rows there), MB",
            join.get("resident_bytes") / join.get("rows") * 1.71,
            80.0,
        ),
        ("as pull, CPU s", find("pull").get("cpu_seconds"), 3.0),
        (
            "auto, against the join",
            find("auto").get("cpu_seconds") / join.get("cpu_seconds"),
            1.0,
        ),
        (
            "celebrities by hand, against the join",
            find("celebrities by hand").get("cpu_seconds") / join.get("cpu_seconds"),
            1.0,
        ),
        (
            "a live count update, us, votes for an article together",
            karma.get("live_together_ns") / 1e3,
            0.15,
        ),
        (
            "a live count update, us, votes anywhere",
            karma.get("live_ns") / 1e3,
            0.15,
        ),
        (
            "most memory under a limit, against it",
            limited.get("engine_bytes_max") / 40e6,
            1.05,
        ),
        (
            "ten times the users, time per operation",
            ten.us_per_operation() / join.us_per_operation(),
            1.3,
        ),
    ];
    for (name, measured, bar) in bars {
        let met = if measured <= bar { "met" } else { "missed" };
        text += &format!("| {name} | {measured:.2} | <= {bar} | {met} |\n");
    }
    text += "\nTime is the process's CPU time of the timed part; resident memory is the process's, with the client's graph and lists.\n";
    text
}
