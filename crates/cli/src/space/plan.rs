//! `larder space plan`: computes the best subspaces for a workload, with a cost model.
//!
//! `larder_space::plan` does the computation. This module reads a workload and a deployment, queries the current
//! subspaces, and outputs the report for a terminal (`told`), as JSON, and as a page (`picture`).

use std::path::{Path, PathBuf};

use clap::Args;
use larder_space::plan::{
    Configuration, Deployment, ModificationKind, Options, Report, Thesis, Workload, plan,
    plan_disjoint_by_thesis,
};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::nodes::Nodes;
use super::{files, plan_page, plan_text, record};
use crate::command_line::{parse_count, parse_percent};
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
    larder space plan --workload examples/hotels/workload.toml
    larder space plan --workload hotels.toml --deployment servers.toml --html plan.html
    larder space plan --workload hotels.toml --space hotels --json > plan.json && larder space apply plan.json
    larder space plan --workload hotels.toml --thesis --top 10
    larder space plan --workload recorded --space hotels

A workload describes the number of objects, the values of their attributes, and how often each attribute is searched and
changed: docs/guide/spaces-plan.md. Without --deployment, the plan assumes eight servers and rough estimates of the costs.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// The workload, a file in TOML; or `recorded`: the workload of --space that the server has recorded so far
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// The servers and their measured costs, a file in TOML
    #[arg(long, value_name = "FILE")]
    deployment: Option<PathBuf>,
    /// The number of best configurations to show
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = parse_count::<usize>)]
    top: usize,
    /// Choose the simplest configuration whose cost exceeds the best by at most this percentage, because the model errs by about a tenth
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = parse_percent)]
    tolerance: f64,
    /// Use the equations and constants of the underlying thesis, with no attribute in two subspaces
    #[arg(long, conflicts_with_all = ["deployment", "current", "tolerance"])]
    thesis: bool,
    /// Compare with the current subspaces of this space on the server
    #[arg(long, value_name = "NAME")]
    space: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Compare with these subspaces, such as 'city stars,price'
    #[arg(long, value_name = "LISTS", conflicts_with = "space")]
    current: Option<String>,
    /// With --space: also choose its local indexes, instead of keeping the current ones
    #[arg(long, requires = "space")]
    indexes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A plan with its inputs.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    /// The space whose subspaces it was compared with.
    pub space: Option<String>,
    /// The source of the workload.
    pub workload: String,
    /// The source of the deployment; `None`: the costs are guesses.
    pub deployment: Option<String>,
    pub objects: u64,
    /// The share of operations in classes that the recording of the workload omitted.
    #[serde(default)]
    pub unrecorded: f64,
    pub servers: Deployment,
    /// True if the plan chose the local indexes, instead of using the space's.
    #[serde(default)]
    pub chooses_indexes: bool,
    #[serde(flatten)]
    pub report: Report,
}

pub fn run(args: PlanArgs) -> Result<(), Failure> {
    let workload = match (is_recorded(&args.workload), &args.space) {
        (false, _) => files::read_workload(&args.workload)?,
        (true, Some(space)) => record::fetch_workload(&Nodes::connect(&args.server)?, space)?,
        (true, None) => {
            return Err(Failure::usage(
                "--workload recorded: name the recorded space with --space",
            ));
        }
    };
    let workload = name_classes(workload);
    let deployment = match &args.deployment {
        Some(path) => files::read_deployment(path)?,
        // Without `[costs]`, all costs are guesses.
        None => Deployment::from_toml("servers = 8").map_err(|it| Failure::new(it.to_string()))?,
    };
    let plan = compute_plan(&args, &workload, deployment)?;
    if let Some(path) = &args.html {
        std::fs::write(path, plan_page::page(&plan))
            .map_err(Failure::io(format!("write {}", path.display())))?;
    }
    if args.json {
        return output::print_json(&plan);
    }
    output::print_line(&plan_text::format_plan(&plan, &workload))?;
    match &args.html {
        Some(path) => output::print_line(&format!("\npicture: {}", path.display())),
        None => Ok(()),
    }
}

/// A file with this name is given as `./recorded`.
fn is_recorded(workload: &Path) -> bool {
    workload == Path::new("recorded")
}

/// Names unnamed classes after their conditions.
fn name_classes(mut workload: Workload) -> Workload {
    for class in workload.queries.iter_mut().filter(|it| it.name.is_empty()) {
        let values = class.equal.iter().cloned();
        let several = class.one_of.keys().map(|name| format!("{name} (several)"));
        let ranges = class.range.keys().map(|name| format!("{name} (range)"));
        let by: Vec<String> = values.chain(several).chain(ranges).collect();
        class.name = if by.is_empty() {
            "all objects".to_owned()
        } else {
            format!("by {}", by.join(", "))
        };
    }
    for class in (workload.modifications.iter_mut()).filter(|it| it.name.is_empty()) {
        class.name = match class.kind {
            ModificationKind::Create => "objects come".to_owned(),
            ModificationKind::Delete => "objects go".to_owned(),
            ModificationKind::Update if class.changes.is_empty() => {
                "nothing else changes".to_owned()
            }
            ModificationKind::Update => format!("{} changes", class.changes.join(", ")),
        };
    }
    workload
}

/// Scales frequencies to shares, which the thesis's model expects.
fn normalize_frequencies(workload: &Workload) -> Workload {
    let mut workload = workload.clone();
    let all = workload.frequency();
    if (0.99..1.01).contains(&all) {
        return workload;
    }
    workload.gets /= all;
    for class in &mut workload.queries {
        class.frequency /= all;
    }
    for class in &mut workload.modifications {
        class.frequency /= all;
    }
    workload
}

fn compute_plan(
    args: &PlanArgs,
    workload: &Workload,
    deployment: Deployment,
) -> Result<Plan, Failure> {
    let mut options = Options {
        top: args.top,
        tolerance: args.tolerance / 100.0,
        ..Options::default()
    };
    let report = if args.thesis {
        plan_disjoint_by_thesis(
            &normalize_frequencies(workload),
            Thesis::default(),
            &options,
        )
        .map_err(|error| error.to_string())
    } else {
        let current = current_configuration(args, workload, &deployment)?;
        // An existing space keeps its indexes.
        let keeps = args.space.is_some() && !args.indexes;
        let of_space = current.as_ref().filter(|_| keeps);
        options.indexes = of_space.map(|it| it.indexes);
        plan(workload, &deployment, current.as_ref(), &options)
    };
    let shown = |path: &Path| path.display().to_string();
    Ok(Plan {
        space: args.space.clone(),
        workload: shown(&args.workload),
        deployment: args.deployment.as_deref().map(shown),
        objects: workload.objects,
        unrecorded: workload.unrecorded / (workload.unrecorded + workload.frequency()),
        servers: deployment,
        chooses_indexes: !args.thesis && options.indexes.is_none(),
        report: report.map_err(Failure::new)?,
    })
}

/// Returns the current subspaces.
fn current_configuration(
    args: &PlanArgs,
    workload: &Workload,
    deployment: &Deployment,
) -> Result<Option<Configuration>, Failure> {
    let (lists, regions, indexed) = if let Some(name) = &args.space {
        let space = Layout::fetch(&Nodes::connect(&args.server)?, name)?;
        (space.subspaces, space.regions, Some(space.indexed))
    } else if let Some(lists) = &args.current {
        let lists = lists.split_whitespace().map(str::to_owned);
        (lists.collect(), deployment.regions, None)
    } else {
        return Ok(None);
    };
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    let current = Configuration::parse(&lists, workload, regions);
    let current = current.map(|current| match &indexed {
        None => current,
        Some(names) => current.with_indexes(names.iter().map(String::as_str), workload),
    });
    current.map(Some).map_err(|error| {
        Failure::new(format!(
            "the subspaces that there are now: {error}; the workload must name all of their attributes"
        ))
    })
}
