//! The full duration: a load that met the agreement for seconds may miss it in a minute.
//!
//! When the confirming trial misses, the load is backed off by one, two, four ... (of the tolerance's size where that is more), then narrowed
//! between the last that missed and the first that met, all with the full duration.

use super::{Bench, End, Goal, Plan, Purpose};

/// The index of the experiment that confirms the rating; None where no load does.
pub fn confirm(bench: &mut Bench<'_>, found: Option<u64>) -> Result<Option<usize>, End> {
    let Some(load) = found else {
        return Ok(None);
    };
    let first = bench.run(load, Purpose::Confirm)?;
    if bench.experiments[first].verdict.met {
        return Ok(Some(first));
    }
    let full = bench.plan.sla.duration.as_secs_f64();
    let why = bench.experiments[first].verdict.why();
    bench.note(format!(
        "{load} did not hold for the full {full} s ({why}): backed off"
    ));
    let mut step = fine(bench.plan, load);
    let mut missed = load;
    let mut good = loop {
        if missed == 1 {
            let last = bench.experiments.last().expect("just run");
            let why = last.verdict.why();
            bench.note(format!(
                "even a load of 1 misses the agreement over the full duration: {why}"
            ));
            return Ok(None);
        }
        let load = missed.saturating_sub(step).max(1);
        let index = bench.run(load, Purpose::BackOff)?;
        if bench.experiments[index].verdict.met {
            break index;
        }
        missed = load;
        step *= 2;
    };
    loop {
        let load = bench.experiments[good].load;
        if missed - load <= fine(bench.plan, load) {
            return Ok(Some(good));
        }
        let load = load + (missed - load) / 2;
        let index = bench.run(load, Purpose::BackOff)?;
        if bench.experiments[index].verdict.met {
            good = index;
        } else {
            missed = load;
        }
    }
}

/// The smallest difference between loads that is worth an experiment.
fn fine(plan: &Plan, load: u64) -> u64 {
    match plan.goal {
        Goal::Soar => ((load as f64 * plan.tolerance) as u64).max(1),
        Goal::Socialites => 1,
    }
}
