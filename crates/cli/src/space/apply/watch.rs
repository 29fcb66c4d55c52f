//! `larder space apply --watch`: records the workload of a space in windows, plans for each, and applies worthwhile
//! plans.
//!
//! `larder_space::plan::Follower` decides which plans are worthwhile; this module records the windows.

use std::time::{Duration, Instant};

use larder_space::plan::{
    Configuration, Deployment, Follower, Options, Report, Threshold, Verdict, Window, Workload,
    plan,
};

use super::super::nodes::Nodes;
use super::super::record::{Recording, fetch_workload};
use super::super::{files, plan_text};
use super::ApplyArgs;
use super::change::{self, SpaceState, Target};
use super::summary::format_signed_percent;
use crate::failure::Failure;
use crate::{interrupt, output};

/// Planning must take only a small part of a window.
const PROOF_STEPS: u64 = 0;
const WINDOW_MAX: u64 = 86_400;

pub fn watch(args: &ApplyArgs, space: &str) -> Result<(), Failure> {
    if !(1..=WINDOW_MAX).contains(&args.window) {
        return Err(Failure::usage(format!(
            "--window {}: it is from 1 to {WINDOW_MAX} seconds",
            args.window
        )));
    }
    let path = args.deployment.as_ref();
    let deployment = files::read_deployment(path.ok_or_else(|| {
        Failure::usage("--watch takes --deployment, which `larder space calibrate` writes")
    })?)?;
    let nodes = Nodes::connect(&args.server)?;
    SpaceState::fetch_state(&nodes, space)?;
    interrupt::listen()?;
    for warning in plan_text::cost_warnings(&deployment) {
        output::print_line(&format!("warning: {warning}"))?;
    }
    let mut follower = Follower::new(Threshold {
        gain: f64::from(args.gain) / 100.0,
        windows: args.windows,
        ..Threshold::default()
    });
    loop {
        let Some((workload, seconds)) = record_window(&nodes, space, args.window)? else {
            return output::print_line(&format!("{space} is unchanged"));
        };
        let (line, target) = evaluate_window(
            &nodes,
            space,
            &deployment,
            &workload,
            seconds,
            &mut follower,
        )?;
        output::print_line(&line)?;
        match target {
            Some(target) if args.yes => {
                let state = SpaceState::fetch_state(&nodes, space)?;
                let started = state.filling.is_some();
                change::apply_target(&nodes, space, &target, started)?;
            }
            Some(_) => output::print_line("not applied: that takes --yes")?,
            None => {}
        }
    }
}

/// Records one window. Returns its workload and length, or `None` if it was interrupted.
fn record_window(
    nodes: &Nodes,
    space: &str,
    seconds: u64,
) -> Result<Option<(Workload, f64)>, Failure> {
    let _recording = Recording::begin(nodes, space, seconds)?;
    let (started, all) = (Instant::now(), Duration::from_secs(seconds));
    while let Some(left) = all.checked_sub(started.elapsed())
        && !left.is_zero()
    {
        if interrupt::is_interrupted() {
            return Ok(None);
        }
        interrupt::wait(left);
    }
    let workload = fetch_workload(nodes, space)?;
    Ok(Some((workload, started.elapsed().as_secs_f64())))
}

/// Prints the result of a window. Returns the plan to apply, if there is one.
fn evaluate_window(
    nodes: &Nodes,
    space: &str,
    deployment: &Deployment,
    workload: &Workload,
    seconds: f64,
    follower: &mut Follower,
) -> Result<(String, Option<Target>), Failure> {
    let state = SpaceState::fetch_state(nodes, space)?;
    if let Some(filling) = &state.filling {
        let other = plan_text::subspaces(&filling.subspaces, false);
        return Ok((format!("{space} is being given {other}: not planned"), None));
    }
    let operations = workload.frequency();
    if workload.check().is_err() {
        follower.step(None);
        return Ok((format!("{space}: nothing was done"), None));
    }
    // The objects may have outgrown `storage_bytes_max`. A later window may be planned again.
    let report = match plan_workload(&state, workload, deployment) {
        Ok(report) => report,
        Err(failure) => {
            follower.step(None);
            return Ok((format!("{space}: not planned: {failure}"), None));
        }
    };
    let target = Target {
        subspaces: report.chosen.subspaces.clone(),
        regions: deployment.regions,
        indexes: None,
    };
    let turnover = target.turnover(&state)?;
    let copies = state.objects * turnover.added.len() as u64;
    let chosen_us = report.chosen.parts.with_skew();
    let now_us = if turnover.added.is_empty() && turnover.removed.is_empty() {
        chosen_us
    } else {
        report
            .current
            .as_ref()
            .map_or(chosen_us, |it| it.parts.with_skew())
    };
    let window = Window {
        seconds,
        operations,
        now_us,
        best_us: chosen_us,
        move_us: copies as f64 * deployment.costs.copy_us(state.definition.indexed().count()),
    };
    let verdict = follower.step(Some(&window));
    let text = target.describe();
    let (message, is_change) = match verdict {
        Verdict::Idle => ("too few to decide".to_owned(), false),
        Verdict::Stay { gain } if now_us == chosen_us || gain <= 0.0 => {
            ("nothing better is worth the move".to_owned(), false)
        }
        Verdict::Stay { gain } => (
            format!("{} with {text}: too little", format_signed_percent(gain)),
            false,
        ),
        Verdict::Wait { gain, windows, of } => (
            format!(
                "{} with {text}: {windows} of {of} windows",
                format_signed_percent(gain)
            ),
            false,
        ),
        Verdict::Change { gain } => (
            format!("{} with {text}: now", format_signed_percent(gain)),
            true,
        ),
    };
    let line = format!("{} operations: {message}", output::count(operations as u64));
    Ok((line, is_change.then_some(target)))
}

fn plan_workload(
    state: &SpaceState,
    workload: &Workload,
    deployment: &Deployment,
) -> Result<Report, Failure> {
    let subspaces = state.definition.subspace_texts();
    let lists: Vec<&str> = subspaces.iter().map(String::as_str).collect();
    let regions = state.definition.layout.regions;
    // Plans do not contain subspaces with other cuts; then the plan is compared with having no subspaces.
    let current = Configuration::parse(&lists, workload, regions);
    let current = current.or_else(|_| Configuration::parse(&[], workload, regions));
    let current = current.map_err(|error| Failure::new(error.to_string()))?;
    let indexed = state.definition.indexed().map(|it| it.name.as_str());
    let current = current.with_indexes(indexed, workload);
    let options = Options {
        top: 1,
        random: 0,
        proof_steps: PROOF_STEPS,
        indexes: Some(current.indexes),
        ..Options::default()
    };
    plan(workload, deployment, Some(&current), &options).map_err(Failure::new)
}
